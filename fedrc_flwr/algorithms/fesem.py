"""FeSEM (Long et al. 2023): each client trains the cluster whose model is nearest to its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrc_flwr.algorithms.ifca import HardChoice
from fedrc_flwr.algorithms.settings import SharedBodySettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientState

LOCAL = "local"  # the network that a client ended its last training with


class FeSEM(HardChoice):
    """Like IFCA, but chosen by distance between parameters; observers choose by loss."""

    name = "fesem"
    title = "FeSEM"
    Settings = SharedBodySettings
    trains_scored = False  # the first cluster is drawn before the batches

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """All samples to the nearest cluster; to a random one before the first training."""
        local, broadcast = step.state.vectors.get(LOCAL), step.broadcast
        weights = np.zeros(step.losses.shape[1])
        if local is None:
            weights[step.client.rng.integers(len(weights))] = 1.0
        else:
            count = broadcast.parameters  # running statistics would dominate the distance
            weights[nearest(local[:count], [model[:count] for model in broadcast.models])] = 1.0
        return step.everywhere(weights)

    def maximisation(
        self, step: Step, responsibilities: Floats
    ) -> tuple[dict[int, Vector], ClientState]:
        """Train the chosen cluster's model and keep a copy of the result."""
        updates, state = super().maximisation(step, responsibilities)
        chosen = int(state.mixture_weights.argmax())
        trained = step.broadcast.models[chosen] + updates[chosen]
        return updates, replace(state, vectors={LOCAL: trained})


def nearest(local: Vector, models: list[Vector]) -> int:
    """Position of the model with the smallest L2 distance; the first one if several are equal."""
    distances = [float(np.linalg.norm(np.subtract(local, m, dtype=np.float64))) for m in models]
    return int(np.argmin(distances))
