"""One client's model: inputs to probabilities, with its mixture weights built in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedrc_flwr.data.encoding import FURTHEST
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.inference.trained import Trained, as_tensor
from fedrc_flwr.inference.weights import Weights

#: Clusters with a smaller weight are left out: no probability changes by more than their sum.
NEGLIGIBLE = 1e-7


class Scaling(nn.Module):
    """What a schema does to arrays, as ``Schema.scaled``: missing numbers become the centre."""

    centre: Tensor
    scale: Tensor

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor(schema.centre))
        self.register_buffer("scale", torch.tensor(schema.scale))

    def forward(self, inputs: Tensor) -> Tensor:
        """Arrays of the same shape (N, ...), centred and scaled."""
        moved = ((inputs - self.centre) / self.scale).clamp(-FURTHEST, FURTHEST)
        return torch.where(torch.isnan(moved), torch.zeros_like(moved), moved)


class Mixture(nn.Module):
    """The weighted mean of several networks' probabilities, (N, ...) to (N, C)."""

    def __init__(
        self,
        scaling: Scaling | None,
        body: nn.Module | None,
        units: list[nn.Module],
        weights: list[float],
    ) -> None:
        super().__init__()
        self.scaling = scaling
        self.body = body
        self.units = nn.ModuleList(units)
        self.weights = weights

    def forward(self, inputs: Tensor) -> Tensor:
        """Probabilities."""
        if self.scaling is not None:
            inputs = self.scaling(inputs)
        features = inputs if self.body is None else self.body(inputs)
        parts = [
            weight * torch.softmax(unit(features), dim=-1)
            for weight, unit in zip(self.weights, self.units, strict=True)
        ]
        return torch.stack(parts).sum(dim=0)


def personal_module(trained: Trained, weights: Weights, hard: bool) -> Mixture:
    """The network of one client; if ``hard``, its likeliest cluster alone.

    It takes arrays as the clients hold them, and rows of a table as the schema encodes them.
    """
    values = weights.values
    if hard:
        values = np.zeros_like(values)
        values[int(weights.values.argmax())] = 1.0
    kept = [int(k) for k in np.flatnonzero(values > NEGLIGIBLE)]
    bank = trained.bank
    bank.train_mode(False)
    schema = trained.schema
    return Mixture(
        None if schema.is_table or schema.plain else Scaling(schema).to(bank.device),
        None if bank.body is None else _detached(bank.body.module),
        [_detached(bank.units[k].module) for k in kept],
        [float(values[k]) for k in kept],
    ).eval()


def _detached(module: nn.Module) -> nn.Module:
    """A copy with separate tensors instead of views of a flat vector, without gradients."""
    own = copy.deepcopy(module).requires_grad_(False)
    for parameter in own.parameters():
        parameter.grad = None
    for part in own.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.clone()
    return own


@dataclass(frozen=True)
class Personal:
    """A client's model from any source: a function and its shapes.

    Parameters
    ----------
    schema : what raw samples look like, and the names of the classes
    probabilities : float32 arrays, or encoded rows of a table, (N, ...), to float32 (N, C)
    platform : what runs it, as the server reports it
    """

    schema: Schema
    probabilities: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    platform: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.schema.input_shape

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.schema.classes)


def personal(trained: Trained, weights: Weights, hard: bool) -> Personal:
    """The model of one client, from a checkpoint and its weights."""
    module = personal_module(trained, weights, hard)
    run = torch_runner(module, trained.bank.device)
    return Personal(trained.schema, run, "pytorch")


def torch_runner(
    module: Callable[..., Any], device: torch.device
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """A torch module as a function on arrays."""

    @torch.inference_mode()
    def run(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        tensor = as_tensor(inputs).to(device)
        probabilities: NDArray[np.float32] = module(tensor).float().cpu().numpy()
        return probabilities

    return run
