"""The client's half that clustered algorithms share. A subclass adds the E-step.

The server's half is in ``server.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrc_flwr import adaptive, em, privacy
from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.algorithms.server import ServerHalf
from fedrc_flwr.algorithms.step import ClientRuntime, Step
from fedrc_flwr.data.scenario import TRAIN, Split
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.errors import DivergedError
from fedrc_flwr.finite import finite
from fedrc_flwr.layout import Vector
from fedrc_flwr.sgd import active_clusters
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import accuracy, log_probabilities, losses_of, mix, score, train


class ClusteredAlgorithm(ServerHalf):
    """An algorithm with K models on the server, whose clients weight their samples between them.

    A subclass in a module of this package is found by its ``name``, with its ``Settings``.
    """

    #: Whether local training starts from the networks that the E-step scored.
    trains_scored: ClassVar[bool] = False

    # --- the part in which algorithms differ -----------------------------------------------------

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """Responsibilities (N, K) for the M-step and the counts, and the client's next state."""
        raise NotImplementedError

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """Mixture weights of a client that never trained, from its labelled samples."""
        raise NotImplementedError

    def maximisation(
        self, step: Step, responsibilities: Floats
    ) -> tuple[dict[int, Vector], ClientState]:
        """The updates to send, by position, and the client's next state.

        The client's bank holds the broadcast's networks, or the client's own.
        """
        weights, client = responsibilities, step.client
        if self.settings.mode() == "hard-train":
            weights = em.harden(responsibilities)
        settings = self.local_settings(len(client.fit))
        inputs, labels = client.tensors(client.fit)
        active = active_clusters(weights, settings)
        deltas = train(
            client.bank, inputs, labels, weights, active, settings, client.rng, client.first_pass
        )
        updates = dict(deltas.clusters)
        if deltas.body is not None:
            updates[BODY] = deltas.body
        return updates, step.state

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """The client's own network, if it predicts with one; None: with the clusters' mixture."""
        return None

    # --- client half -----------------------------------------------------------------------------

    def train(
        self, broadcast: Broadcast, state: ClientState, client: ClientRuntime
    ) -> tuple[Reply, ClientState]:
        """One round on one client: E-step, counts, local training.

        Raises ``DivergedError`` if the result holds NaN or infinity.
        """
        state = state.moved_to(broadcast.membership)
        inputs, labels = client.tensors(client.fit)
        own = self.personal(broadcast, state)
        if own is not None and len(broadcast.models) == 1:
            client.bank.load([own], None)
        else:
            client.bank.load(broadcast.models, broadcast.body)
        clusters = len(broadcast.models)
        if self.trains_scored:
            settings = self.local_settings(len(client.fit))
            log_probs, client.first_pass = score(
                client.bank, inputs, clusters, settings, client.rng
            )
        else:
            log_probs = log_probabilities(client.bank, inputs, clusters)
        losses = losses_of(log_probs, labels)
        self._check_finite(finite([losses]), broadcast.round, "the losses before training")
        responsibilities, state = self.expectation(Step(broadcast, state, client, losses))
        em.check_distribution(responsibilities, losses.shape, f"{self.name}.expectation")
        em.check_distribution(state.mixture_weights, (clusters,), f"{self.name}.expectation")
        state = replace(state, round=broadcast.round)
        step = Step(broadcast, state, client, losses)
        updates, state = self.maximisation(step, responsibilities)
        counts, table, state = self._statistics(responsibilities, losses, client, state)
        weights = state.mixture_weights
        if own is not None and clusters > 1:
            client.bank.load([own], None)
            log_probs, weights = log_probabilities(client.bank, inputs, 1), np.ones(1)
        metrics = {
            "loss": float((responsibilities * losses).sum(axis=1).mean()),
            "accuracy": accuracy(mix(log_probs, weights, self.hard), labels),
        }
        reply = Reply(
            samples=len(client.fit),
            deltas=updates,
            label_counts=counts,
            cross_losses=table,
            noise=client.noise,
            releases=state.releases,
            metrics=metrics,
        )
        self._check_finite(reply.is_finite(), broadcast.round, "what would be sent")
        self._check_finite(state.is_finite(), broadcast.round, "what would be kept")
        return reply, state

    def _check_finite(self, is_finite: bool, round_number: int, what: str) -> None:
        if not is_finite:
            raise DivergedError(
                f"training diverged in round {round_number}: {what} is not finite; lower "
                "local.learning-rate"
            )

    def _statistics(
        self, responsibilities: Floats, losses: Floats, client: ClientRuntime, state: ClientState
    ) -> tuple[Floats, Floats | None, ClientState]:
        """The counts, and the loss table if merging is on, as they are sent."""
        counts = em.count_labels(responsibilities, client.fit.labels, client.classes)
        if client.noise <= 0:
            return counts, responsibilities.T @ losses if self.sends_losses else None, state
        parts = [counts]
        unit = adaptive.table_unit(losses.shape[1], client.classes)
        if self.sends_losses:
            bound = adaptive.loss_bound(client.classes)
            parts.append(em.bounded_excess(responsibilities, losses, bound) / unit)
        norm = self.privacy.sensitivity(len(client.fit), len(parts))
        counts, *rest = privacy.release(parts, norm, client.noise, client.noise_rng)
        state = replace(state, releases=state.releases + len(parts))
        return counts, _without_diagonal(rest[0]) * unit if rest else None, state

    def assigned_weights(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """What ``assign`` returns, (K,), checked: a distribution found from finite losses."""
        if not finite([losses]):
            raise DivergedError(
                f"the models after round {broadcast.round} give losses that are not finite: "
                "continue from an earlier round with a lower local.learning-rate"
            )
        weights = self.assign(losses, labels, broadcast)
        em.check_distribution(weights, (losses.shape[1],), f"{self.name}.assign")
        return weights

    def evaluate(
        self, broadcast: Broadcast, state: ClientState | None, client: ClientRuntime
    ) -> dict[str, float]:
        """Accuracy and loss on the test part; without a state, weights come from the fit part.

        A training client also reports the accuracy on the fit part and, with ``fine-tune``, the
        test accuracy after one local epoch. An observer never trains.
        """
        client.bank.load(broadcast.models, broadcast.body)
        if state is None:
            inputs, labels = client.tensors(client.fit)
            losses = losses_of(
                log_probabilities(client.bank, inputs, len(broadcast.models)), labels
            )
            weights = self.assigned_weights(losses, client.fit.labels, broadcast)
        else:
            weights = state.moved_to(broadcast.membership).mixture_weights
            em.check_distribution(weights, (len(broadcast.models),), "the client's state")
        cluster = float(broadcast.membership.clusters[int(weights.argmax())])
        own = self.personal(broadcast, state)
        if own is not None:
            client.bank.load([own], None)
            weights = np.ones(1)
        metrics = self._judge(client, weights, "") | {"cluster": cluster}
        if client.role == TRAIN:
            metrics["fit_accuracy"] = accuracy(*self._predict(client, client.fit, weights))
            if self.settings.tunes():
                self._fine_tune(client, weights)
                metrics |= self._judge(client, weights, "fine_tuned_")
        return metrics

    def _predict(
        self, client: ClientRuntime, split: Split, weights: Floats
    ) -> tuple[Tensor, Tensor]:
        """Probabilities (N, C) from the networks in the bank, and the labels (N,)."""
        inputs, labels = client.tensors(split)
        log_probs = log_probabilities(client.bank, inputs, len(weights))
        return mix(log_probs, weights, self.hard), labels

    def _judge(self, client: ClientRuntime, weights: Floats, prefix: str) -> dict[str, float]:
        if not len(client.test):
            return {"samples": 0.0}
        probabilities, labels = self._predict(client, client.test, weights)
        right = probabilities.gather(1, labels[:, None]).clamp_min(1e-12).log().mean()
        return {
            "samples": float(len(client.test)),
            f"{prefix}accuracy": accuracy(probabilities, labels),
            f"{prefix}loss": float(-right),
        }

    def _fine_tune(self, client: ClientRuntime, weights: Floats) -> None:
        """FedRC-FT: one local epoch of every cluster, weighted by the client's mixture weights."""
        inputs, labels = client.tensors(client.fit)
        everyone = np.repeat(weights[None, :], len(client.fit), axis=0)
        settings = replace(self.local_settings(len(client.fit)), epochs=1)
        active = active_clusters(everyone, settings)
        train(client.bank, inputs, labels, everyone, active, settings, client.rng)


def _without_diagonal(table: Floats) -> Floats:
    """A table of differences without the noise on its diagonal, which is known to be zero."""
    return table - np.diag(np.diag(table))
