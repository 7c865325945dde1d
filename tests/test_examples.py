"""The examples do what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from federation import Federation
from PIL import Image

from fedrc_flwr.config import load_config
from fedrc_flwr.data.inspection import inspect
from fedrc_flwr.data.telling import report
from fedrc_flwr.report.summary import adjusted_rand_index

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    specification = importlib.util.find_spec(name)
    assert specification is not None
    return importlib.import_module(name)


@pytest.mark.parametrize("seed", range(4))
def test_robust_cluster_groups_by_meaning(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    toy = load("toy_case", monkeypatch)
    everything = toy.datasets(np.random.default_rng(seed))

    found = toy.cluster(everything, robust=True, seed=seed)

    first, second, third = found.weights[-1].argmax(axis=1)
    assert first == second != third
    assert [found.accuracy(i, data) for i, data in enumerate(everything)] == [1.0, 1.0, 1.0]


def test_likelihood_groups_by_looks_and_cannot_label(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = load("toy_case", monkeypatch)
    everything = toy.datasets(np.random.default_rng(0))

    found = toy.cluster(everything, robust=False)

    first, second, third = found.weights[-1].argmax(axis=1)
    assert first == third != second
    # Side by side, 1 and 3 contradict each other: together they cannot both be right.
    assert found.accuracy(0, everything[0]) + found.accuracy(2, everything[2]) <= 1.01


def test_the_objective_falls_with_concept_shift_and_hardly_with_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Half of the samples contradict the other half: all of ln 2 is lost. With a label in 0.725 of
    # the samples there is that much less to tell by the side; places do not count at all.
    toy = load("toy_case", monkeypatch)
    lost = {
        kind: toy.objective([toy.shifted(kind, 0.0), toy.shifted(kind, 1.0)], robust=True)
        - toy.objective([toy.shifted(kind, 0.0)] * 2, robust=True)
        for kind in ("concept", "label", "feature")
    }

    entropy = -(0.725 * np.log(0.725) + 0.275 * np.log(0.275))
    assert lost["concept"] == pytest.approx(-np.log(2), abs=0.01)
    assert lost["label"] == pytest.approx(entropy - np.log(2), abs=0.01)
    assert lost["feature"] == pytest.approx(0.0, abs=1e-9)


def test_toy_case_draws_its_picture(tmp_path: Path) -> None:
    target = tmp_path / "toy.png"

    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "toy_case.py"), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "RobustCluster: weights" in done.stdout
    for picture in (target, tmp_path / "toy_objective.png"):
        with Image.open(picture) as image:
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 100


def test_own_data_and_own_network_find_the_schools(monkeypatch: pytest.MonkeyPatch) -> None:
    own = load("own_data", monkeypatch)
    monkeypatch.setattr(own, "CLINICS", 6)  # two of them of the other school
    settings: dict[str, Any] = own.SETTINGS
    federation = Federation(load_config(settings))

    for _ in range(settings["rounds"]):
        federation.round()

    assert adjusted_rand_index(federation.state) == 1.0
    assert len(federation.state.clusters) == 2
    members = [m for m in federation.evaluate().values() if m["samples"]]
    assert np.mean([m["accuracy"] for m in members]) > 0.85


def test_hospitals_that_swap_codes_are_found_in_a_raw_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = load("hospitals", monkeypatch)
    path = tmp_path / "hospitals.csv"
    hospitals.main([str(path)])
    config = load_config(
        {
            "data.dataset": str(path), "data.client-column": "hospital", "model.hidden": 32,
            "rounds": 8,
        }
    )  # fmt: skip
    federation = Federation(config)

    for _ in range(config.rounds):
        federation.round()

    clusters = {name: m["cluster"] for name, m in federation.evaluate().items()}
    swapping = {name for name in clusters if clusters[name] == clusters["Celle"]}
    assert config.named() == "hospitals"
    assert federation.scenario.schema.classes == ("J10", "J18", "N39")
    assert swapping == set(hospitals.SWAPPING)


def test_hospitals_have_a_table_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospitals = load("hospitals", monkeypatch)

    hospitals.main(["--each", str(tmp_path / "node")])

    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"node-{number}.csv" for number in range(1, 7)]
    assert "hospital" not in (tmp_path / "node-1.csv").read_text().splitlines()[0].split(";")


def test_page_shows_what_check_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLES.parent / "docs" / "own-data.md").read_text("utf-8")
    printed = page.partition("```text\n")[2].partition("```")[0].splitlines()
    monkeypatch.chdir(tmp_path)
    load("hospitals", monkeypatch).main(["hospitals.csv"])

    lines = report(inspect(Path("hospitals.csv"), client="hospital"))

    assert len(printed) > 12
    for line in printed:
        start = line.removesuffix("...").rstrip()
        assert any(real.startswith(start) for real in lines), line
