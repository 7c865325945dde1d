"""No message of a node holds anything from its data or its paths, whatever is wrong with them.

A marker is planted in every kind of own data: in cells, labels, names of columns, clients and
styles, in names of files and folders. Then it is looked for in everything that the server receives
and writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.common.serde import recorddict_to_proto
from grid import InMemoryGrid
from PIL import Image

from fedrc_flwr.config import load_config
from fedrc_flwr.data.encoding import CATEGORY, NUMBER, Column
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.errors import RunError
from server_app.app import run_on_flower
from server_app.names import write_names

MARKER = "JohnDoe1957"
SCHEMA = Schema(
    classes=("cold", "flu"),
    columns=(Column("age", NUMBER, centre=50.0, scale=20.0),
             Column("sex", CATEGORY, categories=("f", "m"))),
    label="code",
)  # fmt: skip
ROWS = "age;sex;code\n" + "90;f;flu\n30;m;cold\n" * 20
ARRAYS = {"x": np.random.default_rng(0).random((40, 5)), "y": np.arange(40) % 3}


class Remote(InMemoryGrid):
    """Nodes elsewhere, whose every answer is kept as the bytes that travel."""

    def __init__(self, run_config: dict[str, Any]) -> None:
        super().__init__(0, run_config)
        self.received: list[bytes] = []

    def _answer(self, message: Message, node: int) -> Message | None:
        reply = super()._answer(message, node)
        assert reply is not None
        if reply.has_error():
            self.received.append(f"{reply.error.code} {reply.error.reason}".encode())
        else:
            self.received.append(recorddict_to_proto(reply.content).SerializeToString())
        return reply


def table(folder: Path, rows: str, name: str = "own.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rows)
    return path


def arrays(folder: Path, **changes: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **{**ARRAYS, **changes})
    return path


def parquet(folder: Path, rows: str) -> Path:
    import io

    import pandas

    path = folder / "own.parquet"
    pandas.read_csv(io.StringIO(rows), sep=";").to_parquet(path)
    return path


def images(folder: Path, classes: tuple[str, ...], broken: str = "") -> Path:
    for label in classes:
        (folder / "own" / label).mkdir(parents=True)
        for number in range(6):
            pixels = np.full((8, 8), 40 * number, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "own" / label / f"{MARKER}-{number}.png")
    if broken:
        (folder / "own" / classes[0] / f"{broken}.png").write_bytes(b"no image")
    return folder / "own"


def torn(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:60])
    return path


Make = Callable[[Path], Path]
#: Own data with a marker in it, some of which can be used and some not.
TABLES: dict[str, Make] = {
    "cell of a number": lambda p: table(p, ROWS + f"{MARKER};f;flu\n"),
    "cell of a category": lambda p: table(p, ROWS + f"30;{MARKER};flu\n"),
    "label": lambda p: table(p, ROWS + f"30;f;{MARKER}\n"),
    "column missing": lambda p: table(p, ROWS.replace("sex", MARKER)),
    "label column missing": lambda p: table(p, ROWS.replace("code", MARKER)),
    "column too many": lambda p: table(p, ROWS.replace("\n", f";{MARKER}\n")),
    "column twice": lambda p: table(p, ROWS.replace("\n", f";{MARKER}\n", 1).replace("sex", "age")),
    "client and style": lambda p: table(
        p, ROWS.replace("\n", f";{MARKER};{MARKER}\n").replace(MARKER, "client", 1)
        .replace(MARKER, "style", 1)
    ),
    "observer": lambda p: table(
        p, ROWS.replace("\n", f";{MARKER}\n").replace(MARKER, "observer", 1)
    ),
    "ragged row": lambda p: table(p, ROWS + f"30;f;flu;{MARKER};{MARKER}\n"),
    "not text": lambda p: table(p, ROWS + f"\0\0{MARKER}"),
    "empty": lambda p: table(p, f"{MARKER};b\n"),
    "name of the file": lambda p: table(p, "age\n1\n", f"{MARKER}.csv"),
    "name of a folder": lambda p: table(p, "age\n1\n", f"{MARKER}/own.csv"),
    "no such file": lambda p: p / f"{MARKER}.csv",
    "unknown form": lambda p: table(p, "x", f"own.{MARKER}"),
    "parquet cell": lambda p: parquet(p, ROWS + f"{MARKER};f;flu\n"),
    "parquet label": lambda p: parquet(p, ROWS + f"30;f;{MARKER}\n"),
    "parquet torn": lambda p: torn(parquet(p, ROWS + f"30;f;{MARKER}\n")),
}  # fmt: skip
PLAIN: dict[str, Make] = {
    "npz label": lambda p: arrays(p, y=np.array([MARKER] * 40)),
    "npz objects": lambda p: arrays(p, y=np.array([{"a": MARKER}] * 40, dtype=object)),
    "npz texts as samples": lambda p: arrays(p, x=np.array([[MARKER] * 5] * 40)),
    "npz client and style": lambda p: arrays(
        p, client=np.array([MARKER] * 40), style=np.array([MARKER] * 40), concept=np.zeros(40)
    ),
    "npz observer": lambda p: arrays(p, client=np.array([MARKER] * 40), observer=np.arange(40) % 2),
    "npz lengths": lambda p: arrays(p, style=np.array([MARKER] * 3)),
    "npz torn": lambda p: torn(arrays(p, y=np.array([MARKER] * 40))),
    "npz not finite": lambda p: arrays(p, x=np.full((40, 5), np.nan)),
    "table of other columns": lambda p: table(p, f"{MARKER};b\n{MARKER};1\n2;3\n"),
    "table without its label": lambda p: table(p, f"a;b;c;d;{MARKER}\n" + "1;2;3;4;5\n" * 20),
    "table of numbers and a text": lambda p: table(
        p, "a;b;c;d;e;label\n" + "1;2;3;4;5;0\n" * 20 + f"1;2;{MARKER};4;5;0\n"
    ),
    "images": lambda p: images(p, ("a", "b", "c")),
    "images of a class": lambda p: images(p, (MARKER, "b")),
    "broken image": lambda p: images(p, ("a", "b", "c"), broken=MARKER),
}


def everything_of_a_run(tmp_path: Path, data: Path, settings: dict[str, Any]) -> bytes:
    """What the server receives from, and writes about, a node with this data and three others."""
    config = load_config(
        {
            "recipe": "paper", "rounds": 2, "model.hidden": 4, "fedrc.clusters": 2,
            "federation.enrolment-timeout": 0.3, "federation.min-clients": 1,
            "run.evaluate-every": 1, **settings,
        }
    ).placed(tmp_path / "run")  # fmt: skip
    grid = Remote(dict(config.to_dict()))
    good = table(tmp_path, ROWS, "good.csv") if "data.schema" in settings else tmp_path / "good.npz"
    if good.suffix == ".npz":
        np.savez(good, **ARRAYS)
    for number, path in enumerate((data, good, good)):
        grid.add_node(
            100 + number, 0, name=f"h{number}", dataset=str(path),
            **{"state-dir": str(tmp_path / "node" / str(number))},
        )  # fmt: skip
    write_names(tmp_path / "run", {100 + i: f"h{i}" for i in range(3)})
    try:
        run_on_flower(config, tmp_path / "run", grid)  # type: ignore[arg-type]
    except RunError as error:
        grid.received.append(str(error).encode())
    assert grid.received
    # In this process the nodes' own logs go to run.log as well; elsewhere they do not.
    written = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != "run.log"]
    assert any(p.name == "metrics.jsonl" for p in written)
    return b"\n".join([*grid.received, *(path.read_bytes() for path in written)])


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES.keys())
def test_nothing_of_a_table_reaches_the_server(tmp_path: Path, make: Make) -> None:
    (tmp_path / "site").mkdir()
    data = make(tmp_path / "site")

    told = everything_of_a_run(tmp_path, data, {"data.schema": SCHEMA.text()})

    assert MARKER.encode() not in told
    assert str(tmp_path / "site").encode() not in told
    assert b"h1" in told


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN.keys())
def test_nothing_of_other_data_reaches_the_server(tmp_path: Path, make: Make) -> None:
    (tmp_path / "site").mkdir()
    data = make(tmp_path / "site")

    told = everything_of_a_run(tmp_path, data, {"data.classes": 3, "data.input-shape": "5"})

    assert MARKER.encode() not in told
    assert str(tmp_path / "site").encode() not in told
    assert b"h1" in told
