"""The algorithms by name."""

from __future__ import annotations

from fedrc_flwr.algorithms.apfl import APFL
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.cfl import CFL
from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.fedem import FedEM
from fedrc_flwr.algorithms.fedrc import FedRC
from fedrc_flwr.algorithms.fedsoft import FedSoft
from fedrc_flwr.algorithms.fesem import FeSEM
from fedrc_flwr.algorithms.ifca import IFCA
from fedrc_flwr.algorithms.local import Local
from fedrc_flwr.algorithms.pfedme import PFedMe
from fedrc_flwr.algorithms.terms import FedDecorr, FedProx
from fedrc_flwr.config import RunConfig

ALGORITHMS: dict[str, type[ClusteredAlgorithm]] = {
    cls.name: cls
    for cls in (
        FedRC,
        FedEM,
        IFCA,
        FeSEM,
        CFL,
        FedSoft,
        FedAvg,
        FedProx,
        FedDecorr,
        Local,
        PFedMe,
        APFL,
    )
}


def build_algorithm(config: RunConfig) -> ClusteredAlgorithm:
    """The configured algorithm."""
    return ALGORITHMS[config.algorithm](config)
