"""Scenarios: which client holds what, as a pure function of the settings, a seed and an index."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrc_flwr.config import load_config, scenario_names
from fedrc_flwr.data.concepts import concept_map
from fedrc_flwr.data.datasets import DATASETS, load_dataset
from fedrc_flwr.data.scenario import ClientData, Scenario, Split, scenario_of
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.errors import ConfigError, DataError

SETTINGS = DataSettings(clients=12, observers_per_concept=2)
SEED = 3


def scenario_from(keys: dict[str, Any]) -> Scenario:
    """The scenario of a configuration with these keys, those of the data without their prefix."""
    top = {name: keys.pop(name) for name in ("scenario", "seed") if name in keys}
    config = load_config({**top, **{f"data.{name}": value for name, value in keys.items()}})
    return Scenario(config.data, config.seed)


def same_split(one: Split, other: Split) -> bool:
    return np.array_equal(one.inputs, other.inputs) and np.array_equal(one.labels, other.labels)


def same_client(one: ClientData, other: ClientData) -> bool:
    about = [(c.name, c.role, c.classes, c.truth) for c in (one, other)]
    return about[0] == about[1] and same_split(one.fit, other.fit) and same_split(
        one.test, other.test
    )  # fmt: skip


def all_clients(settings: DataSettings, seed: int = SEED) -> list[ClientData]:
    scenario = Scenario(settings, seed)
    return [scenario.client(index) for index in range(len(scenario))]


def positions(inputs: np.ndarray, among: np.ndarray) -> list[int]:
    """Where each image occurs in a set of images without doubles."""
    places = {image.tobytes(): place for place, image in enumerate(among)}
    return [places[image.tobytes()] for image in inputs]


def test_client_is_the_same_in_whatever_order_it_is_asked_for() -> None:
    in_order = all_clients(SETTINGS)

    for index in (13, 5, 0, 17):
        assert same_client(Scenario(SETTINGS, SEED).client(index), in_order[index])


@pytest.mark.parametrize("change", [{"alpha": 10.0}, {"samples_per_client": 50}])
def test_keys_of_the_data_change_it(change: dict[str, float]) -> None:
    other = replace(SETTINGS, **change)  # type: ignore[arg-type]

    assert not same_client(Scenario(SETTINGS, SEED).client(0), Scenario(other, SEED).client(0))


def test_the_seed_changes_it() -> None:
    assert not same_client(Scenario(SETTINGS, SEED).client(0), Scenario(SETTINGS, 4).client(0))


def test_what_a_caller_does_to_its_samples_stays_with_it() -> None:
    scenario = Scenario(SETTINGS, SEED)
    scenario.client(0).fit.inputs[:] = 0.0
    scenario.client(12).fit.labels[:] = 0

    assert same_client(scenario.client(0), Scenario(SETTINGS, SEED).client(0))
    assert same_client(scenario.client(12), Scenario(SETTINGS, SEED).client(12))


def test_names_are_unique_and_roles_come_in_order() -> None:
    clients = all_clients(SETTINGS)

    assert len({client.name for client in clients}) == len(clients) == 18
    assert [client.role for client in clients] == ["train"] * 12 + ["observe"] * 6


def test_training_clients_hold_equal_parts_that_nobody_else_holds() -> None:
    plain = replace(SETTINGS, corrupted_shares="0,0,0")
    clients = all_clients(plain)[:12]

    totals = [len(client.fit) + len(client.test) for client in clients]
    data = load_dataset("digits")
    held = [
        place
        for client in clients
        for split in (client.fit, client.test)
        for place in positions(split.inputs, data.train_inputs)
    ]

    assert set(totals) == {len(data.train_labels) // 12}
    assert len(held) == len(set(held)) == sum(totals)


def test_training_labels_are_the_datasets_under_the_clients_concept() -> None:
    plain = replace(SETTINGS, corrupted_shares="0,0,0")
    data = load_dataset("digits")

    for client in all_clients(plain)[:12]:
        true_labels = data.train_labels[positions(client.fit.inputs, data.train_inputs)]
        renamed = concept_map(client.truth.concept, 10, seed=3)[true_labels]
        np.testing.assert_array_equal(client.fit.labels, renamed)


def test_concepts_and_corruptions_come_in_the_configured_shares() -> None:
    clients = all_clients(replace(SETTINGS, corrupted_shares="0.5,1,0"))[:12]

    concepts = [client.truth.concept for client in clients]
    styled = [client.truth.concept for client in clients if client.truth.style != "none"]

    assert [concepts.count(c) for c in range(3)] == [6, 3, 3]
    assert [styled.count(c) for c in range(3)] == [3, 3, 0]


def test_corrupted_client_holds_changed_images_under_the_same_labels() -> None:
    corrupted = all_clients(replace(SETTINGS, corrupted_shares="1,1,1"))[:12]
    plain = all_clients(replace(SETTINGS, corrupted_shares="0,0,0"))[:12]

    for one, other in zip(corrupted, plain, strict=True):
        assert one.truth.style != "none"
        assert not np.array_equal(one.fit.inputs, other.fit.inputs)
        np.testing.assert_array_equal(one.fit.labels, other.fit.labels)


@pytest.mark.parametrize(("fraction", "held_out"), [(0.0, 0), (0.1, 5), (0.9, 45)])
def test_local_test_part_has_the_configured_size(fraction: float, held_out: int) -> None:
    client = Scenario(
        replace(SETTINGS, samples_per_client=50, test_fraction=fraction), SEED
    ).client(0)

    assert (len(client.test), len(client.fit)) == (held_out, 50 - held_out)


def test_client_with_one_sample_fits_on_it() -> None:
    client = Scenario(replace(SETTINGS, samples_per_client=1, test_fraction=0.9), SEED).client(0)

    assert (len(client.test), len(client.fit)) == (0, 1)


@pytest.mark.parametrize("index", range(12, 18))
def test_observer_has_all_classes_alike_and_judges_on_what_it_did_not_fit(index: int) -> None:
    data = load_dataset("digits")

    observer = Scenario(SETTINGS, SEED).client(index)

    fit = positions(observer.fit.inputs, data.test_inputs)
    test = positions(observer.test.inputs, data.test_inputs)
    assert sorted(fit + test) == list(range(len(data.test_labels)))
    for split, places in ((observer.fit, fit), (observer.test, test)):
        assert len(set(np.bincount(split.labels, minlength=10))) == 1
        renamed = concept_map(observer.truth.concept, 10, seed=3)[data.test_labels[places]]
        np.testing.assert_array_equal(split.labels, renamed)


def test_every_concept_has_its_observers() -> None:
    observers = all_clients(SETTINGS)[12:]

    assert [observer.truth.concept for observer in observers] == [0, 0, 1, 1, 2, 2]


def test_federation_without_observers_has_training_clients_only() -> None:
    assert len(Scenario(replace(SETTINGS, observers_per_concept=0), SEED)) == 12


@pytest.mark.parametrize("index", [-1, 18, 1000])
def test_index_out_of_range_is_refused_with_the_range(index: int) -> None:
    with pytest.raises(DataError, match=rf"client {index}: .*12 training .*6 observers.* 0 to 17"):
        Scenario(SETTINGS, SEED).client(index)


def test_too_many_clients_are_refused() -> None:
    scenario = Scenario(replace(SETTINGS, clients=5000), SEED)

    with pytest.raises(DataError, match="5000 clients"):
        scenario.client(0)


def test_scenario_of_a_configuration_is_built_once() -> None:
    assert scenario_of(SETTINGS, SEED) is scenario_of(replace(SETTINGS), SEED)
    assert scenario_of(SETTINGS, SEED) is not scenario_of(SETTINGS, 4)


@pytest.mark.parametrize("name", scenario_names())
def test_first_and_last_client_of_every_ready_made_scenario_can_be_built(
    name: str, data_dir: Path
) -> None:
    small = {"clients": 4, "samples-per-client": 20, "directory": str(data_dir)}
    scenario = scenario_from({"scenario": name, **small})

    for index in (0, len(scenario) - 1):
        client = scenario.client(index)
        assert len(client.fit) > 0
        assert client.fit.inputs.dtype == np.float32
        assert client.fit.inputs.shape[1:] == scenario.input_shape
        assert set(client.fit.labels) <= set(range(scenario.classes))


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_is_what_its_specification_says(name: str, data_dir: Path) -> None:
    spec, data = DATASETS[name], load_dataset(name, str(data_dir))

    for inputs, labels in (
        (data.train_inputs, data.train_labels),
        (data.test_inputs, data.test_labels),
    ):
        assert inputs.dtype in (np.float32, np.uint8)
        assert labels.dtype == np.int64
        assert inputs.shape == (len(labels), *spec.input_shape)
        assert set(labels) == set(range(spec.classes))
    trained = {image.tobytes() for image in data.train_inputs}
    assert not any(image.tobytes() in trained for image in data.test_inputs)
    sets = {0} if data.test_sets is None else set(data.test_sets)
    assert sets == set(range(spec.test_sets))


@pytest.mark.parametrize("name", DATASETS)
def test_server_knows_classes_and_shape_without_the_data(name: str, tmp_path: Path) -> None:
    scenario = scenario_from({"dataset": name, "directory": str(tmp_path)})

    assert (scenario.classes, scenario.input_shape) == (
        DATASETS[name].classes, DATASETS[name].input_shape,
    )  # fmt: skip


def test_outline_is_the_client_without_its_inputs() -> None:
    scenario = Scenario(SETTINGS, SEED)

    for index in range(len(scenario)):
        outline, client = scenario.outline(index), scenario.client(index)
        assert (outline.name, outline.role, outline.truth) == (
            client.name, client.role, client.truth,
        )  # fmt: skip
        assert (outline.fit, outline.test) == (len(client.fit), len(client.test))
        parts = np.concatenate([client.test.labels, client.fit.labels])
        np.testing.assert_array_equal(outline.labels, parts)


# --- mixes, copies, noise and observers ---------------------------------------------------------


@pytest.mark.parametrize(
    ("mix", "untouched", "corrupted", "relabelled", "both"),
    [("paper", 30, 20, [20, 20], [5, 5]), ("authors", 20, 20, [20, 20], [10, 10])],
)
def test_named_mix_has_exactly_its_shares_of_clients(
    mix: str, untouched: int, corrupted: int, relabelled: list[int], both: list[int]
) -> None:
    scenario = scenario_from({"mix": mix, "clients": 100, "samples-per-client": 10})

    truths = [scenario.outline(index).truth for index in range(100)]

    plain = [truth.concept for truth in truths if truth.style == "none"]
    styled = [truth.concept for truth in truths if truth.style != "none"]
    assert [plain.count(c) for c in range(3)] == [untouched, *relabelled]
    assert [styled.count(c) for c in range(3)] == [corrupted, *both]


def test_paper_mix_of_300_clients_is_exact() -> None:
    scenario = scenario_from({"mix": "paper", "clients": 300, "samples-per-client": 4})

    truths = [scenario.outline(index).truth for index in range(300)]

    plain = [truth.concept for truth in truths if truth.style == "none"]
    assert [plain.count(c) for c in range(3)] == [90, 60, 60]


def test_named_mix_and_own_shares_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.concept-shares = '1,0,0': data.mix = 'paper'"):
        DataSettings(mix="paper", concept_shares="1,0,0")


def test_copies_let_every_sample_occur_so_many_times() -> None:
    settings = replace(SETTINGS, copies=3, corrupted_shares="0,0,0")
    data = load_dataset("digits")

    clients = all_clients(settings)[:12]

    held = np.concatenate([
        positions(split.inputs, data.train_inputs) for c in clients for split in (c.fit, c.test)
    ])  # fmt: skip
    counts = np.bincount(held)
    assert len(held) == 3 * len(data.train_labels) // 12 * 12
    assert counts.max() == 3


@pytest.mark.parametrize("split", ["dirichlet-by-class", "iid"])
def test_other_splits_hand_every_sample_out_once_at_most(split: str) -> None:
    settings = replace(SETTINGS, split=split, corrupted_shares="0,0,0")
    data = load_dataset("digits")

    clients = all_clients(settings)[:12]

    held = [
        place
        for c in clients
        for part in (c.fit, c.test)
        for place in positions(part.inputs, data.train_inputs)
    ]
    assert len(held) == len(set(held)) > 0.98 * len(data.train_labels)
    assert min(len(c.fit) + len(c.test) for c in clients) >= settings.min_samples


def test_label_noise_changes_labels_of_training_clients_only() -> None:
    noisy = all_clients(replace(SETTINGS, label_noise="pair", label_noise_rate=0.5))
    clean = all_clients(SETTINGS)

    for one, other in zip(noisy, clean, strict=True):
        np.testing.assert_array_equal(one.fit.inputs, other.fit.inputs)
        changed = (one.fit.labels - other.fit.labels) % 10
        assert set(changed) == ({0, 1} if one.role == "train" else {0})


def test_observers_may_be_judged_on_what_they_fitted() -> None:
    observer = Scenario(replace(SETTINGS, observer_data="same"), SEED).client(12)

    assert same_split(observer.fit, observer.test)
    assert len(observer.fit) == 360


def test_every_period_of_a_table_has_its_observer(data_dir: Path) -> None:
    given = {"scenario": "electricity", "clients": 4, "directory": str(data_dir)}
    scenario = scenario_from(given)

    observers = [scenario.client(index) for index in range(4, len(scenario))]

    assert [observer.truth.style for observer in observers] == ["period-0", "period-1"]
    for observer in observers:
        assert np.bincount(np.r_[observer.fit.labels, observer.test.labels]).tolist() == [10, 10]


def test_table_cannot_be_corrupted(data_dir: Path) -> None:
    given = {"dataset": "airline", "directory": str(data_dir), "corrupted-shares": "1,1,1"}
    scenario = scenario_from({**given, "samples-per-client": 10})

    with pytest.raises(DataError, match="set every corrupted share to 0"):
        scenario.client(0)


def test_bytes_stay_bytes_in_the_dataset_and_are_from_0_to_1_on_a_client(data_dir: Path) -> None:
    given = {"scenario": "cifar10", "clients": 4, "copies": 1, "directory": str(data_dir)}
    scenario = scenario_from(given)

    client = scenario.client(0)

    assert load_dataset("cifar10", str(data_dir)).train_inputs.dtype == np.uint8
    assert 0.0 <= client.fit.inputs.min() < client.fit.inputs.max() <= 1.0


def test_demo_data_is_what_it_always_was() -> None:
    """The demo's figures hold for this split: which labels, concepts and styles each client has."""
    clients = all_clients(load_config({"scenario": "digits"}).data, seed=0)
    digest = hashlib.sha256()

    for client in clients:
        digest.update(repr((client.name, client.role, client.truth)).encode())
        digest.update(client.fit.labels.tobytes() + client.test.labels.tobytes())

    assert digest.hexdigest()[:16] == "f24139e885ec06d7"
