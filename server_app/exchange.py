"""Sending a round's messages and receiving the replies as they arrive."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedrc_flwr.machine import usable_cores
from server_app.mail import Mail

#: Seconds between looks for replies: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE, SIMULATION_PAUSE = 0.005, 0.2, 0.1
READY_SECONDS, LEAST_PER_CORE, MOST_PER_CORE = 0.5, 3, 32


K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


@dataclass(frozen=True)
class Answer(Generic[K]):
    """The reply to a message, or None if it did not arrive in time.

    ``about`` is what the message was sent for, such as a client's name.
    """

    about: K
    reply: Message | None


def is_simulation(grid: Grid) -> bool:
    """Whether all nodes are virtual ones in this process."""
    return type(grid).__name__ == "InMemoryGrid"


def ready_in_simulation(replies: int, seconds: float, cores: int) -> int:
    """How many messages a simulation should hold, given how fast replies arrive.

    They should keep its workers busy for a while, but not be more: ten times a second the engine
    polls every message for every virtual client, which took half a core with hundreds of both.
    """
    wanted = READY_SECONDS * replies / seconds if seconds > 0 else 0.0
    return round(min(max(wanted, LEAST_PER_CORE * cores), MOST_PER_CORE * cores))


class Outbox(Generic[K]):
    """Messages that are under way, and their replies as they arrive.

    At most ``window`` of them are under way (0: as many as keep a simulation's workers busy, all of
    them in a deployment).
    """

    def __init__(self, grid: Grid, window: int) -> None:
        self.simulated = is_simulation(grid)
        self._mail = Mail(grid)
        self._window = window
        self._cores = usable_cores()
        self._started = time.monotonic()
        self._replies = 0
        self._under_way: dict[str, tuple[K, float]] = {}  # and when it was sent
        self._seconds = FIRST_PAUSE

    def __len__(self) -> int:
        return len(self._under_way)

    def unanswered(self) -> set[K]:
        """What has not been answered yet."""
        return {about for about, _ in self._under_way.values()}

    def sent_before(self, moment: float) -> set[K]:
        """What was sent earlier and has not been answered yet."""
        return {about for about, sent in self._under_way.values() if sent <= moment}

    def room(self) -> int | None:
        """How many more messages may be sent; None: any number."""
        room = self._window
        if self.simulated and not room:
            seconds = time.monotonic() - self._started
            room = ready_in_simulation(self._replies, seconds, self._cores)
        return max(0, room - len(self._under_way)) if room else None

    def send(self, entries: list[tuple[K, Message]]) -> list[K]:
        """Send messages; returns what could not be sent.

        In a deployment they go together, so that what they share is sent once. A simulation shares
        memory, and does not tell which message of several could not be sent.
        """
        failed = []
        for batch in [[entry] for entry in entries] if self.simulated else [entries]:
            identities = self._mail.push([message for _, message in batch])
            identities += [""] * (len(batch) - len(identities))
            for (about, _), identity in zip(batch, identities, strict=True):
                if identity:
                    self._under_way[identity] = about, time.monotonic()
                else:
                    failed.append(about)
        return failed

    def forget(self, about: K) -> None:
        """Expect no reply any more."""
        self._under_way = {i: a for i, a in self._under_way.items() if a[0] != about}

    def replies(self) -> Iterator[Answer[K]]:
        """The replies that have arrived since the last call."""
        for identity, reply in self._mail.replies(self._under_way):
            if identity in self._under_way:  # a reply that arrives twice counts once
                self._replies += 1
                yield Answer(self._under_way.pop(identity)[0], reply)

    def pause(self, arrived: bool) -> None:
        """Sleep, unless something has arrived: briefly at first, then longer."""
        if arrived:
            self._seconds = FIRST_PAUSE
        else:
            if not self._mail.wait(self._seconds):
                time.sleep(self._seconds)
            longest = SIMULATION_PAUSE if self.simulated else LONGEST_PAUSE
            self._seconds = min(1.5 * self._seconds, longest)

    def close(self) -> None:
        """Expect no reply any more."""
        self._under_way.clear()
        self._mail.close()


class Patience(Protocol[K_contra]):
    """How long replies are waited for."""

    def sent(self, about: K_contra, now: float) -> None:
        """Note when a message was sent."""

    def answered(self, about: K_contra, now: float) -> None:
        """Note when it was answered."""

    def is_over(self, waiting: Collection[K_contra], now: float) -> bool:
        """Whether these are no longer waited for."""


def exchange(
    outbox: Outbox[K],
    messages: Iterable[tuple[K, Message]],
    deadline: float,
    patience: Patience[K],
    keeps: bool = False,
) -> Iterator[Answer[K]]:
    """Send messages and yield the answers in order of arrival, those to earlier ones, too.

    Replies are yielded as they arrive, so that memory for a few models is enough. When ``patience``
    is over, None is yielded for what is left of these messages, and later replies are ignored; or
    it stays under way, if the outbox ``keeps`` it. After ``deadline`` seconds, None is yielded for
    any message.
    """
    queue = iter(messages)
    own: set[K] = set()
    ends = time.monotonic() + deadline
    exhausted = False
    while True:
        room = outbox.room()
        entries = list(islice(queue, room))
        exhausted = exhausted or room is None or len(entries) < room
        failed = outbox.send(entries) if entries else []
        for about, _ in entries:
            own.add(about)
            patience.sent(about, time.monotonic())
        yield from (Answer(about, None) for about in failed)
        arrived = False
        for answer in outbox.replies():
            arrived = True
            patience.answered(answer.about, time.monotonic())
            yield answer
        now = time.monotonic()
        expired = outbox.sent_before(now - deadline)
        waiting = outbox.unanswered() - expired
        over = now >= ends or (exhausted and (not waiting or patience.is_over(waiting, now)))
        for about in expired | (waiting & own if over and not keeps else set()):
            outbox.forget(about)
            yield Answer(about, None)
        if over:
            yield from (Answer(about, None) for about, _ in queue)
            return
        outbox.pause(arrived)
