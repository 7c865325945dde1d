"""What one node keeps: data and models while the process lives, its state for longer."""

from __future__ import annotations

import json
import math
import zlib
from collections import OrderedDict
from dataclasses import replace
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.supercore import log

from client_app.prepared import prepared
from fedrc_flwr.algorithms import build_algorithm
from fedrc_flwr.algorithms.base import ClientRuntime, ClusteredAlgorithm
from fedrc_flwr.bank import ModelBank, choose_device
from fedrc_flwr.checkpoint import (
    KEPT_STATES,
    count_releases,
    load_client_state,
    pack_client,
    save_client_state,
    unpack_client,
)
from fedrc_flwr.config import RunConfig
from fedrc_flwr.configuration import load_config
from fedrc_flwr.data.scenario import TRAIN, ClientData, node_client, scenario_of
from fedrc_flwr.data.scenario import node_config as data_config
from fedrc_flwr.errors import ConfigError, DivergedError
from fedrc_flwr.keys import Scalar
from fedrc_flwr.machine import usable_cores
from fedrc_flwr.models import build_model
from fedrc_flwr.state import ClientState

#: How much of its clients' samples a process keeps: all cores' processes a quarter of the memory.
KEPT_BYTES = psutil.virtual_memory().total // 4 // usable_cores()
_kept: OrderedDict[tuple[RunConfig, int, str, str, str], ClientData] = OrderedDict()


class Node:
    """One client, put together from its run and node configuration."""

    def __init__(self, context: Context) -> None:
        self.config = _config(tuple(sorted(context.run_config.items())))
        node_config = context.node_config
        self.algorithm: ClusteredAlgorithm = build_algorithm(self.config)
        index = _whole_number(node_config, "partition-id")
        own_folder = str(node_config.get("state-dir", ""))
        own_data = str(node_config.get("dataset", ""))
        role = str(node_config.get("role", TRAIN))
        data = _client_data(self.config, index, own_folder, own_data, role)
        # A deployed node has a name and a role of its own; a virtual one has the scenario's.
        self.data = replace(
            data,
            name=str(node_config.get("name", data.name)),
            role=str(node_config.get("role", data.role)),
        )
        self.noise = _noise(node_config, self.config)
        device = choose_device(str(node_config.get("device", self.config.device)))
        self.bank = _bank(self.config, device)
        self.layout = self.bank.layout
        folder = str(node_config.get("state-dir", self.config.state_dir))
        run = self.config.run_name or f"run-{context.run_id}"
        path = Path(folder) / _folder_name(run) / _folder_name(self.data.name)
        keep = max(KEPT_STATES, self.config.keep_checkpoints + 1)
        self.states = StateStore(context, path if folder else None, keep)

    def runtime(self, round_number: int) -> ClientRuntime:
        """The client's half of a round; its batches follow from seed, round and name alone."""
        name = zlib.crc32(self.data.name.encode())
        return ClientRuntime(
            config=self.config,
            bank=self.bank,
            fit=self.data.fit,
            test=self.data.test,
            classes=self.data.classes,
            noise=self.noise,
            rng=np.random.default_rng([self.config.seed, round_number, name]),
            role=self.data.role,
        )


class StateStore:
    """A client's last few states, on disk where there is a directory, else in Flower's context."""

    def __init__(self, context: Context, directory: Path | None, keep: int = KEPT_STATES) -> None:
        self._records = context.state
        self._directory = directory
        self._keep = keep

    def load(self, before_round: int) -> ClientState | None:
        """The newest state from before a round; one that is not finite is passed over."""
        if self._directory is not None:
            return load_client_state(self._directory, before_round, _warn)
        for number in sorted(self._rounds(), reverse=True):
            if number >= before_round:
                continue
            arrays = self._records.array_records[_record_names(number)[1]]
            try:
                return unpack_client(
                    {name: array.numpy() for name, array in arrays.items()}, self._about(number)
                )
            except DivergedError as error:
                _warn(str(error))
        return None

    def releases(self) -> int:
        """How many noisy statistics have been sent, by the state that knows of the most."""
        if self._directory is not None:
            return count_releases(self._directory)
        return max((int(self._about(number)["releases"]) for number in self._rounds()), default=0)

    def save(self, state: ClientState) -> None:
        """Keep this state and a few from before it; those of later rounds are done anew."""
        if self._directory is not None:
            save_client_state(self._directory, state, self._keep)
            return
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


def _warn(text: str) -> None:
    log(WARNING, "%s", text)


def _folder_name(name: str) -> str:
    """One folder's name, whatever the text: quoting alone leaves `..` as it is."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


@lru_cache(maxsize=4)
def _config(items: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    return load_config(dict(items))


def _client_data(
    config: RunConfig, index: int, own_folder: str, own_data: str, role: str
) -> ClientData:
    """A client's part of the scenario, or, where the node names a file of its own, that file.

    It is kept while there is room: those that were wanted longest ago go first.
    """
    key = (config, index, own_folder, own_data, role)
    if key not in _kept:
        _kept[key] = _built(*key)
        while len(_kept) > 1 and sum(map(_size, _kept.values())) > KEPT_BYTES:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def _built(config: RunConfig, index: int, own_folder: str, own_data: str, role: str) -> ClientData:
    if own_data:
        config = data_config(config, own_data, role)

    def build() -> ClientData:
        return node_client(config, index) if own_data else scenario_of(config).client(index)

    return prepared(Path(own_folder), config, index, build) if own_folder else build()


def _size(data: ClientData) -> int:
    return data.fit.inputs.nbytes + data.test.inputs.nbytes


@lru_cache(maxsize=2)
def _bank(config: RunConfig, device: torch.device) -> ModelBank:
    scenario = scenario_of(config)
    models = [
        build_model(config, scenario.input_shape, scenario.classes, seed=0, weights=False)
        for _ in range(config.clusters)
    ]
    return ModelBank(models, device, config.shared_body, config.mixed_precision)


def _whole_number(node_config: dict[str, Scalar], name: str) -> int:
    value = node_config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"node configuration: {name} = {value!r}, expected a whole number")
    return value


def _noise(node_config: dict[str, Scalar], config: RunConfig) -> float:
    value = node_config.get("count-noise", config.count_noise)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"node configuration: count-noise = {value!r}, expected a number >= 0")
    return float(value)
