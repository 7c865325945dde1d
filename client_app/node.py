"""What a node keeps: data and models in its process, and its state between messages."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from logging import WARNING
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.supercore import log

from client_app.ledger import Ledger
from client_app.prepared import prepared
from fedrc_flwr import __version__
from fedrc_flwr.bank import choose_device
from fedrc_flwr.checkpoint import KEPT_STATES, pack_client, unpack_client
from fedrc_flwr.config import RunConfig, build_algorithm, from_flower
from fedrc_flwr.data.own import own_facts
from fedrc_flwr.data.scenario import (
    TRAIN,
    ClientData,
    beside_own,
    node_client,
    node_settings,
    scenario_of,
)
from fedrc_flwr.data.schema import read_schema
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.engine.attacker import armed
from fedrc_flwr.engine.client import DiskStates, Participant, States, build_bank, state_folder
from fedrc_flwr.errors import ConfigError, DataError, DivergedError, PolicyError
from fedrc_flwr.machine import usable_cores
from fedrc_flwr.privacy import CONFUSION
from fedrc_flwr.settings import Scalar
from fedrc_flwr.state import ClientState

#: Memory for clients' samples per process; a quarter of the machine's for all processes.
KEPT_BYTES = psutil.virtual_memory().total // 4 // usable_cores()
_Given = tuple[DataSettings, int, int, str, str, str]
_kept: OrderedDict[tuple[_Given, tuple[int, ...]], ClientData] = OrderedDict()


def run_of(context: Context) -> RunConfig:
    """The run's configuration, parsed once per process."""
    return _config(tuple(sorted(context.run_config.items())))


def is_deployed(context: Context) -> bool:
    """Whether this is a node of a deployment, with a name or with data of its own."""
    return bool({"name", "dataset"} & set(context.node_config))


def name_of(context: Context) -> str:
    """The node's name."""
    return str(context.node_config.get("name", f"node {context.node_id}"))


def version_of(context: Context) -> str:
    """The release that is installed on the node; the code of the run comes with the run."""
    told = context.node_config.get("version")
    if told is not None:
        return str(told)
    try:
        return metadata.version("fedrc-flwr")
    except metadata.PackageNotFoundError:
        return __version__


def participant(context: Context) -> Participant:
    """One client, from its run and node configuration."""
    config, node = run_of(context), context.node_config
    if node.get("dataset"):
        config = replace(config, data=beside_own(config.data))
    own_folder, own_data = str(node.get("state-dir", "")), str(node.get("dataset", ""))
    _check_schema(config, node)
    data = _client_data(
        config.data,
        config.seed,
        _whole_number(node, "partition-id"),
        own_folder,
        own_data,
        str(node.get("role", TRAIN)),
    )
    # A deployed node has a name and a role of its own; a virtual one has the scenario's.
    data = replace(
        data, name=str(node.get("name", data.name)), role=str(node.get("role", data.role))
    )
    if len(data.fit) < int(node.get("least-samples", 1)):
        raise PolicyError("too-few-samples", "data.test-fraction")
    own_noise = _own_noise(node)
    noise = config.privacy.noise_of(own_noise)
    confusion = config.privacy.sends_confusion(_own_confusion(node), own_noise)
    bank = build_bank(config, choose_device(config.run.device_of(node.get("device"))))
    states = _states(context, config, own_folder, data.name)
    if noise > 0 and "largest-clip" in node:
        largest = float(node["largest-clip"])
        config = replace(config, privacy=config.privacy.clipped_to(largest))
    honest = Participant(
        build_algorithm(config), data, bank, states, noise, confusion, config.seed,
        _ledger(node, own_folder), int(node.get("smallest-cohort", 1)),
        config.federation.exchange().transport,
    )  # fmt: skip
    if is_deployed(context):
        config.attack.refuse_in_deployment()
        return honest
    clients = scenario_of(config.data, config.seed).clients
    return armed(honest, config.attack, _whole_number(node, "partition-id"), clients)


def _ledger(node: dict[str, Scalar], folder: str) -> Ledger | None:
    """The account of a node that keeps one: a node of a deployment."""
    if "delta" not in node or not folder:
        return None
    most = node.get("most-epsilon")
    return Ledger(Path(folder), None if most is None else float(most), float(node["delta"]))


def _check_schema(config: RunConfig, node: dict[str, Scalar]) -> None:
    """Refuse a run for which the node has no data, or whose schema is not the node's own."""
    run = scenario_of(config.data, config.seed)
    if run.on_nodes and not node.get("dataset"):
        raise DataError(
            "this run is on the nodes' own data, but node.yaml names none: add a line `data: FILE`",
            "no-data",
        )
    own = node.get("schema")
    if own is not None and read_schema(Path(str(own))) != run.schema:
        raise DataError(
            f"the run has another schema than {own}: agree on one with the server's operator",
            "other-schema",
        )


def _states(context: Context, config: RunConfig, own_folder: str, name: str) -> States:
    run, keep = config.run, config.run.states_to_keep()
    folder = run.state_folder(own_folder)
    if not folder:
        return ContextStates(context, keep)
    return DiskStates(state_folder(Path(folder), run.known_as(f"run-{context.run_id}"), name), keep)


class ContextStates:
    """A client's last few states in Flower's context, which lasts as long as the run."""

    def __init__(self, context: Context, keep: int = KEPT_STATES) -> None:
        self._records = context.state
        self._keep = keep

    def load(self, before_round: int) -> ClientState | None:
        """The newest state from before a round, skipping any that is not finite."""
        for number in sorted(self._rounds(), reverse=True):
            if number >= before_round:
                continue
            arrays = self._records.array_records[_record_names(number)[1]]
            try:
                return unpack_client(
                    {name: array.numpy() for name, array in arrays.items()}, self._about(number)
                )
            except DivergedError as error:
                log(WARNING, "%s", error)
        return None

    def releases(self) -> int:
        """How many noisy statistics have been sent, according to all kept states."""
        return max((int(self._about(number)["releases"]) for number in self._rounds()), default=0)

    def save(self, state: ClientState) -> None:
        """Keep this state and a few earlier ones; delete those of later rounds."""
        contents, description = pack_client(state)
        about, arrays = _record_names(state.round)
        self._records[about] = ConfigRecord({"json": json.dumps(description)})
        self._records[arrays] = ArrayRecord({k: Array(v) for k, v in contents.items()})
        later = [number for number in self._rounds() if number > state.round]
        earlier = sorted(number for number in self._rounds() if number <= state.round)
        for number in later + earlier[: -self._keep]:
            for name in _record_names(number):
                del self._records[name]

    def _about(self, round_number: int) -> dict[str, Any]:
        about = self._records.config_records[_record_names(round_number)[0]]
        return dict(json.loads(str(about["json"])))

    def _rounds(self) -> list[int]:
        prefix = "about-"
        names = self._records.config_records
        return [int(name.removeprefix(prefix)) for name in names if name.startswith(prefix)]


def _record_names(round_number: int) -> tuple[str, str]:
    return f"about-{round_number}", f"arrays-{round_number}"


@lru_cache(maxsize=4)
def _config(items: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    return from_flower(dict(items))


def _client_data(
    settings: DataSettings, seed: int, index: int, own_folder: str, own_data: str, role: str
) -> ClientData:
    """A client's part of the scenario, or the node's own file if it names one.

    Data is cached while there is room; the least recently used is dropped first. A file that has
    changed since is read again.
    """
    given = (settings, seed, index, own_folder, own_data, role)
    file = replace(settings, dataset=own_data, directory="") if own_data else settings
    key = (given, tuple(own_facts(file)))
    if key not in _kept:
        _kept[key] = _built(*given)
        while len(_kept) > 1 and sum(map(_size, _kept.values())) > KEPT_BYTES:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def _built(
    settings: DataSettings, seed: int, index: int, own_folder: str, own_data: str, role: str
) -> ClientData:
    if own_data:
        settings = node_settings(settings, seed, own_data, role)

    def build() -> ClientData:
        if own_data:
            return node_client(settings, seed, index)
        return scenario_of(settings, seed).client(index)

    return prepared(Path(own_folder), settings, seed, index, build) if own_folder else build()


def _size(data: ClientData) -> int:
    return data.fit.inputs.nbytes + data.test.inputs.nbytes


def _whole_number(node_config: dict[str, Scalar], name: str) -> int:
    value = node_config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"node configuration: {name} = {value!r}, expected a whole number")
    return value


def _own_noise(node_config: dict[str, Scalar]) -> float | None:
    """The noise that the node's own configuration asks for, if any."""
    value = node_config.get("count-noise")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"node configuration: count-noise = {value!r}, expected a number >= 0")
    return float(value)


def _own_confusion(node_config: dict[str, Scalar]) -> str | None:
    """The policy of the node's own configuration about counts of its predictions, if any."""
    value = node_config.get("confusion")
    if value not in (None, *CONFUSION):
        raise ConfigError(
            f"node configuration: confusion = {value!r}, expected without-noise, always or never"
        )
    return None if value is None else str(value)
