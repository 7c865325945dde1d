"""The server's half of the M-step: running sums of updates, and the server's optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from fedrc_flwr.config import RunConfig
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ServerState

PIECE = 1 << 16  # numbers; as float64 they fit a core's own cache
BODY = -1  # the shared feature extractor's place among the clusters


class UpdateSums:
    """Sums of sample-weighted updates in float64: memory does not grow with the clients."""

    def __init__(self, absent_is_zero: bool) -> None:
        self._absent_is_zero = absent_is_zero
        self._sums: dict[int, Floats] = {}
        self._masses: dict[int, float] = {}
        self.samples = 0

    def add(self, deltas: dict[int, Vector], samples: int) -> None:
        """Take in one client's updates; a cluster that it did not send counts as unchanged."""
        for cluster, delta in deltas.items():
            if cluster not in self._sums:
                self._sums[cluster] = np.zeros(len(delta), dtype=np.float64)
            _add_scaled(self._sums[cluster], delta, samples)
            self._masses[cluster] = self._masses.get(cluster, 0.0) + samples
        self.samples += samples

    def means(self) -> dict[int, Floats]:
        """The mean update of each cluster that anybody trained.

        FedRC divides by the samples of all the round's clients (Algorithm 1, last line). Hard
        clustered methods average over the clients that chose the cluster.
        """
        return {
            cluster: total / (self.samples if self._absent_is_zero else self._masses[cluster])
            for cluster, total in self._sums.items()
        }


def _add_scaled(total: Floats, delta: Vector, factor: int) -> None:
    """``total += factor * delta`` in pieces: in one, the products would go through memory."""
    product = np.empty(min(PIECE, len(delta)))
    for start in range(0, len(delta), PIECE):
        part = delta[start : start + PIECE]
        np.multiply(part, factor, out=product[: len(part)], dtype=np.float64)
        total[start : start + PIECE] += product[: len(part)]


def apply_updates(state: ServerState, means: dict[int, Floats], config: RunConfig) -> ServerState:
    """``theta_k += eta_g * mean update``, by way of momentum or Adam where configured.

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
        if mean is None and config.server_optimizer == "sgd":
            continue
        mean = np.zeros(len(vector)) if mean is None else mean
        count = state.body_parameters if cluster == BODY else state.parameters
        step = _optimizer_step(cluster, mean[:count], optimizer, steps, config)
        change = np.concatenate([config.global_learning_rate * step, mean[count:]])
        vectors[cluster] = (vector + change).astype(np.float32)
    body = vectors.pop(BODY, None)
    return replace(state, models=vectors, body=body, optimizer=optimizer, optimizer_steps=steps)


def _optimizer_step(
    cluster: int,
    mean: Floats,
    optimizer: dict[str, dict[int, Floats]],
    steps: int,
    config: RunConfig,
) -> Floats:
    if config.server_optimizer == "sgd":
        return mean
    first = optimizer.setdefault("first", {})
    previous = first.get(cluster, np.zeros(len(mean)))
    if config.server_optimizer == "momentum":
        first[cluster] = config.server_momentum * previous + mean
        return first[cluster]
    second = optimizer.setdefault("second", {})
    beta1, beta2 = config.server_momentum, config.server_beta2
    first[cluster] = beta1 * previous + (1 - beta1) * mean
    second[cluster] = beta2 * second.get(cluster, np.zeros(len(mean))) + (1 - beta2) * mean**2
    corrected = first[cluster] / (1 - beta1**steps)
    scale = np.sqrt(second[cluster] / (1 - beta2**steps)) + config.server_epsilon
    return np.asarray(corrected / scale, dtype=np.float64)


def update_norm(vectors: Iterable[Vector]) -> float:
    """The L2 norm of all these float32 vectors together; it never overflows."""
    total = 0.0
    for vector in vectors:
        with np.errstate(over="ignore"):
            squares = float(np.dot(vector, vector))
        if not math.isfinite(squares):  # rare, so that float64 need not be paid for by all
            exact = vector.astype(np.float64)
            squares = float(np.dot(exact, exact))
        total += squares
    return math.sqrt(total)
