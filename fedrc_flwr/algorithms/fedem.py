"""FedEM (Marfoq et al. 2021): FedRC without the label prior."""

from __future__ import annotations

from dataclasses import replace

from fedrc_flwr.algorithms.fedrc import FedRC, FedRCSettings
from fedrc_flwr.algorithms.messages import Phase


class FedEM(FedRC):
    """Responsibilities follow the likelihood alone."""

    name = "fedem"
    title = "FedEM"
    Settings = FedRCSettings

    def phase(self, round_number: int) -> Phase:
        """FedEM does not correct for labels."""
        return replace(super().phase(round_number), prior=False)
