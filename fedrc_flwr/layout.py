"""A network as one flat vector, to be sent, summed and updated as a whole."""

from __future__ import annotations

import hashlib
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedrc_flwr.errors import WireError

Vector = NDArray[np.float32]


class FlatModule:
    """A module whose parameters and floating-point buffers are views of one vector.

    Parameters come first, so that ``gradient`` matches the beginning of the vector. Integer buffers
    (BatchNorm's counter) are not part of it: they are never sent or averaged. Gradients are left
    where autograd puts them, because gathering them would cost another pass over memory in every
    step.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device=device, dtype=torch.float32)
        parameters = list(module.named_parameters())
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        entries = [(name, tensor.detach()) for name, tensor in parameters + buffers]
        self.vector = (
            torch.cat([tensor.reshape(-1) for _, tensor in entries])
            if entries
            else torch.zeros(0, device=device)
        )
        #: What was loaded last, not a copy; at first the module's own values.
        self.loaded: Vector = self.vector.cpu().numpy().copy()
        self.parameters = [parameter for _, parameter in parameters]
        self.parameter_count = count_parameters(module)
        #: The parameters' parts of the vector, without their gradients.
        self.values = self.views(self.vector)
        for parameter, view in zip(self.parameters, self.values, strict=True):
            parameter.data = view
        rest = torch.split(self.vector[self.parameter_count :], [b.numel() for _, b in buffers])
        for (name, buffer), view in zip(buffers, rest, strict=True):
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner)._buffers[attribute] = view.view_as(buffer)

    @property
    def trainable(self) -> Tensor:
        """The parameters' part of the vector."""
        return self.vector[: self.parameter_count]

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parameters' parts of a vector of this layout, in their shapes."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = torch.split(vector[: self.parameter_count], sizes)
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def clear_gradient(self) -> None:
        """Reset the gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    def gradient(self) -> Tensor:
        """A copy of the gradient, in the order of the vector."""
        parts = [
            (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.parameters
        ]
        return torch.cat(parts) if parts else self.trainable.clone()

    def load(self, vector: Vector) -> None:
        """Load another vector of the same layout."""
        if vector.shape != tuple(self.vector.shape):
            raise WireError(
                f"a vector of shape {vector.shape} for a network of {len(self.vector)} numbers"
            )
        self.vector.copy_(as_tensor(vector))
        self.loaded = vector

    def start(self) -> list[Tensor]:
        """The parameters' parts of what was loaded last."""
        return self.views(as_tensor(self.loaded).to(self.vector.device))


def as_tensor(vector: Vector) -> Tensor:
    """A vector without a copy, to be read only: it may be shared memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(vector)


def fingerprint(module: nn.Module, shared_body: bool) -> str:
    """A fingerprint of a network's layout; two sides with the same one can exchange vectors."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    shapes = [(name, tuple(t.shape)) for name, t in tensors if t.is_floating_point()]
    return hashlib.sha256(repr((shapes, shared_body)).encode()).hexdigest()[:16]


def count_parameters(module: nn.Module) -> int:
    """How many numbers of a module's vector are parameters; the rest are running statistics."""
    return sum(parameter.numel() for parameter in module.parameters())


def to_vector(module: nn.Module) -> Vector:
    """A copy of a module's parameters and floating-point buffers, in the order of FlatModule."""
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    if not tensors:
        return np.zeros(0, dtype=np.float32)
    return torch.cat([t.detach().float().reshape(-1) for t in tensors]).cpu().numpy()
