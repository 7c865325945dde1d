"""When a simulation counts as ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedrc_flwr import simulation
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import Event, MetricsLog


@pytest.fixture(autouse=True)
def hours_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by ten seconds whenever somebody waits."""
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += 10.0

    monkeypatch.setattr(simulation.time, "sleep", sleep)
    monkeypatch.setattr(simulation.time, "monotonic", lambda: clock.now)


def follow(
    directory: Path, monkeypatch: pytest.MonkeyPatch, runs: Iterator[bool], statuses: Iterator[str]
) -> list[Event]:
    followed = simulation._Simulation(directory / "home", directory)
    monkeypatch.setattr(followed, "_runs", lambda: next(runs))
    followed._control = SimpleNamespace(status=lambda run: next(statuses))  # type: ignore[assignment]
    events: list[Event] = []
    followed.follow(events.append)
    return events


def test_a_process_that_gives_way_to_another_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prepare: seen, gone, seen again writing a round, gone for good
    log = MetricsLog(tmp_path)

    def runs() -> Iterator[bool]:
        yield from (False, True, False, False)
        log.append({"event": "round", "round": 1})
        yield from (True, False)

    # Execute
    statuses = iter(["starting", "running", "finished:completed"])
    events = follow(tmp_path, monkeypatch, runs(), statuses)

    # Assert
    assert [event["round"] for event in events] == [1]
    assert next(statuses, None) is None


def test_a_run_that_is_gone_without_flower_knowing_is_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def statuses() -> Iterator[str]:
        while True:
            asked.append(1)
            yield "running"

    def runs() -> Iterator[bool]:
        yield True
        while True:
            yield False

    assert follow(tmp_path, monkeypatch, runs(), statuses()) == []
    assert len(asked) > simulation.START_SECONDS / 10 - 2


def test_a_run_that_never_appears_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never() -> Iterator[bool]:
        while True:
            yield False

    with pytest.raises(RunError, match="did not start"):
        follow(tmp_path, monkeypatch, never(), iter([]))
