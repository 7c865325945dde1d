from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fedrc_flwr.algorithms.fedrc import FedRC
from fedrc_flwr.compare.plan import (
    Comparison,
    check,
    comparison_names,
    of_scenario,
    part,
    read_comparison,
    scaled,
    with_changes,
)
from fedrc_flwr.config import load_config
from fedrc_flwr.errors import ConfigError, FedRCError

SMALL = Comparison(
    "two by two",
    rows={"A": {"algorithm": "fedavg"}, "B (2)": {"algorithm": "ifca", "ifca.clusters": 2}},
    columns={"x": {"scenario": "digits"}, "y": {"scenario": "digits", "data.alpha": 1.0}},
    seeds=(0, 7),
    rates=(0.1, 0.2),
    settings={"rounds": 4},
)


def test_every_row_column_seed_and_rate_is_one_cell_with_its_keys() -> None:
    cells = list(SMALL.cells())

    assert len(cells) == len({cell.folder for cell in cells}) == 2 * 2 * 2 * 2
    last = cells[-1]
    assert last.name == "y: B (2), seed 7, learning rate 0.2"
    assert last.folder == Path("y/b-2/seed7-rate0.2")
    assert last.settings == {
        "scenario": "digits",
        "data.alpha": 1.0,
        "rounds": 4,
        "algorithm": "ifca",
        "ifca.clusters": 2,
        "seed": 7,
        "local.learning-rate": 0.2,
    }
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_without_rates_the_recipes_own_is_kept() -> None:
    [cell] = of_scenario("digits", ["fedrc"]).cells()

    assert cell.rate is None
    assert "local.learning-rate" not in cell.settings
    assert cell.folder == Path("digits/fedrc/seed0")


def test_local_training_is_compared_with_its_models_shared() -> None:
    [cell] = of_scenario("digits", ["local-only"]).cells()

    assert cell.settings["local-only.share-models"] is True


def test_scale_keeps_the_clients_size_and_takes_fewer_of_them_and_fewer_rounds() -> None:
    # 12 clients of 1437 // 12 = 119 samples, 100 rounds, 20 of them annealed, judged every 5
    given = {"rounds": 100, "fedrc.start": "paper", "fedrc.annealing-rounds": 20}
    settings = scaled({"scenario": "digits", **given}, 0.5)

    config = load_config(settings)
    assert (config.data.clients, config.data.samples_per_client, config.rounds) == (6, 119, 50)
    assert isinstance(config.algorithm_settings, FedRC.Settings)
    assert (config.algorithm_settings.annealing_rounds, config.run.evaluate_every) == (10, 3)


def test_scale_leaves_two_clients_of_each_concept_and_one_round() -> None:
    config = load_config(scaled({"scenario": "digits"}, 0.001))

    assert (config.data.clients, config.rounds) == (6, 1)


def test_scale_never_turns_a_prior_of_some_rounds_into_one_of_all() -> None:
    few, always = (
        scaled({"scenario": "digits", "fedrc.start": "paper", "fedrc.prior-rounds": n}, 0.01)
        for n in (30, 0)
    )

    own = [load_config(settings).to_dict()["fedrc.prior-rounds"] for settings in (few, always)]
    assert own == [1, 0]


def test_a_scale_of_one_changes_nothing() -> None:
    assert scaled({"scenario": "digits"}, 1.0) == {"scenario": "digits"}


@pytest.mark.parametrize("name", comparison_names())
def test_every_ready_made_comparison_is_complete(name: str) -> None:
    comparison = read_comparison(name)

    cells = list(comparison.cells())

    assert cells
    assert len({cell.folder for cell in cells}) == len(cells)
    for cell in cells:
        load_config(cell.settings)


def test_every_table_and_figure_with_results_has_a_comparison() -> None:
    told = " ".join(read_comparison(name).reproduces for name in comparison_names())
    numbers = {
        kind: {int(n) for part in re.findall(rf"{kind}s? ([\d, and]+)", told)
               for n in re.findall(r"\d+", part)}
        for kind in ("table", "figure")
    }  # fmt: skip

    assert numbers["table"] == set(range(1, 16))
    # 1, 5 and 10 are drawings; 8 and 9 are examples/toy_case.py.
    assert numbers["figure"] == {2, 3, 4, 6, 7, 11, 12, 13, 14, 15, 16}


def test_a_part_of_a_comparison_has_the_rows_and_columns_that_were_asked_for() -> None:
    found = part(SMALL, ["B (2)"], [])

    assert (list(found.rows), list(found.columns)) == (["B (2)"], ["x", "y"])
    with pytest.raises(ConfigError, match=r"--column 'z': no such column.*x; y"):
        part(SMALL, [], ["z"])


def test_the_papers_figures_are_shares() -> None:
    paper = read_comparison("main").paper

    assert paper["FashionMNIST"]["FedRC"] == pytest.approx((0.6651, 0.59))
    assert read_comparison("drift").paper["Electricity"]["FedEM"] == (None, pytest.approx(0.5479))


def test_weights_are_for_the_networks_that_have_them() -> None:
    planned = with_changes(read_comparison("main"), (0,), (0.1,), {"model.weights": "w.pt"}, None)

    given = {cell.column: cell.settings.get("model.weights") for cell in planned.cells()}

    assert given == {
        "FashionMNIST": None, "CIFAR-10": "w.pt", "CIFAR-100": "w.pt", "Tiny-ImageNet": "w.pt",
    }  # fmt: skip
    for cell in planned.cells():
        load_config(cell.settings)


def test_weights_of_a_row_are_not_left_out() -> None:
    planned = Comparison("t", {"A": {"model.weights": "w.pt"}}, {"x": {"scenario": "digits"}})

    [cell] = planned.cells()

    with pytest.raises(ConfigError, match=r"model.weights = 'w.pt'"):
        load_config(cell.settings)


def test_the_command_line_has_the_last_word() -> None:
    changed = with_changes(SMALL, (3,), (), {"rounds": 9}, 0.5)

    assert changed.seeds == (3,)
    assert changed.rates == SMALL.rates
    assert changed.settings == {"rounds": 9}
    assert changed.scale == 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": 0.0}, "scale = 0"),
        ({"scale": 1.5}, "scale = 1.5"),
        ({"seeds": (1, 1)}, "seeds = "),
        ({"seeds": ()}, "seeds = "),
        ({"rows": {}}, "at least one row"),
        ({"rows": {"a b": {}, "a-b": {}}}, "punctuation"),
        ({"rows": {"a": {"algoritm": "fedrc"}}}, "algoritm"),
        ({"settings": {"data.dataset": "nowhere/data.npz"}}, "nowhere"),
        ({"rates": (0.1, 0.2, 0.1)}, "learning rates 0.1, 0.2, 0.1: expected different numbers"),
        ({"settings": {"seed": 3}}, "seed: .* --seeds"),
        ({"rows": {"a": {"seed": 3}}}, "seed: .* --seeds"),
        (
            {"rates": (0.1, 0.3), "settings": {"local.learning-rate": 0.2}},
            "local.learning-rate: .* rates 0.1, 0.3: .* --learning-rates",
        ),
        ({"settings": {"run.name": "mine"}}, "run.name: .* --output"),
        ({"settings": {"run.output-dir": "mine"}}, "run.output-dir: .* --output"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(change: dict, words: str) -> None:
    with pytest.raises(FedRCError, match=words):
        check(replace(SMALL, **change))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- a list", "expected lines of the form"),
        ("rows: {a: {}}\ncolumns: {b: {}}\nscales: 2", "unknown key 'scales': expected columns"),
        ("rows: [a]\ncolumns: {b: {}}", "rows: expected names"),
        ("rows: {a: {}}", "columns: expected names"),
        (
            "rows: {a: {}}\ncolumns: {b: {}}\nseeds: [x]",
            r"seeds = \['x'\]: expected a list of whole numbers",
        ),
        ("rows: {a: {}}\ncolumns: {b: {}}\nseeds: 3", "seeds = 3: expected a list of whole"),
        ("rows: {a: {}}\ncolumns: {b: {}}\nseeds: [1.5]", "expected a list of whole numbers"),
        ("rows: {a: {}}\ncolumns: {b: {}}\nscale: abc", "scale = 'abc': expected a number"),
        ("rows: {a: {}}\ncolumns: {b: {}}\nset: [1]", r"set = \[1\]: expected settings"),
        ("rows: {a: 3}\ncolumns: {b: {}}", "rows: a = 3: expected settings"),
        ("rows: {a: {}}\ncolumns: {b: {}}\nlearning-rates: 1", "learning-rates = 1: expected a"),
        ("rows: {a: {}}\ncolumns: {b: {}}\npaper: {b: {a: 3}}", "paper: b: a = 3: expected local"),
        ("rows: {a: {}}\ncolumns: {b: {}}\npaper: {b: {c: [1, 2]}}", "paper: b: c: no such"),
        ("rows: {a: {}}\ncolumns: {b: {}}\ndiffers: a", "differs = 'a': expected a list"),
        ("rows: {a: {}, a: {}}\ncolumns: {b: {}}", "a is given twice"),
        ("rows: {a", "comparison"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)

    with pytest.raises(ConfigError, match=words) as refusal:
        read_comparison(str(path))
    assert str(path) in str(refusal.value)


def test_an_unknown_comparison_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'maim'.*Ready-made ones are.*main"):
        read_comparison("maim")
