"""Local training alone: what every client would have without a federation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrc_flwr.aggregation import ServerSettings
from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import train

PERSONAL = "personal"  # name of the client's own network in its state


@dataclass(frozen=True)
class LocalOnlySettings(AlgorithmSettings):
    """Settings of local training."""

    share_models: bool = key(
        False,
        "Send the clients' networks, so that observers are evaluated with their average.",
    )


class LocalOnly(FedAvg):
    """Every client trains alone.

    If models are shared, the server's model is their plain average, whatever optimizer is
    configured. Otherwise it never changes.
    """

    name = "local-only"
    title = "local"
    Settings = LocalOnlySettings
    settings: LocalOnlySettings
    is_personal = True

    @classmethod
    def server_settings(cls, configured: ServerSettings) -> ServerSettings:
        """A plain average, whatever is configured for others."""
        return ServerSettings()

    def maximisation(
        self, step: Step, responsibilities: Floats
    ) -> tuple[dict[int, Vector], ClientState]:
        """Continue with the client's own network; at first, with the broadcast one."""
        broadcast, client = step.broadcast, step.client
        start = step.state.vectors.get(PERSONAL, broadcast.models[0])
        client.bank.load([start], None)
        inputs, labels = client.tensors(client.fit)
        settings = self.local_settings(len(client.fit))
        weights = responsibilities * step.emphasis(settings)
        deltas = train(client.bank, inputs, labels, weights, [0], settings, client.rng)
        personal = start + deltas.clusters[0]
        shared = {0: personal - broadcast.models[0]} if self.settings.share_models else {}
        return shared, replace(step.state, vectors={PERSONAL: personal})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """The client's own network."""
        return None if state is None else state.vectors.get(PERSONAL)
