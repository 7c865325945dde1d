"""Sending a round's messages and taking the replies in as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

SIMULATION_WINDOW = 32
PULL_AT_ONCE = 16
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 1.0


@dataclass(frozen=True)
class Answer:
    """A client's reply, or None where it did not come before the deadline."""

    name: str
    reply: Message | None


def is_simulation(grid: Grid) -> bool:
    """Whether all nodes are virtual ones in this process."""
    return type(grid).__name__ == "InMemoryGrid"


def exchange(
    grid: Grid, messages: Iterable[tuple[str, Message]], window: int, deadline: float
) -> Iterator[Answer]:
    """Send messages to named clients and yield their answers in order of arrival.

    At most ``window`` messages are under way at once (0: as fits the engine), and few replies are
    held at a time: whoever consumes the answers as they come needs memory for a few models only.
    When ``deadline`` seconds have passed, the clients that are left are answered for with None; a
    reply that arrives later is never looked at.
    """
    queue = iter(messages)
    window = window or (SIMULATION_WINDOW if is_simulation(grid) else 0)
    ends = time.monotonic() + deadline
    under_way: dict[str, str] = {}
    exhausted = False
    pause = FIRST_PAUSE
    while True:
        while not exhausted and (not window or len(under_way) < window):
            entry = next(queue, None)
            if entry is None:
                exhausted = True
                break
            name, message = entry
            # One by one: a message that cannot be pushed is left out of what a batch returns.
            identity = next(iter(grid.push_messages([message])), None)
            if identity is None:
                yield Answer(name, None)
            else:
                under_way[identity] = name
        if not under_way and exhausted:
            return
        arrived = False
        identities = list(under_way)
        for start in range(0, len(identities), PULL_AT_ONCE):
            for reply in grid.pull_messages(identities[start : start + PULL_AT_ONCE]):
                identity = reply.metadata.reply_to_message_id
                if identity in under_way:  # a reply that comes twice counts once
                    arrived = True
                    yield Answer(under_way.pop(identity), reply)
        if time.monotonic() >= ends:
            yield from (Answer(name, None) for name in under_way.values())
            yield from (Answer(name, None) for name, _ in queue)
            return
        if arrived:
            pause = FIRST_PAUSE
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
