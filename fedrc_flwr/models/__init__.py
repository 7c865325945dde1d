"""Networks by name. Each is a body (feature extractor) and a head (classifier)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedrc_flwr.config import RunConfig


class SplitModel(nn.Module):
    """A network whose penultimate features can be had, and whose body can be shared."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, (N, C)."""
        logits: Tensor = self.head(self.body(inputs))
        return logits


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int) -> SplitModel:
    """Three layers: two hidden ones of ``hidden`` units."""
    size = int(torch.Size(input_shape).numel())
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
    )
    return SplitModel(body, nn.Linear(hidden, classes))


def build_model(
    config: RunConfig, input_shape: tuple[int, ...], classes: int, seed: int
) -> SplitModel:
    """The configured network with initial parameters drawn from ``seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(input_shape, classes, config.hidden)
