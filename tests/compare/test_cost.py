"""How long a comparison takes: the arithmetic by hand, and that a timed round leaves nothing."""

from __future__ import annotations

import pytest

from fedrc_flwr.compare import budget, cost
from fedrc_flwr.compare.cost import Kind, Line
from fedrc_flwr.compare.plan import Comparison
from fedrc_flwr.config import load_config
from fedrc_flwr.data.scenario import scenario_of
from fedrc_flwr.sgd import LocalSettings

TINY = {"scenario": "digits", "model.hidden": 4, "rounds": 10, "run.evaluate-every": 4}


def test_a_run_is_its_rounds_of_training_and_its_evaluations() -> None:
    # 12 clients of 1437 // 12 = 119 samples, half of them in a round; three observers of 360
    config = load_config({**TINY, "algorithm": "fedavg", "federation.fraction": 0.5})
    kind = Kind(training=Line(1.0, 0.1), evaluation=Line(2.0, 0.01))

    seconds = kind.seconds(config)

    training = 10 * 6 * (1.0 + 0.1 * 119)
    evaluations = 3 * (12 * (2.0 + 0.01 * 119) + 3 * (2.0 + 0.01 * 360))  # rounds 4, 8 and 10
    assert seconds == pytest.approx(training + evaluations)


def test_sizes_are_those_of_the_real_clients() -> None:
    scenario = scenario_of(load_config(TINY).data, 0)

    outlines = [scenario.outline(index) for index in (0, scenario.clients)]

    assert scenario.sizes() == (len(outlines[0].labels), len(outlines[1].labels))


def test_a_line_goes_through_two_points_and_never_below_nothing() -> None:
    assert cost._line([(10, 3.0), (30, 7.0)]) == Line(1.0, 0.2)
    assert cost._line([(10, 3.0), (30, 2.0)]) == Line(2.0, 0.0)
    assert cost._line([(10, 3.0)]) == Line(0.0, 0.3)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedrc", "pfedme"])
def test_every_kind_can_be_timed_without_data(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "ENOUGH", 0.0)
    settings = {"scenario": "cifar10", "model.network": "mlp", "model.hidden": 4}

    kind = cost.timed(load_config({**settings, "algorithm": algorithm, "recipe": "paper"}))

    assert kind.training.at(100) > 0
    assert kind.evaluation.at(100) > 0


def test_a_timed_client_trains_as_long_as_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Epochs and batch size follow from the 119 samples of a client, not from the few that are timed
    seen: list[LocalSettings] = []
    monkeypatch.setattr(
        cost, "_measured", lambda config, samples: (seen.append(config.local), (1.0, 1.0))[1]
    )
    config = load_config({**TINY, "local.epochs": 0, "local.batch-size": 0})

    cost.timed(config)

    assert set(seen) == {config.local.for_samples(119)}


def test_runs_of_a_kind_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[str] = []

    def fake(config: object) -> float:
        timed.append("once")
        return 7.0

    monkeypatch.setattr(cost, "_run_seconds", fake)
    planned = Comparison(
        "t", {"A": {"algorithm": "fedavg"}, "B": {"algorithm": "ifca"}}, {"x": TINY},
        seeds=(0, 1), rates=(0.1, 0.2),
    )  # fmt: skip

    assert cost.estimated(planned.cells()) == {("x", "A"): (4, 28.0), ("x", "B"): (4, 28.0)}
    assert len(timed) == 2


def test_a_mixture_counts_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_timed_plain", lambda config: Kind(Line(1.0, 0.0), Line(0.0, 0.0)))
    rows = {
        "FedAvg": {"algorithm": "fedavg"},
        "FedEM": {"algorithm": "fedem", "fedem.clusters": 4},
        "discovery": {"algorithm": "fedrc"},
    }
    planned = Comparison("t", rows, {"x": TINY})

    seconds = [cost.roughly([cell]) for cell in planned.cells()]

    assert seconds == [10 * 12, 4 * 10 * 12, 10 * 12]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h"), (86_400, "24 h"),
     (3 * 86_400, "3 days"), (800 * 86_400, "2 years")],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert budget.duration(seconds) == words


def test_the_list_tells_what_each_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "roughly", lambda cells: 60.0 * len(list(cells)))
    monkeypatch.setattr(cost, "on_gpu", lambda seconds: seconds / 60)

    listed = list(budget.catalogue())

    [line] = [text for text in listed if text.startswith("few-clusters ")]
    assert line.split() == ["few-clusters", "table", "9", "60", "60", "min", "60", "s", "15", "min",
                            "Two", "clusters", "for", "three", "concepts"]  # fmt: skip
    assert "toy_case.py" in " ".join(listed)
