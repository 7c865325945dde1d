"""Local training alone: what every client would have without a federation."""

from __future__ import annotations

from dataclasses import replace

from fedrc_flwr.algorithms.base import Broadcast, ClientRuntime, local_settings
from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.config import RunConfig
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import train

PERSONAL = "personal"  # the client's own network among what it keeps


class Local(FedAvg):
    """Every client trains alone; the server's model stays as it was.

    Where ``share-local-models`` is on, the networks are sent after all, and the server's model is
    their average, whatever optimizer is configured: what an observer is judged with in a
    comparison.
    """

    name = "local"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(replace(config, server_optimizer="sgd", global_learning_rate=1.0))

    def maximisation(
        self,
        broadcast: Broadcast,
        state: ClientState,
        client: ClientRuntime,
        responsibilities: Floats,
    ) -> tuple[dict[int, Vector], ClientState]:
        """Go on with the client's own network; the first time, with the broadcast one."""
        start = state.vectors.get(PERSONAL, broadcast.models[0])
        client.bank.load([start], None)
        inputs, labels = client.tensors(client.fit)
        settings = local_settings(self.config)
        deltas = train(client.bank, inputs, labels, responsibilities, [0], settings, client.rng)
        personal = start + deltas.clusters[0]
        shared = {0: personal - broadcast.models[0]} if self.config.share_local_models else {}
        return shared, replace(state, vectors={PERSONAL: personal})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """The client's own network."""
        return None if state is None else state.vectors.get(PERSONAL)
