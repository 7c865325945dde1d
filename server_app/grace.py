"""How long a round waits for the clients that have not answered yet."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping

from fedrc_flwr.engine.letters import Letter

#: Seconds that every client has, however fast the others are.
LEAST = 10.0


class Grace:
    """Learns from the replies that have arrived when the others are due.

    Once ``needed`` clients have answered, a client is given ``factor`` times the median time of the
    replies. One with more samples than the others' median has longer in proportion, and one that
    took longer before has ``factor`` times what it took.

    Parameters
    ----------
    factor : 0: everybody has until the deadline
    samples : of each client
    before : seconds that each client took the last time, if it answered
    """

    def __init__(
        self, needed: int, factor: float, samples: Mapping[str, int], before: Mapping[str, float]
    ) -> None:
        self._needed = needed
        self._factor = factor
        self._samples = samples
        self._before = before
        self._sent: dict[str, float] = {}
        self.took: dict[str, float] = {}

    def sent(self, name: str, now: float) -> None:
        """Note when a client was asked."""
        self._sent[name] = now

    def answered(self, name: str, now: float) -> None:
        """Note when it answered."""
        self.took[name] = now - self._sent[name]

    def is_over(self, waiting: Collection[str], now: float) -> bool:
        """Whether all of these clients have had their time."""
        if not self._factor or len(self.took) < self._needed:
            return False
        return all(now - self._sent[name] >= self._patience(name) for name in waiting)

    def _patience(self, name: str) -> float:
        usual = statistics.median(self.took.values())
        typical = statistics.median(self._samples[other] for other in self.took)
        expected = usual * max(1.0, self._samples[name] / max(typical, 1))
        return max(LEAST, self._factor * max(expected, self._before.get(name, 0.0)))


class RoundsGrace:
    """The time that the letters of a round have: those that train, and those that only evaluate.

    Evaluating takes less time than training, so each kind is measured by its own.

    Parameters
    ----------
    enough : the round is over when so many of the letters that train have been answered, or all of
        them; those that evaluate are not waited for then. None: everybody is waited for
    """

    def __init__(self, training: Grace, evaluation: Grace, enough: int | None = None) -> None:
        self.training = training
        self.evaluation = evaluation
        self._enough = enough
        self._sent: set[Letter] = set()
        self._answers = 0

    def _of(self, letter: Letter) -> Grace:
        return self.training if letter.trains else self.evaluation

    def sent(self, letter: Letter, now: float) -> None:
        """Note when a client was asked."""
        self._sent.add(letter)
        self._of(letter).sent(letter.name, now)

    def answered(self, letter: Letter, now: float) -> None:
        """Note when it answered; what was asked in an earlier round says nothing about this one."""
        self._answers += 1
        if letter in self._sent:
            self._of(letter).answered(letter.name, now)

    def is_over(self, waiting: Collection[Letter], now: float) -> bool:
        """Whether the round is not to wait for these letters."""
        new = [letter for letter in waiting if letter in self._sent]
        trains = [letter.name for letter in new if letter.trains]
        if self._enough is not None:
            if not trains and self._answers:
                return True
            if len(self.training.took) >= self._enough:
                return True
            return bool(trains) and self.training.is_over(trains, now)
        evaluates = [letter.name for letter in new if not letter.trains]
        return (not trains or self.training.is_over(trains, now)) and (
            not evaluates or self.evaluation.is_over(evaluates, now)
        )
