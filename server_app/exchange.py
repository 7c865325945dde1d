"""Sending a round's messages and receiving the replies as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedrc_flwr.machine import usable_cores
from server_app.grace import Grace

PULL_AT_ONCE = 16
FIRST_PAUSE, LONGEST_PAUSE, SIMULATION_PAUSE = 0.005, 1.0, 0.1
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
        self._window = window
        self._cores = usable_cores()
        self._started = time.monotonic()
        self._replies = 0
        self._under_way: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def names(self) -> set[str]:
        """The clients that have not answered yet."""
        return set(self._under_way.values())

    def has_room(self) -> bool:
        """Whether another message may be sent."""
        room = self._window
        if self.simulated and not room:
            seconds = time.monotonic() - self._started
            room = ready_in_simulation(self._replies, seconds, self._cores)
        return not room or len(self._under_way) < room

    def send(self, name: str, message: Message) -> bool:
        """Send a message; False if it could not be sent."""
        # One by one, because a batch does not tell which message could not be pushed.
        identity = next(iter(self._grid.push_messages([message])), None)
        if identity is not None:
            self._under_way[identity] = name
        return identity is not None

    def forget(self, name: str) -> None:
        """Expect no reply from a client any more."""
        self._under_way = {i: n for i, n in self._under_way.items() if n != name}

    def replies(self) -> Iterator[Answer]:
        """The replies that have arrived since the last call."""
        identities = list(self._under_way)
        for start in range(0, len(identities), PULL_AT_ONCE):
            for reply in self._grid.pull_messages(identities[start : start + PULL_AT_ONCE]):
                name = self._under_way.pop(reply.metadata.reply_to_message_id, None)
                if name is not None:  # a reply that arrives twice counts once
                    self._replies += 1
                    yield Answer(name, reply)


class Pause:
    """Sleeps between looks for replies: briefly at first, then longer."""

    def __init__(self, simulated: bool) -> None:
        self._longest = SIMULATION_PAUSE if simulated else LONGEST_PAUSE
        self._seconds = FIRST_PAUSE

    def after(self, arrived: bool) -> None:
        """Sleep, unless something has arrived."""
        if arrived:
            self._seconds = FIRST_PAUSE
        else:
            time.sleep(self._seconds)
            self._seconds = min(1.5 * self._seconds, self._longest)


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
    pause = Pause(outbox.simulated)
    ends = time.monotonic() + deadline
    exhausted = False
    while True:
        while not exhausted and outbox.has_room():
            entry = next(queue, None)
            if entry is None:
                exhausted = True
            elif outbox.send(*entry):
                grace.sent(entry[0], time.monotonic())
            else:
                yield Answer(entry[0], None)
        if not len(outbox) and exhausted:
            return
        arrived = False
        for answer in outbox.replies():
            arrived = True
            grace.answered(answer.name, time.monotonic())
            yield answer
        now = time.monotonic()
        if now >= ends or (exhausted and len(outbox) and grace.is_over(outbox.names(), now)):
            yield from (Answer(name, None) for name in outbox.names())
            yield from (Answer(name, None) for name, _ in queue)
            return
        pause.after(arrived)
