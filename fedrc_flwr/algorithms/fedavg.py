"""FedAvg (McMahan et al. 2017): one model for everybody, K = 1 of the same machinery."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrc_flwr.algorithms.base import Broadcast, ClusteredAlgorithm
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.state import ClientState


class FedAvg(ClusteredAlgorithm):
    """There is one cluster and every sample belongs to it."""

    name = "fedavg"

    def expectation(
        self,
        losses: Floats,
        labels: Labels,
        broadcast: Broadcast,
        state: ClientState,
        rng: np.random.Generator,
    ) -> tuple[Floats, ClientState]:
        """All samples to the one model."""
        return np.ones_like(losses), replace(state, mixture_weights=np.ones(1))

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """The one model."""
        return np.ones(1)
