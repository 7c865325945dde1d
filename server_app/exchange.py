"""Sending a round's messages and receiving the replies as they arrive."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedrc_flwr.machine import usable_cores

PULL_AT_ONCE = 16
FIRST_PAUSE, LONGEST_PAUSE, SIMULATION_PAUSE = 0.005, 1.0, 0.1
READY_SECONDS, LEAST_PER_CORE, MOST_PER_CORE = 0.5, 3, 32


@dataclass(frozen=True)
class Answer:
    """A client's reply, or None if it did not arrive before the deadline."""

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


def exchange(
    grid: Grid, messages: Iterable[tuple[str, Message]], window: int, deadline: float
) -> Iterator[Answer]:
    """Send messages to named clients and yield their answers in order of arrival.

    At most ``window`` messages are in flight (0: as many as keep a simulation's workers busy, all
    of them in a deployment). Replies are yielded as they arrive, so that memory for a few models is
    enough. After ``deadline`` seconds None is yielded for the remaining clients, and later replies
    are ignored.
    """
    queue = iter(messages)
    simulation = is_simulation(grid)
    started = time.monotonic()
    ends = started + deadline
    under_way: dict[str, str] = {}
    cores = usable_cores()
    replies = 0
    exhausted = False
    pause = FIRST_PAUSE
    while True:
        room = window
        if simulation and not window:
            room = ready_in_simulation(replies, time.monotonic() - started, cores)
        while not exhausted and (not room or len(under_way) < room):
            entry = next(queue, None)
            if entry is None:
                exhausted = True
                break
            name, message = entry
            # One by one, because a batch does not tell which message could not be pushed.
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
                if identity in under_way:  # a reply that arrives twice counts once
                    arrived = True
                    replies += 1
                    yield Answer(under_way.pop(identity), reply)
        if time.monotonic() >= ends:
            yield from (Answer(name, None) for name in under_way.values())
            yield from (Answer(name, None) for name, _ in queue)
            return
        if arrived:
            pause = FIRST_PAUSE
        else:
            time.sleep(pause)
            pause = min(1.5 * pause, SIMULATION_PAUSE if simulation else LONGEST_PAUSE)
