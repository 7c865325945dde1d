"""Bring your own data: every form is read, and what cannot be trained on is refused clearly."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedrc_flwr.config import load_config
from fedrc_flwr.data.encoding import NUMBER, Column
from fedrc_flwr.data.own import located, own_facts
from fedrc_flwr.data.scenario import (
    GroundTruth,
    Scenario,
    node_client,
    node_settings,
    scenario_of,
)
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.errors import ConfigError, DataError

SEED = 0


def data_of(**keys: Any) -> DataSettings:
    """The data section of a configuration, whatever scenario is under it."""
    return load_config({f"data.{name.replace('_', '-')}": v for name, v in keys.items()}).data


def settings_for(dataset: Path | str, **keys: Any) -> DataSettings:
    plain = {"clients": 2, "alpha": "inf"}
    return data_of(**{**plain, "dataset": str(dataset), **keys})


def scenario_for(dataset: Path | str, seed: int = SEED, **keys: Any) -> Scenario:
    return Scenario(settings_for(dataset, **keys), seed)


def arrays(samples: int = 40, classes: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.random((samples, 6)), "y": np.arange(samples) % classes}


def as_the_network_sees(x: np.ndarray, scenario: Scenario) -> np.ndarray:
    """Centred and scaled by the figures that the schema names."""
    return ((x - scenario.schema.centre) / np.array(scenario.schema.scale)).astype(np.float32)


def npz(folder: Path, **content: Any) -> Path:
    np.savez(folder / "own.npz", **content)
    return folder / "own.npz"


def csv(folder: Path, text: str) -> Path:
    (folder / "own.csv").write_text(text)
    return folder / "own.csv"


# --- as a dataset like any other ----------------------------------------------------------------


def test_npz_is_split_and_shifted_like_any_dataset(tmp_path: Path) -> None:
    path = npz(tmp_path, **arrays())
    settings = settings_for(path, concept_shares="0.5,0.5", corrupted_shares="0,0")

    scenario = Scenario(settings, SEED)

    clients = [scenario.client(index) for index in range(len(scenario))]
    assert (scenario.classes, scenario.input_shape) == (4, (6,))
    assert [c.truth.concept for c in clients[2:]] == [0, 1]
    assert sorted(c.truth.concept for c in clients[:2]) == [0, 1]
    # A fifth of each class is held back for observers.
    assert [len(c.fit) + len(c.test) for c in clients] == [16, 16, 8, 8]


def test_samples_marked_as_observers_are_what_observers_get(tmp_path: Path) -> None:
    content = arrays()
    path = npz(tmp_path, **content, observer=np.arange(40) < 12)

    scenario = scenario_for(path)

    held = np.concatenate([scenario.client(2).fit.inputs, scenario.client(2).test.inputs])
    expected = as_the_network_sees(content["x"][:12], scenario)
    assert {row.tobytes() for row in held} == {row.tobytes() for row in expected}


def test_without_observers_nothing_is_held_back(tmp_path: Path) -> None:
    scenario = scenario_for(npz(tmp_path, **arrays()), observers_per_concept=0)

    assert sum(len(scenario.outline(index).labels) for index in range(len(scenario))) == 40


@pytest.mark.parametrize("header", ["a,y,b\n", ""])
def test_csv_label_is_the_column_y_or_the_last(tmp_path: Path, header: str) -> None:
    values = [(row % 7, row % 2, row % 3) for row in range(40)]
    rows = [f"{a},{y},{b}" if header else f"{a},{b},{y}" for a, y, b in values]
    path = csv(tmp_path, header + "\n".join(rows))

    scenario = scenario_for(path, test_fraction=0, clients=1, observers_per_concept=0)

    client = scenario.client(0)
    a, b = scenario.schema.columns
    assert (scenario.classes, scenario.input_shape) == (2, (2,))
    raw = client.fit.inputs * [a.scale, b.scale] + [a.centre, b.centre]
    found = sorted(zip(*raw.round().T.tolist(), client.fit.labels.tolist(), strict=True))
    assert found == sorted((a, b, y) for a, y, b in values)


@pytest.mark.parametrize(("mode", "shape"), [("L", (6, 5)), ("RGB", (3, 6, 5))])
def test_folder_of_images_has_a_class_per_subfolder(
    tmp_path: Path, mode: str, shape: tuple[int, ...]
) -> None:
    for label, name in enumerate(["bird", "cat", "dog"]):
        (tmp_path / name).mkdir()
        for number in range(5):
            colour = 50 * label if mode == "L" else (50 * label, 1, 2)
            Image.new(mode, (5, 6), colour).save(tmp_path / name / f"{number}.png")

    scenario = scenario_for(tmp_path, test_fraction=0)

    client = scenario.client(0)
    assert (scenario.classes, scenario.input_shape) == (3, shape)
    first = client.fit.inputs.reshape(len(client.fit), -1)[:, 0]
    np.testing.assert_allclose(first * 255, 50 * client.fit.labels, rtol=1e-5)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_module.py").write_text(
        "import numpy as np\n"
        "def good(): return {'x': np.ones((20, 3)), 'y': np.arange(20) % 2}\n"
        "def bad(): return [1, 2]\n"
        "def failing(): raise RuntimeError('no disk')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    return "own_module"


def test_function_gives_the_arrays(module: str) -> None:
    scenario = scenario_for(f"{module}:good")

    assert (scenario.classes, scenario.input_shape) == (2, (3,))
    assert len(scenario.client(0).fit) > 0


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("bad", DataError, "returned list, expected a table, or a dict"),
        ("failing", DataError, "RuntimeError: no disk"),
        ("number", ConfigError, "has no function 'number'"),
        ("missing", ConfigError, "has no function 'missing'"),
    ],
)
def test_function_that_gives_none_is_refused(
    module: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        scenario_for(f"{module}:{name}")


def test_module_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot import nowhere_at_all.*PYTHONPATH"):
        scenario_for("nowhere_at_all:function")


# --- data that says who holds what --------------------------------------------------------------


def grouped() -> dict[str, np.ndarray]:
    content = arrays(30)
    client = np.repeat(["b", "a", "z"], 10)
    return {
        **content,
        "client": client,
        "concept": np.repeat([1, 0, 1], 10),
        "style": np.repeat(["scan", "photo", "photo"], 10),
        "observer": client == "a",
    }


def test_clients_of_the_file_are_the_clients(tmp_path: Path) -> None:
    content = grouped()
    settings = settings_for(npz(tmp_path, **content), clients=99, concept_shares="0.5,0.5",
                        corrupted_shares="1,1", label_noise="pair")  # fmt: skip

    scenario = Scenario(settings, SEED)

    clients = [scenario.client(index) for index in range(len(scenario))]
    assert (scenario.clients, scenario.observers) == (2, 1)
    assert [(c.name, c.role) for c in clients] == [
        ("b", "train"), ("z", "train"), ("a", "observe"),
    ]  # fmt: skip
    assert [c.truth for c in clients] == [
        GroundTruth(1, "scan"), GroundTruth(1, "photo"), GroundTruth(0, "photo"),
    ]  # fmt: skip
    assert [(len(c.fit), len(c.test)) for c in clients] == [(9, 1), (9, 1), (5, 5)]
    pairs = zip(as_the_network_sees(content["x"], scenario), content["y"], strict=True)
    rows = {row.tobytes(): label for row, label in pairs}
    for client in clients:
        for split in (client.fit, client.test):
            assert [rows[row.tobytes()] for row in split.inputs] == split.labels.tolist()


def test_numbered_clients_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    lines = [
        "client,a,y",
        *(f"{client},{row % 3},{row % 2}" for client in (10, 9, 2) for row in range(8)),
    ]

    scenario = scenario_for(csv(tmp_path, "\n".join(lines)))

    names = [scenario.outline(index).name for index in range(len(scenario))]
    assert names == ["client-2", "client-9", "client-10"]
    assert scenario.outline(0).truth == GroundTruth(-1, "none")


def test_client_with_one_class_is_a_client(tmp_path: Path) -> None:
    content = arrays(24)
    content["y"][12:] = 2
    path = npz(tmp_path, **content, client=np.repeat([0, 1], 12))

    other = scenario_for(path).client(1)

    assert (len(other.fit), len(other.test), set(other.fit.labels)) == (11, 1, {2})


def test_labels_by_name_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    content = arrays()
    names = np.array(["flu", "cold", "asthma", "flu"])[content["y"]]
    path = npz(tmp_path, x=content["x"], y=names, client=np.arange(40) % 2)

    scenario = scenario_for(path, test_fraction=0)

    assert scenario.schema.classes == ("asthma", "cold", "flu")
    counts = np.bincount(np.r_[scenario.client(0).fit.labels, scenario.client(1).fit.labels])
    assert counts.tolist() == [10, 10, 20]


def test_own_data_is_neither_relabelled_nor_corrupted_nor_split_unless_asked_for(
    tmp_path: Path,
) -> None:
    content = {**arrays(), "x": np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)}
    path = npz(tmp_path, **content)

    with pytest.raises(DataError, match=r"which client each row.*data.clients=12"):
        scenario_of(data_of(dataset=str(path)), SEED)
    dealt = scenario_of(data_of(dataset=str(path), clients=4), SEED)
    clients = [dealt.client(index) for index in range(4)]

    assert {client.truth for client in clients} == {GroundTruth(0, "none")}
    rows = {row.tobytes(): label for row, label in zip(content["x"], content["y"], strict=True)}
    for client in clients:
        pixels = (client.fit.inputs * 255).round().astype(np.uint8)
        assert [rows[image.tobytes()] for image in pixels] == client.fit.labels.tolist()


def test_own_data_can_be_shifted_where_that_is_asked_for(tmp_path: Path) -> None:
    settings = settings_for(npz(tmp_path, **arrays()), concept_shares="0.5,0.5")

    scenario = Scenario(settings, SEED)

    assert sorted(scenario.client(index).truth.concept for index in range(2)) == [0, 1]


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"x": np.ones((4, 2))}, "has no array 'y'"),
        ({"y": np.arange(4)}, "has no array 'x'"),
        ({"x": np.ones((4, 2)), "y": np.arange(3)}, "differ in length: x 4, y 3"),
        ({**arrays(), "client": np.arange(39)}, "differ in length.*client 39"),
        ({"x": np.ones((0, 2)), "y": np.arange(0)}, "holds no samples"),
        ({"x": np.ones(4), "y": np.arange(4)}, "expected numbers, \\(N, ...\\)"),
        ({"x": np.full((4, 2), "a"), "y": np.arange(4)}, "expected numbers"),
        ({"x": np.ones((4, 2)), "y": np.ones((4, 1))}, "y has the shape \\(4, 1\\)"),
        ({**arrays(), "y": np.zeros(40)}, "'0' in every row: there is nothing to tell apart"),
        ({**arrays(), "y": np.arange(40) / 7}, "40 different numbers.*looks like a quantity"),
        ({**arrays(), "concept": np.zeros(40)}, "concept without client"),
        ({**arrays(), "observer": np.ones(40)}, "none are left to train"),
        ({"x": np.full((40, 3, 3), np.nan), "y": arrays()["y"]}, "sample 0 of x holds NaN"),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_refused(
    tmp_path: Path, content: dict[str, np.ndarray], words: str
) -> None:
    path = npz(tmp_path, **content)

    with pytest.raises(DataError, match=words) as refusal:
        scenario_for(path)

    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"observer": np.ones(40)}, "all clients are observers"),
        ({"observer": np.arange(40) < 9}, "some rows only"),
        ({"client": np.zeros(40)}, "names one client"),
        ({"client": np.minimum(np.arange(40), 2)}, "2 clients of 'client' with a single row: 0, 1"),
    ],
)
def test_clients_that_make_no_federation_are_refused(
    tmp_path: Path, more: dict[str, np.ndarray], words: str
) -> None:
    path = npz(tmp_path, **{**arrays(), "client": np.arange(40) % 2, **more})

    with pytest.raises(DataError, match=words):
        scenario_for(path, clients=0)


def test_missing_numbers_of_arrays_become_the_centre(tmp_path: Path) -> None:
    content = arrays()
    content["x"][7, 2] = np.nan
    scenario = scenario_for(npz(tmp_path, **content, client=np.arange(40) // 20), test_fraction=0)

    inputs = scenario.client(0).fit.inputs

    assert np.isfinite(inputs).all()
    assert (inputs[:, 2] == 0).sum() == 1


def test_labels_outside_the_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the label y has 4 classes, but data\.classes says 3"):
        scenario_for(npz(tmp_path, **arrays()), classes=3)


def test_samples_of_another_shape_than_said_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"shape \(6,\), but data.input-shape says \(2, 3\)"):
        scenario_for(npz(tmp_path, **arrays()), input_shape="2,3")


class Program:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


def test_object_arrays_are_refused_and_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = npz(tmp_path, x=np.array([[Program()]], dtype=object), y=np.zeros(1))

    with pytest.raises(DataError, match="array of objects, which is never read"):
        scenario_for(path)

    assert not (tmp_path / "unpickled").exists()


ROWS = "".join(f"{row},{row % 5},{row % 2}\n" for row in range(30))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,y\n", "holds no samples"),
        ("", "the file is empty"),
        ("y\n" + "1\n0\n" * 9, "no column is left to learn from"),
        ("a,a,y\n" + ROWS, "two columns have the name 'a'"),
        ("a,observer,y\n" + ROWS, "expected true or false"),
        ("a,b,y\n" + ROWS + "1,2,3,4\n", "Expected 3 fields in line 32, saw 4"),
    ],
)
def test_csv_that_cannot_be_trained_on_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = csv(tmp_path, text)

    with pytest.raises(DataError, match=words) as refusal:
        scenario_for(path)

    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("own.npz", b"PK torn", "own.npz: torn, or not a .npz file"),
     ("own.npz", b"x,y\n1,2\n", "own.npz: torn, or not a .npz file"),
     ("own.npz", b"\x93NUMPY\x01\x00", "own.npz: torn, or not a .npz file"),
     ("own.csv", b"\xff\xfe\x00", "own.csv"),
     ("own.txt", b"", "expected a .csv, .tsv, .parquet or .npz file"),
     ("own.parquet", b"torn", "own.parquet")],
)  # fmt: skip
def test_file_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(DataError, match=words):
        scenario_for(tmp_path / name)


def test_images_of_two_sizes_or_none_are_refused(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="a subfolder per class"):
        scenario_for(tmp_path)
    for place in range(8):
        Image.new("L", (5, 5)).save(tmp_path / ("cat", "dog")[place % 2] / f"{place}.png")
    Image.new("L", (5, 6)).save(tmp_path / "cat" / "b.png")

    with pytest.raises(DataError, match=r"b.png: is 6 x 5 pixels, 0.png is 5 x 5"):
        scenario_for(tmp_path, seed=1)


def test_broken_image_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(b"no image")

    with pytest.raises(DataError, match=r"a.png: not a readable image"):
        scenario_for(tmp_path)


def test_own_pixels_beyond_1_are_scaled_by_one_pair_of_numbers(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).normal(120, 40, (40, 8, 8))
    path = npz(tmp_path, x=pixels, y=np.arange(40) % 2)

    scenario = scenario_for(path, clients=1, test_fraction=0, observers_per_concept=0)

    assert (scenario.schema.centre, scenario.schema.scale) == ((120.0,), (40.0,))
    inputs = scenario.client(0).fit.inputs
    np.testing.assert_allclose(np.sort(inputs.ravel()), np.sort((pixels.ravel() - 120) / 40), 1e-5)
    with pytest.raises(DataError, match="pixels from 0 to 1"):
        scenario_for(path, corrupted_shares="1").client(0)


def test_unknown_name_is_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cifar11 does not exist.*cifar10, cifar100"):
        scenario_for("cifar11", directory=str(tmp_path))


# --- server and nodes ---------------------------------------------------------------------------


def test_file_beside_a_missing_one_is_suggested(tmp_path: Path) -> None:
    npz(tmp_path, **arrays())

    with pytest.raises(DataError, match=r"does not exist; did you mean 'own\.npz'"):
        scenario_for(tmp_path / "won.npz")


def test_server_without_the_file_needs_classes_and_input_shape(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "theirs.npz", classes=5, input_shape="3,8,8")

    scenario = Scenario(settings, SEED)

    assert (scenario.classes, scenario.input_shape, scenario.clients) == (5, (3, 8, 8), 2)
    with pytest.raises(DataError, match=r"theirs.npz does not exist"):
        scenario.client(0)


@pytest.mark.parametrize("text", ["a", "3,", "0,3", "3x3", "-1", "1.5", "3;3", "²"])
def test_malformed_input_shape_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"data.input-shape = .*expected whole numbers"):
        data_of(input_shape=text)


def test_input_shape_of_one_number_may_be_a_number() -> None:
    assert data_of(input_shape=8).shape() == (8,)


@pytest.mark.parametrize(("role", "sizes"), [("train", (36, 4)), ("observe", (20, 20))])
def test_node_with_its_own_file_holds_all_of_it_as_it_is(
    tmp_path: Path, role: str, sizes: tuple[int, int]
) -> None:
    run = data_of(dataset="theirs", classes=9, input_shape="6", mix="paper")
    path = npz(tmp_path, **arrays())

    data = node_client(node_settings(run, SEED, str(path), role), SEED, index=7)

    assert (len(data.fit), len(data.test)) == sizes
    assert (data.classes, data.truth) == (9, GroundTruth(-1, "none"))
    assert np.bincount(np.r_[data.fit.labels, data.test.labels]).tolist() == [10] * 4


def test_node_whose_file_does_not_fit_the_run_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path, **arrays())

    for classes, shape in ((3, "6"), (9, "5")):
        run = data_of(dataset="theirs", classes=classes, input_shape=shape)
        with pytest.raises(DataError, match=r"own.npz"):
            node_client(node_settings(run, SEED, str(path), "train"), SEED, index=0)


def test_changed_file_is_another_one(tmp_path: Path) -> None:
    path = npz(tmp_path, **arrays())
    settings = settings_for(path)
    before, scenario = own_facts(settings), Scenario(settings, SEED)
    npz(tmp_path, **arrays(samples=80))
    os.utime(path, ns=(1, 1))

    after = Scenario(settings, SEED)

    assert own_facts(settings) != before
    assert len(after.outline(0).labels) > len(scenario.outline(0).labels)


def test_files_are_named_by_whole_paths_for_an_app_that_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def whole(dataset: str) -> tuple[str, str]:
        found = located(data_of(dataset=dataset))
        return found.dataset, found.directory

    assert whole("digits") == ("digits", "")
    assert whole("cifar10") == ("cifar10", str(tmp_path))
    assert whole("own.npz") == (str(tmp_path / "own.npz"), str(tmp_path))
    assert whole("package:function") == ("package:function", str(tmp_path))


def test_table_with_a_schema_is_not_dealt_out_unasked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age;code\n" + "70;flu\n30;cold\n" * 20)
    schema = Schema(("cold", "flu"), (Column("age", NUMBER),), "code").text()
    settings = DataSettings(dataset=str(tmp_path / "a.csv"), schema=schema)

    with pytest.raises(DataError, match="the schema names no column that says which client"):
        Scenario(settings, seed=0)

    assert Scenario(replace(settings, clients=4), seed=0).clients == 4


def test_client_column_is_added_to_a_schema_that_names_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("site;age;code\n" + "x;70;flu\ny;30;cold\n" * 20)
    schema = Schema(("cold", "flu"), (Column("age", NUMBER),), "code")
    schema.save(tmp_path / "schema.json")
    settings = DataSettings(
        dataset=str(tmp_path / "a.csv"),
        schema=str(tmp_path / "schema.json"),
        client_column="site",
    )

    scenario = Scenario(settings, seed=0)

    assert [scenario.client(index).name for index in range(len(scenario))] == ["x", "y"]
    assert scenario.schema.client == "site"


@pytest.mark.parametrize(
    ("key", "value"),
    [("label_column", "age"), ("client_column", "age"), ("ignore", "age"), ("columns", "age")],
)
def test_options_that_a_schema_has_answered_are_refused(
    tmp_path: Path, key: str, value: str
) -> None:
    (tmp_path / "a.csv").write_text("site;age;code\n" + "x;70;flu\ny;30;cold\n" * 20)
    schema = Schema(("cold", "flu"), (Column("age", NUMBER),), "code", "site")
    schema.save(tmp_path / "schema.json")
    settings = DataSettings(dataset=str(tmp_path / "a.csv"), schema=str(tmp_path / "schema.json"))

    assert Scenario(replace(settings, label_column="code", client_column="site"), seed=0).grouped
    with pytest.raises(ConfigError, match="the schema says all about the columns"):
        Scenario(replace(settings, **{key: value}), seed=0)
