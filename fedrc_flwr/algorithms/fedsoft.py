"""FedSoft (Ruan and Joe-Wong 2022): one proximal local model per client, shared by all clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.algorithms.base import (
    Broadcast,
    ClientRuntime,
    ClusteredAlgorithm,
    Reply,
    RoundResult,
    local_settings,
)
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientState, ServerState
from fedrc_flwr.training import train

PERSONAL = "personal"


class FedSoft(ClusteredAlgorithm):
    """Importance weights u_k every few rounds; ``loss(w) + lambda/2 sum_k u_k |w - theta_k|^2``.

    A client sends its one network; the server takes it into every cluster by the client's
    importance for it. Local training starts at ``sum_k u_k theta_k``, where the proximal term is
    smallest. The importance weights are scaled to sum to one after their floor.
    """

    name = "fedsoft"
    absent_is_zero = False

    def expectation(
        self,
        losses: Floats,
        labels: Labels,
        broadcast: Broadcast,
        state: ClientState,
        rng: np.random.Generator,
    ) -> tuple[Floats, ClientState]:
        """The importance weights, for all samples alike."""
        weights = state.mixture_weights
        due = (broadcast.round - 1) % self.config.fedsoft_every == 0
        if due or PERSONAL not in state.vectors:
            weights = self.assign(losses, labels, broadcast)
        responsibilities = np.repeat(weights[None, :], len(losses), axis=0)
        return responsibilities, replace(state, mixture_weights=weights)

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """Share of the samples on which each cluster has the smallest loss, at least sigma."""
        return importance(losses, self.config.fedsoft_floor)

    def maximisation(
        self,
        broadcast: Broadcast,
        state: ClientState,
        client: ClientRuntime,
        responsibilities: Floats,
    ) -> tuple[dict[int, Vector], ClientState]:
        """Train one network; it is sent as its difference from the most important cluster."""
        weights = state.mixture_weights
        centre = np.average(broadcast.models, axis=0, weights=weights).astype(np.float32)
        client.bank.load([centre], None)
        inputs, labels = client.tensors(client.fit)
        settings = replace(local_settings(self.config), prox_mu=self.config.fedsoft_lambda)
        everything = np.ones((len(client.fit), 1))
        deltas = train(client.bank, inputs, labels, everything, [0], settings, client.rng)
        personal = centre + deltas.clusters[0]
        foremost = int(weights.argmax())
        updates = {foremost: personal - broadcast.models[foremost]}
        return updates, replace(state, vectors={PERSONAL: personal})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """A client predicts with its own network."""
        return None if state is None else state.vectors.get(PERSONAL)

    def receive(self, state: ServerState, result: RoundResult, name: str, reply: Reply) -> None:
        """Take the client's network into every cluster: ``theta_k = sum_i v_ik w_i``."""
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
    """u_k from losses (N, K): how often each cluster is best, lifted to ``floor``, summing to 1."""
    best = np.bincount(losses.argmin(axis=1), minlength=losses.shape[1])
    return em.renormalise(np.maximum(best / len(losses), floor), axis=0)
