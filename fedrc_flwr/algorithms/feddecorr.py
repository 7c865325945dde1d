"""FedDecorr (Shi et al. 2023): FedAvg with a term that keeps features from collapsing.

``local.decorr-beta`` adds the same term to any other algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.settings import key
from fedrc_flwr.sgd import LocalSettings


@dataclass(frozen=True)
class FedDecorrSettings(AlgorithmSettings):
    """Settings of FedDecorr."""

    beta: float = key(0.1, "Strength of the decorrelation term.", above=0.0)


class FedDecorr(FedAvg):
    """Features are kept from collapsing into few dimensions."""

    name = "feddecorr"
    title = "FedDecorr"
    Settings = FedDecorrSettings
    settings: FedDecorrSettings

    def local_settings(self, samples: int) -> LocalSettings:
        """With the decorrelation term."""
        settings = super().local_settings(samples).without_decorrelation("feddecorr")
        return replace(settings, decorr_beta=self.settings.beta)
