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

from fedrc_flwr.inference.trained import Trained, as_tensor
from fedrc_flwr.inference.weights import Weights

#: Clusters with a smaller weight are left out: no probability changes by more than their sum.
NEGLIGIBLE = 1e-7


class Mixture(nn.Module):
    """The weighted mean of several networks' probabilities, (N, ...) to (N, C)."""

    def __init__(
        self, body: nn.Module | None, units: list[nn.Module], weights: list[float]
    ) -> None:
        super().__init__()
        self.body = body
        self.units = nn.ModuleList(units)
        self.weights = weights

    def forward(self, inputs: Tensor) -> Tensor:
        """Probabilities."""
        features = inputs if self.body is None else self.body(inputs)
        parts = [
            weight * torch.softmax(unit(features), dim=-1)
            for weight, unit in zip(self.weights, self.units, strict=True)
        ]
        return torch.stack(parts).sum(dim=0)


def personal_module(trained: Trained, weights: Weights, hard: bool) -> Mixture:
    """The network of one client; if ``hard``, its likeliest cluster alone."""
    values = weights.values
    if hard:
        values = np.zeros_like(values)
        values[int(weights.values.argmax())] = 1.0
    kept = [int(k) for k in np.flatnonzero(values > NEGLIGIBLE)]
    bank = trained.bank
    bank.train_mode(False)
    return Mixture(
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
    probabilities : float32 inputs (N, ...) to float32 probabilities (N, C)
    platform : what runs it, as the server reports it
    """

    input_shape: tuple[int, ...]
    classes: int
    probabilities: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    platform: str


def personal(trained: Trained, weights: Weights, hard: bool) -> Personal:
    """The model of one client, from a checkpoint and its weights."""
    module = personal_module(trained, weights, hard)
    run = torch_runner(module, trained.bank.device)
    return Personal(trained.input_shape, trained.classes, run, "pytorch")


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
