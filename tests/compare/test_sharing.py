"""Runs that begin alike have the same results as if each had been run by itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedrc_flwr.cli import app
from fedrc_flwr.compare import output, runner, sharing
from fedrc_flwr.compare.plan import Comparison, read_comparison
from fedrc_flwr.compare.sharing import Sharing
from fedrc_flwr.report.log import METRICS, SUMMARY, read_events, read_json
from fedrc_flwr.simulation import run_here

#: What no two runs have in common.
OF_THE_MACHINE = {
    "seconds", "elapsed", "client_seconds", "client_ready_seconds", "evaluation_seconds",
    "server_peak_megabytes", "bytes_up", "phases", "time",
}  # fmt: skip


def compared(
    folder: Path, rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> dict[str, int]:
    """Run a comparison; how many rounds each of its rows computed."""
    computed: dict[str, int] = {}

    def run(config: Any, directory: Path, follow: Any, *rest: Any) -> Any:
        def count(event: Any) -> None:
            name = directory.parts[-2]
            computed[name] = computed.get(name, 0) + (event.get("event") == "round")
            follow(event)

        return run_here(config, directory, count, *rest)

    monkeypatch.setattr(runner, "run_here", run)
    monkeypatch.setattr(output, "write_page", lambda *_: Path("page"))
    monkeypatch.setattr(output.pictures, "draw_curves", lambda *_: [])
    monkeypatch.setattr(output.pictures, "draw_clusters", lambda *_: [])
    plan = {"set": settings, "columns": {"digits": {"scenario": "digits"}}, "rows": rows}
    folder.mkdir()
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    words = ["compare", str(folder / "plan.yaml"), "--output", str(folder / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return computed


def told(folder: Path, row: str) -> list[dict[str, Any]]:
    run = folder / "out/runs/digits" / row / "seed0"
    assert read_json(run / SUMMARY)["status"] == "completed"
    return [
        {name: value for name, value in event.items() if name not in OF_THE_MACHINE}
        for event in read_events(run / METRICS)
        if event["event"] == "round"
    ]


#: Six models of which some go within a few rounds.
SIX = {
    "start": "paper",
    "clusters": 6,
    "adaptive": True,
    "settle-tolerance": 1.0,
    "settle-loss": 9.0,
}
OFTEN = {"warmup": 2, "eps1": 9.0, "eps2": 0.01}
CASES = {
    "removal": (
        {"Lazy": {"algorithm": "fedrc", "fedrc": {**SIX, "remove-below": 0.001}},
         "Eager": {"algorithm": "fedrc", "fedrc": {**SIX, "remove-below": 0.2}}},
        {"rounds": 9},
    ),
    "merging": (
        {"Lazy": {"algorithm": "fedrc", "fedrc": {**SIX, "remove-below": 0.0}},
         "Eager": {"algorithm": "fedrc",
                   "fedrc": {**SIX, "remove-below": 0.0, "merge": True, "merge-tolerance": 9.0}}},
        {"rounds": 7},
    ),
    "splits": (
        {"Lazy": {"algorithm": "cfl", "cfl": {**OFTEN, "clusters": 2}},
         "Eager": {"algorithm": "cfl", "cfl": {**OFTEN, "clusters": 6}}},
        {"rounds": 6},
    ),
    "fine-tuning": (
        {"Lazy": {"algorithm": "fedem"},
         "Eager": {"algorithm": "fedem", "fedem": {"fine-tune": True}}},
        {"rounds": 3},
    ),
}  # fmt: skip


SMALL = {
    "run": {"evaluate-every": 2}, "data": {"clients": 6, "samples-per-client": 60},
    "model": {"hidden": 8}, "local": {"epochs": 1},
}  # fmt: skip


def test_a_beginning_that_cannot_be_copied_leaves_both_runs_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def vanished(source: Path, *_: Any, **__: Any) -> None:
        tried.append(source)
        raise shutil.Error([("round-000001", "copy", "no such file")])

    monkeypatch.setattr(sharing.shutil, "copytree", vanished)
    rows, settings = CASES["merging"]

    computed = compared(tmp_path / "shared", rows, monkeypatch, **SMALL, **settings)

    assert len(tried) == 1
    assert computed == {"lazy": settings["rounds"], "eager": settings["rounds"]}


@pytest.mark.parametrize("case", CASES)
def test_a_shared_beginning_changes_no_result(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, settings = CASES[case]
    usual = {**SMALL, **settings}

    shared = compared(tmp_path / "shared", rows, monkeypatch, **usual)
    monkeypatch.setattr(sharing, "_begins_like", lambda own, other: False)
    alone = compared(tmp_path / "alone", rows, monkeypatch, **usual)

    assert alone == {"lazy": settings["rounds"], "eager": settings["rounds"]}
    assert shared["eager"] == settings["rounds"]
    assert shared.get("lazy", 0) < settings["rounds"]
    assert bool(shared.get("lazy")) == (case != "fine-tuning")  # it never parts
    for row in ("lazy", "eager"):
        pairs = zip(told(tmp_path / "shared", row), told(tmp_path / "alone", row), strict=True)
        for taken, own in pairs:
            assert {n: v for n, v in taken.items() if v != own.get(n)} == {}


def test_nothing_else_begins_alike() -> None:
    rows = {
        "A": {"algorithm": "fedrc", "fedrc.start": "paper", "fedrc.remove-below": 0.1},
        "B": {"algorithm": "fedrc", "fedrc.start": "paper", "fedrc.clusters": 4},
        "C": {"algorithm": "fedem"},
        "D": {"algorithm": "fedrc", "fedrc.start": "paper", "local.epochs": 2},
        # More eager in one way and less in the other: neither goes first.
        "E": {"algorithm": "fedrc", "fedrc.start": "paper", "fedrc.adaptive": True,
              "fedrc.remove-below": 0.01},
    }  # fmt: skip
    cells = list(Comparison("t", rows, {"x": {"scenario": "digits"}}).cells())

    found = Sharing(Path(), cells)

    assert found._leaders == {}
    assert found.cells == cells


def test_the_papers_comparison_runs_those_first_that_others_begin_like() -> None:
    cells = [c for c in read_comparison("main").cells() if c.column == "CIFAR-10" and c.seed == 0]

    rows = [cell.row for cell in Sharing(Path(), cells).cells if cell.rate == 0.03]

    assert rows.index("CFL") < rows.index("CFL (3)")
    assert rows.index("FedRC-FT") < rows.index("FedRC")
    assert rows.index("FedAvg") < rows.index("IFCA") < rows.index("FeSEM") < rows.index("FedEM")
