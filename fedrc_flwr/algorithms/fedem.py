"""FedEM (Marfoq et al. 2021): FedRC without the label prior."""

from __future__ import annotations

from dataclasses import replace

from fedrc_flwr.algorithms.fedrc import FedRC, MixtureSettings
from fedrc_flwr.algorithms.messages import Phase
from fedrc_flwr.state import ServerState


class FedEM(FedRC):
    """Responsibilities follow the likelihood alone."""

    name = "fedem"
    title = "FedEM"
    Settings = MixtureSettings
    keeps_places = False

    def phase(self, round_number: int, state: ServerState) -> Phase:
        """FedEM does not correct for labels."""
        return replace(super().phase(round_number, state), prior=False)
