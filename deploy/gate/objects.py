"""The gate's side of the shelf: nodes get and leave objects there, past Flower's database.

What a node may leave is what Flower has just asked it for: the objects of a reply that Flower took.
Everything else is passed on to Flower, which decides about it.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from google.protobuf.message import DecodeError

from deploy.gate.rules import Refusal
from server_app.shelf import ARRIVED, MIXED, POSTED, down, signal, signals, up

LOOK_SECONDS = 0.01
_HEX = frozenset("0123456789abcdef")


@dataclass
class _Upload:
    """A reply whose objects are expected.

    Parameters
    ----------
    message : the message that it answers
    """

    session: str
    run: int
    message: str
    wanted: set[str]


class Objects:
    """The directory that the gate shares with ServerApps."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._uploads: dict[bytes, _Upload] = {}  # by node: it sends one reply at a time
        self._bodies = 0
        # One object after the other, because each is in memory twice while it is checked.
        self._checks = ThreadPoolExecutor(1, "objects")
        self._news = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._waiting = 0
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in root.glob("*.body"):
            unfinished.unlink()
        for reply in root.glob("*/up/*"):
            _mark_mixed(reply)  # the rest of an upload that this gate knows nothing about

    def runs(self) -> list[int]:
        """The runs whose ServerApp uses the directory."""
        return [int(folder.name) for folder in self._root.iterdir() if folder.name.isdecimal()]

    def forget(self, run: int) -> None:
        """Delete what is left of a run that is over."""
        shutil.rmtree(self._root / str(run), ignore_errors=True)

    # --- from the server to nodes ----------------------------------------------------------------

    def pulled(self, request: bytes) -> Path | bytes | None:
        """The answer to a node's pull of an object, or the file with it; None: Flower has it.

        All that a ServerApp sends by the directory lies there before its message is pushed. What
        does not, belongs to a message that is not waited for any more. Flower would say that it is
        about to come.
        """
        try:
            asked = PullObjectRequest.FromString(request)
        except DecodeError:
            return None
        run = self._root / str(asked.run_id)
        if not run.is_dir():
            return None
        place = down(run, asked.object_id)
        if _is_hash(asked.object_id) and place.is_file():
            return place
        return bytes(PullObjectResponse(object_found=False).SerializeToString())

    def posted(self) -> int:
        """A number that changes when messages have been pushed."""
        return signals(self._root / POSTED)

    async def news(self, seen: int, seconds: float) -> None:
        """Wait until ``posted`` is another number, at most so long."""
        self._waiting += 1
        try:
            if self._watcher is None or self._watcher.done():
                self._watcher = asyncio.create_task(self._watch(seen))
            if self.posted() == seen:
                await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    async def _watch(self, seen: int) -> None:
        """Look for news on behalf of all who wait."""
        while self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
            if (posted := self.posted()) != seen:
                seen = posted
                self._news.set()
                self._news = asyncio.Event()

    # --- from nodes to the server ----------------------------------------------------------------

    def replies(self, request: bytes, node: int) -> PushMessagesRequest:
        """What a node pushes, which must be its own replies to messages that are waited for.

        Flower believes whatever a message says about its sender, and takes one that answers none
        for a message of the server's.
        """
        try:
            pushed: PushMessagesRequest = PushMessagesRequest.FromString(request)
        except DecodeError:
            raise Refusal(400, "no message as nodes send them") from None
        for about in (message.metadata for message in pushed.messages_list):
            if about.src_node_id != node or not about.reply_to_message_id:
                raise Refusal(400, "a node sends its own replies and nothing else")
            if self._is_late(about.run_id, about.reply_to_message_id):
                raise Refusal(403, "nobody waits for this reply any more")
        return pushed

    def _is_late(self, run: int, message: str) -> bool:
        """Whether a message of the run is not waited for any more: what was sent is gone."""
        folder = self._root / str(run)
        return folder.is_dir() and not (_is_hash(message) and down(folder, message).is_file())

    def announced(self, node: bytes, pushed: PushMessagesRequest, answer: bytes) -> None:
        """Flower took a node's reply and told it which objects to send."""
        before = self._uploads.pop(node, None)
        run, message = 0, ""
        if len(pushed.messages_list) == len(pushed.message_object_trees) == 1:
            about = pushed.messages_list[0].metadata
            run, message = about.run_id, about.reply_to_message_id
        if before is not None and before.message != message:
            _mark_mixed(up(self._root / str(before.run), before.message))
        try:
            told = PushMessagesResponse.FromString(answer)
        except DecodeError:
            return
        folder = self._root / str(run)
        if not told.objects_to_push or not folder.is_dir() or self._is_late(run, message):
            return
        wanted = set(filter(_is_hash, told.objects_to_push))
        parts = _parts(pushed.message_object_trees[0])
        place = up(folder, message)
        with suppress(OSError):  # the run has ended, or the disk is full: let Flower decide
            place.mkdir(mode=0o700, exist_ok=True)
            if parts - wanted:  # Flower has got them from another reply
                _mark_mixed(place)
            self._uploads[node] = _Upload(told.session_id, run, message, wanted)

    def expects(self, node: bytes) -> bool:
        """Whether objects of a node may be left here."""
        return node in self._uploads

    def body(self) -> Path:
        """A new file for the body of a node's push."""
        self._bodies += 1
        return self._root / f"{self._bodies}.body"

    async def left(self, node: bytes, body: Path) -> bool:
        """Keep an object that a node pushed, if it is one that was asked for."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._checks, _read, body)
        upload = self._uploads.get(node)
        if found is None or upload is None:
            return False
        asked = (upload.session, upload.run)
        if found[:2] != asked or found[2] not in upload.wanted:
            return False
        folder = self._root / str(upload.run)
        try:
            body.rename(up(folder, upload.message) / found[2])
            upload.wanted.discard(found[2])
            if not upload.wanted:
                del self._uploads[node]
                signal(folder / ARRIVED)
        except FileNotFoundError:  # its place is gone
            raise Refusal(403, "nobody waits for this reply any more") from None
        return True


def _parts(tree: ObjectTree) -> set[str]:
    return {tree.object_id}.union(*map(_parts, tree.children))


def _mark_mixed(reply: Path) -> None:
    """Say that Flower may have a part of a reply, unless nobody waits for it any more."""
    with suppress(FileNotFoundError):
        (reply / MIXED).touch()


def _read(body: Path) -> tuple[str, int, str] | None:
    """Session, run and name of an object that was pushed, if its content is what its name says."""
    try:
        pushed = PushObjectRequest.FromString(body.read_bytes())
    except DecodeError:
        return None
    if hashlib.sha256(pushed.object_content).hexdigest() != pushed.object_id:
        return None
    return pushed.session_id, pushed.run_id, pushed.object_id


def _is_hash(name: str) -> bool:
    return len(name) == 64 and _HEX.issuperset(name)
