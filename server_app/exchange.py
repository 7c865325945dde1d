"""Sending a round's messages and receiving the replies as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from flwr.app import Message
from flwr.serverapp import Grid

from fedrc_flwr.machine import usable_cores
from server_app.grace import Grace
from server_app.inbox import Inbox

#: Seconds between looks for replies: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE, SIMULATION_PAUSE = 0.005, 0.2, 0.1
READY_SECONDS, LEAST_PER_CORE, MOST_PER_CORE = 0.5, 3, 32


@dataclass(frozen=True)
class Answer:
    """A client's reply, or None if it did not arrive in time."""

    name: str
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


class Outbox:
    """Messages to named clients that are under way, and their replies as they arrive.

    At most ``window`` of them are under way (0: as many as keep a simulation's workers busy, all of
    them in a deployment).
    """

    def __init__(self, grid: Grid, window: int) -> None:
        self.simulated = is_simulation(grid)
        self._grid = grid
        self._inbox = Inbox(grid)
        self._window = window
        self._cores = usable_cores()
        self._started = time.monotonic()
        self._replies = 0
        self._under_way: dict[str, str] = {}
        self._seconds = FIRST_PAUSE

    def __len__(self) -> int:
        return len(self._under_way)

    def names(self) -> set[str]:
        """The clients that have not answered yet."""
        return set(self._under_way.values())

    def room(self) -> int | None:
        """How many more messages may be sent; None: any number."""
        room = self._window
        if self.simulated and not room:
            seconds = time.monotonic() - self._started
            room = ready_in_simulation(self._replies, seconds, self._cores)
        return max(0, room - len(self._under_way)) if room else None

    def send(self, entries: list[tuple[str, Message]]) -> list[str]:
        """Send messages to named clients; returns those that could not be sent.

        In a deployment they go together, so that what they share is sent once. A simulation shares
        memory, and does not tell which message of several could not be sent.
        """
        failed = []
        for batch in [[entry] for entry in entries] if self.simulated else [entries]:
            identities = list(self._grid.push_messages([message for _, message in batch]))
            identities += [""] * (len(batch) - len(identities))
            for (name, _), identity in zip(batch, identities, strict=True):
                if identity:
                    self._under_way[identity] = name
                else:
                    failed.append(name)
        return failed

    def forget(self, name: str) -> None:
        """Expect no reply from a client any more."""
        self._under_way = {i: n for i, n in self._under_way.items() if n != name}

    def replies(self) -> Iterator[Answer]:
        """The replies that have arrived since the last call."""
        for identity, reply in self._inbox.replies(self._under_way):
            name = self._under_way.pop(identity, None)
            if name is not None:  # a reply that arrives twice counts once
                self._replies += 1
                yield Answer(name, reply)

    def pause(self, arrived: bool) -> None:
        """Sleep, unless something has arrived: briefly at first, then longer."""
        if arrived:
            self._seconds = FIRST_PAUSE
        else:
            if not self._inbox.wait(self._seconds):
                time.sleep(self._seconds)
            longest = SIMULATION_PAUSE if self.simulated else LONGEST_PAUSE
            self._seconds = min(1.5 * self._seconds, longest)

    def close(self) -> None:
        """Expect no reply any more."""
        self._under_way.clear()
        self._inbox.close()


def exchange(
    grid: Grid,
    messages: Iterable[tuple[str, Message]],
    window: int,
    deadline: float,
    grace: Grace | None = None,
) -> Iterator[Answer]:
    """Send messages to named clients and yield their answers in order of arrival.

    Replies are yielded as they arrive, so that memory for a few models is enough. After
    ``deadline`` seconds, or when ``grace`` is over, None is yielded for the remaining clients, and
    later replies are ignored.
    """
    queue = iter(messages)
    grace = grace or Grace(0, 0.0, {}, {})  # nobody's time is over before the deadline
    outbox = Outbox(grid, window)
    ends = time.monotonic() + deadline
    exhausted = False
    try:
        while True:
            room = outbox.room()
            entries = list(islice(queue, room))
            exhausted = exhausted or room is None or len(entries) < room
            failed = outbox.send(entries) if entries else []
            for name, _ in entries:
                grace.sent(name, time.monotonic())
            yield from (Answer(name, None) for name in failed)
            arrived = False
            for answer in outbox.replies():
                arrived = True
                grace.answered(answer.name, time.monotonic())
                yield answer
            if not len(outbox) and exhausted:
                return
            now = time.monotonic()
            if now >= ends or (exhausted and grace.is_over(outbox.names(), now)):
                yield from (Answer(name, None) for name in outbox.names())
                yield from (Answer(name, None) for name, _ in queue)
                return
            outbox.pause(arrived)
    finally:
        outbox.close()
