"""A whole federation in one process, without Flower: the library's two halves in a plain loop.

Results are those of a simulation to within floating-point noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.bank import choose_device
from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.data.scenario import ClientData, scenario_of
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.engine.attacker import armed
from fedrc_flwr.engine.client import (
    DiskStates,
    MemoryStates,
    Participant,
    States,
    build_bank,
    state_folder,
)
from fedrc_flwr.engine.directory import client_states
from fedrc_flwr.engine.rounds import Enrolment, Rounds
from fedrc_flwr.engine.run import Run, initial_models
from fedrc_flwr.errors import FedRCError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.report.log import Event
from fedrc_flwr.transport import FLOAT32

#: Numbers of a network below which one thread is faster than several.
SMALL_NETWORK = 1_000_000


class InProcess:
    """Brings broadcasts to clients in this process."""

    def __init__(self, participants: Iterable[Participant], rounds: Rounds) -> None:
        self.participants = {p.data.name: p for p in participants}
        self._rounds = rounds
        self._transport = rounds.settings.exchange().transport
        self._new = [p.enrolment() for p in self.participants.values()]
        self._down = self._up = 0

    def refresh(self) -> list[Enrolment]:
        """All clients are there from the start."""
        newcomers, self._new = self._new, []
        return newcomers

    def online(self, role: str) -> list[str]:
        """Names of the clients with a role, sorted."""
        return sorted(n for n, p in self.participants.items() if p.data.role == role)

    def train(self, names: list[str], broadcast: Broadcast) -> Iterator[tuple[str, Reply]]:
        """Train one client after the other."""
        broadcast = self._received(broadcast)
        for name in names:
            participant, own = self.participants[name], self._addressed(broadcast, name, True)
            try:
                reply, state = participant.train(own, time.time())
            except FedRCError as error:
                self._failed(name, error)
                continue
            self._up += reply.nbytes(own, self._transport)
            reply = self._rounded(reply, own)
            yield name, reply.widened(own.membership, broadcast.membership)
            participant.states.save(state)

    def evaluate(self, names: list[str], broadcast: Broadcast) -> Iterator[tuple[str, Evaluation]]:
        """Evaluate one client after the other."""
        broadcast = self._received(broadcast)
        for name in names:
            own = self._addressed(broadcast, name, False)
            try:
                evaluation = self.participants[name].evaluate(own)
            except FedRCError as error:
                self._failed(name, error)
                continue
            self._up += 0 if evaluation.tally is None else evaluation.tally.flat().nbytes
            yield name, evaluation.widened(own.membership.clusters, broadcast.membership.clusters)

    def traffic(self) -> tuple[int, int]:
        """Bytes of the arrays that would have travelled since the last call."""
        down, up, self._down, self._up = self._down, self._up, 0, 0
        return down, up

    def _addressed(self, broadcast: Broadcast, name: str, training: bool) -> Broadcast:
        rounds = self._rounds
        own = rounds.algorithm.addressed(rounds.state, broadcast, name, training)
        self._down += own.nbytes(self._transport)
        return own

    def _received(self, broadcast: Broadcast) -> Broadcast:
        """What clients would receive: rounded where networks travel in fewer bits."""
        if self._transport == FLOAT32:
            return broadcast
        from fedrc_flwr import wire

        return wire.decode_broadcast(wire.encode_broadcast(broadcast, "", self._transport), "")

    def _rounded(self, reply: Reply, broadcast: Broadcast) -> Reply:
        """What the server would receive."""
        if self._transport == FLOAT32:
            return reply
        from fedrc_flwr import wire

        content = wire.encode_reply(reply, broadcast, self._transport)
        return wire.decode_reply(content, broadcast, self._rounds.classes)

    def _failed(self, name: str, error: Exception) -> None:
        self._rounds.fail(name, f"{type(error).__name__}: {error}")


def participants(
    config: RunConfig, states: Callable[[str], States], clients: Iterable[ClientData] = ()
) -> Iterator[Participant]:
    """The clients of a configuration's scenario, or those given instead of them."""
    scenario, algorithm = scenario_of(config.data, config.seed), build_algorithm(config)
    bank = build_bank(config, choose_device(config.run.device_of(None)))
    chosen = list(clients) or _all_clients(config.data, config.seed)
    for index, data in enumerate(chosen):
        noise = config.privacy.noise_of(None)
        confusion = config.privacy.sends_confusion(None, None)
        kept = states(data.name)
        honest = Participant(algorithm, data, bank, kept, noise, confusion, config.seed)
        yield armed(honest, config.attack, index, scenario.clients)


@lru_cache(maxsize=1)
def _all_clients(settings: DataSettings, seed: int) -> list[ClientData]:
    """Every client's data: built once for runs on the same federation, one after the other."""
    scenario = scenario_of(settings, seed)
    return [scenario.client(index) for index in range(len(scenario))]


def in_memory(
    config: RunConfig,
    clients: Iterable[ClientData] = (),
    states: Callable[[str], States] = lambda name: MemoryStates(),
) -> tuple[Rounds, InProcess]:
    """The rounds of a federation and its clients, to be stepped by hand.

    Nothing is written, unless the clients' ``states`` are.
    """
    scenario, algorithm = scenario_of(config.data, config.seed), build_algorithm(config)
    state = algorithm.initial_state(initial_models(config, algorithm.models))
    rounds = Rounds(algorithm, state, scenario.classes, config.federation, config.seed)
    carrier = InProcess(participants(config, states, clients), rounds)
    rounds.enrol(carrier.refresh())
    return rounds, carrier


def run_in_process(
    config: RunConfig, directory: Path, on_event: Callable[[Event], None] = lambda event: None
) -> Event:
    """Run a configuration with its results in ``directory`` and return the summary."""
    folder, keep = client_states(directory), config.run.states_to_keep()

    def states(name: str) -> States:
        # All clients are lost together with the server: its own checkpoint is what must last.
        return DiskStates(state_folder(folder, directory.name, name), keep, durable=False)

    clients = list(participants(config, states))  # what cannot run writes nothing
    run = Run(config, directory)
    carrier = InProcess(clients, run.rounds)
    with thread_limit(run.rounds):
        return run.go(carrier, lambda: run.rounds.enrol(carrier.refresh()), on_event)


@contextmanager
def thread_limit(rounds: Rounds) -> Iterator[None]:
    """One thread for a small network: several would mostly wait for one another."""
    if max(len(vector) for vector in rounds.state.models.values()) >= SMALL_NETWORK:
        yield
        return
    with one_thread():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for the time being."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
