"""The K networks of a process, on its device."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.layout import FlatModule, Vector, fingerprint
from fedrc_flwr.models import SplitModel
from fedrc_flwr.models.small import Blocked, Standardise

_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
#: Modules that compute the same in training and in evaluation. Any other may have a dropout inside.
_MODELESS = {
    SplitModel, Blocked, Standardise, nn.Sequential, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.Linear, nn.Embedding,
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm, nn.ReLU, nn.ReLU6,
    nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU,
}  # fmt: skip


class ModelBank:
    """K networks, or one body with K heads, built once per process and loaded each round."""

    def __init__(
        self,
        models: list[SplitModel],
        device: torch.device,
        shared_body: bool = False,
        mixed_precision: bool = False,
    ) -> None:
        self.device = device
        self.layout = fingerprint(models[0], shared_body)
        self.mixed_precision = mixed_precision
        self.body = FlatModule(models[0].body, device) if shared_body else None
        self.units = [FlatModule(m.head if shared_body else m, device) for m in models]
        # All networks have the same layout.
        self.batch_norm = any(isinstance(part, _BATCH_NORM) for part in models[0].modules())
        self.modeless = all(type(part) in _MODELESS for part in models[0].modules())

    def load(self, vectors: list[Vector], body: Vector | None) -> None:
        """Set the parameters of the first ``len(vectors)`` clusters; more networks are made."""
        while len(self.units) < len(vectors):
            self.units.append(FlatModule(copy.deepcopy(self.units[0].module), self.device))
        for unit, vector in zip(self.units, vectors, strict=False):
            unit.load(vector)
        if self.body is not None and body is not None:
            self.body.load(body)

    def features_and_logits(
        self, inputs: Tensor, clusters: list[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Penultimate features and logits of each cluster in turn."""
        shared = None if self.body is None else self.body.module(inputs)
        for k in clusters:
            module = self.units[k].module
            if shared is not None:
                yield shared, module(shared)
            elif isinstance(module, SplitModel):
                features = module.body(inputs)
                yield features, module.head(features)

    def train_mode(self, on: bool) -> None:
        """Switch dropout and normalisation between training and evaluation."""
        for unit in [*self.units, *([] if self.body is None else [self.body])]:
            unit.module.train(on)

    def batch_statistics(self, on: bool) -> None:
        """Whether BatchNorm uses the batch's own mean and variance, or the running ones."""
        for unit in [*self.units, *([] if self.body is None else [self.body])]:
            for part in unit.module.modules():
                if isinstance(part, _BATCH_NORM):
                    part.train(on)

    def precision(self) -> contextlib.AbstractContextManager[object]:
        """bfloat16 with mixed precision."""
        if not self.mixed_precision:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def choose_device(name: str) -> torch.device:
    """The device of that name; ``auto`` or empty: a GPU if there is one."""
    if name in ("", "auto"):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(
            f"device = {name!r}: expected one that this machine has: cpu, cuda or cuda:N"
        ) from None
