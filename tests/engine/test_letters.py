"""Evaluations that ride on the next round's messages tell what evaluations of their own would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from settings_of import configured

from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.config import RunConfig
from fedrc_flwr.engine.in_process import InProcess, in_memory, run_in_process
from fedrc_flwr.engine.judging import judge
from fedrc_flwr.engine.letters import Letter
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.errors import DivergedError
from fedrc_flwr.report.log import EVALUATED, METRICS, read_events
from fedrc_flwr.state import ServerState

EVERY = 2


def config_of(**settings: Any) -> RunConfig:
    made = {
        "scenario": "digits", "clients": 6, "samples_per_client": 40, "hidden": 8, "seed": 3,
        "observers_per_concept": 1, "rounds": 5, "evaluate_every": EVERY, **settings,
    }  # fmt: skip
    return configured(**made)


def by_hand(
    rounds: Rounds, carrier: InProcess, state: ServerState, decides: bool
) -> dict[str, Any]:
    """The evaluation of a state by everybody, each asked on its own."""
    names = carrier.online("train") + carrier.online("observe")
    broadcast = rounds.algorithm.broadcast(state, state.round, rounds.classes)
    broadcast = replace(broadcast, phase=replace(broadcast.phase, decides=decides))
    answers = {}
    for name in names:
        own = rounds.algorithm.addressed(state, broadcast, name, training=False)
        found = carrier.participants[name].evaluate(own)
        answers[name] = found.widened(own.membership.clusters, state.clusters)
    return judge(answers, state.clients, state.clusters)


@pytest.mark.parametrize(
    "settings",
    [
        {"start": "discover", "discover_after": 3},
        {"start": "discover", "discover_after": 2, "fraction": 0.5},
        {"start": "paper", "clusters": 2, "fraction": 0.5, "prior_rounds": 1},
        {"algorithm": "fedem", "start": "discover", "discover_after": 2, "fraction": 0.5},
        {"algorithm": "apfl", "fraction": 0.5},
        {"start": "paper", "clusters": 2, "fine_tune": True, "shared_body": True},
    ],
    ids=str,
)
def test_every_round_is_told_what_everybody_says_of_its_models(settings: dict[str, Any]) -> None:
    rounds, carrier = in_memory(config_of(**settings))
    expected: dict[int, dict[str, Any]] = {}
    told: dict[int, dict[str, Any]] = {}

    def done(state: ServerState, metrics: dict[str, Any]) -> None:
        if state.round % EVERY == 0 or state.round == 5:
            expected[state.round] = by_hand(rounds, carrier, state, decides=state.round == 5)

    rounds.run(carrier, 5, EVERY, done, lambda state, outcome: told.update({state.round: outcome}))

    assert list(told) == [2, 4, 5]
    for number, outcome in expected.items():
        for key in ("clients", "scores", "fit_accuracy", "local_accuracy", "global_accuracy"):
            assert told[number][key] == outcome[key], (number, key)


class Watched:
    """A carrier that notes what is asked."""

    def __init__(self, carrier: InProcess) -> None:
        self._carrier = carrier
        self.exchanges: list[list[tuple[str, bool, int | None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def deliver(self, letters: list[Letter], enough: Any = None) -> Iterator[tuple[Letter, Any]]:
        self.exchanges.append([(x.name, x.trains, x.evaluated_round) for x in letters])
        yield from self._carrier.deliver(letters)


def test_no_client_is_asked_twice_in_a_round_and_only_the_last_is_evaluated_alone() -> None:
    rounds, carrier = in_memory(config_of(fraction=0.5, start="paper", clusters=2))
    watched = Watched(carrier)

    rounds.run(watched, 5, EVERY, lambda state, metrics: None)

    everybody = set(carrier.participants)
    for number, exchange in enumerate(watched.exchanges[:5], start=1):
        names = [name for name, _, _ in exchange]
        assert len(set(names)) == len(names)
        due = number - 1 if number in (3, 5) else None
        assert {about for _, _, about in exchange} == {due}
        assert set(names) == everybody if due else len(names) == 3
        assert sum(trains for _, trains, _ in exchange) == 3
    assert {(trains, about) for _, trains, about in watched.exchanges[5]} == {(False, 5)}
    assert len(watched.exchanges) == 6


def test_a_client_whose_training_fails_is_evaluated_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds, carrier = in_memory(config_of(start="paper", clusters=2))
    trained = carrier.participants["client-1"].algorithm.train

    def diverges(broadcast: Any, state: Any, runtime: Any) -> Any:
        if runtime.name == "client-1" and broadcast.round == 3:
            raise DivergedError("too far")
        return trained(broadcast, state, runtime)

    monkeypatch.setattr(carrier.participants["client-1"].algorithm, "train", diverges)
    told: dict[int, dict[str, Any]] = {}

    rounds.run(
        carrier, 4, EVERY, lambda state, metrics: None,
        lambda state, outcome: told.update({state.round: outcome}),
    )  # fmt: skip

    assert set(told[2]["clients"]) == set(carrier.participants)


def test_a_run_that_is_stopped_before_the_evaluation_came_back_makes_up_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: round 2 is to be evaluated with round 3, in which the run is stopped
    config = config_of(start="paper", clusters=2)
    run_in_process(config, tmp_path / "whole")
    deliver = InProcess.deliver

    def stopped(self: InProcess, letters: list[Letter], _: Any) -> Iterator[tuple[Letter, Any]]:
        for count, answer in enumerate(deliver(self, letters)):
            if letters[0].broadcast.round == 3 and count == 2:
                raise KeyboardInterrupt
            yield answer

    with monkeypatch.context() as patch:
        patch.setattr(InProcess, "deliver", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_in_process(config, tmp_path / "run")
    between = rounds_of(tmp_path / "run")

    # Execute
    run_in_process(replace(config, run=config.run.resumed(0)), tmp_path / "run")

    # Assert
    assert [event["round"] for event in between] == [1, 2]
    assert not any("clients" in event for event in between)
    after, whole = rounds_of(tmp_path / "run"), rounds_of(tmp_path / "whole")
    assert [event["round"] for event in after] == [1, 2, 3, 4, 5]
    for one, other in zip(after, whole, strict=True):
        assert one.get("clients") == other.get("clients")
        assert one.get("local_accuracy") == other.get("local_accuracy")


def test_a_run_that_was_stopped_before_its_last_evaluation_is_only_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(start="paper", clusters=2, rounds=2)
    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "_evaluate_the_last", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_in_process(config, tmp_path)
    trained = []
    patched = InProcess.deliver

    def deliver(self: InProcess, letters: list[Letter], _: Any) -> Iterator[tuple[Letter, Any]]:
        for letter, answer in patched(self, letters):
            trained.append(isinstance(answer, Reply))
            yield letter, answer

    monkeypatch.setattr(InProcess, "deliver", deliver)
    summary = run_in_process(replace(config, run=config.run.resumed(0)), tmp_path)

    assert not any(trained)
    assert len(trained) > 6
    assert summary["local_accuracy"] == rounds_of(tmp_path)[-1]["local_accuracy"]
    # Once more, and there is nothing left to do.
    trained.clear()
    again = run_in_process(replace(config, run=config.run.resumed(0)), tmp_path)
    assert not trained
    assert again["local_accuracy"] == summary["local_accuracy"]


def rounds_of(directory: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(directory / METRICS) if e["event"] == "round"]


def test_an_evaluation_is_written_after_its_round_and_read_as_part_of_it(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []

    run_in_process(config_of(start="paper", clusters=2), tmp_path, events.append)

    assert [(e["event"], e["round"]) for e in events] == [
        ("round", 1), ("round", 2), (EVALUATED, 2), ("round", 3), ("round", 4), (EVALUATED, 4),
        ("round", 5), (EVALUATED, 5),
    ]  # fmt: skip
    read = {event["round"]: event for event in rounds_of(tmp_path)}
    assert [number for number, event in read.items() if "clients" in event] == [2, 4, 5]
    evaluated = {event["round"]: event for event in events if event["event"] == EVALUATED}
    for number, event in evaluated.items():
        assert read[number]["local_accuracy"] == event["local_accuracy"]
    last = events[-2]["bytes_down"], evaluated[5]["bytes_down"]
    assert read[5]["bytes_down"] == sum(last)
    assert read[5]["loss"] == events[-2]["loss"]
