"""FedProx (Li et al. 2020) and FedDecorr (Shi et al. 2023): FedAvg with a term in its objective.

The terms themselves are the keys ``prox-mu`` and ``decorr-beta``, which go with any algorithm;
under these names they are on by default.
"""

from __future__ import annotations

from dataclasses import replace

from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.config import RunConfig

PROX_MU = 0.1
DECORR_BETA = 0.1


class FedProx(FedAvg):
    """Clients are held near the broadcast model."""

    name = "fedprox"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(replace(config, prox_mu=config.prox_mu or PROX_MU))


class FedDecorr(FedAvg):
    """Features are kept from collapsing into few dimensions."""

    name = "feddecorr"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(replace(config, decorr_beta=config.decorr_beta or DECORR_BETA))
