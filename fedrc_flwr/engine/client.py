"""A client's side of a run on any engine: its networks, its state, its tasks."""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np
import torch

from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.algorithms.step import ClientRuntime
from fedrc_flwr.bank import ModelBank
from fedrc_flwr.checkpoint import (
    KEPT_STATES,
    count_releases,
    load_client_state,
    save_client_state,
)
from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.data.scenario import TRAIN, ClientData, scenario_of
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.errors import PolicyError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.models import build_model
from fedrc_flwr.privacy import PrivacySettings
from fedrc_flwr.state import ClientState
from fedrc_flwr.transport import FLOAT32, INT8, as_it_arrives

log = logging.getLogger("flwr")
#: Prefix, before a cluster's id, of what rounding has taken from the client's updates of it.
LOST = "lost/"


class States(Protocol):
    """Where a client keeps its last few states."""

    def load(self, before_round: int) -> ClientState | None:
        """The newest state from before a round, skipping any that is not finite."""

    def releases(self) -> int:
        """How many noisy statistics have been sent, according to all kept states."""

    def save(self, state: ClientState) -> None:
        """Keep this state and a few earlier ones; delete those of later rounds."""


class Budget(Protocol):
    """What a client has released so far, in whatever run."""

    def releases(self) -> int:
        """How many noisy statistics it has sent."""

    def charge(self, settings: PrivacySettings, samples: int, noise: float, releases: int) -> None:
        """Enter releases that are about to be made; raises ``PolicyError`` to refuse them."""


class DiskStates:
    """States as files in the client's own directory.

    ``durable`` states survive a power failure, at the cost of waiting for the disk.
    """

    def __init__(self, directory: Path, keep: int = KEPT_STATES, durable: bool = True) -> None:
        self._directory = directory
        self._keep = keep
        self._durable = durable

    def load(self, before_round: int) -> ClientState | None:
        """The newest state from before a round, skipping any that is not finite."""
        return load_client_state(self._directory, before_round, lambda text: log.warning(text))

    def releases(self) -> int:
        """How many noisy statistics have been sent, according to all kept states."""
        return count_releases(self._directory)

    def save(self, state: ClientState) -> None:
        """Keep this state and a few earlier ones; delete those of later rounds."""
        save_client_state(self._directory, state, self._keep, self._durable)


class MemoryStates:
    """States in memory, which are lost when the process ends."""

    def __init__(self, keep: int = KEPT_STATES) -> None:
        self._states: dict[int, ClientState] = {}
        self._releases = 0
        self._keep = keep

    def load(self, before_round: int) -> ClientState | None:
        """The newest state from before a round."""
        earlier = [number for number in self._states if number < before_round]
        return self._states[max(earlier)] if earlier else None

    def releases(self) -> int:
        """How many noisy statistics have been sent."""
        return self._releases

    def save(self, state: ClientState) -> None:
        """Keep this state and a few earlier ones; delete those of later rounds."""
        self._releases = max(self._releases, state.releases)
        kept = {n: s for n, s in self._states.items() if n < state.round} | {state.round: state}
        self._states = dict(sorted(kept.items())[-self._keep :])


def state_folder(parent: Path, run: str, client: str) -> Path:
    """The directory of a client's states, whatever the names are."""
    return parent / _folder_name(run) / _folder_name(client)


def _folder_name(name: str) -> str:
    """One folder's name, whatever the text: quoting alone leaves `..` as it is."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


@lru_cache(maxsize=2)
def build_bank(config: RunConfig, device: torch.device) -> ModelBank:
    """The networks of a process, built once; their values come with each broadcast."""
    scenario, algorithm = scenario_of(config.data, config.seed), build_algorithm(config)
    settings = config.model
    models = [
        build_model(settings, scenario.input_shape, scenario.classes, seed=0, weights=False)
        for _ in range(algorithm.models)
    ]
    return ModelBank(models, device, algorithm.shared_body, settings.reduced_precision())


@dataclass(frozen=True)
class Participant:
    """One client of a run.

    Parameters
    ----------
    noise : standard deviation of the noise that it adds to its statistics
    confusion : whether it sends counts of its predictions when it is evaluated
    budget : what it has released before this run, and may still release
    smallest_cohort : it takes no part in a round of fewer clients
    transport : the precision in which its updates travel
    """

    algorithm: ClusteredAlgorithm
    data: ClientData
    bank: ModelBank
    states: States
    noise: float
    confusion: bool
    seed: int
    budget: Budget | None = None
    smallest_cohort: int = 1
    transport: str = FLOAT32

    def enrolment(self) -> Enrolment:
        """How the client introduces itself."""
        data = self.data
        return Enrolment(
            data.name, data.role, len(data.fit), data.classes, data.truth.concept, data.truth.style
        )

    def train(self, broadcast: Broadcast, received: float) -> tuple[Reply, ClientState]:
        """One round of training, and the state to save once the reply is on its way.

        If the broadcast asks for it, the models are evaluated first, as they were received.

        ``received`` is when the work on the message began, in seconds since the epoch.
        """
        if self.data.role != TRAIN:
            raise PolicyError("observer")
        self._check_cohort(broadcast)
        started = time.time()
        asked = broadcast.to_evaluate()
        evaluation = None if asked is None else self.evaluate(asked)
        evaluating = time.time() - started
        state = self.states.load(before_round=broadcast.round)
        fresh = state is None
        if state is None:
            log.info("%s: no earlier state, starting from uniform weights", self.data.name)
            state = ClientState.start(broadcast.membership.clusters)
        # Everything that was sent counts, even if the round is repeated or its state cannot be
        # used.
        counted = [state.releases, self.states.releases()]
        if self.budget is not None:
            counted.append(self.budget.releases())
            privacy, samples = self.algorithm.privacy, len(self.data.fit)
            self.budget.charge(privacy, samples, self.noise, broadcast.phase.releases())
        before = state = replace(state, releases=max(counted))
        ready = time.time() - evaluating
        reply, state = self.algorithm.train(broadcast, state, self.runtime(broadcast.round))
        reply = replace(reply, evaluation=evaluation)
        reply, state = self._with_what_was_lost(broadcast, reply, before, state)
        reply.metrics["fresh"] = float(fresh and broadcast.round > 1)
        reply.metrics["ready_seconds"] = ready - received
        reply.metrics["seconds"] = time.time() - received
        return reply, state

    def _with_what_was_lost(
        self, broadcast: Broadcast, reply: Reply, before: ClientState, after: ClientState
    ) -> tuple[Reply, ClientState]:
        """The reply with what rounding took from the client's earlier updates, and its next state.

        Rounding to 8 bits takes up to half a step from every number, in the same direction again
        and again where updates are small. What was lost is therefore added to the next update.
        """
        if self.transport != INT8:
            return reply, after
        clusters = broadcast.membership.clusters
        kept = {k: v for k, v in after.vectors.items() if not k.startswith(LOST)}
        alive = {f"{LOST}{cluster}" for cluster in (*clusters, BODY)}
        kept |= {k: v for k, v in before.vectors.items() if k in alive}
        deltas = dict(reply.deltas)
        for position, delta in reply.deltas.items():
            name = f"{LOST}{BODY if position == BODY else clusters[position]}"
            count = broadcast.body_parameters if position == BODY else broadcast.parameters
            whole = delta + kept[name] if name in kept else delta
            deltas[position], kept[name] = whole, whole - as_it_arrives(whole, count, INT8)
        return replace(reply, deltas=deltas), replace(after, vectors=kept)

    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """How well the broadcast models do on this client's test part."""
        self._check_cohort(broadcast)
        state = self.states.load(before_round=broadcast.round + 1)
        return self.algorithm.evaluate(broadcast, state, self.runtime(broadcast.round))

    def _check_cohort(self, broadcast: Broadcast) -> None:
        if broadcast.cohort < self.smallest_cohort and self.smallest_cohort > 1:
            raise PolicyError("small-cohort")

    def runtime(self, round_number: int) -> ClientRuntime:
        """The client in one round; its batches follow from seed, round and name alone."""
        data = self.data
        return ClientRuntime(
            name=data.name,
            role=data.role,
            bank=self.bank,
            fit=data.fit,
            test=data.test,
            classes=data.classes,
            noise=self.noise,
            confusion=self.confusion,
            rng=np.random.default_rng([self.seed, round_number, zlib.crc32(data.name.encode())]),
        )
