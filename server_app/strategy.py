"""The strategy, which translates between Flower's messages and the rounds on the server's side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedrc_flwr import wire
from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.rounds import Enrolment, Rounds
from fedrc_flwr.errors import RunError, WireError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.records import payload
from server_app.enrolment import Roster
from server_app.exchange import Answer, exchange
from server_app.grace import Grace

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
        self._grid = grid
        self._exchange = rounds.settings.exchange()
        self._broadcast: Broadcast | None = None
        self._own: dict[str, Broadcast] = {}  # as each client received it
        self._names: dict[int, str] = {}
        self._took: dict[str, dict[str, float]] = {}  # seconds of each client by kind of message
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

    def train(self, names: list[str], broadcast: Broadcast) -> Iterator[tuple[str, Reply]]:
        """Train these clients and yield their replies as they arrive."""
        messages = self._messages(names, broadcast, MessageType.TRAIN)
        return self._replies(self._answers(messages, MessageType.TRAIN))

    def evaluate(self, names: list[str], broadcast: Broadcast) -> Iterator[tuple[str, Evaluation]]:
        """Evaluate these clients and yield what they report as it arrives."""
        messages = self._messages(names, broadcast, MessageType.EVALUATE)
        return self._evaluations(self._answers(messages, MessageType.EVALUATE))

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
        broadcast = self.rounds.broadcast(server_round, len(names))
        return self._messages(names, broadcast, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into the next state."""
        answers = (Answer(self._name_of(reply), reply) for reply in replies)
        metrics = self.rounds.fold(server_round, self._replies(answers), len(self._names))
        return None, None if metrics is None else MetricRecord({"loss": float(metrics["loss"])})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all reachable clients."""
        names = self.online(TRAIN) + self.online(OBSERVE)
        broadcast = self.rounds.broadcast(server_round, len(names))
        return self._messages(names, broadcast, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Mean local and global accuracy."""
        answers = (Answer(self._name_of(reply), reply) for reply in replies)
        outcome = self.rounds.judge(self._evaluations(answers))
        numbers = {name: value for name, value in outcome.items() if isinstance(value, float)}
        return MetricRecord(dict(numbers)) if numbers else None

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

    def _messages(self, names: list[str], broadcast: Broadcast, kind: str) -> Iterator[Message]:
        """One message per client, all sharing the same records."""
        self._names = {self.roster.node(name): name for name in names}
        self._broadcast = broadcast
        rounds, training = self.rounds, kind == MessageType.TRAIN
        self._own = {
            name: rounds.algorithm.addressed(rounds.state, broadcast, name, training)
            for name in names
        }
        encoded: dict[object, RecordDict] = {}  # once for all clients that receive the same

        def stream() -> Iterator[Message]:
            for name in names:
                own = self._own[name]
                if own.kind() not in encoded:
                    encoded[own.kind()] = wire.encode_broadcast(
                        own, self.layout, self._exchange.transport
                    )
                content = encoded[own.kind()]
                self._down += payload(content)
                yield Message(
                    content,
                    self.roster.node(name),
                    kind,
                    ttl=self._exchange.deadline + TTL_GRACE,
                    group_id=str(broadcast.round),
                )

        return stream()

    def _answers(self, messages: Iterable[Message], kind: str) -> Iterator[Answer]:
        named = ((self._names[m.metadata.dst_node_id], m) for m in messages)
        before = self._took.setdefault(kind, {})
        samples = {name: self.roster.clients[name].samples for name in self._names.values()}
        needed = self.rounds.settings.needed(len(samples))
        window, deadline = self._exchange.window, self._exchange.deadline
        grace = Grace(needed, self._exchange.grace, samples, dict(before))
        yield from exchange(self._grid, named, window, deadline, grace)
        before.update(grace.took)

    def _name_of(self, reply: Message) -> str:
        return self._names.get(reply.metadata.src_node_id, f"node {reply.metadata.src_node_id}")

    def _replies(self, answers: Iterable[Answer]) -> Iterator[tuple[str, Reply]]:
        """Replies that can be used; the others are noted as failed."""
        if self._broadcast is None:
            raise RunError("replies without a broadcast: configure_train comes first")
        for answer in answers:
            content = self._content(answer)
            if content is None:
                continue
            try:
                own = self._own[answer.name]
                reply = wire.decode_reply(content, own, self.rounds.classes)
            except WireError as error:
                self.rounds.refuse(answer.name, str(error))
                continue
            self._up += payload(content)
            yield answer.name, reply.widened(own.membership, self._broadcast.membership)

    def _evaluations(self, answers: Iterable[Answer]) -> Iterator[tuple[str, Evaluation]]:
        """Evaluations that can be used; the others are noted as failed."""
        if self._broadcast is None:
            raise RunError("replies without a broadcast: configure_evaluate comes first")
        for answer in answers:
            content = self._content(answer)
            if content is None:
                continue
            try:
                own = self._own[answer.name].membership.clusters
                evaluation = wire.decode_evaluation(content, self.rounds.classes, len(own))
            except WireError as error:
                self.rounds.refuse(answer.name, str(error))
                continue
            self._up += payload(content)
            yield answer.name, evaluation.widened(own, self._broadcast.membership.clusters)

    def _content(self, answer: Answer) -> RecordDict | None:
        if answer.reply is None:
            self.rounds.miss(answer.name)
            return None
        if answer.reply.has_error():
            error = answer.reply.error
            self.rounds.fail(answer.name, f"error {error.code}: {error.reason}")
            return None
        return answer.reply.content
