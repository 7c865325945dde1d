"""Runs that are ended because they are plainly behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedrc_flwr.cli import app
from fedrc_flwr.compare import pictures
from fedrc_flwr.compare.behind import Watch
from fedrc_flwr.compare.runner import Behind
from fedrc_flwr.report.log import SUMMARY, read_json


def follow(watch: Watch, course: dict[int, float]) -> int | None:
    """The round in which a run with this course is ended."""
    for number, trained in course.items():
        try:
            watch.follow({"event": "evaluation", "round": number, "fit_accuracy": trained})
        except Behind:
            return number
    return None


RIVAL = {10: 0.4, 20: 0.5, 30: 0.6, 40: 0.7}


@pytest.mark.parametrize(
    ("course", "ended"),
    [
        ({10: 0.1, 20: 0.1, 30: 0.1, 40: 0.1}, 20),  # twice in a row, a quarter of 40 is over
        ({10: 0.1, 20: 0.45, 30: 0.1, 40: 0.1}, None),  # caught up once; the last round is done
        ({10: 0.35, 20: 0.45, 30: 0.55, 40: 0.65}, None),  # within the margin
        ({10: 0.9, 20: 0.3, 30: 0.3, 40: 0.3}, 30),
    ],
)
def test_a_run_is_ended_after_two_evaluations_behind(
    course: dict[int, float], ended: int | None
) -> None:
    assert follow(Watch([RIVAL, {10: 0.0}], rounds=40, margin=0.1), course) == ended


def test_nothing_is_ended_without_a_rival_or_in_the_first_quarter() -> None:
    low = dict.fromkeys((10, 20, 30, 40), 0.0)

    assert follow(Watch([], rounds=40, margin=0.1), low) is None
    assert follow(Watch([RIVAL], rounds=400, margin=0.1), low) is None


def test_a_round_that_was_not_evaluated_says_nothing() -> None:
    watch = Watch([RIVAL], rounds=40, margin=0.1)

    watch.follow({"event": "round", "round": 20})
    watch.follow({"event": "end", "fit_accuracy": 0.0})


def test_the_table_tells_what_was_ended_and_it_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: with a rate of 0.00001 nothing is learned
    monkeypatch.setattr(pictures, "draw_curves", lambda *_: [])
    monkeypatch.setattr(pictures, "draw_clusters", lambda *_: [])
    plan = {
        "learning-rates": [0.3, 0.00001],
        "set": {"rounds": 8, "run": {"evaluate-every": 1}, "data": {"clients": 3}},
        "columns": {"digits": {"scenario": "digits"}},
        "rows": {"FedAvg": {"algorithm": "fedavg"}},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    words = ["compare", str(tmp_path / "plan.yaml"), "--output", str(tmp_path / "out"),
             "--stop-behind", "0.05"]  # fmt: skip

    # Execute
    first, second = (CliRunner().invoke(app, words) for _ in range(2))

    # Assert
    assert first.exit_code == 0, first.output
    assert "learning rate 1e-05: behind: round" in first.output
    assert "failed" not in first.output
    summary = read_json(tmp_path / "out/runs/digits/fedavg/seed0-rate1e-05" / SUMMARY)
    assert (summary["status"], summary["reason"][:6]) == ("behind", "round ")
    table = (tmp_path / "out/table.md").read_text("utf-8")
    assert "Ended early: digits: FedAvg, seed 0, learning rate 1e-05, round" in table
    assert "| 0.3 | 1 |" in table
    assert second.output.count("done before") == 2
