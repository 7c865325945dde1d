"""A whole federation in one process, without Flower: the library's two halves in a plain loop."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedrc_flwr.algorithms import build_algorithm
from fedrc_flwr.algorithms.base import Broadcast, ClientRuntime, Reply, RoundReport
from fedrc_flwr.bank import ModelBank
from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.scenario import ClientData, Scenario
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
        self.scenario = Scenario(config)
        self.algorithm = build_algorithm(config)
        shape, classes = self.scenario.input_shape, self.scenario.classes
        self.bank = ModelBank(
            [build_model(config, shape, classes, 0) for _ in range(config.clusters)],
            torch.device("cpu"),
            config.shared_body,
        )
        if not self.clients:
            self.clients = [self.scenario.client(i) for i in range(len(self.scenario))]
        self.state = self.algorithm.initial_state(self.initial_models())
        records = {
            c.name: ClientRecord(c.role, len(c.fit), concept=c.truth.concept, style=c.truth.style)
            for c in self.clients
        }
        self.state = replace(self.state, clients=records)

    def initial_models(self) -> list[torch.nn.Module]:
        shape, classes = self.scenario.input_shape, self.scenario.classes
        return [
            build_model(self.config, shape, classes, self.config.seed * 1000 + k)
            for k in range(self.config.clusters)
        ]

    def runtime(self, client: ClientData, round_number: int) -> ClientRuntime:
        name = zlib.crc32(client.name.encode())
        return ClientRuntime(
            self.config,
            self.bank,
            client.fit,
            client.test,
            client.classes,
            self.config.count_noise,
            np.random.default_rng([self.config.seed, round_number, name]),
            client.role,
        )

    def round(self, names: Collection[str] | None = None) -> RoundReport:
        """One round of all training clients, or of those named."""
        number = self.state.round + 1
        broadcast = self.algorithm.broadcast(self.state, number, self.scenario.classes)
        result = self.algorithm.begin_round()
        self.replies = {}
        for client in self.clients:
            if client.role != "train" or (names is not None and client.name not in names):
                continue
            state = self.client_states.get(client.name) or ClientState.start(self.state.clusters)
            reply, state = self.algorithm.train(
                self.addressed(broadcast, client), state, self.runtime(client, number)
            )
            self.client_states[client.name] = state
            self.replies[client.name] = reply
            self.algorithm.receive(self.state, result, client.name, reply)
        self.state, report = self.algorithm.end_round(self.state, result, number)
        self.train_loss = np.mean([m["loss"] for m in result.metrics.values()])
        return report

    def addressed(self, broadcast: Broadcast, client: ClientData) -> Broadcast:
        return replace(broadcast, assigned=self.algorithm.assigned(self.state, client.name))

    def evaluate(self) -> dict[str, dict[str, float]]:
        broadcast = self.algorithm.broadcast(self.state, self.state.round, self.scenario.classes)
        return {
            c.name: self.algorithm.evaluate(
                self.addressed(broadcast, c), self.client_states.get(c.name), self.runtime(c, 0)
            )
            for c in self.clients
        }
