"""The messages between server and client, and the sums over a round's replies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedrc_flwr.adaptive import Adaptation
from fedrc_flwr.aggregation import UpdateSums
from fedrc_flwr.em import Floats
from fedrc_flwr.finite import finite
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientRecord, Membership

#: An update larger than this multiple of the round's median norm is taken to have broken it.
FAR = 1000.0


@dataclass(frozen=True)
class Phase:
    """What kind of E-step a round has. The server decides, and sends it with the broadcast.

    Parameters
    ----------
    exponent : the inverse temperature of the E-step; 1 is the paper's
    pooled : whether all samples of a client get the same responsibilities
    prior : whether the E-step divides by the label prior
    """

    exponent: float = 1.0
    pooled: bool = False
    prior: bool = True

    @property
    def annealed(self) -> bool:
        """Whether the round belongs to the annealing."""
        return self.exponent != 1.0 or self.pooled


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to a client, in training and in evaluation.

    ``parameters`` and ``body_parameters`` are how many of the leading numbers of a model and of the
    body are parameters; the rest are running statistics.
    """

    round: int
    membership: Membership
    models: list[Vector]
    body: Vector | None
    parameters: int
    body_parameters: int
    label_prior: Floats
    phase: Phase
    assigned: int = -1  # id of the cluster that the server assigned, if it does

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        body = 0 if self.body is None else self.body.nbytes
        return sum(model.nbytes for model in self.models) + body + self.label_prior.nbytes


@dataclass(frozen=True)
class Reply:
    """What a client sends back after training.

    Parameters
    ----------
    deltas : update of each cluster by position; -1 is the shared body; absent means zero
    label_counts : (K, C), noisy where the client adds noise
    cross_losses : (K, K), sums over samples of responsibility for a times loss of b, or None; with
        noise, times the bounded difference between the losses of b and a
    """

    samples: int
    deltas: dict[int, Vector]
    label_counts: Floats
    cross_losses: Floats | None
    noise: float
    releases: int
    metrics: dict[str, float]

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        table = 0 if self.cross_losses is None else self.cross_losses.nbytes
        return sum(d.nbytes for d in self.deltas.values()) + self.label_counts.nbytes + table

    def is_finite(self) -> bool:
        """Whether all its numbers are finite."""
        statistics = [self.label_counts, self.cross_losses]
        return finite([*self.deltas.values(), *statistics, *self.metrics.values()])


@dataclass
class RoundResult:
    """The replies of one round, summed as they arrive."""

    sums: UpdateSums
    records: dict[str, ClientRecord] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)  # of each reply's update, all clusters
    updates: dict[str, Vector] = field(default_factory=dict)  # by client, if they are compared

    def culprits(self) -> dict[str, str]:
        """Whose replies to leave out if the next state is not finite, and why.

        These are clients whose statistics are too large, or whose update is far larger than usual
        in this round. If there are none, it is the client with the largest update.
        """
        found = {
            name: "its statistics are too large to compute with"
            for name, record in self.records.items()
            if not record.is_finite()
        }
        usual = float(np.median(list(self.norms.values())))
        largest = max(self.norms, key=lambda name: self.norms[name])
        far = [name for name, norm in self.norms.items() if norm > FAR * usual]
        for name in far or ([] if found else [largest]):
            found[name] = (
                f"with its update the models are no longer finite: its norm is "
                f"{self.norms[name]:.3g}, the round's median is {usual:.3g}"
            )
        return found


@dataclass(frozen=True)
class RoundReport:
    """What the server reports about a finished round."""

    movement: float
    adaptation: Adaptation = field(default_factory=Adaptation)
