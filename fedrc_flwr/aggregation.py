"""The server's half of the M-step: running sums of updates, and the server's optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fedrc_flwr import combining
from fedrc_flwr.combining import BODY, HeldUpdates
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.settings import key
from fedrc_flwr.state import ServerState

PIECE = 1 << 16  # numbers; as float64 they fit a core's own cache
__all__ = ["BODY", "ServerSettings", "UpdateSums", "apply_updates", "update_norm"]


@dataclass(frozen=True)
class ServerSettings:
    """What the server does with the averaged update."""

    optimizer: str = key(
        "sgd",
        "How the averaged update is applied.",
        choices=("sgd", "momentum", "adam"),
        common=True,
    )
    learning_rate: float = key(1.0, "Global learning rate, eta_g.", above=0.0, common=True)
    momentum: float = key(
        0.9, "Momentum of the server's optimizer (beta 1 of `adam`).", low=0.0, high=0.999
    )
    beta2: float = key(0.99, "Beta 2 of the server's `adam`.", low=0.0, high=0.9999)
    epsilon: float = key(1e-3, "Epsilon of the server's `adam`.", above=0.0)
    aggregation: str = key(
        "mean",
        "How a cluster's updates become one. `trimmed` (a mean without the extremes) and `median` "
        "go number by number among the cluster's members and withstand false updates; the server "
        "then holds all updates of a round in memory.",
        choices=("mean", "trimmed", "median"),
        common=True,
    )
    trim: float = key(
        0.2, "Share of the members that `trimmed` leaves out at each end.", low=0.0, high=0.49
    )
    max_norm: float = key(
        1.5,
        "Updates longer than this multiple of the median length in their cluster are scaled down "
        "to it. Those longer than four times this multiple are refused. 0: any length is accepted.",
        low=0.0,
    )

    max_opposition: float = key(
        0.3,
        "Updates of a client are not used once they point against those of the others by more than "
        "this, from 0 (as its labels let expect) to 1 (the opposite), on the average of several "
        "rounds. 0: they may point anywhere.",
        low=0.0,
        high=1.0,
    )

    def collector(self, absent_is_zero: bool) -> UpdateSums | HeldUpdates:
        """What a round's updates are collected in."""
        if self.aggregation == "mean":
            return UpdateSums(absent_is_zero)
        trimmed = partial(combining.trimmed_mean, trim=self.trim)
        combine = trimmed if self.aggregation == "trimmed" else combining.median
        return HeldUpdates(absent_is_zero, combine)

    def longest(self) -> float:
        """The multiple of the median length up to which updates are used as they are."""
        return self.max_norm or math.inf

    def compares_directions(self) -> bool:
        """Whether updates that point against the others' are looked for."""
        return self.max_opposition > 0

    def most_opposed(self) -> float:
        """How far a client's updates may point against the others'."""
        return self.max_opposition or math.inf


class UpdateSums:
    """Sums of sample-weighted updates in float64: memory does not grow with the clients."""

    def __init__(self, absent_is_zero: bool) -> None:
        self._absent_is_zero = absent_is_zero
        self._sums: dict[int, Floats] = {}
        self._masses: dict[int, float] = {}
        self.samples = 0.0

    def empty(self) -> UpdateSums:
        """Another of the same kind, without updates."""
        return UpdateSums(self._absent_is_zero)

    def add(self, deltas: dict[int, Vector], samples: float, home: int | None = None) -> None:
        """Take in one client's updates; a cluster that it did not send counts as unchanged."""
        for cluster, delta in deltas.items():
            if cluster not in self._sums:
                self._sums[cluster] = np.zeros(len(delta), dtype=np.float64)
            _add_scaled(self._sums[cluster], delta, samples)
            self._masses[cluster] = self._masses.get(cluster, 0.0) + samples
        self.samples += samples

    def take_in(self, other: UpdateSums, factor: float) -> None:
        """Add another's sums, as if each of its updates had been scaled by ``factor``."""
        for cluster, total in other._sums.items():
            before = self._sums.get(cluster)
            scaled = total if factor == 1.0 else factor * total
            self._sums[cluster] = scaled if before is None else before + scaled
            self._masses[cluster] = self._masses.get(cluster, 0.0) + other._masses[cluster]
        self.samples += other.samples

    def means(self) -> dict[int, Floats]:
        """The mean update of each cluster that anybody trained.

        FedRC divides by the samples of all the round's clients (Algorithm 1, last line). Hard
        clustered methods average over the clients that chose the cluster. The sums become the
        means: large vectors are not copied, and nothing can be added afterwards.
        """
        means, self._sums = self._sums, {}
        for cluster, total in means.items():
            total /= self.samples if self._absent_is_zero else self._masses[cluster]
        return means


def _add_scaled(total: Floats, delta: Vector, factor: float) -> None:
    """``total += factor * delta``, in pieces that fit the cache."""
    product = np.empty(min(PIECE, len(delta)))
    for start in range(0, len(delta), PIECE):
        part = delta[start : start + PIECE]
        np.multiply(part, factor, out=product[: len(part)], dtype=np.float64)
        total[start : start + PIECE] += product[: len(part)]


def _move(start: Vector, step: Floats, factor: float, moved: Vector) -> None:
    """``moved = start + factor * step``, summed up in float64, in pieces that fit the cache."""
    product = np.empty(min(PIECE, len(start)))
    for first in range(0, len(start), PIECE):
        part = step[first : first + PIECE]
        scaled = np.multiply(part, factor, out=product[: len(part)])
        np.add(start[first : first + PIECE], scaled, out=moved[first : first + PIECE],
               casting="same_kind")  # fmt: skip


def apply_updates(
    state: ServerState, means: dict[int, Floats], settings: ServerSettings
) -> ServerState:
    """``theta_k += eta_g * mean update``, with momentum or Adam if configured.

    Running statistics become the clients' mean, whatever the optimizer: a step beyond it could
    make a variance negative. A cluster that nobody trained this round has a mean update of zero.
    """
    optimizer = {slot: dict(vectors) for slot, vectors in state.optimizer.items()}
    steps = state.optimizer_steps + 1
    vectors: dict[int, Vector] = dict(state.models)
    if state.body is not None:
        vectors[BODY] = state.body
    for cluster, vector in vectors.items():
        mean = means.get(cluster)
        if mean is None and settings.optimizer == "sgd":
            continue
        mean = np.zeros(len(vector)) if mean is None else mean
        count = state.body_parameters if cluster == BODY else state.parameters
        step = _optimizer_step(cluster, mean[:count], optimizer, steps, settings)
        moved = np.empty_like(vector)
        _move(vector[:count], step, settings.learning_rate, moved[:count])
        _move(vector[count:], mean[count:], 1.0, moved[count:])
        vectors[cluster] = moved
    body = vectors.pop(BODY, None)
    return replace(state, models=vectors, body=body, optimizer=optimizer, optimizer_steps=steps)


def _optimizer_step(
    cluster: int,
    mean: Floats,
    optimizer: dict[str, dict[int, Floats]],
    steps: int,
    settings: ServerSettings,
) -> Floats:
    if settings.optimizer == "sgd":
        return mean
    first = optimizer.setdefault("first", {})
    previous = first.get(cluster, np.zeros(len(mean)))
    if settings.optimizer == "momentum":
        first[cluster] = settings.momentum * previous
        first[cluster] += mean
        return first[cluster]
    second = optimizer.setdefault("second", {})
    beta1, beta2 = settings.momentum, settings.beta2
    first[cluster] = beta1 * previous + (1 - beta1) * mean
    second[cluster] = beta2 * second.get(cluster, np.zeros(len(mean))) + (1 - beta2) * mean**2
    corrected = first[cluster] / (1 - beta1**steps)
    scale = np.sqrt(second[cluster] / (1 - beta2**steps)) + settings.epsilon
    return np.asarray(corrected / scale, dtype=np.float64)


def update_norm(vectors: Iterable[Vector]) -> float:
    """The L2 norm of all these float32 vectors together; it never overflows."""
    total = 0.0
    for vector in vectors:
        with np.errstate(over="ignore"):
            squares = float(np.dot(vector, vector))
        if not math.isfinite(squares):  # rare, so float64 is used only here
            exact = vector.astype(np.float64)
            squares = float(np.dot(exact, exact))
        total += squares
    return math.sqrt(total)
