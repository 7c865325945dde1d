"""Bring your own data: a table, a ``.npz`` file, a folder of images, or a function.

Whatever it is, it becomes arrays by its schema. If the data says which client each sample belongs
to, each client gets its own samples, and nothing is split or shifted. If not, it is dealt out like
any other dataset, but only where ``data.clients`` asks for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.base import Dataset, DatasetSpec, Owner
from fedrc_flwr.data.content import ABOUT, Arrays, Content, content_of
from fedrc_flwr.data.datasets import DATASETS
from fedrc_flwr.data.encoding import NUMBER, Column, as_names
from fedrc_flwr.data.inspection import Findings, inspect
from fedrc_flwr.data.reading import FORMS
from fedrc_flwr.data.schema import Schema, parse_schema, plain_schema, read_schema
from fedrc_flwr.data.settings import NO_SCENARIO, DataSettings
from fedrc_flwr.errors import ConfigError, DataError
from fedrc_flwr.plugins import is_reference, located_reference
from fedrc_flwr.words import similar

#: Fraction of each class that is held back for observers if the data names none.
HELD_BACK = 0.2
#: What data is called that only the nodes have.
ON_NODES = "own"
TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")


def own_path(settings: DataSettings) -> Path | None:
    """Where the data is looked for; None for a function."""
    if is_reference(settings.dataset):
        return None
    return Path(settings.directory).expanduser() / Path(settings.dataset).expanduser()


def is_on_nodes(settings: DataSettings) -> bool:
    """Whether the nodes of a deployment hold the data, and nobody else."""
    if settings.dataset == ON_NODES:
        return True
    path = None if settings.dataset in DATASETS else own_path(settings)
    told = settings.schema or (settings.classes and settings.input_shape)
    return bool(told) and path is not None and not path.exists()


def carried(settings: DataSettings) -> DataSettings:
    """The same with the content of the schema in place of its path, for machines elsewhere."""
    if not settings.schema:
        return settings
    return replace(settings, schema=given_schema(settings).text())


def located(settings: DataSettings) -> DataSettings:
    """The same with absolute paths and the content of the schema: the app runs elsewhere."""
    settings = carried(settings)
    if not settings.directory and settings.dataset in (DataSettings.dataset, ON_NODES):
        return settings
    directory = Path(settings.directory).expanduser().resolve()
    dataset = located_reference(settings.dataset)
    if dataset not in DATASETS and not is_reference(dataset):
        dataset = str(directory / Path(dataset).expanduser())
    return replace(settings, directory=str(directory), dataset=dataset)


def implied(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from the user's own data: no scenario shifts it, unless asked for.

    A schema, or the number of classes with the shape of a sample, stands for data on the nodes.
    """
    if given.get("scenario", NO_SCENARIO) != NO_SCENARIO:
        return {}
    told = given.get("data.schema") or (given.get("data.classes") and given.get("data.input-shape"))
    dataset = given.get("data.dataset", ON_NODES if told else DataSettings.dataset)
    if not isinstance(dataset, str) or dataset in DATASETS:
        return {}
    return {"scenario": NO_SCENARIO, "data.dataset": dataset}


def own_spec(settings: DataSettings) -> DatasetSpec:
    """Description of the user's data: from the data itself, or from the keys if it is not here."""
    path, shape = own_path(settings), settings.shape()
    if path is not None and (settings.dataset == ON_NODES or not path.exists()):
        # A server without data: its clients have theirs.
        schema = given_schema(settings) if settings.schema else None
        if schema is None and settings.classes and shape is not None:
            schema = plain_schema(shape, settings.classes)
        if schema is None:
            raise DataError(
                f"data.dataset: {path.absolute()} does not exist{_neighbour(path) or '.'} Give the "
                f"path of {FORMS}, or one of {', '.join(DATASETS)}; if only the nodes of a "
                "deployment have data, set data.schema, or data.classes and data.input-shape",
                "no-data",
            )
        return DatasetSpec(
            len(schema.classes), schema.input_shape, lambda _: _missing(path), schema=schema
        )
    schema, loaded = _read(settings, _stamp(path))
    if settings.schema and not loaded.owners and not settings.clients:
        raise DataError(
            f"{settings.dataset}: the schema names no column that says which client each row "
            "belongs to: name it with --client, or set data.clients to simulate made-up clients"
        )
    return DatasetSpec(
        len(schema.classes), schema.input_shape, lambda _: loaded, owners=loaded.owners,
        schema=schema,
    )  # fmt: skip


def given_schema(settings: DataSettings) -> Schema:
    """The schema that ``data.schema`` names or holds.

    It says all about the columns but, where it was made from one client's table, which column names
    the clients.
    """
    text = settings.schema
    recorded = text.lstrip().startswith("{")
    schema = parse_schema(text) if recorded else read_schema(Path(text))
    if not schema.is_table:
        return schema
    said = {
        "label-column": (settings.label_column, schema.label),
        "client-column": (settings.client_column, schema.client or settings.client_column),
    }
    if not recorded:
        said |= {"ignore": (settings.ignore, ""), "columns": (settings.columns, "")}
    for name, (given, known) in said.items():
        if given and given != known:
            named = f", which has {known!r}" if known else ""
            raise ConfigError(
                f"data.{name} = {given!r}: the schema says all about the columns{named}: leave it "
                "out, or edit the schema"
            )
    return replace(schema, client=schema.client or settings.client_column)


def known_columns(settings: DataSettings) -> set[str]:
    """The columns that the run's own schema names, and that may therefore be spoken of."""
    return given_schema(settings).column_names() if settings.schema else set()


def looked_at(settings: DataSettings, owners: bool = True) -> Findings:
    """What is in the user's data; see ``inspect``."""
    return inspect(
        _content(settings),
        settings.label_column,
        settings.client_column,
        _split(settings.ignore),
        _split(settings.columns),
        owners=owners and not settings.clients,
        classes=settings.classes,
    )


def fits(settings: DataSettings) -> str:
    """In words, that the user's data fits the schema of the settings; refused if it does not."""
    schema, loaded = _read(replace(settings, clients=1, observers_per_concept=0), 0)
    counts = np.bincount(loaded.train_labels, minlength=len(schema.classes))
    told = ", ".join(f"{name} {rows}" for name, rows in zip(schema.classes, counts, strict=True))
    return f"{settings.dataset} fits the schema: {counts.sum()} rows, {told}"


def own_facts(settings: DataSettings) -> list[int]:
    """Size and time of the user's file, to notice that prepared data is out of date."""
    path = None if settings.dataset in DATASETS else own_path(settings)
    if path is None or not path.exists():
        return []
    return [path.stat().st_size, path.stat().st_mtime_ns]


def _stamp(path: Path | None) -> int:
    """Changes when the file does, so that a changed file is read again."""
    return path.stat().st_mtime_ns if path is not None and path.exists() else 0


def _neighbour(path: Path) -> str:
    """A file beside it that may have been meant."""
    folder = path.absolute().parent
    return similar(path.name, (file.name for file in folder.iterdir())) if folder.is_dir() else ""


def _missing(path: Path) -> Dataset:
    raise DataError(f"data.dataset: {path.absolute()} does not exist: it is not here", "no-data")


def _content(settings: DataSettings) -> Content:
    path = own_path(settings)
    return content_of(settings.dataset if path is None else path, settings.client_column)


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@lru_cache(maxsize=4)
def _read(settings: DataSettings, stamp: int) -> tuple[Schema, Dataset]:
    content = _content(settings)
    schema = _schema_of(content, settings)
    shape = settings.shape()
    if shape is not None and schema.input_shape != shape:
        raise DataError(
            f"{content.name}: samples have the shape {schema.input_shape}, but data.input-shape "
            f"says {shape}",
            "wrong-shape",
        )
    try:
        arrays = samples_of(content, schema)
    except DataError as error:
        raise DataError(f"{content.name}: {error}", error.code, error.column) from None
    x, y = arrays["x"], arrays["y"]
    if "client" in arrays:
        nothing = np.zeros(0, dtype=np.int64)
        return schema, Dataset(x, y, x[:0], nothing, owners=_owners(arrays, content.name))
    useless = [name for name in ("concept", "style") if name in arrays]
    if useless:
        raise DataError(
            f"{content.name}: {' and '.join(useless)} without client: add an array client"
        )
    observed = arrays.get("observer")
    held_back = settings.observers_per_concept > 0
    test = np.flatnonzero(observed) if observed is not None else _held_back(y, held_back)
    train = np.setdiff1d(np.arange(len(y)), test)
    if not len(train):
        raise DataError(
            f"{content.name}: all samples belong to observers, none are left to train on"
        )
    return schema, Dataset(x[train], y[train], x[test], y[test])


def _schema_of(content: Content, settings: DataSettings) -> Schema:
    """The schema that is given, or that of numbers as they are, or one made from the data."""
    if settings.schema:
        return given_schema(settings)
    if settings.classes and settings.shape() is not None:
        return _as_it_is(content, settings)
    return looked_at(settings).required()


def _as_it_is(content: Content, settings: DataSettings) -> Schema:
    """Numbers that nothing is done to: all nodes are told their number and that of the classes."""
    plain = plain_schema(content.shape, settings.classes)
    if content.frame is None:
        return plain
    found = looked_at(settings, owners=False).required()
    ignored = _split(settings.ignore)
    names = [column.name for column in found.columns if column.name not in ignored]
    return replace(found, classes=plain.classes, columns=tuple(Column(n, NUMBER) for n in names))


def samples_of(content: Content, schema: Schema) -> Arrays:
    """Samples ``x`` (N, ...) as uint8 or float32, labels ``y`` (N,), and what is known of ABOUT.

    Rows without a label are left out.
    """
    frame: Any = content.frame
    if frame is None:
        arrays = {name: array for name, array in content.arrays.items() if name != "y"}
        x, y = schema.scaled(content.samples()), schema.numbers(content.arrays["y"])
    elif schema.label not in frame.columns:
        raise DataError(
            f"the table has no column {schema.label!r} of labels, only {', '.join(frame.columns)}",
            "missing-column",
            schema.label,
        )
    else:
        x, y = schema.features(frame), schema.numbers(frame[schema.label])
        arrays = _about(frame, schema.client)
    if x.shape[1:] != schema.input_shape:
        raise DataError(
            f"samples have the shape {x.shape[1:]}, but the schema says {schema.input_shape}",
            "wrong-shape",
        )
    labelled = y >= 0
    if not labelled.any():
        raise DataError("no row has a label", "unknown-label", schema.label)
    arrays |= {"x": x, "y": y}
    if labelled.all():
        return arrays
    return {name: array[labelled] for name, array in arrays.items()}


def _about(frame: Any, client: str) -> Arrays:
    """What a table says about its rows besides the label."""
    columns = {name: name for name in ABOUT[1:] if name in frame.columns}
    if client in frame.columns and client:
        columns["client"] = client
    arrays: Arrays = {}
    for name, column in columns.items():
        codes, names = as_names(frame[column])
        arrays[name] = np.array([*names, ""])[codes]
    if "client" in arrays and all(text.isdecimal() for text in np.unique(arrays["client"])):
        arrays["client"] = arrays["client"].astype(np.int64)
    if "concept" in arrays:
        arrays["concept"] = np.unique(arrays["concept"], return_inverse=True)[1]
    if "observer" in arrays:
        truths = np.char.lower(arrays["observer"])
        if not np.isin(truths, (*TRUE, *FALSE)).all():
            raise DataError("column 'observer': expected true or false in every row")
        arrays["observer"] = np.isin(truths, TRUE)
    return arrays


def _owners(arrays: Arrays, where: str) -> tuple[Owner, ...]:
    """The clients, in the order of their names or numbers, observers last."""
    rows = len(arrays["y"])
    observer = arrays.get("observer", np.zeros(rows, dtype=np.bool_)).astype(np.bool_)
    concept = arrays.get("concept", np.full(rows, -1))
    style = arrays.get("style", np.full(rows, "none"))
    owners = []
    values, of_row, sizes = np.unique(arrays["client"], return_inverse=True, return_counts=True)
    by_client = np.split(np.argsort(of_row, kind="stable"), np.cumsum(sizes)[:-1])
    for value, mine in zip(values, by_client, strict=True):
        if observer[mine].any() != observer[mine].all():
            raise DataError(f"{where}: client {value} is an observer in some rows only")
        role = "observer" if observer[mine[0]] else "client"
        concepts, styles = np.unique(concept[mine]), np.unique(style[mine])
        owners.append(
            Owner(
                name=str(value) if values.dtype.kind in "UO" else f"{role}-{value}",
                observer=role == "observer",
                rows=mine,
                concept=int(concepts[0]) if len(concepts) == 1 else -1,
                style=str(styles[0]) if len(styles) == 1 else "mixed",
            )
        )
    if all(owner.observer for owner in owners):
        raise DataError(f"{where}: all clients are observers, none is left to train")
    return tuple(sorted(owners, key=lambda owner: owner.observer))


def _held_back(labels: NDArray[np.int64], held_back: bool) -> NDArray[np.int64]:
    """A part of each class, the same whatever the seed."""
    if not held_back:
        return np.zeros(0, dtype=np.int64)
    order = np.random.default_rng(0x0B5).permutation(len(labels))
    parts = [order[labels[order] == label] for label in np.unique(labels)]
    return np.sort(np.concatenate([part[: int(HELD_BACK * len(part))] for part in parts]))
