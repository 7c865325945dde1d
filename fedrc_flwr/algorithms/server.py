"""The server's half of an algorithm: initial models, broadcasts, and aggregation of replies."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from fedrc_flwr import adaptive, privacy
from fedrc_flwr.adaptive import AdaptiveSettings
from fedrc_flwr.aggregation import BODY, ServerSettings, apply_updates
from fedrc_flwr.algorithms.direction import Directions
from fedrc_flwr.algorithms.messages import Broadcast, Phase, Reply, RoundReport, RoundResult
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.layout import Vector, count_parameters, to_vector
from fedrc_flwr.models import SplitModel
from fedrc_flwr.privacy import PrivacySettings
from fedrc_flwr.screening import Screening
from fedrc_flwr.sgd import LocalSettings
from fedrc_flwr.state import Membership, ServerState

NORM = "norm/"  # prefix of the numbers of the state: each cluster's median length of updates


def usual_norms(state: ServerState) -> dict[int, float]:
    """The median length of the last round's updates by cluster."""
    found = {n.removeprefix(NORM): v for n, v in state.numbers.items() if n.startswith(NORM)}
    return {int(cluster): value for cluster, value in found.items()}


def with_usual_norms(state: ServerState, norms: dict[int, float]) -> ServerState:
    """The state that remembers these; a cluster that nobody trained keeps its own."""
    alive = {
        c: v for c, v in {**usual_norms(state), **norms}.items() if c in (*state.clusters, BODY)
    }
    others = {n: v for n, v in state.numbers.items() if not n.startswith(NORM)}
    return replace(state, numbers={**others, **{f"{NORM}{c}": v for c, v in alive.items()}})


class ServerHalf:
    """What the server does, and the facts about an algorithm that both sides need."""

    name: ClassVar[str]
    #: Its name in tables.
    title: ClassVar[str]
    Settings: ClassVar[type[AlgorithmSettings]] = AlgorithmSettings
    #: Whether its clients predict with a network of their own.
    is_personal: ClassVar[bool] = False
    #: Whether a client that sends no update of a cluster counts as an update of zero.
    absent_is_zero: ClassVar[bool] = True

    settings: AlgorithmSettings

    def __init__(
        self,
        settings: AlgorithmSettings,
        local: LocalSettings,
        server: ServerSettings,
        privacy: PrivacySettings,
    ) -> None:
        self.settings = settings
        self.local = local
        self.server = server
        self.privacy = privacy
        local.check_clusters(settings.models())
        self.local_settings(1)  # refuses settings that contradict each other

    @classmethod
    def server_settings(cls, configured: ServerSettings) -> ServerSettings:
        """The server's settings that are used and recorded."""
        return configured

    @property
    def models(self) -> int:
        """How many models the server starts with."""
        return self.settings.models()

    @property
    def shared_body(self) -> bool:
        """Whether the clusters share their feature extractor."""
        return self.settings.one_body()

    @property
    def hard(self) -> bool:
        """Whether a client predicts with its likeliest cluster alone."""
        return self.settings.mode() != "soft"

    def adaptation(self, state: ServerState) -> AdaptiveSettings | None:
        """When clusters are removed and merged; None: never."""
        return None

    def local_settings(self, samples: int) -> LocalSettings:
        """How a client of this size trains."""
        return self.local.for_samples(samples)

    def phase(self, round_number: int, state: ServerState) -> Phase:
        """What kind of E-step a round has."""
        return Phase()

    def epsilon(self, state: ServerState) -> float | None:
        """The largest epsilon that any client has spent; None if none can be claimed."""
        spent = [record.spent for record in state.reported().values()]
        return privacy.largest_epsilon(spent, self.privacy)

    def initial_state(self, models: list[SplitModel]) -> ServerState:
        """K models with different initial values, nobody enrolled."""
        clusters = tuple(range(len(models)))
        shared = self.shared_body
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

        Independently drawn networks divide samples at random, and the first E-steps follow that
        division. From nearly equal values they separate by what the clients disagree about.
        """
        spread = np.float32(self.settings.spread())
        if spread == 1:
            return drawn
        first = drawn[0]
        return [first + spread * (vector - first) for vector in drawn]

    def broadcast(self, state: ServerState, round_number: int, classes: int) -> Broadcast:
        """The message of a round."""
        return Broadcast(
            round=round_number,
            membership=state.membership,
            models=[state.models[c] for c in state.clusters],
            body=state.body,
            parameters=state.parameters,
            body_parameters=state.body_parameters,
            label_prior=state.label_prior(classes),
            phase=replace(self.phase(round_number, state), compares=self._compares(state)),
        )

    def _compares(self, state: ServerState) -> bool:
        """Whether clients send a loss table with the label counts."""
        settings = self.adaptation(state)
        return settings is not None and settings.needs_losses()

    def addressed(
        self, state: ServerState, broadcast: Broadcast, name: str, training: bool
    ) -> Broadcast:
        """The broadcast as one client receives it, to be trained or evaluated."""
        return replace(broadcast, assigned=self.assigned(state, name))

    def assigned(self, state: ServerState, name: str) -> int:
        """Id of the cluster that the server assigns to a client; -1: the client chooses."""
        return -1

    def brought_up(
        self, state: ServerState, name: str, sent: Broadcast, everybody: Membership, reply: Reply
    ) -> Reply:
        """A reply to an earlier round's broadcast, as far as it fits the present state.

        Updates count if the client would be asked for the same clusters now; label counts, if the
        clusters are the same. Otherwise the server keeps what it knew of the client.

        Parameters
        ----------
        sent : the broadcast as the client received it
        everybody : the clusters at the time
        """
        record, clusters = state.clients[name], state.clusters
        if everybody.clusters != clusters:
            counts = record.label_counts
            if counts is None:
                whole = reply.label_counts.sum(axis=0, keepdims=True)
                counts = np.repeat(whole / len(clusters), len(clusters), axis=0)
            kept = replace(reply, label_counts=counts, cross_losses=None)
            return kept.without_updates()
        broadcast = self.broadcast(state, state.round + 1, reply.label_counts.shape[1])
        now = self.addressed(state, broadcast, name, training=True)
        same = (now.membership.clusters, now.assigned) == (sent.membership.clusters, sent.assigned)
        reply = reply.widened(sent.membership, everybody)
        return reply if same else reply.without_updates()

    def begin_round(self, state: ServerState) -> RoundResult:
        """Empty sums for the round's replies."""
        return RoundResult(
            self.server.collector(self.counts_absent(state)),
            screening=Screening(usual_norms(state), self.server.longest()),
        )

    def counts_absent(self, state: ServerState) -> bool:
        """Whether, in this round, no update of a cluster counts as an update of zero."""
        return self.absent_is_zero

    def directions(self, state: ServerState, seed: int) -> Directions:
        """What the directions of the next round's updates are noted in."""
        compares = self.compares_directions(state) and self.server.compares_directions()
        return Directions(seed, self.server.most_opposed(), compares)

    def compares_directions(self, state: ServerState) -> bool:
        """Whether updates that point against the others' tell an attacker in the next round.

        Later than in the first round, they may be those of clients with another concept.
        """
        return state.round == 0

    def receive(self, state: ServerState, result: RoundResult, name: str, reply: Reply) -> None:
        """Fold one client's reply into the round's sums."""
        if reply.counts:
            result.sums.add(reply.by_cluster(state.clusters), reply.samples, result.home)
        record = state.clients[name]
        released = (reply.noise > 0) * (1 if reply.cross_losses is None else 2)
        # A client that lost its state counts from zero; what it released before still counts.
        releases = max(reply.releases, record.releases + released)
        cost = self.privacy.cost(reply.samples, reply.noise, releases - record.releases)
        result.records[name] = replace(
            record,
            samples=reply.samples,
            label_counts=reply.label_counts,
            cross_losses=reply.cross_losses,
            noise=reply.noise,
            releases=releases,
            spent=record.spent + cost,
            loss=reply.metrics["loss"],
            fingerprint=record.fingerprint if reply.fingerprint is None else reply.fingerprint,
        )
        result.metrics[name] = reply.metrics
        if reply.scatter is not None:
            result.scatters[name] = reply.scatter

    def end_round(
        self, state: ServerState, result: RoundResult, round_number: int
    ) -> tuple[ServerState, RoundReport]:
        """The next state: models moved, counts remembered, clusters removed or merged."""
        after = apply_updates(state, result.sums.means(), self.server)
        after = replace(after, round=round_number, clients={**state.clients, **result.records})
        names = sorted(result.records)
        moved = adaptive.movement(state, after, names)
        settings = self.adaptation(state)
        if settings is None:
            return after, RoundReport(moved.moved)
        learnt = adaptive.learning(state, after, names)
        annealed = self.phase(round_number, state).annealed
        after = adaptive.count_quiet_rounds(after, moved, learnt, annealed, settings)
        uneven = self.privacy.clips_unevenly()
        after, adaptation = adaptive.adapt(after, moved, settings, uneven)
        return after, RoundReport(moved.moved, adaptation)
