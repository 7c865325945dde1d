"""FedEM (Marfoq et al. 2021): FedRC without the label prior."""

from __future__ import annotations

from fedrc_flwr.algorithms.base import Broadcast
from fedrc_flwr.algorithms.fedrc import FedRC
from fedrc_flwr.em import Floats


class FedEM(FedRC):
    """Responsibilities follow the likelihood alone."""

    name = "fedem"

    def label_prior(self, broadcast: Broadcast) -> Floats | None:
        """None: FedEM does not correct for labels."""
        return None
