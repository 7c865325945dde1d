"""A client in a round: its data, networks and randomness."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedrc_flwr import privacy
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.bank import ModelBank
from fedrc_flwr.data.scenario import Split
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.sgd import LocalSettings
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import FirstPass


@dataclass
class ClientRuntime:
    """One client in one round: its samples, its networks on their device, and its randomness.

    ``confusion`` says whether it sends counts of its predictions when it is evaluated.
    """

    name: str
    role: str
    bank: ModelBank
    fit: Split
    test: Split
    classes: int
    noise: float
    rng: np.random.Generator
    noise_rng: np.random.Generator = field(default_factory=privacy.secret_generator)
    confusion: bool = False
    first_pass: FirstPass | None = None  # forward pass of the E-step, if training reuses it
    alone: bool = False  # whether there is one model, so that no E-step needs a pass of its own
    logits: Tensor | None = None  # of that model, on each sample when it was first trained on

    def tensors(self, split: Split) -> tuple[Tensor, Tensor]:
        """Inputs and labels on the device."""
        device = self.bank.device
        return torch.from_numpy(split.inputs).to(device), torch.from_numpy(split.labels).to(device)


@dataclass(frozen=True)
class Step:
    """What a client works with in a round of training.

    ``losses`` are those of the broadcast's networks on the fit part, (N, K); zeros where there is
    one network, which gets all samples whatever its losses are.
    """

    broadcast: Broadcast
    state: ClientState
    client: ClientRuntime
    losses: Floats

    @property
    def labels(self) -> Labels:
        """The labels of the fit part, (N,)."""
        return self.client.fit.labels

    def emphasis(self, settings: LocalSettings) -> Floats:
        """How much each sample counts in each cluster's training because of its label, (N, K)."""
        return settings.emphasis(self.broadcast.label_prior)[:, self.labels].T

    def everywhere(self, weights: Floats) -> tuple[Floats, ClientState]:
        """The same weights for all samples, (N, K), and a state with these weights."""
        responsibilities = np.repeat(weights[None, :], len(self.losses), axis=0)
        return responsibilities, replace(self.state, mixture_weights=weights)
