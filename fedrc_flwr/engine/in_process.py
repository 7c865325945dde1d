"""A whole federation in one process, without Flower: the library's two halves in a plain loop.

Results are those of a simulation to within floating-point noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.bank import choose_device
from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.data.scenario import ClientData, scenario_of
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.engine.attacker import armed
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.engine.client import (
    DiskStates,
    MemoryStates,
    Participant,
    States,
    build_bank,
    state_folder,
)
from fedrc_flwr.engine.directory import client_states
from fedrc_flwr.engine.letters import Letter
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.engine.run import Run, initial_models
from fedrc_flwr.errors import FedRCError
from fedrc_flwr.layout import Vector
from fedrc_flwr.machine import hold_memory
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.report.log import Event
from fedrc_flwr.state import ClientState
from fedrc_flwr.transport import FLOAT32, as_it_arrives

#: Numbers of a network below which one thread is faster than several.
SMALL_NETWORK = 1_000_000


class UnchangedStates(DiskStates):
    """States on disk, of a client that nobody else writes: what stays the same is written once.

    The state of a client that has its one model never changes. An older file with the same content
    then stands for those of later rounds.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        # All clients are lost together with the server: its own checkpoint is what must last.
        super().__init__(directory, keep, durable=False)
        self._last: ClientState | None = None
        self._releases: int | None = None

    def load(self, before_round: int) -> ClientState | None:
        """The newest state from before a round."""
        last = self._last
        return last if last and last.round < before_round else super().load(before_round)

    def releases(self) -> int:
        """How many noisy statistics have been sent."""
        if self._releases is None:
            self._releases = super().releases()
        return self._releases

    def save(self, state: ClientState) -> None:
        """Write the state, unless nothing but its round is new."""
        last = self._last
        if last is None or state.round <= last.round or not last.is_repeated(state):
            super().save(state)
        self._last = state if state.is_plain() else None
        self._releases = max(self.releases(), state.releases)


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

    def under_way(self) -> list[Letter]:
        """None: everybody answers at once."""
        return []

    def deliver(
        self, letters: list[Letter], enough: int | None = None
    ) -> Iterator[tuple[Letter, Reply | Evaluation]]:
        """Ask one client after the other."""
        arrived: dict[int, Vector] = {}  # each vector is rounded once
        for letter in letters:
            participant, own = self.participants[letter.name], self._received(letter, arrived)
            self._down += own.nbytes(self._transport)
            try:
                if not letter.trains:
                    evaluation = participant.evaluate(own)
                    self._up += evaluation.nbytes()
                    yield letter, evaluation
                    continue
                reply, state = participant.train(own, time.time())
            except FedRCError as error:
                self._rounds.fail(letter.name, f"{type(error).__name__}: {error}")
                continue
            self._up += reply.nbytes(own, self._transport)
            yield letter, self._rounded(reply, own)
            participant.states.save(state)

    def traffic(self) -> tuple[int, int]:
        """Bytes of the arrays that would have travelled since the last call."""
        down, up, self._down, self._up = self._down, self._up, 0, 0
        return down, up

    def _received(self, letter: Letter, arrived: dict[int, Vector]) -> Broadcast:
        """What the client would receive: rounded where networks travel in fewer bits."""
        sent = letter.broadcast
        if self._transport == FLOAT32:
            return sent

        def rounded(vector: Vector, parameters: int) -> Vector:
            if id(vector) not in arrived:
                arrived[id(vector)] = as_it_arrives(vector, parameters, self._transport)
            return arrived[id(vector)]

        common = sent.parameters if sent.body is None else sent.body_parameters
        return replace(
            sent,
            models=[rounded(model, sent.parameters) for model in sent.models],
            body=None if sent.body is None else rounded(sent.body, common),
            yardstick=None if sent.yardstick is None else rounded(sent.yardstick, common),
        )

    def _rounded(self, reply: Reply, broadcast: Broadcast) -> Reply:
        """What the server would receive."""
        if self._transport == FLOAT32:
            return reply
        counts = {BODY: broadcast.body_parameters}
        deltas = {
            k: as_it_arrives(delta, counts.get(k, broadcast.parameters), self._transport)
            for k, delta in reply.deltas.items()
        }
        return replace(reply, deltas=deltas)


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
        honest = Participant(
            algorithm, data, bank, kept, noise, confusion, config.seed,
            transport=config.federation.exchange().transport,
        )  # fmt: skip
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
        return UnchangedStates(state_folder(folder, directory.name, name), keep)

    hold_memory()
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
