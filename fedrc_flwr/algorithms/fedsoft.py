"""FedSoft (Ruan and Joe-Wong 2022): one proximal local model per client, shared by all clusters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.algorithms.discovering import Discovering, DiscoverySettings
from fedrc_flwr.algorithms.messages import Broadcast, Reply, RoundResult
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.layout import Vector
from fedrc_flwr.settings import key
from fedrc_flwr.sgd import LocalSettings
from fedrc_flwr.state import ClientState, ServerState
from fedrc_flwr.training import train

PERSONAL = "personal"


@dataclass(frozen=True)
class FedSoftSettings(DiscoverySettings):
    """Settings of FedSoft."""

    every: int = key(2, "Rounds between two updates of the importance weights.", low=1)
    floor: float = key(1e-4, "Smallest importance weight of a cluster.", low=0.0, high=0.1)
    lambda_: float = key(0.1, "Strength of the pull towards the clusters' models.", low=0.0)


class FedSoft(Discovering):
    """Importance weights u_k every few rounds; ``loss(w) + lambda/2 sum_k u_k |w - theta_k|^2``.

    A client sends one network, which the server averages into every cluster by the client's
    importance weights. Local training starts at ``sum_k u_k theta_k``, where the proximal term is
    smallest. The importance weights are scaled to sum to one after their floor.
    """

    name = "fedsoft"
    title = "FedSoft"
    Settings = FedSoftSettings
    settings: FedSoftSettings
    is_personal = True
    absent_is_zero = False

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """The same importance weights for all samples."""
        weights = step.state.mixture_weights
        due = (step.broadcast.round - 1) % self.settings.every == 0
        if due or PERSONAL not in step.state.vectors:
            weights = self.assign(step.losses, step.labels, step.broadcast)
        return step.everywhere(weights)

    def local_settings(self, samples: int) -> LocalSettings:
        """FedSoft has its own proximal term instead of FedProx's."""
        settings = super().local_settings(samples).without_prox("fedsoft")
        return replace(settings, prox_mu=self.settings.lambda_)

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """Share of the samples on which each cluster has the smallest loss, at least sigma."""
        return importance(losses, self.settings.floor)

    def maximisation(
        self, step: Step, responsibilities: Floats
    ) -> tuple[dict[int, Vector], ClientState]:
        """Train one network; it is sent as its difference from the most important cluster."""
        broadcast, client, weights = step.broadcast, step.client, step.state.mixture_weights
        centre = np.average(broadcast.models, axis=0, weights=weights).astype(np.float32)
        client.bank.load([centre], None)
        inputs, labels = client.tensors(client.fit)
        settings = self.local_settings(len(client.fit))
        emphasis = step.emphasis(settings) @ weights[:, None]
        deltas = train(client.bank, inputs, labels, emphasis, [0], settings, client.rng)
        personal = centre + deltas.clusters[0]
        foremost = int(weights.argmax())
        updates = {foremost: personal - broadcast.models[foremost]}
        return updates, replace(step.state, vectors={PERSONAL: personal})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """A client predicts with its own network."""
        return None if state is None else state.vectors.get(PERSONAL)

    def receive(self, state: ServerState, result: RoundResult, name: str, reply: Reply) -> None:
        """Average the client's network into every cluster: ``theta_k = sum_i v_ik w_i``."""
        super().receive(state, result, name, replace(reply, deltas={}))
        importances = result.records[name].mixture_weights()
        if importances is None:
            return
        for position, delta in reply.deltas.items():
            personal = state.models[state.clusters[position]] + delta
            for cluster, weight in zip(state.clusters, importances, strict=True):
                if weight > 0:
                    update = {cluster: personal - state.models[cluster]}
                    result.sums.add(update, weight * reply.samples)


def importance(losses: Floats, floor: float) -> Floats:
    """u_k from losses (N, K): how often each cluster is best, at least ``floor``, summing to 1."""
    best = np.bincount(losses.argmin(axis=1), minlength=losses.shape[1])
    return em.renormalise(np.maximum(best / len(losses), floor), axis=0)
