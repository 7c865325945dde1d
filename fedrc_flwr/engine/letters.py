"""What clients are asked in a round, and the evaluations that their answers add up to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from fedrc_flwr import bounds
from fedrc_flwr.algorithms.base import ClusteredAlgorithm
from fedrc_flwr.algorithms.messages import Broadcast, Evaluates, Reply
from fedrc_flwr.engine.judging import judge
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.state import Membership, ServerState


@dataclass(eq=False)
class Letter:
    """What one client is asked: to train, to evaluate, or both.

    Parameters
    ----------
    broadcast : as the client receives it
    everybody : the clusters of all clients, over which its answer is told
    trains : whether it is to train; if not, it is only evaluated
    """

    name: str
    broadcast: Broadcast
    everybody: Membership
    trains: bool

    def lighten(self) -> None:
        """Keep no networks: they have been sent, and only their sizes are needed for the answer."""
        self.broadcast = self.broadcast.hollow()

    @property
    def evaluated_round(self) -> int | None:
        """The round whose models the client is asked to evaluate, if it is."""
        if not self.trains:
            return self.broadcast.round
        evaluates = self.broadcast.evaluates
        return None if evaluates is None else evaluates.round


@dataclass(eq=False)
class DueEvaluation:
    """The evaluation of the models after a round, which rides on the next round's messages.

    Those clients that train in the next round receive these very models, and evaluate them first.
    The others are asked at the same time, in messages of their own.

    Parameters
    ----------
    state : after the round
    names : the clients that are asked
    """

    state: ServerState
    names: list[str]
    broadcast: Broadcast
    algorithm: ClusteredAlgorithm
    answers: dict[str, Evaluation] = field(default_factory=dict)
    asked: dict[str, Letter] = field(default_factory=dict)

    def letter(self, name: str) -> Letter:
        """A message that asks for nothing but the evaluation."""
        own = self.algorithm.addressed(self.state, self.broadcast, name, training=False)
        self.asked[name] = Letter(name, own, self.broadcast.membership, trains=False)
        return self.asked[name]

    def letters(self, online: Iterable[str], engaged: Collection[str]) -> list[Letter]:
        """Messages to those who can be reached and have not been asked yet.

        Those who are still ``engaged`` in an earlier evaluation are left out of this one.
        """
        there = set(online) - set(engaged)
        return [self.letter(n) for n in self.names if n in there and n not in self.asked]

    def beside(self, letter: Letter) -> Letter:
        """The message of a client that trains, with the evaluation if it receives what it needs."""
        own = self.algorithm.addressed(self.state, self.broadcast, letter.name, training=False)
        clusters, sent = own.membership.clusters, letter.broadcast.membership.clusters
        if (
            letter.name not in self.names
            or letter.name in self.answers
            or set(clusters) - set(sent)
        ):
            return letter
        evaluates = Evaluates(self.state.round, clusters, own.phase.prior, self.broadcast.cohort)
        rides = replace(letter, broadcast=replace(letter.broadcast, evaluates=evaluates))
        self.asked[letter.name] = rides
        return rides

    def answered(self, letter: Letter, evaluation: Evaluation) -> None:
        """Take in what a client reports."""
        evaluates = letter.broadcast.evaluates
        own = letter.broadcast.membership.clusters if evaluates is None else evaluates.clusters
        everybody = self.broadcast.membership.clusters
        self.answers[letter.name] = evaluation.widened(own, everybody)

    def unanswered(self) -> list[Letter]:
        """The letters that nothing has come back for."""
        return [letter for name, letter in sorted(self.asked.items()) if name not in self.answers]

    def outcome(self) -> dict[str, Any]:
        """What the clients' answers add up to, see ``judging.judge``."""
        return judge(self.answers, self.state.clients, self.state.clusters)


class Evaluations:
    """The evaluations that are due, and what has come back for them."""

    def __init__(self, algorithm: ClusteredAlgorithm) -> None:
        self._algorithm = algorithm
        self._due: dict[int, DueEvaluation] = {}
        self._tested: dict[str, int] = {}  # how many test samples each client reported first

    def owe(self, state: ServerState, names: list[str], broadcast: Broadcast) -> None:
        """The models of a state are to be evaluated by these clients."""
        self._due[state.round] = DueEvaluation(state, names, broadcast, self._algorithm)

    def beside(self, letters: list[Letter]) -> list[Letter]:
        """The letters of a round of training, with the evaluation of its beginning if it is due."""
        for due in self._due.values():
            letters = [due.beside(letter) for letter in letters]
        return letters

    def letters(self, online: list[str], under_way: Collection[Letter] = ()) -> list[Letter]:
        """Letters to those who can be reached and have not been asked yet."""
        engaged = {letter.name for letter in under_way if not letter.trains}
        return [letter for due in self._due.values() for letter in due.letters(online, engaged)]

    def take(self, letter: Letter, answer: Reply | Evaluation) -> str | None:
        """Keep the evaluation that an answer is, or comes with; or return why it is not used."""
        evaluation = answer.evaluation if isinstance(answer, Reply) else answer
        due = self._due.get(-1 if letter.evaluated_round is None else letter.evaluated_round)
        if evaluation is None or due is None:
            return None
        before = self._tested.get(letter.name)
        reason = bounds.evaluation_problem(evaluation, due.state.clusters, before)
        if reason is None:
            self._tested[letter.name] = int(evaluation.metrics.get("samples", 0))
            due.answered(letter, evaluation)
        return reason

    def failed(self, silent: Collection[str], under_way: Collection[Letter]) -> list[Letter]:
        """Letters that ask for the evaluation alone those whose training failed."""
        return [
            due.letter(letter.name)
            for due in self._due.values()
            for letter in due.unanswered()
            if letter.trains and letter.name not in silent and letter not in under_way
        ]

    def finished(
        self, under_way: Collection[Letter] = ()
    ) -> list[tuple[ServerState, dict[str, Any]]]:
        """What was evaluated, and the outcome, once no answer is under way; it is then not due."""
        done = [n for n, due in self._due.items() if not set(due.unanswered()) & set(under_way)]
        ended = {number: self._due.pop(number) for number in done}
        return [(due.state, {"round": number, **due.outcome()}) for number, due in ended.items()]


def updates(
    answers: Iterable[tuple[Letter, Reply | Evaluation]],
    number: int | None = None,
    brought_up: Callable[[str, Broadcast, Membership, Reply], Reply] | None = None,
) -> Iterator[tuple[str, Reply]]:
    """The updates among some answers, over the clusters of everybody.

    Parameters
    ----------
    number : the round that they are for
    brought_up : what is left of a reply to an earlier round, see ``ServerHalf.brought_up``
    """
    for letter, answer in answers:
        if not isinstance(answer, Reply):
            continue
        name, sent = letter.name, letter.broadcast
        if number is None or brought_up is None or sent.round == number:
            yield name, answer.widened(sent.membership, letter.everybody)
        else:
            late = replace(answer, age=number - sent.round)
            yield name, brought_up(name, sent, letter.everybody, late)
