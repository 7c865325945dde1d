"""Who is calling: a registered node by its key, or an operator by a certificate."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.gate.rules import Refusal
from deploy.operators import fingerprint, listed_operators

KEY, TIME, SIGNATURE = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
#: As Flower itself has it: a signature's age, and how far a clock may be ahead.
OLDEST_SECONDS, AHEAD_SECONDS = 305.0, 5.0
#: Pause between two questions to Flower, because anybody can show a key that is not known.
PAUSE_SECONDS = 2.0
NOT_REGISTERED = "this key is not registered"


@dataclass(frozen=True)
class Node:
    """A registered node."""

    id: int
    name: str


class Registry:
    """The registered nodes by public key, as Flower lists them.

    Parameters
    ----------
    ask : lists them
    tell : called with what was listed
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Mapping[bytes, Node]]],
        tell: Callable[[Mapping[bytes, Node]], None],
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._nodes: Mapping[bytes, Node] = {}
        self._asked = -PAUSE_SECONDS
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Ask now."""
        async with self._lock:
            await self._refresh()

    async def node(self, key: bytes) -> Node | None:
        """The node of a key; Flower is asked about an unknown one."""
        if key not in self._nodes:
            came = time.monotonic()
            async with self._lock:
                if self._asked < came:  # one answer serves everybody who waited for it
                    await asyncio.sleep(self._asked + PAUSE_SECONDS - time.monotonic())
                    await self._refresh()
        return self._nodes.get(key)

    async def _refresh(self) -> None:
        self._asked = time.monotonic()
        self._nodes = await self._ask()
        self._tell(self._nodes)


async def node_of(headers: Mapping[bytes, bytes], registry: Registry) -> tuple[bytes, Node]:
    """The node that signed a request, and its key.

    Flower checks the same, but only after it has read the body.
    """
    try:
        key = base64.b64decode(headers[KEY], validate=True)
        signature = base64.b64decode(headers[SIGNATURE], validate=True)
        signed = datetime.datetime.fromisoformat(headers[TIME].decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
    except KeyError:
        raise Refusal(401, "not signed by a node") from None
    except (ValueError, TypeError, binascii.Error):
        raise Refusal(401, "not signed as nodes sign") from None
    if not -AHEAD_SECONDS < age < OLDEST_SECONDS:
        raise Refusal(401, f"signed {age:.0f} seconds ago: are the clocks right?")
    node = await registry.node(key)
    if node is None:
        raise Refusal(401, NOT_REGISTERED)
    if not _signed(key, signature, headers[TIME]):
        raise Refusal(401, "not signed with its own key")
    return key, node


def _signed(key: bytes, signature: bytes, text: bytes) -> bool:
    try:
        public = serialization.load_pem_public_key(key)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        public.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


def operator_of(certificate: bytes | None, directory: Path | None) -> str:
    """The name of the operator who showed a certificate that is listed now."""
    if certificate is None or directory is None:
        raise Refusal(403, "for operators with a certificate only (fedrc certs operator)")
    name = listed_operators(directory).get(fingerprint(certificate))
    if name is None:
        raise Refusal(403, "this operator's certificate was withdrawn")
    return name
