"""FeSEM (Long et al. 2023): each client trains the cluster whose model is nearest to its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrc_flwr.algorithms.base import Broadcast, ClientRuntime
from fedrc_flwr.algorithms.ifca import IFCA
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientState

LOCAL = "local"  # the network that a client ended its last training with


class FeSEM(IFCA):
    """Like IFCA, but chosen by distance of parameters; an observer goes by loss, as IFCA's do."""

    name = "fesem"
    trains_scored = False  # the first choice is drawn before the batches are

    def expectation(
        self,
        losses: Floats,
        labels: Labels,
        broadcast: Broadcast,
        state: ClientState,
        rng: np.random.Generator,
    ) -> tuple[Floats, ClientState]:
        """All samples to the nearest cluster; to a random one before the first training."""
        local = state.vectors.get(LOCAL)
        weights = np.zeros(losses.shape[1])
        if local is None:
            weights[rng.integers(len(weights))] = 1.0
        else:
            count = broadcast.parameters  # running statistics would outweigh them
            weights[nearest(local[:count], [model[:count] for model in broadcast.models])] = 1.0
        responsibilities = np.repeat(weights[None, :], len(losses), axis=0)
        return responsibilities, replace(state, mixture_weights=weights)

    def maximisation(
        self,
        broadcast: Broadcast,
        state: ClientState,
        client: ClientRuntime,
        responsibilities: Floats,
    ) -> tuple[dict[int, Vector], ClientState]:
        """Train the chosen cluster's model and keep a copy of the result."""
        updates, state = super().maximisation(broadcast, state, client, responsibilities)
        chosen = int(state.mixture_weights.argmax())
        return updates, replace(state, vectors={LOCAL: broadcast.models[chosen] + updates[chosen]})


def nearest(local: Vector, models: list[Vector]) -> int:
    """Position of the model with the smallest L2 distance; the first of equals."""
    distances = [float(np.linalg.norm(np.subtract(local, m, dtype=np.float64))) for m in models]
    return int(np.argmin(distances))
