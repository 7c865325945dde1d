"""Comparisons from start to table."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fedrc_flwr.cli import app
from fedrc_flwr.compare import pictures, results, runner, tables
from fedrc_flwr.compare.plan import Comparison
from fedrc_flwr.config import RunConfig
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import (
    METRICS,
    SUMMARY,
    Event,
    MetricsLog,
    read_events,
    read_json,
    write_json,
)
from fedrc_flwr.simulation import Outcome, run_here

TINY = ["data.clients=3", "model.hidden=4", "rounds=4", "local.epochs=1", "run.evaluate-every=2",
        "fedrc.annealing-rounds=0", "fedrc.adaptive=false", "fedrc.merge=false",
        "fedrc.clusters=2", "fedrc.start=paper"]  # fmt: skip


class Engine:
    """Notes what is run; stops in a given round of a given run, as Ctrl-C would."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.configs: list[RunConfig] = []
        self.stop_at: tuple[str, int] | None = None

    def run_here(
        self,
        config: RunConfig,
        directory: Path,
        on_event: Callable[[Event], None],
        engine: str,
        cpus: int | None,
    ) -> Outcome:
        run_name = "/".join(directory.parts[-3:])
        self.started.append(run_name)
        self.configs.append(config)

        def follow(event: Event) -> None:
            on_event(event)
            if self.stop_at == (run_name, event["round"]):
                raise KeyboardInterrupt

        return run_here(config, directory, follow, engine, cpus)


@pytest.fixture
def drawing_engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(runner, "run_here", made.run_here)
    return made


@pytest.fixture
def engine(drawing_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Without pictures, which take longer than the runs."""
    monkeypatch.setattr(pictures, "draw_curves", lambda *_: [])
    monkeypatch.setattr(pictures, "draw_clusters", lambda *_: [])
    return drawing_engine


def compare(output: Path, *extra: str) -> Any:
    settings = [part for setting in TINY for part in ("--set", setting)]
    arguments = ["compare", "--scenario", "digits", "--algorithms", "fedavg,fedrc"]
    arguments += ["--seeds", "0,1", *settings, "--output", str(output), *extra]
    return CliRunner().invoke(app, arguments)


def without_seconds(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return [row for row in csv.reader(file) if "s per round" not in row]


def test_a_comparison_stopped_and_started_again_repeats_nothing_and_has_the_same_table(
    tmp_path: Path, engine: Engine
) -> None:
    # Prepare
    unbroken = compare(tmp_path / "a")
    assert unbroken.exit_code == 0, unbroken.output
    engine.started.clear()
    engine.stop_at = ("digits/fedrc/seed0", 3)

    # Execute
    stopped = compare(tmp_path / "b")
    engine.stop_at = None
    done_before = list(engine.started)
    again = compare(tmp_path / "b")

    # Assert: the run that was stopped goes on after its third round, and those after it follow
    assert stopped.exit_code == 130
    assert "continues" in stopped.output
    assert done_before == ["digits/fedavg/seed0", "digits/fedrc/seed0"]
    assert again.exit_code == 0, again.output
    assert engine.started[2:] == [
        "digits/fedrc/seed0", "digits/fedavg/seed1", "digits/fedrc/seed1",
    ]  # fmt: skip
    rounds = read_events(tmp_path / "b/runs/digits/fedrc/seed0" / METRICS)
    assert [e["round"] for e in rounds if e["event"] == "round"] == [1, 2, 3, 4]
    assert without_seconds(tmp_path / "a/table.csv") == without_seconds(tmp_path / "b/table.csv")
    assert len(without_seconds(tmp_path / "a/table.csv")) == 1 + 2 * 10

    # A third time there is nothing left to do
    count = len(engine.started)
    third = compare(tmp_path / "b")
    assert third.exit_code == 0
    assert len(engine.started) == count
    assert third.output.count("done before") == 4


def test_every_run_has_its_line(tmp_path: Path, engine: Engine) -> None:
    compare(tmp_path / "a")

    with open(tmp_path / "a" / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    assert [(row["method"], row["seed"]) for row in rows] == [
        ("fedavg", "0"), ("fedrc", "0"), ("fedavg", "1"), ("fedrc", "1"),
    ]  # fmt: skip
    for row in rows:
        run = read_json(tmp_path / f"a/runs/digits/{row['method']}/seed{row['seed']}" / SUMMARY)
        assert float(row["clusters"]) == run["clusters"]
        assert float(row["ARI"]) == run["adjusted_rand_index"]


def test_clusters_have_settled_when_the_last_one_went(tmp_path: Path) -> None:
    rounds: list[dict[str, Any]] = [
        {"event": "round", "round": number, "fit_accuracy": 0.5, "removed": [], "merged": []}
        for number in (1, 2, 3, 4)
    ]
    rounds[0]["removed"], rounds[2]["merged"] = [5], [[1, 0]]
    (tmp_path / METRICS).write_text("".join(json.dumps(event) + "\n" for event in rounds))
    write_json(tmp_path / SUMMARY, {"status": "completed", "clusters": 4})

    found = results.figures(tmp_path)

    assert found is not None
    assert found.settled == 3


def test_settled_is_the_mean_over_the_seeds_where_a_cluster_went(tmp_path: Path) -> None:
    # Seed 0 loses its last cluster in round 2, seed 1 in round 1, seed 2 none: (2 + 1) / 2
    comparison = Comparison("t", {"M": {}}, {"x": {"scenario": "digits"}}, seeds=(0, 1, 2))
    for seed, removed in enumerate(([[], [1]], [[1], []], [[], []])):
        rounds = [judged(0.5, 0.5, 0.5) | {"removed": gone} for gone in removed]
        write_run(tmp_path / "runs/x/m" / f"seed{seed}", rounds)

    [line] = results.lines(tmp_path, comparison)

    assert line.mean(lambda run: run.settled) == 1.5
    tables.write_tables(tmp_path, comparison, [line])
    with open(tmp_path / "runs.csv", newline="") as file:
        assert [row["settled"] for row in csv.DictReader(file)] == ["2.0", "1.0", ""]


def test_a_row_that_fine_tunes_shows_fine_tuned_clients_and_untouched_observers(
    tmp_path: Path,
) -> None:
    tuned = {"fine_tuned_local_accuracy": 0.9}
    comparison = Comparison("t", {"M": {}}, {"x": {"scenario": "digits"}})
    write_run(tmp_path / "runs/x/m/seed0", [judged(0.5, 0.6, 0.7) | tuned])

    [line] = results.lines(tmp_path, comparison)

    assert (line.runs[0].local, line.runs[0].world) == (0.9, 0.7)
    assert pictures.curve(tmp_path, comparison, line, "local") == ([1], [0.9])


def test_the_pictures_are_there(tmp_path: Path, drawing_engine: Engine) -> None:
    outcome = compare(tmp_path / "a", "--seeds", "0", "--algorithms", "fedrc")

    assert outcome.exit_code == 0, outcome.output

    for name in ("curves-digits.png", "curves-digits.svg", "table.md"):
        assert (tmp_path / "a" / name).stat().st_size > 200
    assert any((tmp_path / "a/clusters/digits-fedrc-seed0").glob("*concept*.png"))


def test_pictures_of_the_clusters_are_of_the_rate_that_the_table_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seed 0 alone trains better with 0.2, both seeds together with 0.1
    comparison = Comparison(
        "t", {"M": {}}, {"x": {"scenario": "digits"}}, seeds=(0, 1), rates=(0.1, 0.2)
    )
    drawn: list[str] = []
    monkeypatch.setattr(pictures, "gather", lambda run: run)
    monkeypatch.setattr(
        pictures, "draw_figures", lambda run, to: (drawn.append(run.name), to.mkdir(parents=True))
    )

    for seed, trained in enumerate([(0.6, 0.7), (0.9, 0.5)]):
        for rate, train in zip((0.1, 0.2), trained, strict=True):
            write_run(tmp_path / f"runs/x/m/seed{seed}-rate{rate}", [judged(train, 0.5, 0.5)])
        pictures.draw_clusters(tmp_path, comparison, results.lines(tmp_path, comparison))

    assert drawn == ["seed0-rate0.2", "seed0-rate0.1"]


def test_a_key_that_rows_set_themselves_is_told(tmp_path: Path, engine: Engine) -> None:
    outcome = compare(tmp_path / "a", "--set", "algorithm=ifca", "--seeds", "0")

    assert outcome.exit_code == 0
    assert "note: these rows keep their own algorithm: fedavg; fedrc" in outcome.output


def test_a_comparison_with_infinity_goes_on(tmp_path: Path) -> None:
    comparison = Comparison("t", {"M": {"data.alpha": math.inf}}, {"x": {"scenario": "digits"}})

    runner.open_directory(tmp_path, comparison)
    runner.open_directory(tmp_path, comparison)

    with pytest.raises(ConfigError, match="another comparison"):
        runner.open_directory(
            tmp_path, Comparison("t", {"M": {"data.alpha": 1.0}}, comparison.columns)
        )


def test_files_are_found_from_wherever_a_run_works(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 3)
    Path("mine.yaml").write_text(
        "data: {dataset: mine.npz, clients: 3, concept-shares: 1, corrupted-shares: 0}\n"
    )
    Path("quick.yaml").write_text("algorithm: fedavg\nrounds: 1\n")
    Path("plan.yaml").write_text(
        "columns: {mine: {scenario: mine.yaml}}\nrows: {FedAvg: {recipe: quick.yaml}}\n"
    )

    # Execute
    outcome = CliRunner().invoke(app, ["compare", "plan.yaml", "--output", "out"])

    # Assert: what a run reads is named in full, and what its files said was read before it began
    assert outcome.exit_code == 0, outcome.output
    [config] = engine.configs
    assert config.data.dataset == str(tmp_path / "mine.npz")
    assert (config.data.clients, config.algorithm, config.rounds) == (3, "fedavg", 1)


def test_another_comparison_in_the_same_directory_is_refused(
    tmp_path: Path, engine: Engine
) -> None:
    compare(tmp_path / "a")
    count = len(engine.started)

    other = compare(tmp_path / "a", "--learning-rates", "0.1,0.2")

    assert other.exit_code == 2
    assert "holds another comparison" in other.output
    assert len(engine.started) == count


def test_an_estimate_leaves_nothing(tmp_path: Path, engine: Engine) -> None:
    told = compare(tmp_path / "a", "--estimate")

    assert told.exit_code == 0
    assert "4 runs of 2 kinds: about" in told.output
    assert (engine.started, (tmp_path / "a").exists()) == ([], False)


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("...")

    outcome = compare(tmp_path / "mine")

    assert outcome.exit_code == 2
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "..."


def test_a_run_that_fails_is_told_and_the_others_go_on(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: RunConfig, *rest: Any) -> Outcome:
        if config.algorithm == "fedavg":
            return Outcome(False, {"status": "failed"}, "no memory left\nlog: somewhere")
        return engine.run_here(config, *rest)

    monkeypatch.setattr(runner, "run_here", run)

    outcome = compare(tmp_path / "a")

    assert outcome.exit_code == 1
    assert outcome.output.count("failed: no memory left") == 2
    table = (tmp_path / "a" / "table.md").read_text()
    assert "| fedrc |" in table
    assert "| fedavg |" not in table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either a comparison or --scenario"),
        (["main", "--scenario", "digits"], "either a comparison or --scenario"),
        (["--scenario", "digits", "--seeds", "a"], "expected numbers"),
        (["--scenario", "digits", "--algorithms", "fedprix"], "fedprix"),
        (["--scenario", "nowhere"], "nowhere"),
        (["nowhere"], "no such comparison"),
        (["--scenario", "digits", "--set", "seed=3"], "give them with --seeds"),
        (["--scenario", "digits", "--cpus", "2"], "--cpus 2: in process, one client computes"),
        (["--scenario", "digits", "--engine", "steam"], "--engine 'steam': expected flower or"),
    ],
)
def test_misuse_is_told_in_a_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    output = ["--output", str(tmp_path / "out")]

    outcome = CliRunner().invoke(app, ["compare", *arguments, *output])

    assert outcome.exit_code == 2
    assert words in outcome.output
    assert not (tmp_path / "out").exists()


# --- figures by hand -----------------------------------------------------------------------------


def write_run(folder: Path, rounds: list[dict[str, Any]], **summary: Any) -> None:
    log = MetricsLog(folder)
    for number, metrics in enumerate(rounds, start=1):
        log.append({"event": "round", "round": number, **metrics})
    write_json(folder / SUMMARY, {"status": "completed", "clusters": 2, **summary})


def judged(train: float, local: float, world: float) -> dict[str, Any]:
    return {
        "fit_accuracy": train, "local_accuracy": local, "global_accuracy": world,
        "seconds": 2.0, "bytes_up": 3_000_000, "bytes_down": 5_000_000,
    }  # fmt: skip


def test_accuracies_are_those_of_the_round_of_best_training_accuracy(tmp_path: Path) -> None:
    rounds = [
        judged(0.2, 0.9, 0.9),
        {"train_accuracy": 0.99, "seconds": 4.0, "bytes_up": 0, "bytes_down": 5_000_000},
        judged(0.8, 0.5, 0.4),
        judged(0.7, 0.6, 0.6),
    ]
    write_run(tmp_path, rounds, adjusted_rand_index=0.75)

    found = results.figures(tmp_path)

    assert found is not None
    assert (found.round, found.train, found.local, found.world) == (3, 0.8, 0.5, 0.4)
    assert (found.rand, found.clusters) == (0.75, 2)
    assert found.seconds == pytest.approx(2.5)  # (2 + 4 + 2 + 2) / 4
    assert found.megabytes_up == pytest.approx(2.25)  # 9 / 4
    assert found.megabytes_down == pytest.approx(5.0)


def test_the_round_is_chosen_by_the_models_that_were_judged_in_it(tmp_path: Path) -> None:
    # What round 3 logs while training, 0.9, is what the models of round 2 reach; its own training
    # spoils them, and round 4 begins with 0.3.
    rounds = [
        judged(0.6, 0.61, 0.51) | {"train_accuracy": 0.1},
        judged(0.9, 0.92, 0.82) | {"train_accuracy": 0.6},
        judged(0.3, 0.33, 0.23) | {"train_accuracy": 0.9},
        judged(0.7, 0.74, 0.64) | {"train_accuracy": 0.3},
    ]
    write_run(tmp_path, rounds)

    found = results.figures(tmp_path)

    assert found is not None
    assert (found.round, found.train, found.local, found.world) == (2, 0.9, 0.92, 0.82)


def test_a_run_that_is_not_done_has_no_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [judged(0.2, 0.9, 0.9)], status="stopped")
    write_run(tmp_path / "b", [{"train_accuracy": 0.5}])

    assert results.figures(tmp_path / "a") is None
    assert results.figures(tmp_path / "b") is None
    assert results.figures(tmp_path / "c") is None


def test_means_deviations_and_the_learning_rate_by_hand(tmp_path: Path) -> None:
    # The higher rate trains better on average (0.7 against 0.6) though it tests worse
    comparison = Comparison(
        "t", {"M": {}}, {"x": {"scenario": "digits"}}, seeds=(0, 1), rates=(0.1, 0.2)
    )
    for seed, rate, train, world in [
        (0, "0.1", 0.5, 0.9), (1, "0.1", 0.7, 0.9), (0, "0.2", 0.8, 0.4), (1, "0.2", 0.6, 0.6),
    ]:  # fmt: skip
        folder = tmp_path / "runs/x/m" / f"seed{seed}-rate{rate}"
        write_run(folder, [judged(train, world + 0.1, world)], adjusted_rand_index=None)

    [line] = results.lines(tmp_path, comparison)

    assert line.rate == 0.2
    assert line.mean(lambda run: run.world) == pytest.approx(0.5)
    # Sample deviation of 0.4 and 0.6
    assert line.deviation(lambda run: run.world) == pytest.approx(math.sqrt(0.02))
    text = tables.table_text(tmp_path, comparison, [line])
    assert "| M | 0.600 ± 0.141 | 0.500 ± 0.141 | 0.100 ± 0.000 | 0.500 ± 0.141 | - | 2.0 |" in text
    assert text.rstrip().endswith("| 0.2 | 2 |")


def test_a_rate_that_lacks_a_seed_does_not_compete(tmp_path: Path) -> None:
    comparison = Comparison(
        "t", {"M": {}}, {"x": {"scenario": "digits"}}, seeds=(0, 1), rates=(0.1, 0.2)
    )
    for folder, train in (("seed0-rate0.1", 0.5), ("seed1-rate0.1", 0.5), ("seed0-rate0.2", 0.9)):
        write_run(tmp_path / "runs/x/m" / folder, [judged(train, 0.5, 0.5)])

    [line] = results.lines(tmp_path, comparison)

    assert line.rate == 0.1
    assert np.isnan(line.mean(lambda run: run.rand))


def test_rates_compete_over_the_seeds_that_they_share(tmp_path: Path) -> None:
    # On seed 0, which both have, 0.2 trains better; its failed seed 1 is 0.1's lucky one
    comparison = Comparison(
        "t", {"M": {}}, {"x": {"scenario": "digits"}}, seeds=(0, 1, 2), rates=(0.1, 0.2)
    )
    for folder, train in (
        ("seed0-rate0.1", 0.5), ("seed1-rate0.1", 0.9),
        ("seed0-rate0.2", 0.6), ("seed2-rate0.2", 0.6),
    ):  # fmt: skip
        write_run(tmp_path / "runs/x/m" / folder, [judged(train, 0.5, 0.5)])

    [line] = results.lines(tmp_path, comparison)

    assert (line.rate, set(line.runs)) == (0.2, {0, 2})


def test_gains_are_over_fedavg_on_the_same_seeds_and_stand_beside_the_papers_figures(
    tmp_path: Path,
) -> None:
    # FedAvg is done on seeds 0 and 1, the other on seed 1 alone: 0.9 - 0.4
    comparison = Comparison(
        "t",
        {"FedAvg": {"algorithm": "fedavg"}, "M": {"algorithm": "ifca"}},
        {"x": {"scenario": "digits"}},
        seeds=(0, 1),
        reproduces="table 9",
        paper={"x": {"M": (None, 0.425)}},
        differs=("Fewer clients.",),
    )
    write_run(tmp_path / "runs/x/fedavg/seed0", [judged(0.5, 0.5, 0.2)])
    write_run(tmp_path / "runs/x/fedavg/seed1", [judged(0.5, 0.5, 0.4)])
    write_run(tmp_path / "runs/x/m/seed1", [judged(0.1, 0.8, 0.95), judged(0.6, 0.8, 0.9)])

    text = tables.table_text(tmp_path, comparison, results.lines(tmp_path, comparison))

    assert "Corresponds to table 9 of the FedRC paper." in text
    assert "| method | local | global | the paper | gap | gain | best global |" in text
    assert "| M | 0.800 | 0.900 | - / 0.425 | -0.100 | +0.500 | 0.950 |" in text
    assert "| FedAvg | 0.500 ± 0.000 | 0.300 ± 0.141 | - / - |" in text
    assert "- Fewer clients." in text
