"""Pushing messages and receiving replies.

Flower announces a reply before its content has been uploaded. Its own pull then waits for what is
missing, a second at first, two, four and so on, one reply after the other. Here the replies that
are announced are fetched in the background, and each is handed on as soon as it is complete.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from server_app.shelf import Shelf

try:
    from server_app import fetching
except ImportError:  # another version of Flower
    fetching = None  # type: ignore[assignment]

PULL_AT_ONCE = 16
#: Replies that are fetched at the same time, which bounds the memory that they need. Slow uploads
#: must not keep the others waiting.
FETCH_AT_ONCE = 16
#: Seconds between looks at the shelf, and after which Flower is asked although nothing arrived
#: there: it tells which nodes have gone.
LOOK_EACH, ASK_EACH = 0.005, 0.5


class Mail:
    """Messages to nodes, and the replies as they arrive."""

    def __init__(self, grid: Grid) -> None:
        self._grid: Any = grid
        self._fetches = fetching is not None and fetching.is_possible(grid)
        self._shelf: Shelf | None = None
        if fetching is not None and fetching.is_possible(grid):
            self._shelf = fetching.shelf_of(self._grid)
        self._seen = -1  # what the shelf said when Flower was last asked
        self._asked = 0.0
        self._silent = False  # whether messages are under way that Flower has no reply to yet
        self._announced: deque[tuple[str, Any]] = deque()
        self._fetching: dict[str, Future[Message | None]] = {}
        self._wanted: set[str] = set()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(FETCH_AT_ONCE, "reply")  # starts no thread by itself

    def push(self, messages: list[Message]) -> list[str]:
        """Send messages; returns their names, empty for one that could not be sent."""
        if self._shelf is not None:
            return fetching.pushed(self._grid, messages, self._shelf)
        return list(self._grid.push_messages(messages))

    def replies(self, identities: Iterable[str]) -> Iterator[tuple[str, Message | None]]:
        """Replies to these messages that have arrived, by the message that they answer.

        None is a reply whose content will never arrive.
        """
        waiting = list(identities)
        self._wanted = set(waiting)
        if not self._fetches:
            for start in range(0, len(waiting), PULL_AT_ONCE):
                for reply in self._grid.pull_messages(waiting[start : start + PULL_AT_ONCE]):
                    yield reply.metadata.reply_to_message_id, reply
            return
        if self._shelf is not None:
            self._shelf.keep(self._wanted)
        known = {identity for identity, _ in self._announced} | set(self._fetching)
        silent = [identity for identity in waiting if identity not in known]
        if silent and self._worth_asking():
            found = fetching.announced(self._grid, silent)
            self._announced += found
            silent = silent[len(found) :]
        self._silent = bool(silent)
        self._fetch()
        for identity, fetch in list(self._fetching.items()):
            if fetch.done():
                del self._fetching[identity]
                self._fetch()
                if identity in self._wanted:
                    yield identity, fetch.result()

    def _worth_asking(self) -> bool:
        """Whether Flower may know of new replies; remembers that it is asked."""
        now, seen = time.monotonic(), -1
        if self._shelf is not None:
            seen = self._shelf.arrived()
            if seen == self._seen and now - self._asked < ASK_EACH:
                return False
        self._seen, self._asked = seen, now
        return True

    def _fetch(self) -> None:
        """Fetch what has been announced, a few at a time."""
        while self._announced and len(self._fetching) < FETCH_AT_ONCE:
            identity, about = self._announced.popleft()
            self._fetching[identity] = self._pool.submit(self._fetched, identity, about)

    def _fetched(self, identity: str, about: Any) -> Message | None:
        given_up = partial(self._is_given_up, identity)
        reply = fetching.fetched(self._grid, identity, about, given_up, self._shelf)
        if reply is not None:
            with suppress(RuntimeError):  # the run is over, and Flower forgets all its messages
                self._pool.submit(fetching.confirm, self._grid, about)  # nobody waits for it
        return reply

    def _is_given_up(self, identity: str) -> bool:
        return self._closed.is_set() or identity not in self._wanted

    def wait(self, seconds: float) -> bool:
        """Wait for a reply, at most so long; False if there is nothing to wait for but time."""
        if self._shelf is not None:
            ends = time.monotonic() + min(seconds, ASK_EACH)
            while time.monotonic() < ends:
                if any(fetch.done() for fetch in self._fetching.values()):
                    break
                if self._silent and self._shelf.arrived() != self._seen:
                    break
                time.sleep(LOOK_EACH)
            return True
        if self._fetching:
            wait(self._fetching.values(), seconds, FIRST_COMPLETED)
        return bool(self._fetching)

    def close(self) -> None:
        """Give up what is still being fetched."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._shelf is not None:
            self._shelf.close()
