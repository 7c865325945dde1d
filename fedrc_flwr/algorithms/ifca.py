"""IFCA (Ghosh et al. 2020): each client trains the one model that has the smallest loss on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.discovering import Discovering, DiscoverySettings
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.algorithms.settings import AlgorithmSettings, SharedBodySettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.state import ClientState


class HardChoice(ClusteredAlgorithm):
    """A client trains and predicts with one model, and a cluster is the mean of its clients."""

    absent_is_zero = False
    trains_scored = True

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """All samples to the chosen cluster."""
        return step.everywhere(self.assign(step.losses, step.labels, step.broadcast))

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """The cluster with the smallest mean loss; the first one if several are equal."""
        weights = np.zeros(losses.shape[1])
        weights[losses.mean(axis=0).argmin()] = 1.0
        return weights


@dataclass(frozen=True)
class IFCASettings(DiscoverySettings, SharedBodySettings):
    """Settings of IFCA."""


class IFCA(HardChoice, Discovering):
    """A cluster's update is the mean over the clients that chose it."""

    name = "ifca"
    title = "IFCA"
    Settings: ClassVar[type[AlgorithmSettings]] = IFCASettings
