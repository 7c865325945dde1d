"""The whole server side against nodes that run the real client app in this process."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import Federation
from flwr.app import ArrayRecord, Message
from grid import InMemoryGrid, broken_config, deltas_of, repacked
from settings_of import PLAIN, dotted, of_one_algorithm

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.checkpoint import latest_checkpoint
from fedrc_flwr.config import RunConfig, all_keys, load_config
from fedrc_flwr.engine.run import Run
from fedrc_flwr.errors import CheckpointError, ConfigError, RunError
from fedrc_flwr.records import Parcel
from fedrc_flwr.report.log import read_events
from fedrc_flwr.state import ServerState
from server_app.app import main, run_on_flower
from server_app.enrolment import Roster
from server_app.strategy import ClusteredStrategy

SMALL = {
    **PLAIN,
    "rounds": 3,
    "data.clients": 5,
    "model.hidden": 8,
    "run.evaluate-every": 1,
    "federation.deadline": 60.0,
    **{name: 2 for name in all_keys() if name.endswith(".clusters")},
}
NODES = 8  # five training clients, three observers


@dataclass
class Trial:
    """A run whose nodes are those of a grid in this process."""

    config: RunConfig
    directory: Path
    grid: InMemoryGrid
    run: Run | None = None

    def go(self) -> None:
        self.run = run_on_flower(self.config, self.directory, self.grid)  # type: ignore[arg-type]

    @property
    def state(self) -> ServerState:
        """The state that the run ended with."""
        assert self.run is not None
        return self.run.rounds.state


def make_run(
    tmp_path: Path,
    nodes: int = NODES,
    grid: type[InMemoryGrid] = InMemoryGrid,
    **settings: Any,
) -> tuple[Trial, InMemoryGrid]:
    config = load_config(of_one_algorithm({**SMALL, **dotted(settings)})).placed(tmp_path / "run")
    made = grid(nodes, dict(config.to_dict()))
    return Trial(config, tmp_path / "run", made), made


def rounds_of(tmp_path: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(tmp_path / "run" / "metrics.jsonl") if e["event"] == "round"]


def summary_of(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "run" / "summary.json").read_text()))


def on_training(behaviour: Any) -> Any:
    def act(message: Message, answer: Any) -> Message | None:
        return behaviour(answer) if message.metadata.message_type == "train" else answer()

    return act


def raises(answer: Any) -> Message:
    from flwr.app import Error

    reply = answer()
    return Message(Error(code=2, reason="ValueError: disk on fire"), reply_to=_asked(reply))


def _asked(reply: Message) -> Message:
    reply.metadata.__dict__["_message_id"] = "x"
    return reply


def with_delta(change: Any) -> Any:
    def changed(parcel: Parcel) -> None:
        name = deltas_of(parcel)[0]
        parcel.arrays[name] = change(parcel.arrays[name])

    return lambda answer: repacked(answer(), changed)


def poison(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[3] = np.nan
    return values


FAULTS = {
    "raises": (raises, "disk on fire"),
    "nan": (with_delta(poison), "NaN"),
    "shape": (with_delta(lambda v: v[:-1]), "shape"),
    "schema": (lambda answer: broken_config(answer(), "reply", schema=99), "schema version 99"),
    "samples": (lambda answer: broken_config(answer(), "reply", samples=-3), "samples is -3"),
    "silent": (lambda answer: None, "no reply before the deadline"),
}


@pytest.mark.usefixtures("pictures")
def test_an_undisturbed_run_writes_all_its_results(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)

    run.go()

    summary = summary_of(tmp_path)
    expected = {
        "status", "rounds", "seconds", "clusters", "local_accuracy", "global_accuracy",
        "adjusted_rand_index", "epsilon", "algorithm", "scenario", "seed",
    }  # fmt: skip
    assert expected <= set(summary)
    assert summary["status"] == "completed"
    assert summary["rounds"] == 3
    assert [e["round"] for e in rounds_of(tmp_path)] == [1, 2, 3]
    assert all(e["replied"] == 5 and not e["failed"] for e in rounds_of(tmp_path))
    assert latest_checkpoint(tmp_path / "run" / "checkpoints")[0].state.round == 3
    assert (tmp_path / "run" / "mixture_weights.png").stat().st_size > 5_000
    assert "completed after 3 rounds" in (tmp_path / "run" / "run.log").read_text()


def test_a_run_in_half_precision_sends_half_the_bytes_and_learns_nearly_the_same(
    tmp_path: Path,
) -> None:
    models = {}
    for transport in ("float32", "float16"):
        run, _ = make_run(tmp_path / transport, transport=transport, rounds=1)
        run.go()
        models[transport] = latest_checkpoint(tmp_path / transport / "run" / "checkpoints")[
            0
        ].state.models

    exact, half = rounds_of(tmp_path / "float32")[0], rounds_of(tmp_path / "float16")[0]
    for way in ("bytes_down", "bytes_up"):
        assert 0.45 * exact[way] < half[way] < 0.65 * exact[way]
    for cluster, vector in models["float32"].items():
        difference = np.abs(models["float16"][cluster] - vector).max()
        assert 0 < difference < 0.01 * np.abs(vector).max()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_named_and_the_round_is_that_of_the_others(
    fault: str, tmp_path: Path
) -> None:
    behaviour, reason = FAULTS[fault]
    # A silent client costs each round its whole deadline.
    few: dict[str, Any] = {"deadline": 2.0, "rounds": 1} if fault == "silent" else {}
    run, grid = make_run(tmp_path, **few)
    grid.behaviours[102] = on_training(behaviour)
    # What the state must look like: the same run, with client-2 taking part in nothing but
    # evaluation.
    clean, clean_grid = make_run(tmp_path / "clean", **{"min-clients": 4, **few})
    clean_grid.offline.add(102)

    run.go()
    clean.go()

    for event in rounds_of(tmp_path):
        if fault == "silent" and event["round"] == 3:
            continue  # it rests after two rounds of silence
        assert list(event["failed"]) == ["client-2"]
        assert reason in event["failed"]["client-2"]
        assert event["replied"] == 4
        assert ("strikes" in event) == (fault in ("nan", "shape", "schema", "samples"))
    assert "client-2: reply not used" in (tmp_path / "run" / "run.log").read_text()
    for cluster, model in clean.state.models.items():
        np.testing.assert_array_equal(run.state.models[cluster], model)
    assert run.state.clients["client-2"].label_counts is None


def enormous(reply: Message) -> Message:
    """The client's reply with an update of 1e38, which is finite, in all its numbers."""

    def enlarge(parcel: Parcel) -> None:
        for name in deltas_of(parcel):
            parcel.arrays[name] = np.full_like(parcel.arrays[name], 1e38)

    return repacked(reply, enlarge)


THREE = {"clients": 3, "concept-shares": "1.0", "corrupted-shares": "0.0", "rounds": 2}
#: Updates of any length are accepted, as long as the models stay finite.
ANY_LENGTH = {**THREE, "server.max-norm": 0.0}


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"algorithm": "cfl"}, {"algorithm": "fedsoft"}, {"shared-body": True},
        {"optimizer": "adam"}, {"optimizer": "momentum"},
        {"server.learning-rate": 100.0, "local.learning-rate": 1e-4},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "fedrc",
)  # fmt: skip
def test_an_update_that_breaks_the_models_is_left_out_of_a_repetition(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run, grid = make_run(tmp_path, nodes=4, **ANY_LENGTH, **settings)
    grid.behaviours[101] = on_training(lambda answer: enormous(answer()))
    clean, clean_grid = make_run(
        tmp_path / "clean", nodes=4, **ANY_LENGTH, **settings, **{"min-clients": 2}
    )
    clean_grid.offline.add(101)

    run.go()
    clean.go()

    assert run.state.is_finite()
    assert run.state.clusters == clean.state.clusters
    for cluster, model in clean.state.models.items():
        np.testing.assert_array_equal(run.state.models[cluster], model)
    for event in rounds_of(tmp_path):
        assert (event["attempts"], event["sampled"], event["replied"]) == (2, 3, 2)
        assert list(event["failed"]) == ["client-1"]
        assert "the models are no longer finite" in event["failed"]["client-1"]
    assert run.state.clients["client-1"].label_counts is None
    asked = [node for node, kind in grid.sent if kind == "train"]
    assert [asked.count(node) for node in (100, 101, 102)] == [4, 2, 4]


def test_statistics_that_cannot_be_are_left_out_with_a_strike(tmp_path: Path) -> None:
    def huge_counts(parcel: Parcel) -> None:
        parcel.arrays["label-counts"] = np.full_like(parcel.arrays["label-counts"], 1e300)

    run, grid = make_run(tmp_path, nodes=4, **THREE)
    grid.behaviours[101] = on_training(lambda answer: repacked(answer(), huge_counts))

    run.go()

    for event in rounds_of(tmp_path):
        assert "its label counts are from 1e+300 to 1e+300" in event["failed"]["client-1"]
        assert event["strikes"] == event["failed"]
        assert event["attempts"] == 1
    assert run.state.is_finite()
    assert run.state.clients["client-1"].label_counts is None


def test_a_round_that_stays_broken_stops_the_run_with_its_checkpoint_intact(tmp_path: Path) -> None:
    settings = {**ANY_LENGTH, "min-replies": 1.0, "attempts": 2}
    run, grid = make_run(tmp_path, nodes=4, **settings)

    def breaks_round_two(message: Message, answer: Any) -> Message:
        second = message.metadata.group_id == "2" and message.metadata.message_type == "train"
        return enormous(answer()) if second else answer()

    grid.behaviours[101] = breaks_round_two

    with pytest.raises(RunError, match=r"round 2 had too few .*client-1: with its update the mod"):
        run.go()

    checkpoint, problems = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert (checkpoint.state.round, problems) == (1, [])
    assert summary_of(tmp_path)["status"] == "failed"


def test_what_a_repeated_round_released_still_counts(tmp_path: Path) -> None:
    settings = {**ANY_LENGTH, "rounds": 1, "count-noise": 5.0}
    run, grid = make_run(tmp_path, nodes=4, **settings)
    grid.behaviours[101] = on_training(lambda answer: enormous(answer()))

    run.go()

    releases = {n: r.releases for n, r in run.state.clients.items() if r.role == "train"}
    # Two tries of the round, of which the culprit took part in the first.
    assert releases == {"client-0": 2, "client-1": 1, "client-2": 2}


@pytest.mark.parametrize("algorithm", ["fedrc", "cfl", "fedavg", "ifca"])
def test_an_update_of_any_length_is_left_out_without_a_repetition(
    tmp_path: Path, algorithm: str
) -> None:
    run, grid = make_run(
        tmp_path, nodes=4, **{**THREE, "algorithm": algorithm, "rounds": 4, "max-norm": 1.5}
    )
    grid.behaviours[101] = on_training(with_delta(lambda v: np.full_like(v, 1e12)))
    clean, clean_grid = make_run(
        tmp_path / "clean", nodes=4,
        **{**THREE, "algorithm": algorithm, "rounds": 4, "min-clients": 2,
           "max-norm": 1.5},
    )  # fmt: skip
    clean_grid.offline.add(101)

    run.go()
    clean.go()

    for cluster, model in clean.state.models.items():
        np.testing.assert_allclose(run.state.models[cluster], model, rtol=1e-5, atol=1e-6)
    first, *_, last = rounds_of(tmp_path)
    assert (first["attempts"], first["replied"]) == (1, 2)
    assert "times the median" in first["strikes"]["client-1"]
    assert (last["quarantined"], last["sampled"]) == (["client-1"], 2)
    assert "client-1 is in quarantine after 3 strikes" in (tmp_path / "run/run.log").read_text()
    asked = [node for node, kind in grid.sent if kind == "train"]
    assert [asked.count(node) for node in (100, 101, 102)] == [4, 3, 4]


def test_too_few_replies_repeat_the_round_with_a_fresh_sample_and_it_completes(
    tmp_path: Path,
) -> None:
    run, grid = make_run(tmp_path, **{"fraction": 0.6, "min-replies": 1.0, "attempts": 6})
    grid.behaviours[100] = on_training(raises)

    run.go()

    events = rounds_of(tmp_path)
    assert summary_of(tmp_path)["status"] == "completed"
    assert max(e["attempts"] for e in events) > 1
    assert run.run is not None
    online = [f"client-{index}" for index in range(5)]
    samples = {tuple(run.run.rounds.sample(online, 1, attempt)) for attempt in range(6)}
    assert len(samples) > 1


def test_too_few_replies_again_and_again_stop_the_run_with_its_checkpoint_intact(
    tmp_path: Path,
) -> None:
    run, grid = make_run(tmp_path, **{"rounds": 4, "attempts": 2})
    seen = {"round": 0}

    def fail_from_round_three(message: Message, answer: Any) -> Message | None:
        if message.metadata.message_type == "train" and int(message.metadata.group_id) >= 3:
            seen["round"] = int(message.metadata.group_id)
            return raises(answer)
        return answer()

    grid.behaviours = dict.fromkeys(range(100, 104), fail_from_round_three)

    with pytest.raises(RunError, match="round 3 had too few usable replies 2 times"):
        run.go()

    assert seen["round"] == 3
    assert sum(1 for node, kind in grid.sent if kind == "train" and node == 100) == 2 + 2
    summary = summary_of(tmp_path)
    assert summary["status"] == "failed"
    assert "disk on fire" in summary["reason"]
    checkpoint, problems = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint.state.round == 2
    assert problems == []
    undisturbed, _ = make_run(tmp_path / "undisturbed", rounds=2)
    undisturbed.go()
    for cluster, model in undisturbed.state.models.items():
        np.testing.assert_array_equal(checkpoint.state.models[cluster], model)


def test_too_few_clients_are_refused_before_round_one(tmp_path: Path) -> None:
    run, grid = make_run(tmp_path, nodes=2)

    with pytest.raises(RunError, match=r"2 of 5 training clients .*num-supernodes=8"):
        run.go()

    assert all(kind == "query.enrol" for _, kind in grid.sent)


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)
    run.go()

    with pytest.raises(ConfigError, match="holds a run already"):
        make_run(tmp_path)[0].go()


@pytest.mark.parametrize("bad", [{"rounds": 0}, {"rouns": 3}, {"rounds": "many"}])
def test_a_bad_configuration_is_refused_before_any_client_is_contacted(
    bad: dict[str, Any], tmp_path: Path
) -> None:
    from flwr.app import Context, RecordDict

    settings = {**SMALL, "run.output-dir": str(tmp_path), **bad}
    grid = InMemoryGrid(NODES, settings)
    context = Context(1, 1, {}, RecordDict(), settings)

    with pytest.raises(ConfigError, match=next(iter(bad))):
        main(grid, context)

    assert grid.sent == []
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_resumes_to_the_same_models(tmp_path: Path) -> None:
    options = {
        "rounds": 6, "clusters": 4, "e-step": "adam", "adaptive": True, "merge": True,
        "fraction": 0.6, "settle-tolerance": 1.0, "settle-loss": 100.0, "settle-rounds": 1,
        "remove-below": 0.24, "optimizer": "adam", "server.learning-rate": 0.05,
    }  # fmt: skip
    whole, _ = make_run(tmp_path / "whole", **options, **{"state-dir": str(tmp_path / "s1")})
    whole.go()
    halting = {**options, "state-dir": str(tmp_path / "s2")}
    broken, grid = make_run(tmp_path / "broken", **halting)

    def dies_in_round_four(message: Message, answer: Any) -> Message | None:
        reply = answer()
        if message.metadata.group_id == "4":
            raise KeyboardInterrupt
        return reply

    # The second of the sampled clients: the first has already advanced its state by then.
    second = 100 + broken.config.data.clients - 1
    grid.behaviours[second] = dies_in_round_four
    grid.behaviours[second - 1] = dies_in_round_four
    with pytest.raises(KeyboardInterrupt):
        broken.go()
    resumed, _ = make_run(tmp_path / "broken", **halting, resume=True)

    resumed.go()

    assert [e["round"] for e in rounds_of(tmp_path / "broken")] == [1, 2, 3, 4, 5, 6]
    assert len(whole.state.clusters) < 4
    assert resumed.state.clusters == whole.state.clusters
    for cluster, model in whole.state.models.items():
        np.testing.assert_allclose(resumed.state.models[cluster], model, atol=1e-7)


def test_a_run_goes_on_from_an_earlier_round_to_the_same_models(tmp_path: Path) -> None:
    # Prepare: six rounds, and six with rounds five and six broken by another learning rate
    options = {"rounds": 6, "e-step": "adam", "optimizer": "momentum", "fraction": 0.8,
               "keep-checkpoints": 6}  # fmt: skip
    whole, _ = make_run(tmp_path / "a", **options, **{"state-dir": str(tmp_path / "a/states")})
    whole.go()
    states = {"state-dir": str(tmp_path / "b/states")}
    first, _ = make_run(tmp_path / "b", **{**options, **states, "rounds": 4})
    first.go()
    wrong = {**options, **states, "local.learning-rate": 0.5, "resume": True}
    spoilt, _ = make_run(tmp_path / "b", **wrong)
    spoilt.go()

    # Execute: from round one, further back than the four states that a client keeps at least
    again, _ = make_run(tmp_path / "b", **options, **states, **{"resume": True, "resume-round": 1})
    again.go()

    # Assert
    for cluster, vector in whole.state.models.items():
        assert not np.array_equal(spoilt.state.models[cluster], vector)
        np.testing.assert_allclose(again.state.models[cluster], vector, atol=1e-6)
    assert [e["round"] for e in rounds_of(tmp_path / "b")] == [1, 2, 3, 4, 5, 6]
    afresh = [[e["started_afresh"] for e in rounds_of(tmp_path / part)] for part in ("a", "b")]
    assert afresh[0] == afresh[1]


def test_newer_checkpoints_stay_until_the_first_new_one_is_written(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)
    run.go()
    folder, config = tmp_path / "run" / "checkpoints", tmp_path / "run" / "config.json"
    back = {"resume": True, "resume-round": 1}
    seen = []

    def look(message: Message, answer: Any) -> Message:
        kept = [int(path.stem[-1]) for path in sorted(folder.glob("round-*"))]
        told = json.loads(config.read_text())["run.resume-round"]
        seen.append((message.metadata.group_id, message.metadata.message_type, kept, told))
        return answer()

    again, grid = make_run(tmp_path, **back)
    grid.behaviours[100] = look
    again.go()

    # Who resumes before the first new checkpoint goes back as well; after it, nobody does.
    trained = [(number, kept, told) for number, kind, kept, told in seen if kind == "train"]
    assert trained == [("2", [1, 2, 3], 1), ("3", [1, 2], 0)]


def test_a_round_without_a_checkpoint_cannot_be_gone_back_to(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, **{"rounds": 4})
    run.go()

    back, grid = make_run(tmp_path, **{"rounds": 4, "resume": True, "resume-round": 1})
    with pytest.raises(CheckpointError, match=r"no checkpoint of round 1; .* rounds: 2, 3, 4"):
        back.go()
    assert grid.sent == []


def test_a_node_that_joins_late_takes_part_and_one_that_left_is_not_waited_for(
    tmp_path: Path,
) -> None:
    run, grid = make_run(tmp_path, **{"rounds": 5, "min-clients": 3})
    grid.offline = {104}

    def come_and_go(message: Message, answer: Any) -> Message | None:
        if message.metadata.message_type == "train":
            number = int(message.metadata.group_id)
            grid.offline = {2: {101}, 3: {101}}.get(number, set())
        return answer()

    grid.behaviours[100] = come_and_go

    run.go()

    events = {e["round"]: e for e in rounds_of(tmp_path)}
    assert [events[r]["sampled"] for r in range(1, 6)] == [4, 5, 4, 4, 5]
    assert all(not e["failed"] for e in events.values())
    assert run.state.clients["client-4"].label_counts is not None


def test_a_node_that_comes_back_under_its_name_goes_on_with_its_weights(tmp_path: Path) -> None:
    run, grid = make_run(tmp_path, **{"rounds": 4, "state-dir": str(tmp_path / "states")})
    unlike, unlike_grid = make_run(tmp_path / "unlike", **{"rounds": 4})
    for each in (grid, unlike_grid):

        def restart(message: Message, answer: Any, each: InMemoryGrid = each) -> Message | None:
            reply = answer()
            if message.metadata.message_type == "train" and message.metadata.group_id == "2":
                each.offline.add(101)
                if 201 not in each.contexts:
                    each.add_node(201, 1)
            return reply

        each.behaviours[101] = restart

    run.go()
    unlike.go()

    assert all(e["sampled"] == 5 for e in rounds_of(tmp_path))
    assert [e["started_afresh"] for e in rounds_of(tmp_path)] == [[], [], [], []]
    # Without a state directory the restarted node starts anew, and the log says so.
    assert rounds_of(tmp_path / "unlike")[2]["started_afresh"] == ["client-1"]


def test_as_many_checkpoints_are_kept_as_the_run_says(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, **{"keep-checkpoints": 2, "rounds": 4})

    run.go()

    kept = sorted(path.stem for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["round-000003", "round-000004"]


def test_a_deployment_waits_for_its_clients_no_longer_than_it_was_told(tmp_path: Path) -> None:
    class Remote(InMemoryGrid):
        """Not a simulation: nodes may still come."""

    run, grid = make_run(tmp_path, nodes=2, grid=Remote, **{"enrolment-timeout": 2.5})
    looks = []
    real = grid.get_node_ids
    grid.get_node_ids = lambda: looks.append(1) or real()  # type: ignore[method-assign, func-returns-value]

    with pytest.raises(RunError, match="2 of 5 training clients"):
        run.go()

    assert len(looks) > 1


def test_replies_are_folded_in_a_window_at_a_time(tmp_path: Path) -> None:
    run, grid = make_run(tmp_path, **{"window": 2, "rounds": 1})

    run.go()

    assert grid.most_under_way <= 2
    assert summary_of(tmp_path)["status"] == "completed"


def test_noise_is_accounted_for_in_metrics_and_summary(tmp_path: Path) -> None:
    run, grid = make_run(tmp_path, **{"count-noise": 20.0, "count-clip": 0.2, "rounds": 2})
    grid.contexts[101].node_config["count-noise"] = 10.0

    run.go()

    from scipy.optimize import brentq
    from scipy.stats import norm

    # Two releases of the client with the least noise, which has 258 samples.
    mu = np.sqrt(2) * 0.2 * 258 / 10.0
    expected = brentq(
        lambda e: norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - 1e-5, 1, 200
    )
    assert summary_of(tmp_path)["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert rounds_of(tmp_path)[0]["epsilon"] < rounds_of(tmp_path)[1]["epsilon"]


def test_fine_tuning_is_reported_for_training_clients_alone(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path, **{"fine-tune": True, "rounds": 1})

    run.go()

    event = rounds_of(tmp_path)[-1]
    assert {"local_accuracy", "global_accuracy"} <= set(event)
    assert "fine_tuned_local_accuracy" in event
    assert "fine_tuned_global_accuracy" not in event
    assert "fine_tuned_local_accuracy" in summary_of(tmp_path)


def test_an_evaluation_also_scores_the_training_samples(tmp_path: Path) -> None:
    # Prepare
    run, _ = make_run(tmp_path, rounds=2, epochs=4, **{"local.learning-rate": 0.3})

    # Execute
    run.go()

    # Assert: the mean over all training samples, none of them an observer's
    for event in rounds_of(tmp_path):
        samples = {n: r.samples for n, r in run.state.clients.items() if r.role == "train"}
        told = {n: m["fit_accuracy"] for n, m in event["clients"].items() if "fit_accuracy" in m}
        assert told.keys() == samples.keys() != event["clients"].keys()
        right = sum(told[name] * samples[name] for name in told)
        assert event["fit_accuracy"] == pytest.approx(right / sum(samples.values()))
    first, second = rounds_of(tmp_path)
    # All clients train, so that a round begins with the models which the one before was judged with
    assert first["fit_accuracy"] != first["train_accuracy"]
    assert second["fit_accuracy"] != first["fit_accuracy"]


def test_flowers_own_loop_can_drive_the_strategy(tmp_path: Path) -> None:
    from flwr.app import ConfigRecord

    trial, grid = make_run(tmp_path)
    run = Run(trial.config, trial.directory)
    roster = Roster(grid, run.scenario.classes, window=0)  # type: ignore[arg-type]
    strategy = ClusteredStrategy(run.rounds, roster, run.layout, grid)  # type: ignore[arg-type]
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))  # type: ignore[arg-type]
    replies = list(grid.pull_messages(list(grid.push_messages(messages))))

    _, metrics = strategy.aggregate_train(1, replies)
    asked = list(strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), grid))  # type: ignore[arg-type]
    answers = list(grid.pull_messages(list(grid.push_messages(asked))))
    judged = strategy.aggregate_evaluate(1, answers)

    assert run.rounds.state.round == 1
    assert judged is not None
    assert {"local_accuracy", "global_accuracy"} <= set(judged)
    assert metrics is not None
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_over_messages_as_it_does_in_a_plain_loop(
    tmp_path: Path, algorithm: str
) -> None:
    # Prepare: CFL splits its one cluster in the second round
    settings = {"algorithm": algorithm, "cfl.warmup": 1, "cfl.eps1": 99.0, "cfl.eps2": 1e-9}
    run, _ = make_run(tmp_path, **settings)
    plain = Federation(load_config(of_one_algorithm({**SMALL, **settings})))

    # Execute
    run.go()
    for _ in range(3):
        plain.round()

    # Assert
    assert run.state.clusters == plain.state.clusters
    for cluster, vector in plain.state.models.items():
        np.testing.assert_array_equal(run.state.models[cluster], vector)
    expected = {name: m["accuracy"] for name, m in plain.evaluate().items()}
    last = rounds_of(tmp_path)[-1]["clients"]
    assert {name: m["accuracy"] for name, m in last.items()} == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_resumes_to_the_same_models(tmp_path: Path, algorithm: str) -> None:
    # Prepare: three rounds at once, and three with a new server and new nodes after the first
    settings = {
        "algorithm": algorithm, "cfl.warmup": 1, "cfl.eps1": 99.0, "cfl.eps2": 1e-9,
        "fraction": 0.8, "optimizer": "momentum",
    }  # fmt: skip
    unbroken, _ = make_run(tmp_path / "a", **settings, **{"state-dir": str(tmp_path / "a/states")})
    unbroken.go()
    states = {"state-dir": str(tmp_path / "b/states")}
    first, _ = make_run(tmp_path / "b", **{**settings, **states, "rounds": 1})
    first.go()

    # Execute
    second, _ = make_run(tmp_path / "b", **settings, **states, resume=True)
    second.go()

    # Assert
    for cluster, vector in unbroken.state.models.items():
        np.testing.assert_allclose(second.state.models[cluster], vector, atol=1e-6)
    final = [rounds_of(tmp_path / part)[-1]["clients"] for part in ("a", "b")]
    assert final[0] == final[1]


def test_metrics_reach_tensorboard_and_a_broken_logger_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run, _ = make_run(tmp_path, loggers="tensorboard,wandb")

    run.go()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    told = [(e["round"], e["loss"]) for e in rounds_of(tmp_path)]
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [
        (number, pytest.approx(loss)) for number, loss in told
    ]
    assert len(told) == 3
    assert summary_of(tmp_path)["status"] == "completed"
