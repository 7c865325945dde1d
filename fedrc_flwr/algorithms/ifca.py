"""IFCA (Ghosh et al. 2020): each client trains the one model that has the smallest loss on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrc_flwr.algorithms.base import Broadcast, ClusteredAlgorithm
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.state import ClientState


class IFCA(ClusteredAlgorithm):
    """A cluster's update is the mean over the clients that chose it."""

    name = "ifca"
    absent_is_zero = False
    trains_scored = True

    def expectation(
        self,
        losses: Floats,
        labels: Labels,
        broadcast: Broadcast,
        state: ClientState,
        rng: np.random.Generator,
    ) -> tuple[Floats, ClientState]:
        """All samples to the chosen cluster."""
        weights = self.assign(losses, labels, broadcast)
        responsibilities = np.repeat(weights[None, :], len(losses), axis=0)
        return responsibilities, replace(state, mixture_weights=weights)

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """The cluster with the smallest mean loss; the first of equals."""
        weights = np.zeros(losses.shape[1])
        weights[losses.mean(axis=0).argmin()] = 1.0
        return weights
