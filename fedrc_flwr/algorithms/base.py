"""What clustered algorithms have in common: both halves of a round, with the E-step left open."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrc_flwr import adaptive, em, privacy
from fedrc_flwr.adaptive import Adaptation
from fedrc_flwr.aggregation import BODY, UpdateSums, apply_updates
from fedrc_flwr.bank import ModelBank
from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.scenario import TRAIN, Split
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.errors import DivergedError
from fedrc_flwr.finite import finite
from fedrc_flwr.layout import Vector, count_parameters, to_vector
from fedrc_flwr.models import SplitModel
from fedrc_flwr.state import ClientRecord, ClientState, Membership, ServerState
from fedrc_flwr.training import (
    FirstPass,
    LocalSettings,
    accuracy,
    log_probabilities,
    losses_of,
    mix,
    score,
    train,
)

#: Times the round's median norm from which on an update is held to be the one that broke it.
FAR = 1000.0


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to a client, in training and in evaluation.

    ``parameters`` and ``body_parameters`` say how many numbers of a model and of the body, from the
    first on, are parameters; the rest are running statistics.
    """

    round: int
    membership: Membership
    models: list[Vector]
    body: Vector | None
    parameters: int
    body_parameters: int
    label_prior: Floats
    exponent: float
    assigned: int = -1  # id of the cluster that the server put the client into, where it does so


@dataclass(frozen=True)
class Reply:
    """What a client sends back after training.

    Parameters
    ----------
    deltas : update of each cluster by position; -1 is the shared body; absent means zero
    label_counts : (K, C), noisy where the client adds noise
    cross_losses : (K, K), sums over samples of responsibility for a times loss of b, or None; where
        the client adds noise, times what b loses more than a
    """

    samples: int
    deltas: dict[int, Vector]
    label_counts: Floats
    cross_losses: Floats | None
    noise: float
    releases: int
    metrics: dict[str, float]

    def is_finite(self) -> bool:
        """Whether all its numbers can be computed with."""
        statistics = [self.label_counts, self.cross_losses]
        return finite([*self.deltas.values(), *statistics, *self.metrics.values()])


@dataclass
class ClientRuntime:
    """A client's samples on its device, and what it computes with."""

    config: RunConfig
    bank: ModelBank
    fit: Split
    test: Split
    classes: int
    noise: float
    rng: np.random.Generator
    role: str
    noise_rng: np.random.Generator = field(default_factory=privacy.secret_generator)
    first_pass: FirstPass | None = None  # of the round's E-step, where its training reuses it

    def tensors(self, split: Split) -> tuple[Tensor, Tensor]:
        """Inputs and labels on the device."""
        device = self.bank.device
        return torch.from_numpy(split.inputs).to(device), torch.from_numpy(split.labels).to(device)


@dataclass
class RoundResult:
    """The replies of one round, summed as they arrive."""

    sums: UpdateSums
    records: dict[str, ClientRecord] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)  # of each reply's update, all clusters
    updates: dict[str, Vector] = field(default_factory=dict)  # by client, where they are compared

    def culprits(self) -> dict[str, str]:
        """Whose replies to leave out where the next state is not finite, and why.

        Those whose statistics are too large, or whose update is far larger than usual in this
        round; where there is none of either, the one with the largest update.
        """
        found = {
            name: "its statistics are too large to compute with"
            for name, record in self.records.items()
            if not record.is_finite()
        }
        usual = float(np.median(list(self.norms.values())))
        largest = max(self.norms, key=lambda name: self.norms[name])
        far = [name for name, norm in self.norms.items() if norm > FAR * usual]
        for name in far or ([] if found else [largest]):
            found[name] = (
                f"with its update the models are no longer finite: its norm is "
                f"{self.norms[name]:.3g}, the round's median is {usual:.3g}"
            )
        return found


@dataclass(frozen=True)
class RoundReport:
    """What the server notes of a finished round."""

    movement: float
    adaptation: Adaptation


class ClusteredAlgorithm:
    """An algorithm that keeps K models on the server and weighs every client between them."""

    name: ClassVar[str]
    #: Whether a client that sends no update of a cluster counts as one that left it unchanged.
    absent_is_zero: ClassVar[bool] = True
    #: Whether clients train the very networks that the E-step scored, from where it scored them.
    trains_scored: ClassVar[bool] = False

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    # --- the part in which algorithms differ -----------------------------------------------------

    def expectation(
        self,
        losses: Floats,
        labels: Labels,
        broadcast: Broadcast,
        state: ClientState,
        rng: np.random.Generator,
    ) -> tuple[Floats, ClientState]:
        """Responsibilities (N, K) for the M-step and the counts, and the client's next state."""
        raise NotImplementedError

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """Mixture weights of a client that never trained, from its labelled samples."""
        raise NotImplementedError

    def maximisation(
        self,
        broadcast: Broadcast,
        state: ClientState,
        client: ClientRuntime,
        responsibilities: Floats,
    ) -> tuple[dict[int, Vector], ClientState]:
        """The updates to send, by position, and the client's next state.

        The client's bank holds the broadcast's networks, or the client's own.
        """
        config = self.config
        weights = responsibilities
        if config.clustering == "hard-train":
            weights = em.harden(responsibilities)
        active = self._active(weights)
        inputs, labels = client.tensors(client.fit)
        deltas = train(
            client.bank, inputs, labels, weights, active, local_settings(config), client.rng,
            client.first_pass,
        )  # fmt: skip
        updates = dict(deltas.clusters)
        if deltas.body is not None:
            updates[BODY] = deltas.body
        return updates, state

    def _active(self, weights: Floats) -> list[int]:
        """The clusters that are worth training with these weights, (N, K)."""
        most, part = weights.max(axis=0), weights.mean(axis=0)
        least = self.config.skip_cluster_below / len(part)
        worth = (most >= self.config.skip_below) & (part >= least)
        return [int(k) for k in np.flatnonzero(worth & (most > 0))]

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """The one network of its own that a client predicts with; None: the clusters' mixture."""
        return None

    # --- client half -----------------------------------------------------------------------------

    def train(
        self, broadcast: Broadcast, state: ClientState, client: ClientRuntime
    ) -> tuple[Reply, ClientState]:
        """One round on one client: E-step, counts, local training.

        Raises ``DivergedError`` where any number of the result is not finite.
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
            settings = local_settings(self.config)
            log_probs, client.first_pass = score(
                client.bank, inputs, clusters, settings, client.rng
            )
        else:
            log_probs = log_probabilities(client.bank, inputs, clusters)
        losses = losses_of(log_probs, labels)
        self._check_finite(finite([losses]), broadcast.round, "the losses before training")
        responsibilities, state = self.expectation(
            losses, client.fit.labels, broadcast, state, client.rng
        )
        em.check_distribution(responsibilities, losses.shape, f"{self.name}.expectation")
        em.check_distribution(state.mixture_weights, (clusters,), f"{self.name}.expectation")
        state = replace(state, round=broadcast.round)
        updates, state = self.maximisation(broadcast, state, client, responsibilities)
        counts, table, state = self._statistics(responsibilities, losses, client, state)
        weights = state.mixture_weights
        if own is not None and clusters > 1:
            client.bank.load([own], None)
            log_probs, weights = log_probabilities(client.bank, inputs, 1), np.ones(1)
        metrics = {
            "loss": float((responsibilities * losses).sum(axis=1).mean()),
            "accuracy": accuracy(mix(log_probs, weights, self._hard), labels),
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
                f"learning-rate (it is {self.config.learning_rate:g})"
            )

    def _statistics(
        self, responsibilities: Floats, losses: Floats, client: ClientRuntime, state: ClientState
    ) -> tuple[Floats, Floats | None, ClientState]:
        """The counts, and the loss table where merging is on, as they leave the client."""
        config = self.config
        counts = em.count_labels(responsibilities, client.fit.labels, client.classes)
        if client.noise <= 0:
            return counts, responsibilities.T @ losses if config.merge else None, state
        parts = [counts]
        unit = adaptive.table_unit(losses.shape[1], client.classes)
        if config.merge:
            bound = adaptive.loss_bound(client.classes)
            parts.append(em.bounded_excess(responsibilities, losses, bound) / unit)
        norm = privacy.sensitivity(len(client.fit), config.count_clip, len(parts))
        counts, *rest = privacy.release(parts, norm, client.noise, client.noise_rng)
        state = replace(state, releases=state.releases + len(parts))
        return counts, _without_diagonal(rest[0]) * unit if rest else None, state

    def assigned_weights(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """What ``assign`` returns, (K,), checked: a distribution found from finite losses."""
        if not finite([losses]):
            raise DivergedError(
                f"the models after round {broadcast.round} give losses that are not finite: go on "
                "from an earlier round, with a lower learning-rate"
            )
        weights = self.assign(losses, labels, broadcast)
        em.check_distribution(weights, (losses.shape[1],), f"{self.name}.assign")
        return weights

    def evaluate(
        self, broadcast: Broadcast, state: ClientState | None, client: ClientRuntime
    ) -> dict[str, float]:
        """Accuracy and loss on the test part; without a state, weights come from the fit part.

        A training client also reports the same prediction's accuracy on the fit part, and, with
        ``fine-tune``, what one local epoch makes of its test part. An observer never trains.
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
            if self.config.fine_tune:
                self._fine_tune(client, weights)
                metrics |= self._judge(client, weights, "fine_tuned_")
        return metrics

    @property
    def _hard(self) -> bool:
        """Whether a client predicts with its likeliest cluster alone."""
        return self.config.clustering != "soft"

    def _predict(
        self, client: ClientRuntime, split: Split, weights: Floats
    ) -> tuple[Tensor, Tensor]:
        """Probabilities (N, C) from the networks in the bank, and the labels (N,)."""
        inputs, labels = client.tensors(split)
        log_probs = log_probabilities(client.bank, inputs, len(weights))
        return mix(log_probs, weights, self._hard), labels

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
        """FedRC-FT: one local epoch of every cluster, weighed by the client's mixture weights."""
        inputs, labels = client.tensors(client.fit)
        everyone = np.repeat(weights[None, :], len(client.fit), axis=0)
        active = self._active(everyone)
        settings = replace(local_settings(self.config), epochs=1)
        train(client.bank, inputs, labels, everyone, active, settings, client.rng)

    # --- server half -----------------------------------------------------------------------------

    def initial_state(self, models: list[SplitModel]) -> ServerState:
        """K models with different initial values, nobody enrolled."""
        clusters = tuple(range(len(models)))
        shared = self.config.shared_body
        units = [model.head if shared else model for model in models]
        drawn = [to_vector(unit) for unit in units]
        return ServerState(
            round=0,
            membership=Membership(clusters),
            models=dict(zip(clusters, self._spread(drawn), strict=True)),
            body=to_vector(models[0].body) if shared else None,
            clients={},
            parameters=count_parameters(units[0]),
            body_parameters=count_parameters(models[0].body) if shared else 0,
        )

    def _spread(self, drawn: list[Vector]) -> list[Vector]:
        """Initial values at the configured distance from each other.

        Networks drawn one by one tell samples apart at random, by anything, and the first E-steps
        follow that. From nearly the same values they part by what the clients disagree about.
        """
        spread = np.float32(self.config.initial_spread)
        if spread == 1:
            return drawn
        first = drawn[0]
        return [first + spread * (vector - first) for vector in drawn]

    def exponent(self, round_number: int) -> float:
        """The E-step's exponent in this round."""
        config = self.config
        end = config.annealing_end if config.annealing_by == "client" else 1.0
        return em.annealing_exponent(
            round_number, config.annealing_rounds, config.annealing_start, end
        )

    def broadcast(self, state: ServerState, round_number: int, classes: int) -> Broadcast:
        """What goes out for a round."""
        return Broadcast(
            round=round_number,
            membership=state.membership,
            models=[state.models[c] for c in state.clusters],
            body=state.body,
            parameters=state.parameters,
            body_parameters=state.body_parameters,
            label_prior=state.label_prior(self.config.prior_floor, classes),
            exponent=self.exponent(round_number),
        )

    def assigned(self, state: ServerState, name: str) -> int:
        """Id of the cluster that a client is told to be in, or -1: it finds out by itself."""
        return -1

    def begin_round(self) -> RoundResult:
        """An empty sum for the round's replies."""
        return RoundResult(UpdateSums(self.absent_is_zero))

    def receive(self, state: ServerState, result: RoundResult, name: str, reply: Reply) -> None:
        """Fold one client's reply into the round's sums."""
        deltas = {
            BODY if k == BODY else state.clusters[k]: delta for k, delta in reply.deltas.items()
        }
        result.sums.add(deltas, reply.samples)
        record = state.clients[name]
        released = (reply.noise > 0) * (1 if reply.cross_losses is None else 2)
        result.records[name] = replace(
            record,
            samples=reply.samples,
            label_counts=reply.label_counts,
            cross_losses=reply.cross_losses,
            noise=reply.noise,
            # A client that lost its state counts from zero again; what arrived before still counts.
            releases=max(reply.releases, record.releases + released),
            loss=reply.metrics["loss"],
        )
        result.metrics[name] = reply.metrics

    def end_round(
        self, state: ServerState, result: RoundResult, round_number: int
    ) -> tuple[ServerState, RoundReport]:
        """The next state: models moved, counts remembered, clusters removed or merged."""
        after = apply_updates(state, result.sums.means(), self.config)
        after = replace(after, round=round_number, clients={**state.clients, **result.records})
        names = sorted(result.records)
        moved = adaptive.movement(state, after, names)
        learnt = adaptive.learning(state, after, names)
        annealed = round_number <= self.config.annealing_rounds
        after = adaptive.count_quiet_rounds(after, moved, learnt, annealed, self.config)
        after, adaptation = adaptive.adapt(after, moved, self.config)
        return after, RoundReport(moved.moved, adaptation)


def _without_diagonal(table: Floats) -> Floats:
    """A table of differences without the noise on its diagonal, which is known to be zero."""
    return table - np.diag(np.diag(table))


def local_settings(config: RunConfig) -> LocalSettings:
    """The local training that a configuration asks for."""
    return LocalSettings(
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        prox_mu=config.prox_mu,
        decorr_beta=config.decorr_beta,
        skip_below=config.skip_below,
    )
