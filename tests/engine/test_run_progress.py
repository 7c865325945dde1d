"""Where a run's time goes, whom it waits for, and what it tells whoever watches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings_of import configured

from fedrc_flwr.engine import progress
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.engine.progress import (
    AGGREGATION,
    CHECKPOINT,
    EVALUATION,
    STATUS,
    TRAINING,
    WAITING,
    Progress,
    Pulse,
)
from fedrc_flwr.report.log import read_json


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


def test_a_phase_within_another_is_not_part_of_it() -> None:
    clock = Clock()
    told = Progress(clock)

    clock.wait(50)  # belongs to nothing
    with told.phase(TRAINING):
        clock.wait(3)
        for _ in range(2):
            with told.phase(AGGREGATION):
                clock.wait(0.5)
            clock.wait(1)

    assert told.taken() == {TRAINING: 5.0, AGGREGATION: 1.0}
    assert told.taken() == {}


def test_what_a_phase_took_so_far_is_told_and_not_told_again() -> None:
    clock = Clock()
    told = Progress(clock)

    with told.phase(CHECKPOINT):
        clock.wait(2)
        first = told.taken()
        clock.wait(1)

    assert (first, told.taken()) == ({CHECKPOINT: 2.0}, {CHECKPOINT: 1.0})


def test_a_phase_that_fails_has_ended() -> None:
    told = Progress()

    def fail() -> None:
        with told.phase(TRAINING), told.phase(AGGREGATION):
            assert told.now == AGGREGATION
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert told.now == ""


def test_a_round_tells_its_phases_its_members_and_whose_replies_were_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configured(
        scenario="digits", clients=5, samples_per_client=20, hidden=4, observers_per_concept=1,
        rounds=2, evaluate_every=2,
    )  # fmt: skip
    rounds, carrier = in_memory(config)
    silent, struck = carrier.online("train")[:2]
    outstanding: list[int] = []
    real = carrier.deliver

    def deliver(letters, enough=None):  # type: ignore[no-untyped-def]
        for letter, answer in real(letters):
            outstanding.append(rounds.progress.outstanding)
            if letter.trains and letter.name == silent:
                rounds.miss(letter.name)
            elif letter.trains and letter.name == struck:
                rounds.refuse(letter.name, "no honest client sends this")
            else:
                yield letter, answer

    monkeypatch.setattr(carrier, "deliver", deliver)
    log: list[dict[str, Any]] = []

    def told(state: object, metrics: dict[str, Any]) -> None:
        log.append(metrics)

    rounds.run(carrier, 2, 2, told, told)

    first, last, evaluation = log
    assert first["answered"] == sorted(set(carrier.online("train")) - {silent, struck})
    assert outstanding[:5] == [5, 4, 3, 2, 1]
    assert rounds.progress.outstanding == 0
    assert set(first["phases"]) == {WAITING, TRAINING, AGGREGATION}
    assert set(last["phases"]) == {WAITING, TRAINING, AGGREGATION}
    assert set(evaluation["phases"]) == {EVALUATION}
    # By hand: who has the largest weight where.
    weights = [rounds.state.clients[name].mixture_weights() for name in first["answered"]]
    homes = [max(range(len(w)), key=list(w).__getitem__) for w in weights]
    assert last["members"] == [homes.count(k) for k in range(len(last["clusters"]))]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PULSE_SECONDS", 0.01)


def until(condition: Callable[[], bool]) -> None:
    """The test's own time limit ends a wait that is in vain."""
    while not condition():
        pass


@pytest.mark.usefixtures("quick")
def test_the_pulse_tells_what_the_run_does_until_it_ends(tmp_path: Path) -> None:
    told = Progress()
    told.asked(["a", "b"])
    told.answered("a")

    with Pulse(tmp_path, told, lambda: 7):
        until(lambda: (tmp_path / STATUS).exists())
        first = json.loads((tmp_path / STATUS).read_text())
        with told.phase(TRAINING):
            until(lambda: read_json(tmp_path / STATUS).get("phase") == TRAINING)

    assert (first["round"], first["phase"], first["outstanding"]) == (7, "", 1)
    assert first["memory"] > 1_000_000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_pulse_that_cannot_write_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []

    def full(path: Path, content: object) -> None:
        tries.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress, "write_json", full)

    with Pulse(tmp_path, Progress(), lambda: 1):
        until(lambda: len(tries) > 2)

    assert len(tries) > 2
