"""Networks by name. Each is a body (feature extractor) and a head (classifier)."""

from __future__ import annotations

import torch
from torch import nn

from fedrc_flwr.config import RunConfig
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.keys import MODELS
from fedrc_flwr.models.small import cnn, mlp
from fedrc_flwr.models.split import SplitModel
from fedrc_flwr.plugins import is_reference, load_function

__all__ = ["MODELS", "SplitModel", "build_model"]


def build_model(
    config: RunConfig,
    input_shape: tuple[int, ...],
    classes: int,
    seed: int,
    weights: bool = True,
) -> SplitModel:
    """The configured network with initial parameters drawn from ``seed`` alone.

    Parameters
    ----------
    weights : whether ``model-weights`` is read; a client, whose parameters come by wire, needs no
        such file
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        path = config.model_weights if weights else ""
        if config.model == "mlp":
            return mlp(input_shape, classes, config.hidden, config.standardise)
        if config.model == "cnn":
            return cnn(input_shape, classes, config.width)
        if config.model in ("mobilenet-v2", "resnet18"):
            from fedrc_flwr.models import vision

            build = vision.resnet18 if config.model == "resnet18" else vision.mobilenet_v2
            return build(input_shape, classes, config.norm, config.small_stem, path)
        if is_reference(config.model):
            return _own(config.model, input_shape, classes)
    raise ConfigError(f"model = {config.model!r}: expected {', '.join(MODELS)}")


def _own(reference: str, input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """The user's network: called with ``input_shape`` and ``classes``, split into body and head."""
    build = load_function("model", reference)
    try:
        model = build(input_shape=input_shape, classes=classes)
    except Exception as error:
        raise ConfigError(
            f"model = {reference!r}: the function failed with {type(error).__name__}: {error}"
        ) from error
    if isinstance(model, SplitModel):
        return model
    body, head = getattr(model, "body", None), getattr(model, "head", None)
    if not isinstance(body, nn.Module) or not isinstance(head, nn.Module):
        raise ConfigError(
            f"model = {reference!r}: the function returned {type(model).__name__}, expected a "
            "SplitModel or a module whose `body` and `head` are modules"
        )
    return SplitModel(body, head)
