"""Networks by name. Each is a body (feature extractor) and a head (classifier)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models.own import own_network, try_network
from fedrc_flwr.models.small import cnn, mlp
from fedrc_flwr.models.split import SplitModel
from fedrc_flwr.plugins import is_reference, located_reference
from fedrc_flwr.settings import key

__all__ = ["MODELS", "ModelSettings", "SplitModel", "build_model", "check_model"]
MODELS = ("mlp", "cnn", "mobilenet-v2", "resnet18")
VISION = ("mobilenet-v2", "resnet18")


@dataclass(frozen=True)
class ModelSettings:
    """The network that is trained."""

    network: str = key(
        "",
        "The network: `mlp`, `cnn`, `mobilenet-v2`, `resnet18`, or your own "
        "`package.module:function` or `file.py:function`, called with `input_shape` and "
        "`classes`. Empty: `cnn` for images of at least 16 x 16 pixels, else `mlp`.",
        common=True,
    )
    hidden: int = key(64, "Hidden units of the `mlp`.", low=1, high=65_536, common=True)
    standardise: bool = key(
        False,
        "The `mlp` subtracts each sample's mean and divides by its standard deviation, as the "
        "`cnn` always does. Meant for images.",
    )
    width: float = key(
        1.0,
        "Size of the layers of the `cnn`: 1 is the paper's; 0.25 has a quarter of its channels and "
        "dense units, at a fourteenth of the arithmetic.",
        above=0.0,
        high=8.0,
    )
    weights: str = key(
        "",
        "File with initial weights of the backbone of `mobilenet-v2` or `resnet18`, read by the "
        "server. Empty: random.",
    )
    small_stem: bool = key(
        False,
        "`mobilenet-v2` and `resnet18` halve the image less often, for about 32 x 32 pixels.",
    )
    norm: str = key(
        "batch", "Normalisation of `mobilenet-v2` and `resnet18`.", choices=("batch", "group")
    )
    mixed_precision: bool = key(
        False, "Run the networks in bfloat16: faster on GPUs and on CPUs with AVX-512 BF16 or AMX."
    )

    def __post_init__(self) -> None:
        if self.network and self.network not in MODELS and not is_reference(self.network):
            raise ConfigError(
                f"model.network = {self.network!r}: expected {', '.join(MODELS)}, or a function of "
                "yours as package.module:function or file.py:function"
            )
        if self.weights and self.network not in VISION:
            raise ConfigError(
                f"model.weights = {self.weights!r}: only for model.network = "
                f"{' or '.join(VISION)}, which is {self.network!r} here"
            )

    def located(self) -> ModelSettings:
        """The same with absolute paths: the app runs in another directory."""
        weights = str(Path(self.weights).expanduser().resolve()) if self.weights else ""
        return replace(self, weights=weights, network=located_reference(self.network))

    def reduced_precision(self) -> bool:
        """Whether the networks run in bfloat16."""
        return self.mixed_precision

    def named(self) -> str:
        """The network's name, where no sample is at hand."""
        return self.network or "network chosen by the data"

    def chosen(self, input_shape: tuple[int, ...]) -> str:
        """The network's name: as set, or by the shape of a sample."""
        image = len(input_shape) >= 2 and min(input_shape[-2:]) >= 16
        return self.network or ("cnn" if image else "mlp")


def build_model(
    settings: ModelSettings,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    weights: bool = True,
) -> SplitModel:
    """The configured network with initial parameters drawn from ``seed`` alone.

    Parameters
    ----------
    weights : whether ``model.weights`` is read; clients do not need it, because they receive their
        parameters
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also note the seed, with a stack trace, for every kind of device
        # that this machine lacks: many times the work, and memory that is never freed.
        torch.default_generator.manual_seed(seed)
        name = settings.chosen(input_shape)
        if name == "mlp":
            return mlp(input_shape, classes, settings.hidden, settings.standardise)
        if name == "cnn":
            return cnn(input_shape, classes, settings.width)
        if name in VISION:
            from fedrc_flwr.models import vision

            build = vision.resnet18 if name == "resnet18" else vision.mobilenet_v2
            path = settings.weights if weights else ""
            return build(input_shape, classes, settings.norm, settings.small_stem, path)
        return own_network(name, input_shape, classes)


def check_model(settings: ModelSettings, input_shape: tuple[int, ...], classes: int) -> None:
    """Refuse an own network that does not work, before anything starts."""
    name = settings.chosen(input_shape)
    if is_reference(name):
        try_network(name, build_model(settings, input_shape, classes, seed=0), input_shape, classes)
