"""The page of a comparison, as text and as contents."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrc_flwr.cli import app
from fedrc_flwr.compare import pictures
from fedrc_flwr.compare.page import outcome, write_page
from fedrc_flwr.compare.plan import Comparison
from fedrc_flwr.compare.results import Figures, Line, lines

SCRIPT = "</script><script>alert(1)</script>"
PLAN = f"""
title: "{SCRIPT}"
reproduces: table 9
differs: ["{SCRIPT}"]
set: {{rounds: 2, run: {{evaluate-every: 1}}, data: {{clients: 3}}, model: {{hidden: 4}}}}
columns: {{digits: {{scenario: digits}}}}
rows:
  FedAvg: {{algorithm: fedavg}}
  IFCA: {{algorithm: ifca, ifca: {{clusters: 2}}}}
paper: {{digits: {{IFCA: [41.5, null]}}}}
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(pictures, "draw_curves", lambda *_: [])
    monkeypatch.setattr(pictures, "draw_clusters", lambda *_: [])
    (tmp_path / "plan.yaml").write_text(PLAN)
    words = ["compare", str(tmp_path / "plan.yaml"), "--output", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return (tmp_path / "out" / "report.html").read_text("utf-8")


def test_page_has_the_table_the_curves_the_clusters_and_the_papers_figures(page: str) -> None:
    found = json.loads(re.findall(r"<script[^>]*json[^>]*>(.*?)</script>", page, re.DOTALL)[0])

    assert found["stands"] == "Corresponds to table 9 of the FedRC paper."
    assert found["facts"][0] == ["runs done", "2 of 2"]
    [column] = found["columns"]
    fedavg, ifca = column["lines"]
    assert len(fedavg["cells"]) == len(column["heads"])
    assert [point[0] for point in ifca["curves"]["global"]] == [1, 2]
    assert (fedavg["paper"], fedavg["gain"]) == (None, None)
    assert ifca["paper"] == {"local": 0.415, "global": None}
    assert ifca["gain"] == pytest.approx(ifca["global"] - fedavg["global"], abs=2e-4)
    assert len(ifca["population"]["clusters"]) == 2
    assert sum(map(sum, ifca["population"]["classes"]["values"])) > 0


def test_no_text_begins_markup_and_the_policy_names_the_scripts(page: str) -> None:
    assert "alert(1)</script>" not in page
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page
    assert "connect-src 'none'" in page


def test_nothing_is_written_before_anything_is_done(tmp_path: Path) -> None:
    comparison = Comparison("t", {"A": {}}, {"x": {"scenario": "digits"}})

    path = write_page(tmp_path, comparison, lines(tmp_path, comparison))

    assert '"columns":[]' in path.read_text("utf-8")


def line(row: str, *worlds: float) -> Line:
    runs = {
        seed: Figures(1, 0.5, 0.5, world, world, 0.0, 1, float("nan"), 1.0, 1.0, 1.0)
        for seed, world in enumerate(worlds)
    }
    return Line(row, "x", None, runs)


def test_outcome_names_the_best_and_says_what_one_seed_is_worth() -> None:
    assert outcome("x", [line("A", 0.5, 0.6), line("B", 0.7, 0.8)]) == (
        "x: B has the best global accuracy, 75.0%; next is A, 20.0 points below."
    )
    assert outcome("x", [line("A", 0.701), line("B", 0.7)]) == (
        "x: A has the best global accuracy, 70.1%; next is B, 0.1 points below, which is level. "
        "One seed: differences of a few points mean little."
    )
    assert outcome("x", [line("A", float("nan"))]) == "x: no observers were evaluated."
