"""A federation in process whose parts a test can look at and change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedrc_flwr.algorithms.messages import Broadcast, Reply, RoundReport
from fedrc_flwr.algorithms.step import ClientRuntime
from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.data.scenario import ClientData, Scenario
from fedrc_flwr.engine.client import MemoryStates
from fedrc_flwr.engine.in_process import participants
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.models import build_model
from fedrc_flwr.state import ClientRecord, ClientState, ServerState


@dataclass
class Federation:
    """The scenario's clients, or those given instead of them."""

    config: RunConfig
    clients: list[ClientData] = field(default_factory=list)
    state: ServerState = field(init=False)
    client_states: dict[str, ClientState] = field(default_factory=dict)
    replies: dict[str, Reply] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = self.config
        self.scenario = Scenario(config.data, config.seed)
        self.algorithm = build_algorithm(config)
        made = list(participants(config, lambda name: MemoryStates(), self.clients))
        self.participants = {p.data.name: p for p in made}
        self.clients = [p.data for p in made]
        self.bank = made[0].bank
        self.state = self.algorithm.initial_state(self.initial_models())
        records = {
            c.name: ClientRecord(c.role, len(c.fit), concept=c.truth.concept, style=c.truth.style)
            for c in self.clients
        }
        self.state = replace(self.state, clients=records)

    def initial_models(self) -> list[torch.nn.Module]:
        shape, classes = self.scenario.input_shape, self.scenario.classes
        return [
            build_model(self.config.model, shape, classes, self.config.seed * 1000 + k)
            for k in range(self.algorithm.models)
        ]

    def runtime(self, client: ClientData, round_number: int) -> ClientRuntime:
        participant = self.participants[client.name]
        return replace(participant, data=client, bank=self.bank).runtime(round_number)

    def round(self, names: Collection[str] | None = None) -> RoundReport:
        """One round of all training clients, or of those named."""
        number = self.state.round + 1
        broadcast = self.algorithm.broadcast(self.state, number, self.scenario.classes)
        result = self.algorithm.begin_round(self.state)
        self.replies = {}
        for client in self.clients:
            if client.role != "train" or (names is not None and client.name not in names):
                continue
            state = self.client_states.get(client.name) or ClientState.start(self.state.clusters)
            own = self.addressed(broadcast, client, training=True)
            reply, state = self.algorithm.train(own, state, self.runtime(client, number))
            reply = reply.widened(own.membership, broadcast.membership)
            self.client_states[client.name] = state
            self.replies[client.name] = reply
            self.algorithm.receive(self.state, result, client.name, reply)
        self.state, report = self.algorithm.end_round(self.state, result, number)
        self.train_loss = np.mean([m["loss"] for m in result.metrics.values()])
        return report

    def addressed(self, broadcast: Broadcast, client: ClientData, training: bool) -> Broadcast:
        return self.algorithm.addressed(self.state, broadcast, client.name, training)

    def evaluate(self) -> dict[str, dict[str, float]]:
        return {name: evaluation.metrics for name, evaluation in self.evaluations().items()}

    def evaluations(self) -> dict[str, Evaluation]:
        broadcast = self.algorithm.broadcast(self.state, self.state.round, self.scenario.classes)
        return {
            c.name: self.algorithm.evaluate(
                self.addressed(broadcast, c, training=False),
                self.client_states.get(c.name),
                self.runtime(c, 0),
            )
            for c in self.clients
        }
