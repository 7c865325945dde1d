"""A node's connection to its SuperLink, on Flower's own client of the fleet protocol."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import INFO, WARNING
from typing import Any, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.serde import fab_from_proto, message_from_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore import log
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.run import Run
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from deploy.files import NodeFile
from fedrc_flwr.errors import ConfigError

#: A node that is not heard of for twice as long counts as gone: its messages come back as errors,
#: and the same key may sign on again. Less would cost nodes of a busy server their place.
HEARTBEAT_SECONDS = 30.0
BEAT_EACH, BEAT_AGAIN = 10.0, 2.0
#: Seconds between attempts while the SuperLink does not answer.
FIRST_RETRY, LAST_RETRY = 0.25, 5.0
#: Seconds between attempts while an earlier session of this key is not over.
SESSION_RETRY, SESSION_SECONDS = 2.0, 120.0
#: Objects that the server has announced and not sent yet.
OBJECT_RETRY, LAST_OBJECT_RETRY, OBJECTS_SECONDS = 0.02, 1.0, 600.0
GOODBYE_SECONDS = 3.0

#: The gate's word for a question that it held back while there was no message.
HELD = "fedrc-held"

Answer = TypeVar("Answer")


class RunOver(Exception):
    """Nobody waits for an answer: the run does not run any more, or it came too late."""


class NotRegistered(Exception):
    """The SuperLink does not know this node's key."""


class TooLarge(Exception):
    """A message with more bytes than the node takes."""


def keys_of(file: NodeFile) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """The node's own key, or one for this session alone where there is no authentication."""
    if file.key is None:
        return generate_key_pairs()
    key = load_ssh_private_key(file.key.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file.key}: expected an elliptic-curve key: `fedrc node key` makes one")
    return key, key.public_key()


class Holding:
    """Notes whether the last question for a message was held back, so that no pause is needed."""

    def __init__(self) -> None:
        self.held = False

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Look at the answer to a question for messages."""
        response = call_next(context)
        if isinstance(context.message, PullMessagesRequest):
            self.held = HELD in response.headers
        return response


class Fleet:
    """The calls of one node. Each waits until the SuperLink answers, unless told otherwise."""

    def __init__(self, file: NodeFile) -> None:
        self._file = file
        self._holding = Holding()
        self._private, self._public = keys_of(file)
        self._client = self._connected()
        self._node: Node | None = None
        self._signed_off = threading.Event()
        self.patience = math.inf
        #: When the SuperLink last answered.
        self.heard = -math.inf

    def _connected(self) -> FleetHttpClient:
        return FleetHttpClient.from_server_address(
            str(self._file.superlink), self._file.insecure,
            None if self._file.ca is None else str(self._file.ca),
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self._private, self._public),
                self._holding,
            ],
        )  # fmt: skip

    @property
    def online(self) -> bool:
        """Whether the node has signed on."""
        return self._node is not None

    @property
    def held(self) -> bool:
        """Whether the last question for a message was held back while there was none."""
        return self._holding.held

    def sign_on(self) -> int:
        """Become a node that gets messages; returns its number."""
        key = public_key_to_bytes(self._public)
        if self._file.key is None:
            self._call(self._client.RegisterNode, RegisterNodeFleetRequest(public_key=key))
        request = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_SECONDS)
        started, told = time.monotonic(), False
        while True:
            try:
                answer = self._call(self._client.ActivateNode, request)
                break
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.PRECONDITION_FAILED:
                    raise
            if time.monotonic() - started > SESSION_SECONDS:
                raise ConfigError("another node with this key is online: each needs its own key")
            if not told:
                waiting = "an earlier session of this key is not over yet: waiting"
                log(INFO, "%s: %s", self._file.name, waiting)
                told = True
            time.sleep(SESSION_RETRY)
        self._node = Node(node_id=answer.node_id)
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()
        return int(answer.node_id)

    def pull(self) -> tuple[Message, ObjectTree] | None:
        """The next message, without its objects, or None."""
        answer = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        return message_from_proto(answer.messages_list[0]), answer.message_object_trees[0]

    def objects(self, run: int, tree: ObjectTree, most: int) -> dict[str, bytes]:
        """The objects of a message, at most so many bytes."""
        pull = make_pull_object_fn_protobuf(
            lambda request: self._call(self._client.PullObject, request), self._sender(), run
        )
        lock, taken = threading.Lock(), 0

        def limited(name: str) -> bytes:
            nonlocal taken
            content = pull(name)
            with lock:
                taken += len(content)
            if taken > most:
                raise TooLarge
            return content

        names = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
        return pull_objects(
            names, limited, max_time=OBJECTS_SECONDS, max_tries_per_object=None,
            initial_backoff=OBJECT_RETRY, backoff_cap=LAST_OBJECT_RETRY,
        )  # fmt: skip

    def confirm(self, message: Message) -> None:
        """The SuperLink may forget the objects of a message."""
        request = ConfirmMessageReceivedRequest(
            node=self._node, run_id=message.metadata.run_id,
            message_object_id=message.metadata.message_id,
        )  # fmt: skip
        self._call(self._client.ConfirmMessageReceived, request)

    def run(self, number: int) -> tuple[Run, bytes]:
        """A run and its app's bundle."""
        request = GetRunRequest(node=self._node, run_id=number)
        run = run_from_proto(self._call(self._client.GetRun, request).run)
        wanted = GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=number)
        return run, fab_from_proto(self._call(self._client.GetFab, wanted).fab).content

    def push(
        self, reply: MessageProto, tree: ObjectTree, objects: Mapping[str, bytes], seconds: float
    ) -> None:
        """Send a reply; what a restart of the SuperLink broke is sent again.

        An object that it refuses is often one that it has got already, and only its answer was
        lost. So the others are sent all the same: once the server knows of a reply, the SuperLink
        does not say a second time what is missing.
        """
        request = PushMessagesRequest(
            node=self._node, messages_list=[reply], message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )  # fmt: skip
        for last in (False, True):
            answer = self._call(self._client.PushMessages, request)
            push = make_push_object_fn_protobuf(
                lambda request: self._call(self._client.PushObject, request),
                self._sender(), reply.metadata.run_id, answer.session_id,
            )  # fmt: skip
            wanted, refused = set(answer.objects_to_push), []

            def attempt(name: str, content: bytes) -> None:
                try:
                    push(name, content)  # noqa: B023  called within this turn of the loop
                except ObjectPushError as error:
                    refused.append(error)  # noqa: B023

            push_object_contents_from_iterable(
                ((name, content) for name, content in objects.items() if name in wanted), attempt
            )
            if not refused:
                return
            if last:
                raise refused[0]

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """Give up calls after this many seconds of attempts."""
        before, self.patience = self.patience, min(seconds, self.patience)
        try:
            yield
        finally:
            self.patience = before

    def sign_off(self) -> None:
        """Tell the SuperLink that this node has gone, so that its successor is let in at once."""
        node, self._node = self._node, None
        self._signed_off.set()
        if node is None:
            return
        with suppress(httpx.HTTPError, RuntimeError, RunOver, NotRegistered):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
            if self._file.key is None:
                self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=node.node_id))

    def renew(self) -> None:
        """Start with new connections: a signal may have interrupted a call on the old ones."""
        self._client = self._connected()

    def _sender(self) -> Node:
        if self._node is None:
            raise RuntimeError("not signed on")
        return self._node

    def _beat(self) -> None:
        """Say now and then that this node is there."""
        while not self._signed_off.is_set():
            well, node = False, self._node
            with suppress(httpx.HTTPError, ValueError):
                if node is None:
                    return
                request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_SECONDS)
                well = self._client.SendNodeHeartbeat(request).success
                self.heard = time.monotonic()
            self._signed_off.wait(BEAT_EACH if well else BEAT_AGAIN)

    def _call(self, call: Callable[[Any], Answer], request: Any) -> Answer:
        """Make a call, again and again while the SuperLink does not answer."""
        started, delay, told = time.monotonic(), FIRST_RETRY, False
        while True:
            try:
                answer = call(request)
                self.heard = time.monotonic()
                if told:
                    log(INFO, "%s: the SuperLink answers again", self._file.name)
                return answer
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status == httpx.codes.UNAUTHORIZED:
                    raise NotRegistered from None
                if status == httpx.codes.FORBIDDEN:
                    raise RunOver from None
                # 500 is what a SuperLink answers whose database is locked for too long.
                if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
                    raise
                problem: Exception = error
            except httpx.TransportError as error:
                problem = error
            waited = time.monotonic() - started
            if waited + delay > self.patience:
                raise problem
            if not told and waited > 1.0:
                log(
                    WARNING, "%s: the SuperLink does not answer (%s): trying again",
                    self._file.name, problem,
                )  # fmt: skip
                told = True
            time.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, LAST_RETRY)
