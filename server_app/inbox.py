"""Receiving replies.

Flower announces a reply before its content has been uploaded. Its own pull then waits for what is
missing, a second at first, two, four and so on, one reply after the other. Here the replies that
are announced are fetched in the background, and each is handed on as soon as it is complete.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

try:
    from server_app import fetching
except ImportError:  # another version of Flower
    fetching = None  # type: ignore[assignment]

PULL_AT_ONCE = 16
#: Replies that are fetched at the same time, which bounds the memory that they need. Slow uploads
#: must not keep the others waiting.
FETCH_AT_ONCE = 16


class Inbox:
    """The replies to messages as they arrive."""

    def __init__(self, grid: Grid) -> None:
        self._grid: Any = grid
        self._fetches = fetching is not None and fetching.is_possible(grid)
        self._announced: deque[tuple[str, Any]] = deque()
        self._fetching: dict[str, Future[Message | None]] = {}
        self._wanted: set[str] = set()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(FETCH_AT_ONCE, "reply")  # starts no thread by itself

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
        known = {identity for identity, _ in self._announced} | set(self._fetching)
        if silent := [identity for identity in waiting if identity not in known]:
            self._announced += fetching.announced(self._grid, silent)
        self._fetch()
        for identity, fetch in list(self._fetching.items()):
            if fetch.done():
                del self._fetching[identity]
                self._fetch()
                if identity in self._wanted:
                    yield identity, fetch.result()

    def _fetch(self) -> None:
        """Fetch what has been announced, a few at a time."""
        while self._announced and len(self._fetching) < FETCH_AT_ONCE:
            identity, about = self._announced.popleft()
            given_up = partial(self._is_given_up, identity)
            self._fetching[identity] = self._pool.submit(
                fetching.fetched, self._grid, about, given_up
            )

    def _is_given_up(self, identity: str) -> bool:
        return self._closed.is_set() or identity not in self._wanted

    def wait(self, seconds: float) -> bool:
        """Wait for what is being fetched, at most so long; False if there is nothing."""
        if self._fetching:
            wait(self._fetching.values(), seconds, FIRST_COMPLETED)
        return bool(self._fetching)

    def close(self) -> None:
        """Give up what is still being fetched."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
