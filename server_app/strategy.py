"""The strategy, which translates between Flower's messages and the rounds on the server's side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedrc_flwr import wire
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.engine.judging import judge
from fedrc_flwr.engine.letters import Letter, updates
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.errors import RunError, WireError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.records import payload
from server_app.enrolment import Roster
from server_app.exchange import Answer, Outbox, exchange
from server_app.grace import Grace, RoundsGrace

#: Extra seconds until a message expires, so that the server decides about the deadline.
TTL_GRACE = 10.0


class ClusteredStrategy(Strategy):
    """Runs any of the library's algorithms on Flower: a ``Carrier`` of its messages.

    Parameters
    ----------
    rounds : the run's rounds, which hold the state and add up the replies
    roster : the enrolled clients
    layout : fingerprint of the network's layout
    """

    def __init__(self, rounds: Rounds, roster: Roster, layout: str, grid: Grid) -> None:
        self.rounds = rounds
        self.roster = roster
        self.layout = layout
        self._exchange = rounds.settings.exchange()
        self._outbox: Outbox[Letter] = Outbox(grid, self._exchange.window)
        self._letters: dict[int, Letter] = {}  # by node, of Flower's own loop
        self._took: dict[bool, dict[str, float]] = {True: {}, False: {}}  # by kind of letter
        self._down = self._up = 0

    def summary(self) -> None:
        """Nothing; the run has its own log."""

    # --- what carries messages for the rounds ----------------------------------------------------

    def refresh(self) -> list[Enrolment]:
        """Look for nodes, and enrol those that have answered since the last call."""
        return self.roster.refresh()

    def online(self, role: str) -> list[str]:
        """Names of the reachable clients with a role, sorted."""
        return self.roster.online(role)

    def close(self) -> None:
        """Expect no reply any more."""
        self._outbox.close()

    def under_way(self) -> set[Letter]:
        """The letters that may still be answered."""
        return self._outbox.unanswered()

    def deliver(
        self, letters: list[Letter], enough: int | None = None
    ) -> Iterator[tuple[Letter, Reply | Evaluation]]:
        """Send these letters and yield the answers as they arrive, those to earlier ones, too."""
        messages = zip(letters, self._messages(letters), strict=True)
        patience = RoundsGrace(self._grace(letters, True), self._grace(letters, False), enough)
        deadline, keeps = self._exchange.deadline, enough is not None
        answers = exchange(self._outbox, messages, deadline, patience, keeps)
        yield from self._understood(answers)
        for letter in self.under_way():
            letter.lighten()
        self._took[True].update(patience.training.took)
        self._took[False].update(patience.evaluation.took)

    def traffic(self) -> tuple[int, int]:
        """Bytes of arrays sent and received since the last call."""
        down, up, self._down, self._up = self._down, self._up, 0, 0
        return down, up

    # --- Flower's interface, for whoever drives it with Flower's own loop ------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to this round's sample of the training clients."""
        self.rounds.enrol(self.refresh())
        names = self.rounds.sample(self.online(TRAIN), server_round, attempt=0)
        return self._configured(server_round, names, trains=True)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into the next state."""
        found = updates(self._understood(self._answers(replies)))
        metrics = self.rounds.fold(server_round, found, len(self._letters))
        return None, None if metrics is None else MetricRecord({"loss": float(metrics["loss"])})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all reachable clients."""
        names = self.online(TRAIN) + self.online(OBSERVE)
        return self._configured(server_round, names, trains=False)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean local and global accuracy."""
        state = self.rounds.state
        evaluations = {
            letter.name: answer.widened(
                letter.broadcast.membership.clusters, letter.everybody.clusters
            )
            for letter, answer in self._understood(self._answers(replies))
            if isinstance(answer, Evaluation)
        }
        outcome = judge(evaluations, state.clients, state.clusters)
        numbers = {name: value for name, value in outcome.items() if isinstance(value, float)}
        return MetricRecord(dict(numbers)) if numbers else None

    def _configured(self, server_round: int, names: list[str], trains: bool) -> Iterator[Message]:
        broadcast = self.rounds.broadcast(server_round, len(names))
        letters = self.rounds.letters(broadcast, names, trains)
        self._letters = {self.roster.node(letter.name): letter for letter in letters}
        return self._messages(letters)

    def _answers(self, replies: Iterable[Message]) -> Iterator[Answer[Letter]]:
        for reply in replies:
            if reply.metadata.src_node_id not in self._letters:
                raise RunError("replies without letters: configure_train comes first")
            yield Answer(self._letters[reply.metadata.src_node_id], reply)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 0,
        timeout: float = 0.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Refused: a run is started by ``fedrc_flwr.engine.run.Run``, which resumes and records.

        Flower's own loop counts from 1, never repeats a round and holds all replies in memory.
        """
        raise RunError("start a run through fedrc_flwr.engine.run.Run")

    # --- messages --------------------------------------------------------------------------------

    def _messages(self, letters: list[Letter]) -> Iterator[Message]:
        """One message per letter; those of the same content share their records."""
        encoded: dict[object, RecordDict] = {}
        for letter in letters:
            own = letter.broadcast
            if own.kind() not in encoded:
                precision = self._exchange.transport
                encoded[own.kind()] = wire.encode_broadcast(own, self.layout, precision)
            content = encoded[own.kind()]
            self._down += payload(content)
            yield Message(
                content,
                self.roster.node(letter.name),
                MessageType.TRAIN if letter.trains else MessageType.EVALUATE,
                ttl=self._exchange.deadline + TTL_GRACE,
                group_id=str(own.round),
            )

    def _grace(self, letters: list[Letter], trains: bool) -> Grace:
        names = [letter.name for letter in letters if letter.trains == trains]
        samples = {name: self.roster.clients[name].samples for name in names}
        needed = self.rounds.settings.needed(len(names))
        before = dict(self._took[trains])
        # Who is still at work on an earlier round has the time that this may take.
        for busy in (letter.name for letter in self.under_way() if letter.trains):
            before[busy] = max(before.get(busy, 0.0), self._took[True].get(busy, math.inf))
        return Grace(needed, self._exchange.grace, samples, before)

    def _understood(
        self, answers: Iterable[Answer[Letter]]
    ) -> Iterator[tuple[Letter, Reply | Evaluation]]:
        """Answers that can be used; the others are noted as failed."""
        for answer in answers:
            letter, content = answer.about, self._content(answer)
            if content is None:
                continue
            own, classes = letter.broadcast, self.rounds.classes
            try:
                found: Reply | Evaluation
                if letter.trains:
                    found = wire.decode_reply(content, own, classes)
                else:
                    clusters = len(own.membership.clusters)
                    found = wire.decode_evaluation(content, classes, clusters)
            except WireError as error:
                self.rounds.refuse(letter.name, str(error))
                continue
            self._up += payload(content)
            yield letter, found

    def _content(self, answer: Answer[Letter]) -> RecordDict | None:
        name = answer.about.name
        if answer.reply is None:
            self.rounds.miss(name)
            return None
        if answer.reply.has_error():
            error = answer.reply.error
            self.rounds.fail(name, f"error {error.code}: {error.reason}")
            return None
        return answer.reply.content
