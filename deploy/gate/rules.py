"""Which requests pass the gate, who may make them, and how large they may be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import h11

HEADER_BYTES = 16_384
SMALL = 65_536
#: Flower cuts arrays into objects of 5 MiB; a message's other records are one object each.
OBJECT = 32 * 2**20
#: A message without its objects, but with the hash of each of them: it is held in memory.
MESSAGE = 2**20
#: An app's bundle has at most 10 MB.
BUNDLE = 32 * 2**20


class Who(Enum):
    """Who may make a call."""

    ANYBODY = "anybody"
    NODE = "a registered node"
    OPERATOR = "an operator with a certificate"


@dataclass(frozen=True)
class Call:
    """A request that passes."""

    method: bytes
    target: bytes
    who: Who
    largest: int
    streams: bool = False  # answers for as long as the caller listens


HEALTH = Call(b"GET", b"/health", Who.ANYBODY, 0)
ME = Call(b"GET", b"/v1/gate/me", Who.NODE, 0)
PULL_MESSAGES, PUSH_MESSAGES = b"/v1/fleet/pull-messages", b"/v1/fleet/push-messages"
PULL_OBJECT, PUSH_OBJECT = b"/v1/fleet/pull-object", b"/v1/fleet/push-object"
#: The calls of a SuperNode whose key was registered by an operator: it neither registers nor
#: removes itself.
FLEET = {
    "activate-node": SMALL, "deactivate-node": SMALL, "send-node-heartbeat": SMALL,
    "pull-messages": SMALL, "push-messages": MESSAGE, "get-run": SMALL, "get-fab": SMALL,
    "push-object": OBJECT, "pull-object": SMALL, "confirm-message-received": SMALL,
}  # fmt: skip
CONTROL = {
    "start-run": BUNDLE, "list-runs": SMALL, "stop-run": SMALL, "stream-logs": SMALL,
    "register-node": SMALL, "unregister-node": SMALL, "list-nodes": SMALL,
    "list-federations": SMALL, "show-federation": SMALL,
}  # fmt: skip


def _calls() -> dict[bytes, Call]:
    calls = [HEALTH, ME]
    for name, largest in FLEET.items():
        calls.append(Call(b"POST", f"/v1/fleet/{name}".encode(), Who.NODE, largest))
    for name, largest in CONTROL.items():
        target = f"/v1/control/{name}".encode()
        calls.append(Call(b"POST", target, Who.OPERATOR, largest, name == "stream-logs"))
    return {call.target: call for call in calls}


CALLS = _calls()


class Refusal(Exception):
    """A request that does not pass; ``status`` is what the caller is told."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def call_of(request: h11.Request) -> Call:
    """The call that a request makes. Anything but the exact form of a known call is refused."""
    if request.http_version != b"1.1":
        raise Refusal(505, "only HTTP/1.1 is spoken here")
    if sum(len(name) + len(value) + 4 for name, value in request.headers) > HEADER_BYTES:
        raise Refusal(431, "too many headers")
    call = CALLS.get(bytes(request.target))
    if call is None or request.method != call.method:
        raise Refusal(404, "no such call")
    return call


def body_length(request: h11.Request, largest: int) -> int:
    """Bytes of the body, which must be told in advance and may not be too many."""
    headers = [(bytes(name), bytes(value)) for name, value in request.headers]
    if any(name == b"transfer-encoding" for name, _ in headers):
        raise Refusal(411, "a body needs a Content-Length")
    lengths = [value for name, value in headers if name == b"content-length"]
    # The parser has made sure that there is at most one, and that it is a number.
    length = int(lengths[0]) if lengths else 0
    if length > largest:
        raise Refusal(413, f"{length} bytes, where at most {largest} are accepted")
    return length


class Allowance:
    """Bytes that each node may still upload.

    A message that the server sent to a node pays for one reply. So a node cannot fill the server's
    disk, however many objects it pushes.

    Parameters
    ----------
    reply : bytes of the largest reply
    """

    #: Replies that a node may have saved up: its first after a restart, and an upload's repetition.
    SAVED = 3

    def __init__(self, reply: int) -> None:
        self._reply = reply
        self._left: dict[bytes, int] = {}

    def asked(self, node: bytes) -> None:
        """A message was delivered to a node."""
        left = self._left.get(node, self._reply * (self.SAVED - 1))
        self._left[node] = min(left + self._reply, self._reply * self.SAVED)

    def upload(self, node: bytes, size: int) -> None:
        """Take ``size`` bytes from a node's allowance, or refuse."""
        left = self._left.get(node, self._reply * (self.SAVED - 1)) - size
        if left < 0:
            raise Refusal(413, "more bytes than a reply may have (largest-reply)")
        self._left[node] = left
