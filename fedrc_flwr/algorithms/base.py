"""The client's half that clustered algorithms share. A subclass adds the E-step.

The server's half is in ``server.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional

from fedrc_flwr import adaptive, bounds, em, privacy
from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.algorithms.server import ServerHalf
from fedrc_flwr.algorithms.step import ClientRuntime, Step
from fedrc_flwr.data.scenario import TRAIN, Split
from fedrc_flwr.discovery import fingerprint
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.errors import DivergedError
from fedrc_flwr.finite import finite
from fedrc_flwr.layout import Vector
from fedrc_flwr.metrics import Counts, Evaluation, tally
from fedrc_flwr.sgd import active_clusters
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import (
    accuracy,
    features,
    log_probabilities,
    losses_of,
    mix,
    score,
    train,
)


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
        settings = self.local_settings(len(client.fit)).repeated(step.broadcast.phase.passes)
        inputs, labels = client.tensors(client.fit)
        active = active_clusters(weights, settings)
        if client.noise > 0:
            # Which updates are left out would tell what the noise on the counts hides.
            settings = replace(settings, skip_below=0.0)
            active = list(range(weights.shape[1]))
        weights = weights * step.emphasis(settings)
        deltas = train(
            client.bank, inputs, labels, weights, active, settings, client.rng, client.first_pass,
            client.alone,
        )  # fmt: skip
        client.logits = deltas.logits
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
        measured, scatter, state = self._measured(broadcast, state, client)
        inputs, labels = client.tensors(client.fit)
        own = self.personal(broadcast, state)
        if own is not None and len(broadcast.models) == 1:
            client.bank.load([own], None)
        else:
            client.bank.load(broadcast.models, broadcast.body)
        clusters, phase = len(broadcast.models), broadcast.phase
        # Only the method below keeps the logits; a subclass may have its own.
        shared = type(self).maximisation is ClusteredAlgorithm.maximisation
        client.alone = clusters == 1 and shared and not (phase.listens or phase.compares)
        # One model gets all samples, whatever its losses are: these are known after training.
        losses = np.zeros((len(labels), 1))
        if not client.alone:
            log_probs = self._scored(client, inputs, clusters)
            losses = losses_of(log_probs, labels)
            self._check_finite(finite([losses]), broadcast.round, "the losses before training")
        responsibilities, state = self.expectation(Step(broadcast, state, client, losses))
        em.check_distribution(responsibilities, losses.shape, f"{self.name}.expectation")
        em.check_distribution(state.mixture_weights, (clusters,), f"{self.name}.expectation")
        state = replace(state, round=broadcast.round)
        step = Step(broadcast, state, client, losses)
        updates: dict[int, Vector] = {}
        if not phase.listens:
            updates, state = self.maximisation(step, responsibilities)
        if client.logits is not None:
            log_probs = functional.log_softmax(client.logits, dim=1)[:, None]
            losses = losses_of(log_probs, labels)
            bounded = np.where(losses.mean() <= bounds.MOST_LOSS, losses, np.inf)
            self._check_finite(finite([bounded]), broadcast.round, "the loss while training")
        step = replace(step, state=state)
        counts, table, state = self._statistics(responsibilities, step)
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
            fingerprint=measured,
            scatter=scatter,
        )
        self._check_finite(reply.is_finite(), broadcast.round, "what would be sent")
        self._check_finite(state.is_finite(), broadcast.round, "what would be kept")
        return reply, state

    def _scored(self, client: ClientRuntime, inputs: Tensor, clusters: int) -> Tensor:
        """Log of every cluster's predicted probabilities on the fit part, (N, K, C)."""
        if not self.trains_scored:
            return log_probabilities(client.bank, inputs, clusters)
        settings = self.local_settings(len(client.fit))
        scored, client.first_pass = score(client.bank, inputs, clusters, settings, client.rng)
        return scored

    def _check_finite(self, is_finite: bool, round_number: int, what: str) -> None:
        if not is_finite:
            raise DivergedError(
                f"training diverged in round {round_number}: {what} is not finite; lower "
                "local.learning-rate"
            )

    def _measured(
        self, broadcast: Broadcast, state: ClientState, client: ClientRuntime
    ) -> tuple[Floats | None, Floats | None, ClientState]:
        """The client's fingerprint and scatter as they are sent, if they are asked for.

        Each of the two has a norm of at most the number of samples once it is divided by its unit,
        as the label counts have.
        """
        if not broadcast.phase.measures:
            return None, None, state
        yardstick, bank = broadcast.yardstick, client.bank
        if yardstick is None:
            bank.load(broadcast.models, broadcast.body)
        elif broadcast.body is None:
            bank.load([yardstick], None)
        else:
            bank.load([], yardstick)
        inputs, _ = client.tensors(client.fit)
        taken = fingerprint.take(features(bank, inputs), client.fit.labels, client.classes)
        if client.noise > 0:
            parts = [part / unit for part, unit in zip(taken, fingerprint.UNITS, strict=True)]
            norm = self.privacy.sensitivity(len(client.fit), len(parts))
            released = privacy.release(parts, norm, client.noise, client.noise_rng)
            noisy = [part * unit for part, unit in zip(released, fingerprint.UNITS, strict=True)]
            state = replace(state, releases=state.releases + len(parts))
            return noisy[0], noisy[1], state
        return taken[0], taken[1], state

    def _statistics(
        self, responsibilities: Floats, step: Step
    ) -> tuple[Floats, Floats | None, ClientState]:
        """The counts, and the loss table if merging is on, as they are sent.

        Rare labels count as much in the table as in training, or clusters that disagree about them
        alone would be merged. With noise they do not, because the table's norm must be bounded.
        """
        client, losses, state = step.client, step.losses, step.state
        compares = step.broadcast.phase.compares
        counts = em.count_labels(responsibilities, client.fit.labels, client.classes)
        if client.noise <= 0:
            weights = responsibilities * step.emphasis(self.local)
            return counts, weights.T @ losses if compares else None, state
        parts = [counts]
        unit = adaptive.table_unit(losses.shape[1], client.classes)
        if compares:
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
    ) -> Evaluation:
        """How well the models do on the test part; without a state, weights come from the fit part.

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
        counts = client.confusion and len(client.test) > 0
        right = self._right_by_cluster(client, len(weights)) if counts else None
        own = self.personal(broadcast, state)
        if own is not None:
            client.bank.load([own], None)
            weights = np.ones(1)
        metrics = self._judge(client, weights, "")
        if client.noise <= 0:
            metrics["cluster"] = cluster
        counted = None
        if right is not None:
            probabilities, labels = self._predict(client, client.test, weights)
            counted = tally(probabilities.double().cpu().numpy(), labels.cpu().numpy(), right)
        if client.role == TRAIN:
            metrics["fit_accuracy"] = accuracy(*self._predict(client, client.fit, weights))
            if self.settings.tunes():
                self._fine_tune(client, weights, broadcast)
                metrics |= self._judge(client, weights, "fine_tuned_")
        return Evaluation(metrics, counted)

    def _right_by_cluster(self, client: ClientRuntime, clusters: int) -> Counts:
        """Test samples that each network in the bank predicts right on its own, (K,)."""
        inputs, labels = client.tensors(client.test)
        predicted = log_probabilities(client.bank, inputs, clusters).argmax(dim=2)
        return (predicted == labels[:, None]).sum(dim=0).cpu().numpy()

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

    def _fine_tune(self, client: ClientRuntime, weights: Floats, broadcast: Broadcast) -> None:
        """FedRC-FT: one local epoch of every cluster, weighted by the client's mixture weights."""
        inputs, labels = client.tensors(client.fit)
        everyone = np.repeat(weights[None, :], len(client.fit), axis=0)
        settings = replace(self.local_settings(len(client.fit)), epochs=1)
        active = active_clusters(everyone, settings)
        emphasis = settings.emphasis(broadcast.label_prior)[: len(weights), client.fit.labels].T
        train(client.bank, inputs, labels, everyone * emphasis, active, settings, client.rng)


def _without_diagonal(table: Floats) -> Floats:
    """A table of differences without the noise on its diagonal, which is known to be zero."""
    return table - np.diag(np.diag(table))
