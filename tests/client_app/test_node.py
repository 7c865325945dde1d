"""One node: put together from its configuration, with a state that outlives the process."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto

from client_app import node as module
from client_app.node import ContextStates, participant
from fedrc_flwr.em import AdamMoments
from fedrc_flwr.engine.client import DiskStates, States
from fedrc_flwr.errors import ConfigError, DataError, DivergedError
from fedrc_flwr.state import ClientState

RUN_CONFIG = {
    "recipe": "paper", "data.clients": 4, "data.samples-per-client": 20, "model.hidden": 4,
    "fedrc.clusters": 2,
}  # fmt: skip


def make_context(
    run_config: dict[str, Any] | None = None, run_id: int = 1, **node_config: Any
) -> Context:
    return Context(
        run_id=run_id,
        node_id=9,
        node_config={"partition-id": 0, **node_config},
        state=RecordDict(),
        run_config={**RUN_CONFIG, **(run_config or {})},
    )


def client_state(round_number: int, moments: bool = False) -> ClientState:
    rng = np.random.default_rng(round_number)
    memory = AdamMoments(*rng.random((3, 5, 2))) if moments else None
    return ClientState(round_number, (0, 4), rng.random(2), memory, releases=3 * round_number)


def assert_same(one: ClientState | None, other: ClientState) -> None:
    assert one is not None
    assert (one.round, one.clusters, one.releases) == (other.round, other.clusters, other.releases)
    np.testing.assert_array_equal(one.mixture_weights, other.mixture_weights)
    assert (one.moments is None) == (other.moments is None)
    if one.moments is not None and other.moments is not None:
        for name in ("responsibilities", "first", "second"):
            np.testing.assert_array_equal(getattr(one.moments, name), getattr(other.moments, name))


# --- configuration ------------------------------------------------------------------------------


def test_node_is_the_client_of_its_partition() -> None:
    clients = [participant(make_context(**{"partition-id": index})) for index in range(7)]

    assert [client.data.name for client in clients] == [
        "client-0", "client-1", "client-2", "client-3", "observer-0", "observer-1", "observer-2",
    ]  # fmt: skip
    assert len({client.bank.layout for client in clients}) == 1


@pytest.mark.parametrize("value", ["0", 1.5, True, None])
def test_partition_that_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"partition-id = {value!r}, expected a whole number"):
        participant(make_context(**{"partition-id": value}))


def test_missing_partition_is_refused() -> None:
    context = make_context()
    del context.node_config["partition-id"]

    with pytest.raises(ConfigError, match="partition-id = None"):
        participant(context)


@pytest.mark.parametrize("index", [-1, 7])
def test_partition_outside_the_scenario_is_refused(index: int) -> None:
    with pytest.raises(DataError, match=f"client {index}"):
        participant(make_context(**{"partition-id": index}))


@pytest.mark.parametrize("where", ["node", "run"])
@pytest.mark.parametrize("device", ["warp-drive", "cpu:x", "0", "cuda:4095"])
def test_device_that_is_not_there_is_refused(device: str, where: str) -> None:
    context = (
        make_context(device=device) if where == "node" else make_context({"run.device": device})
    )

    with pytest.raises(ConfigError, match=f"device = {device!r}"):
        participant(context)


def test_device_of_the_node_wins_over_that_of_the_run() -> None:
    client = participant(make_context({"run.device": "warp-drive"}, device="cpu"))

    assert client.bank.device == torch.device("cpu")


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, "much", True])
def test_noise_that_is_no_deviation_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"count-noise = {value!r}, expected"):
        participant(make_context(**{"count-noise": value}))


def test_noise_of_the_node_wins_over_that_of_the_run() -> None:
    run = {"privacy.count-noise": 2.0}

    assert participant(make_context(run)).noise == 2.0
    assert participant(make_context(run, **{"count-noise": 5})).noise == 5.0
    assert participant(make_context(run, **{"count-noise": 0})).noise == 0.0


def test_run_configuration_is_checked() -> None:
    with pytest.raises(ConfigError, match="unknown key 'cluster'"):
        participant(make_context({"cluster": 2}))


def test_batches_follow_from_seed_round_and_name_alone() -> None:
    def draw(round_number: int, partition: int = 0, seed: int = 0) -> float:
        client = participant(make_context({"seed": seed}, **{"partition-id": partition}))
        return float(client.runtime(round_number).rng.random())

    assert draw(1) == draw(1)
    assert len({draw(1), draw(2), draw(1, partition=1), draw(1, seed=1)}) == 4


def test_noise_does_not_follow_from_the_seed() -> None:
    client = participant(make_context())

    assert client.runtime(1).noise_rng.random() != client.runtime(1).noise_rng.random()


# --- state --------------------------------------------------------------------------------------


@pytest.fixture(params=["context", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> States:
    on_disk = request.param == "disk"
    return DiskStates(tmp_path / "state") if on_disk else ContextStates(make_context())


@pytest.mark.parametrize("moments", [True, False])
def test_state_comes_back_as_it_was(store: States, moments: bool) -> None:
    store.save(client_state(3, moments))

    assert_same(store.load(before_round=4), client_state(3, moments))


def test_there_is_no_state_before_the_first(store: States) -> None:
    assert store.load(before_round=1) is None
    store.save(client_state(1))
    assert store.load(before_round=1) is None


def test_last_four_rounds_are_kept(store: States) -> None:
    for number in (1, 2, 5, 8, 9, 10):
        store.save(client_state(number))

    assert_same(store.load(before_round=99), client_state(10))
    assert_same(store.load(before_round=8), client_state(5))
    assert store.load(before_round=5) is None


def test_repeated_round_finds_the_state_from_before_it(store: States) -> None:
    for number in (1, 2, 2, 2):
        store.save(client_state(number))

    assert_same(store.load(before_round=2), client_state(1))


def test_rounds_done_anew_replace_the_states_of_later_rounds(store: States) -> None:
    for number in (8, 9, 3, 4):
        store.save(client_state(number))

    assert_same(store.load(before_round=99), client_state(4))
    assert_same(store.load(before_round=4), client_state(3))


def test_as_many_states_are_kept_as_the_server_may_go_back_rounds() -> None:
    store = participant(make_context({"run.keep-checkpoints": 6})).states

    for number in range(1, 10):
        store.save(client_state(number))

    assert_same(store.load(before_round=4), client_state(3))
    assert store.load(before_round=3) is None


def not_finite(round_number: int) -> ClientState:
    return replace(client_state(round_number), mixture_weights=np.array([0.5, np.nan]))


def test_state_that_is_not_finite_is_not_saved(store: States) -> None:
    store.save(client_state(1))

    with pytest.raises(DivergedError, match="after round 2 holds numbers that are not finite"):
        store.save(not_finite(2))

    assert_same(store.load(before_round=3), client_state(1))
    assert store.releases() == 3


def test_state_that_is_not_finite_is_passed_over_with_a_warning(
    store: States, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ClientState, "is_finite", lambda state: True)
        for state in (not_finite(1), client_state(2), not_finite(3)):
            store.save(state)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    assert_same(store.load(before_round=4), client_state(2))
    assert store.load(before_round=2) is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "after round 3 holds numbers that are not finite" in caplog.text
    # The third state is of no use, but what it says was sent was sent.
    assert store.releases() == 9


def test_context_does_not_grow_with_the_rounds() -> None:
    context = make_context()
    store = ContextStates(context)

    sizes = []
    for number in range(1, 8):
        store.save(client_state(number, moments=True))
        sizes.append(len(context.state))

    assert sizes == [2, 4, 6, 8, 8, 8, 8]


def test_state_on_disk_is_not_kept_in_the_context_too(tmp_path: Path) -> None:
    context = make_context({"run.name": "trial"}, **{"state-dir": str(tmp_path)})

    participant(context).states.save(client_state(1))

    assert len(context.state) == 0
    folder = tmp_path / "trial" / "client-0"
    assert [path.name for path in folder.iterdir()] == ["round-000001.safetensors"]


def test_state_in_the_context_survives_the_way_that_flower_sends_it() -> None:
    context = make_context()
    ContextStates(context).save(client_state(3, moments=True))

    arrived = context_from_proto(context_to_proto(context))

    assert_same(ContextStates(arrived).load(before_round=4), client_state(3, moments=True))


def test_restarted_node_finds_its_state_on_disk(tmp_path: Path) -> None:
    run = {"run.name": "trial"}
    participant(make_context(run, run_id=1, **{"state-dir": str(tmp_path)})).states.save(
        client_state(3)
    )

    again = participant(make_context(run, run_id=2, **{"state-dir": str(tmp_path)}))

    assert_same(again.states.load(before_round=4), client_state(3))


def test_states_of_runs_and_clients_are_kept_apart(tmp_path: Path) -> None:
    def states(run: str, partition: int) -> States:
        config = {"run.name": run, "run.state-dir": str(tmp_path)}
        return participant(make_context(config, **{"partition-id": partition})).states

    states("a", 0).save(client_state(3))

    assert states("a", 0).load(before_round=9) is not None
    assert states("a", 1).load(before_round=9) is None
    assert states("b", 0).load(before_round=9) is None


def test_directory_of_the_node_wins_over_that_of_the_run(tmp_path: Path) -> None:
    run = {"run.name": "trial", "run.state-dir": str(tmp_path / "run")}

    participant(make_context(run, **{"state-dir": str(tmp_path / "node")})).states.save(
        client_state(1)
    )

    assert [path.name for path in tmp_path.iterdir()] == ["node"]


@pytest.mark.parametrize("name", ["ward/3", "../../escape", "..", ".", "/etc/ward", "a\\b", "ü ?"])
def test_client_with_any_name_stays_inside_its_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / "a" / "b" / "home"
    real = module._client_data
    monkeypatch.setattr(module, "_client_data", lambda *key: replace(real(*key), name=name))
    context = make_context({"run.name": "trial"}, **{"state-dir": str(home)})

    participant(context).states.save(client_state(1))

    files = [path for path in tmp_path.rglob("*.safetensors") if path.is_file()]
    assert [path.parent.parent for path in files] == [home / "trial"]
    assert all(path.is_relative_to(home) for path in tmp_path.rglob("*") if path.is_file())
    assert_same(participant(context).states.load(before_round=2), client_state(1))


@pytest.mark.parametrize("run", ["my/run", "../../escape", "..", "."])
def test_run_name_that_is_a_path_is_refused(tmp_path: Path, run: str) -> None:
    context = make_context({"run.name": run}, **{"state-dir": str(tmp_path / "home")})

    with pytest.raises(ConfigError, match=r"run\.name"):
        participant(context)

    assert list(tmp_path.iterdir()) == []


def test_a_process_keeps_the_samples_of_its_clients_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = []
    real = module._built

    def counted(*key: Any) -> Any:
        built.append(key[2])
        return real(*key)

    monkeypatch.setattr(module, "_built", counted)
    monkeypatch.setattr(module, "_kept", OrderedDict())
    size = module._size(participant(make_context({}, **{"partition-id": 0})).data)
    monkeypatch.setattr(module, "KEPT_BYTES", int(2.5 * size))
    for index in (1, 0, 2, 0, 1):
        participant(make_context({}, **{"partition-id": index}))

    # The second one goes when the third comes, since the first has been wanted in between.
    assert built == [0, 1, 2, 1]
