"""Samples of any size, read in batches and prepared as they were for training."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trained_run import run_config

from fedrc_flwr.data.encoding import Column
from fedrc_flwr.data.scenario import Scenario, node_client, node_settings
from fedrc_flwr.data.schema import Schema, plain_schema
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.errors import DataError
from fedrc_flwr.inference import Batch, in_batches, read_batches, read_labelled, scenario_client

RNG = np.random.default_rng(5)
BYTES = RNG.integers(0, 256, (23, 4, 6)).astype(np.uint8)
LABELS = RNG.integers(0, 3, 23)


def joined(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([batch.inputs for batch in batches])


def test_npz_comes_in_batches_scaled_as_in_training(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=BYTES, y=LABELS)

    batches = list(read_batches(tmp_path / "a.npz", plain_schema((4, 6), 3), size=10))

    assert [len(batch.inputs) for batch in batches] == [10, 10, 3]
    np.testing.assert_allclose(joined(batches), BYTES / 255, rtol=1e-6)
    np.testing.assert_array_equal(np.concatenate([b.labels for b in batches]), LABELS)


def test_npz_without_labels_has_none(tmp_path: Path) -> None:
    x = RNG.normal(size=(5, 4)).astype(np.float64)
    np.savez(tmp_path / "a.npz", x=x)

    (batch,) = read_batches(tmp_path / "a.npz", plain_schema((4,), 3))

    assert batch.labels is None
    assert batch.inputs.dtype == np.float32
    np.testing.assert_array_equal(batch.inputs, x.astype(np.float32))
    with pytest.raises(DataError, match="has no labels"):
        read_labelled(tmp_path / "a.npz", plain_schema((4,), 3))


def training_view(path: Path, shape: tuple[int, ...], classes: int) -> tuple[Any, Any]:
    """The same file through the eyes of a node that trains on it."""
    settings = DataSettings(
        dataset=str(path), classes=classes, input_shape=",".join(map(str, shape)),
        observers_per_concept=0, concept_shares="1", corrupted_shares="0",
    )  # fmt: skip
    data = node_client(node_settings(settings, 0, str(path), "train"), 0, index=0)
    inputs = np.concatenate([data.test.inputs, data.fit.inputs])
    labels = np.concatenate([data.test.labels, data.fit.labels])
    order = np.lexsort([*inputs.reshape(len(inputs), -1).T, labels])
    return inputs[order], labels[order]


@pytest.mark.parametrize("kind", ["npz", "csv", "csv.gz", "folder"])
def test_what_a_model_gets_is_what_it_was_trained_on(kind: str, tmp_path: Path) -> None:
    shape: tuple[int, ...] = (4, 6)
    path = tmp_path / f"data.{kind}"
    if kind == "npz":
        np.savez(path, x=BYTES, y=LABELS)
    elif kind == "folder":
        for number, (image, label) in enumerate(zip(BYTES, LABELS, strict=True)):
            (path / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path / str(label) / f"{number}.png")
    else:
        shape = (3,)
        table = RNG.normal(size=(23, 3))
        lines = ["a,b,y,c"] + [
            f"{row[0]},{row[1]},{label},{row[2]}" for row, label in zip(table, LABELS, strict=True)
        ]
        content = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    inputs, labels = training_view(path, shape, 3)

    found = read_labelled(path, plain_schema(shape, 3))

    order = np.lexsort([*found.inputs.reshape(23, -1).T, found.labels])
    np.testing.assert_array_equal(found.inputs[order], inputs)
    np.testing.assert_array_equal(found.labels[order], labels)


def test_csv_with_one_column_too_many_has_labels_and_else_none(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,2,0\n3,4,1\n")

    (labelled,) = read_batches(path, plain_schema((2,), 3))
    (plain,) = read_batches(path, plain_schema((3,), 3))

    assert labelled.labels is not None
    assert labelled.labels.tolist() == [0, 1]
    assert labelled.inputs.tolist() == [[1, 2], [3, 4]]
    assert plain.labels is None
    assert plain.inputs.tolist() == [[1, 2, 0], [3, 4, 1]]


def test_csv_columns_about_clients_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("client,a,b\nx,1,2\ny,3,4\n")

    (batch,) = read_batches(path, plain_schema((2,), 3))

    assert batch.inputs.tolist() == [[1, 2], [3, 4]]


def test_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(BYTES[number]).convert("RGB").save(tmp_path / f"{number}.png")

    batches = list(read_batches(tmp_path, plain_schema((3, 4, 6), 7), size=2))

    assert [batch.labels for batch in batches] == [None, None]
    np.testing.assert_allclose(
        joined(batches), np.repeat(BYTES[:3, None] / 255, 3, axis=1), rtol=1e-6
    )


def refused(path: Path, *words: str, shape: tuple[int, ...] = (4, 6)) -> None:
    with pytest.raises(DataError) as caught:
        list(read_batches(path, plain_schema(shape, 3)))
    for word in [path.name, *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": BYTES}, ["no array 'x'"]),
        ({"x": BYTES[:, :3]}, ["(4, 6)", "(3, 6)"]),
        ({"x": BYTES, "y": LABELS[:4]}, ["23 samples", "(4,)"]),
        ({"x": BYTES, "y": LABELS + 5}, ["none of the 3 classes 0, 1, 2"]),
        ({"x": BYTES, "y": LABELS + 0.5}, ["none of the 3 classes", "row 1"]),
        ({"x": np.full((2, 4, 6), np.nan)}, ["sample 0", "NaN"]),
        ({"x": np.full((2, 4, 6), "a")}, ["expected numbers"]),
        ({"x": np.array([[None]])}, ["expected numbers"]),
        ({"x": np.asfortranarray(BYTES)}, ["ascontiguousarray"]),
        ({"x": BYTES[:0]}, ["no samples"]),
    ],
)
def test_npz_that_does_not_fit_is_refused(
    arrays: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)

    refused(tmp_path / "a.npz", *words)


def test_torn_missing_and_strange_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "torn.npz", x=BYTES)
    content = (tmp_path / "torn.npz").read_bytes()
    (tmp_path / "torn.npz").write_bytes(content[:-90])
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"1,2\n" * 9999)[:-12])
    (tmp_path / "words.csv").write_text("a,b\n1,two\n")

    refused(tmp_path / "torn.npz", "torn")
    refused(tmp_path / "gone.npz", "no such file")
    refused(tmp_path / "a.txt", ".npz")
    refused(tmp_path / "torn.csv.gz", shape=(2,))
    refused(tmp_path / "words.csv", "'two'", shape=(2,))
    refused(tmp_path / "words.csv", "(4, 6)", "table")


def test_folder_with_other_classes_or_sizes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    Image.fromarray(BYTES[0]).save(tmp_path / "images" / "cat" / "1.png")
    refused(tmp_path / "images", "the subfolder 'cat' is none of the 3 classes")
    (tmp_path / "images" / "cat").rename(tmp_path / "images" / "1")

    with pytest.raises(DataError, match=r"expected samples of the shape \(9, 9\).*found \(4, 6\)"):
        list(read_batches(tmp_path / "images", plain_schema((9, 9), 3)))


def test_classes_of_a_folder_are_found_by_name_whatever_else_is_missing(tmp_path: Path) -> None:
    schema = replace(plain_schema((4, 6), 3), classes=("cat", "dog", "owl"))
    (tmp_path / "owl").mkdir()
    Image.fromarray(BYTES[0]).save(tmp_path / "owl" / "1.png")

    found = read_labelled(tmp_path, schema)

    assert found.labels.tolist() == [2]


# --- tables by their schema ----------------------------------------------------------------------

TABLE = Schema(
    classes=("cold", "flu"),
    columns=(
        Column("age", "number", centre=60, scale=20, missing=True),
        Column("sex", "category", categories=("f", "m")),
    ),
    label="finding",
)


def test_raw_rows_become_inputs_by_the_schema_whatever_the_order(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("note;finding;sex;age\na;flu;m;80\nb;;x;NA\nc;cold;f;50,0\n")

    first, second = read_batches(path, TABLE, size=2)

    assert first.inputs.tolist() == [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]
    assert second.inputs.tolist() == [[-0.5, 0.0, 1.0, 0.0]]
    assert first.labels is not None
    assert first.labels.tolist() == [1, -1]
    assert read_labelled(path, TABLE).labels.tolist() == [1, 0]


def test_rows_without_a_column_of_labels_have_none(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("sex,age\nm,80\n")

    (batch,) = read_batches(path, TABLE)

    assert batch.labels is None
    with pytest.raises(DataError, match="has no labels: expected a column 'finding'"):
        read_labelled(path, TABLE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sex\nm\n", "lacks columns that the schema has: 'age'"),
        ("sex,age\nm,1\nm,2\nm,old\n", "'age' holds 'old' in row 3, expected a number"),
        ("sex,age,finding\nm,1,cough\n", "label 'cough' in row 1 is none of the 2 classes"),
    ],
)
def test_rows_that_do_not_fit_the_schema_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(text)

    with pytest.raises(DataError, match=words):
        list(read_batches(tmp_path / "new.csv", TABLE, size=1))


def test_arrays_for_models_of_a_table_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4)))

    with pytest.raises(DataError, match="trained on a table"):
        list(read_batches(tmp_path / "a.npz", TABLE))


# --- clients of a scenario -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["client-03", "observer-1"])
def test_client_of_the_scenario_is_found_by_its_name(name: str) -> None:
    config = run_config()
    scenario = Scenario(config.data, config.seed)
    expected = next(
        client
        for client in (scenario.client(i) for i in range(len(scenario)))
        if client.name == name
    )

    found = scenario_client(config, name)

    np.testing.assert_array_equal(found.fit.inputs, expected.fit.inputs)
    np.testing.assert_array_equal(found.test.labels, expected.test.labels)
    parts = list(in_batches(found.fit, size=7))
    np.testing.assert_array_equal(joined(parts), expected.fit.inputs)


def test_unknown_client_is_refused() -> None:
    with pytest.raises(DataError, match=r"'nobody'.*client-00 to observer-2"):
        scenario_client(run_config(), "nobody")
