"""A network in two parts."""

from __future__ import annotations

from torch import Tensor, nn


class SplitModel(nn.Module):
    """A network with a body (feature extractor), which can be shared, and a head."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, (N, C)."""
        logits: Tensor = self.head(self.body(inputs))
        return logits
