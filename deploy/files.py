"""The configuration file of each side: superlink.yaml, node.yaml."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from deploy.fields import Address, read_file
from deploy.policy import Policy
from fedrc_flwr import __version__
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.flower import Tls
from fedrc_flwr.privacy import CONFUSION

#: The node of this project, and Flower's own.
RESIDENT, FLOWER = "resident", "flower"
#: Where the SuperLink keeps messages, runs and registered nodes.
ON_DISK, IN_MEMORY = "file", "memory"
LONGEST_NAME = 128  # of a node, in characters
#: Where Flower behind the gate and a node listen, unless their files say otherwise.
CONTROL, NODE = Address("127.0.0.1", 8002), Address("127.0.0.1", 9094)


@dataclass(frozen=True)
class SuperLinkFile:
    """The server's file.

    Parameters
    ----------
    address : how nodes reach the SuperLink; a name of its certificate
    listen : where the gate listens, which passes the nodes' calls on to Flower
    control : where Flower itself listens: on loopback, because whoever reaches it is an operator
    isolated : whether nobody but operators can reach ``control`` although it is not on loopback, as
        on an internal network of containers
    certificates : directory with ca.crt, server.crt and server.key
    state : directory of the SuperLink's database and of the executor's secret
    outputs : directory of the runs' results
    health : where the gRPC health protocol is answered, plain text: keep it on loopback
    metrics : where Prometheus may ask, plain text and without a password: keep it on loopback
    connections : how many the gate holds at once; a node needs one or two
    largest_reply : megabytes that a node may send for each message that it gets
    database : ``file``, or ``memory``: nothing of a message touches the disk, large networks travel
        slower, and when the SuperLink stops, all that it knows is lost, such as the registered
        nodes and the runs
    insecure : plain text, no gate and no node authentication, for trials on one machine
    """

    address: Address
    listen: Address
    state: Path
    outputs: Path
    certificates: Path | None = None
    health: Address | None = None
    metrics: Address | None = None
    control: Address = CONTROL
    isolated: bool = False
    connections: int = 256
    largest_reply: int = 1024
    database: str = ON_DISK
    insecure: bool = False

    @property
    def flower(self) -> Address:
        """Where Flower itself listens."""
        return self.listen if self.insecure else self.control

    @property
    def inner_ca(self) -> Path | None:
        """The authority of Flower's own certificate, which the gate and operators here trust."""
        return None if self.insecure else self.inner / CA_CERTIFICATE

    @property
    def inner(self) -> Path:
        """Directory of Flower's own certificate."""
        return self.state / "control"

    @property
    def nodes(self) -> Path:
        """The registered nodes' names, as the gate knows them."""
        return self.state / "nodes.json"

    @property
    def objects(self) -> Path:
        """Directory in which the gate and ServerApps hand each other the objects of messages."""
        return self.state / "objects"

    @property
    def tls(self) -> Tls | None:
        """The certificates' paths, or None with ``insecure``."""
        if self.certificates is None:
            return None
        return Tls(
            self.certificates / CA_CERTIFICATE,
            self.certificates / SERVER_CERTIFICATE,
            self.certificates / SERVER_KEY,
        )

    @property
    def secret(self) -> Path:
        """The secret that SuperLink and ServerApp executor share."""
        return self.state / "executor.secret"

    @property
    def database_file(self) -> Path | None:
        """The SuperLink's database, if it is a file."""
        return self.state / "superlink.db" if self.database == ON_DISK else None


@dataclass(frozen=True)
class NodeFile:
    """A client's file.

    Parameters
    ----------
    name : the client's stable name; the server's tables are keyed by it
    role : ``train``, or ``observe`` for a client that is evaluated but never trained on
    superlink : the SuperLink's address
    ca : the federation's ca.crt
    key : this node's private key
    data : this node's own data in place of the scenario's: a table, a .npz file, or a folder of
        images
    schema : the schema that the federation has agreed on; a run with another one is refused
    partition : which part of the scenario's data this node holds; not needed with ``data``, unless
        its file holds several clients
    device : ``auto``, ``cpu``, ``cuda`` or ``cuda:N``
    count_noise : standard deviation xi of the noise on this node's label counts; None: the run's
    confusion : whether counts of this node's predictions on its test samples are sent:
        ``without-noise`` (if it adds none), ``always`` or ``never``; None: the run's
    state : directory of the client's state
    threads : cores that this node may use; None: all. Divide them if several nodes share a machine
    listen : the node's own port: its health, and its executor with ``--alone``; keep it on loopback
    health : where the gRPC health protocol is answered; keep it on loopback
    metrics : where Prometheus may ask, plain text and without a password: keep it on loopback
    insecure : plain text and no key, for trials on one machine
    executor_secret : what the node and its executor share; None: a file in ``state``
    supernode : ``resident``, or ``flower`` for Flower's own SuperNode
    isolate_tasks : whether each message is worked on in a process of its own, a copy of the worker
    worker_memory : megabytes; a worker that holds more after a message is replaced; None: no limit
    largest_message : megabytes that a message may have
    policy : what a run may do on this node
    """

    name: str
    superlink: Address
    state: Path
    partition: int | None = None
    role: str = TRAIN
    data: Path | None = None
    schema: Path | None = None
    ca: Path | None = None
    key: Path | None = None
    device: str = "auto"
    count_noise: float | None = None
    confusion: str | None = None
    threads: int | None = None
    listen: Address = NODE
    health: Address | None = None
    metrics: Address | None = None
    insecure: bool = False
    executor_secret: Path | None = None
    supernode: str = RESIDENT
    isolate_tasks: bool = False
    worker_memory: int | None = None
    largest_message: int = 1024
    policy: Policy = field(default_factory=Policy)

    @property
    def secret(self) -> Path:
        """The secret that the node and its executor share."""
        return self.executor_secret or self.state / "executor.secret"

    def node_config(self) -> dict[str, Any]:
        """What the client app is told about its node."""
        config: dict[str, Any] = {
            "name": self.name,
            "role": self.role,
            "partition-id": self.partition or 0,
            "device": self.device,
            "state-dir": str(self.state),
            "version": __version__,
            "largest-clip": float(self.policy.largest_clip),
            "smallest-cohort": self.policy.smallest_cohort,
            "least-samples": self.policy.least_samples,
            "delta": float(self.policy.delta),
        }
        if self.policy.most_epsilon is not None:
            config["most-epsilon"] = float(self.policy.most_epsilon)
        if self.count_noise is not None:
            config["count-noise"] = float(self.count_noise)
        if self.confusion is not None:
            config["confusion"] = self.confusion
        if self.data is not None:
            config["dataset"] = str(self.data)
        if self.schema is not None:
            config["schema"] = str(self.schema)
        return config


def read_superlink_file(path: Path) -> SuperLinkFile:
    """Read and check superlink.yaml; relative paths start at the file's directory."""
    content = read_file(path, SuperLinkFile)
    file = SuperLinkFile(**content)
    _demand_security(path, file.insecure, {"certificates": file.certificates})
    if not file.insecure and file.control.port == file.listen.port:
        raise ConfigError(f"{path}: listen and control have the same port: give control another")
    if file.database not in (ON_DISK, IN_MEMORY):
        raise ConfigError(
            f"{path}: database = {file.database!r}: expected {ON_DISK} or {IN_MEMORY}"
        )
    for name, value in (("connections", file.connections), ("largest-reply", file.largest_reply)):
        if value < 1:
            raise ConfigError(f"{path}: {name} = {value}: expected a number from 1")
    return file


def read_node_file(path: Path) -> NodeFile:
    """Read and check node.yaml; relative paths start at the file's directory."""
    content = read_file(path, NodeFile)
    file = NodeFile(**content)
    if not file.name.strip() or len(file.name) > LONGEST_NAME or not file.name.isprintable():
        raise ConfigError(
            f"{path}: name = {file.name[:LONGEST_NAME]!r}: expected 1 to {LONGEST_NAME} printable "
            "characters"
        )
    if file.role not in (TRAIN, OBSERVE):
        raise ConfigError(f"{path}: role = {file.role!r}: expected {TRAIN} or {OBSERVE}")
    if file.partition is None and file.data is None:
        raise ConfigError(
            f"{path}: data or partition is missing: expected the path of this node's own data, or "
            "which part of a ready-made scenario it holds"
        )
    if file.schema is not None and file.data is None:
        raise ConfigError(f"{path}: schema without data: expected the path of this node's own data")
    if file.partition is not None and file.partition < 0:
        raise ConfigError(f"{path}: partition = {file.partition}: expected a number from 0")
    if file.count_noise is not None and not 0 <= file.count_noise < math.inf:
        raise ConfigError(f"{path}: count-noise = {file.count_noise}: expected a number from 0")
    if file.count_noise is not None and file.count_noise < file.policy.least_noise:
        raise ConfigError(
            f"{path}: count-noise = {file.count_noise} is below policy.least-noise = "
            f"{file.policy.least_noise}, so that every run would be refused"
        )
    if file.confusion not in (None, *CONFUSION):
        raise ConfigError(
            f"{path}: confusion = {file.confusion!r}: expected without-noise, always or never"
        )
    if file.supernode not in (RESIDENT, FLOWER):
        raise ConfigError(
            f"{path}: supernode = {file.supernode!r}: expected {RESIDENT} or {FLOWER}"
        )
    for name, value in (
        ("threads", file.threads),
        ("worker-memory", file.worker_memory),
        ("largest-message", file.largest_message),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{path}: {name} = {value}: expected a number from 1")
    _demand_security(path, file.insecure, {"ca": file.ca, "key": file.key})
    return file


def _demand_security(path: Path, insecure: bool, needed: dict[str, Path | None]) -> None:
    """Plain text must be requested explicitly, never by a missing line."""
    missing = [name for name, value in needed.items() if value is None]
    if insecure and len(missing) < len(needed):
        given = ", ".join(name for name in needed if name not in missing)
        raise ConfigError(f"{path}: insecure = True contradicts {given}: drop one or the other")
    if not insecure and missing:
        raise ConfigError(
            f"{path}: {', '.join(missing)} missing. For plain text on a machine that you trust, "
            "set insecure: true"
        )
