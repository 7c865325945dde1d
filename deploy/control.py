"""What a SuperLink knows: its nodes and its runs, by name.

Flower's own command leaves out the names, so its control interface is asked directly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from deploy.certificates import public_key_of
from deploy.fields import Address
from deploy.files import LONGEST_NAME
from fedrc_flwr.errors import ConfigError, RunError

if TYPE_CHECKING:
    import httpx
    from flwr.supercore.control import ControlHttpClient

ONLINE, REMOVED = "online", "unregistered"
#: The status of a run that a SuperLink does not know, because its database was lost.
FORGOTTEN = "forgotten"
T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A registered node.

    Parameters
    ----------
    name : as it was registered; empty for a node that was registered without one
    status : ``online``, ``offline``, or ``registered`` for a node that was never online
    public_key : as PEM
    """

    id: int
    name: str
    status: str
    public_key: bytes = b""

    @property
    def called(self) -> str:
        """Its name, or its number where it has none."""
        return self.name or f"node {self.id}"

    @property
    def online(self) -> bool:
        """Whether it is connected."""
        return self.status == ONLINE


@dataclass(frozen=True)
class FlowerRun:
    """A run as the SuperLink sees it.

    ``status`` is ``pending``, ``starting``, ``running`` or ``finished:HOW``.
    """

    id: int
    name: str
    status: str

    @property
    def finished(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status.startswith("finished")


class Unknown(RunError):
    """The SuperLink answers that it does not know what it was asked about."""


class Server(Protocol):
    """Where a control interface is: a server's file, or the way to it from elsewhere."""

    @property
    def flower(self) -> Address:
        """Its address."""

    @property
    def inner_ca(self) -> Path | None:
        """The authority of its certificate; None: plain text."""


def nodes_of(file: Server) -> list[Node]:
    """The nodes that are registered now, sorted by name."""
    return nodes_at(file.flower, file.inner_ca)


def nodes_at(address: Address, ca: Path | None) -> list[Node]:
    """The nodes that are registered at an address, sorted by name."""
    from flwr.proto.control_pb2 import ListNodesRequest

    answer = _ask(address, ca, "nodes", lambda client: client.ListNodes(ListNodesRequest()))
    nodes = [
        Node(info.node_id, info.name, info.status, info.public_key)
        for info in answer.nodes_info
        if info.status != REMOVED
    ]
    return sorted(nodes, key=lambda node: (node.called, node.id))


def runs_of(file: Server) -> list[FlowerRun]:
    """The latest runs, newest first."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.control_pb2 import ListRunsRequest

    answer = _ask(
        file.flower, file.inner_ca, "runs", lambda client: client.ListRuns(ListRunsRequest())
    )
    runs = sorted(map(run_from_proto, answer.run_dict.values()), key=lambda run: run.pending_at)
    return [
        FlowerRun(
            run.run_id,
            str(run.override_config.get("run.name", "")),
            _in_words(run.status.status, run.status.sub_status),
        )
        for run in reversed(runs)
    ]


def status_of(file: Server, run_id: str) -> str:
    """How a run stands, see ``FlowerRun``; nothing while the SuperLink does not answer."""
    from flwr.proto.control_pb2 import ListRunsRequest

    number = int(run_id)
    try:
        answer = _ask(
            file.flower, file.inner_ca, "runs",
            lambda client: client.ListRuns(ListRunsRequest(run_id=number)),
        )  # fmt: skip
    except Unknown:
        return FORGOTTEN
    except RunError:
        return ""
    status = answer.run_dict[number].status
    return _in_words(status.status, status.sub_status)


def _in_words(status: str, sub_status: str) -> str:
    return ":".join(part for part in (status, sub_status) if part)


def find_node(nodes: list[Node], wanted: str) -> Node:
    """The node of a name, or of the number of one that has no name."""
    found = [node for node in nodes if wanted in (node.name, str(node.id))]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(str(node.id) for node in found)
        raise ConfigError(f"{len(found)} nodes are called {wanted!r}: give a number, {numbers}")
    known = ", ".join(node.called for node in nodes) or "none"
    raise ConfigError(f"no node is called {wanted!r}; registered: {known}")


def name_from(public_key: Path) -> str:
    """The node's name that the name of its public key's file gives: hospital-a.pub."""
    name = public_key.name.removesuffix(".pub")
    if name.endswith(".key") or not name:
        raise ConfigError(
            f"{public_key}: give --name, the name in the node's node.yaml, or call the file "
            "NAME.pub"
        )
    return name


def check_new_name(name: str, nodes: list[Node]) -> None:
    """Refuse a name that another node has, or that no node.yaml could have."""
    if not name.strip() or len(name) > LONGEST_NAME:
        raise ConfigError(f"--name {name!r}: expected 1 to {LONGEST_NAME} characters")
    if not name.isprintable():
        raise ConfigError(f"--name {name!r}: expected characters that can be printed")
    if any(node.name == name for node in nodes):
        raise ConfigError(
            f"a node called {name!r} is registered already, and a name belongs to one key: `fedrc "
            f"node rotate` gives it a new key, `fedrc node remove` removes it, --name takes another"
        )


def check_new_key(public_key: Path, nodes: list[Node]) -> None:
    """Refuse a key that a node has, before anything is changed."""
    new = public_key_of(public_key)
    for node in nodes:
        if node.public_key == new:
            raise ConfigError(f"{public_key} is the key of {node.called} already: make a new one")


def find_run(runs: list[FlowerRun], wanted: str) -> FlowerRun:
    """The run of a name, or of Flower's number, that has not ended."""
    named = [known for known in runs if wanted in (known.name, str(known.id))]
    active = [known for known in named if not known.finished]
    if active:
        return active[0]
    if named:
        how = named[0].status.partition(":")[2]
        raise ConfigError(f"run {wanted!r} is not under way: it ended earlier ({how})")
    under_way = ", ".join(known.name or str(known.id) for known in runs if not known.finished)
    raise ConfigError(f"no run is called {wanted!r}; under way: {under_way or 'none'}")


def _ask(address: Address, ca: Path | None, what: str, call: Callable[[ControlHttpClient], T]) -> T:
    import httpx
    from flwr.supercore.control import ControlHttpClient

    try:
        with ControlHttpClient.from_server_address(
            str(address), ca is None, None if ca is None else ca.read_bytes(), interceptors=[]
        ) as client:
            return call(client)
    except httpx.HTTPStatusError as error:
        kind = Unknown if error.response.status_code == httpx.codes.NOT_FOUND else RunError
        raise kind(
            f"the {what} cannot be listed: the SuperLink at {address} says: {_said(error.response)}"
        ) from None
    except (httpx.HTTPError, ValueError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"the {what} cannot be listed: the SuperLink at {address} says: {reason}"
        ) from None


def _said(response: httpx.Response) -> str:
    """A refusal in words: the gate gives a reason."""
    try:
        return f"{response.status_code}, {response.json()['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.reason_phrase}"
