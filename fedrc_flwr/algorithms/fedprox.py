"""FedProx (Li et al. 2020): FedAvg with a term that keeps clients near the broadcast model.

``local.prox-mu`` adds the same term to any other algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.settings import key
from fedrc_flwr.sgd import LocalSettings


@dataclass(frozen=True)
class FedProxSettings(AlgorithmSettings):
    """Settings of FedProx."""

    mu: float = key(0.1, "Strength of the proximal term.", above=0.0)


class FedProx(FedAvg):
    """Clients are held near the broadcast model."""

    name = "fedprox"
    title = "FedProx"
    Settings = FedProxSettings
    settings: FedProxSettings

    def local_settings(self, samples: int) -> LocalSettings:
        """With the proximal term."""
        settings = super().local_settings(samples).without_prox("fedprox")
        return replace(settings, prox_mu=self.settings.mu)
