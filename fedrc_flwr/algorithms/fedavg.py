"""FedAvg (McMahan et al. 2017): one model for all clients (K = 1)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.state import ClientState


class FedAvg(ClusteredAlgorithm):
    """There is one cluster and every sample belongs to it."""

    name = "fedavg"
    title = "FedAvg"
    Settings: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """All samples to the one model."""
        return step.everywhere(np.ones(1))

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """The one model."""
        return np.ones(1)
