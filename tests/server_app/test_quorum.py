"""Rounds that close early: slow nodes' replies count later, and hold nobody up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from grid import deltas_of, repacked
from settings_of import configured
from timed import Clock, TimedGrid, event_time

from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.algorithms.places import FOUND
from fedrc_flwr.engine.run import Run
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import read_events
from fedrc_flwr.state import ServerState
from server_app.app import run_on_flower

CLIENTS, OBSERVERS = 6, 3
SLOW = 100  # the node of client-0: it takes 45 seconds, the others 10


def run(
    directory: Path, change: Any = None, slow: float = 45.0, **settings: Any
) -> tuple[Run, list[dict[str, Any]], TimedGrid]:
    given = {
        "scenario": "digits", "clients": CLIENTS, "samples_per_client": 40, "hidden": 8, "seed": 3,
        "observers_per_concept": 1, "rounds": 8, "evaluate_every": 4, "start": "paper",
        "clusters": 2, "quorum": 0.8, **settings,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    config, clock = configured(**given), Clock()
    seconds = {100 + n: 10.0 for n in range(CLIENTS + OBSERVERS)} | {SLOW: slow}
    values = {**config.placed(directory).to_dict(), "resolved": True}
    grid = TimedGrid(CLIENTS + OBSERVERS, values, seconds, clock)
    if change is not None:
        change(grid)
    with event_time(clock):
        done = run_on_flower(config, directory, grid)  # type: ignore[arg-type]
    events = [e for e in read_events(directory / "metrics.jsonl") if e["event"] == "round"]
    return done, events, grid


def test_a_slow_node_holds_nobody_up_and_counts_when_it_answers(tmp_path: Path) -> None:
    _, events, grid = run(tmp_path)

    # Five of six close a round. The slow node's first update arrives in the fifth round.
    assert [round(event["seconds"]) for event in events[:4]] == [10, 10, 10, 10]
    assert [event.get("late") for event in events] == [
        None, None, None, None, {"client-0": 4}, None, None, None,
    ]  # fmt: skip
    assert [event["replied"] for event in events] == [5, 5, 5, 5, 6, 5, 5, 5]
    assert all(event["sampled"] == 6 and not event["failed"] for event in events)
    trained = [node for node, kind in grid.sent if kind == "train"]
    assert trained.count(SLOW) == 2  # it is not asked while it works
    assert trained.count(101) == 8
    assert grid.clock.now < 8 * 10 + 60


def test_without_a_quorum_a_round_waits_for_everybody(tmp_path: Path) -> None:
    _, events, _ = run(tmp_path, quorum=1.0, grace=0.0, rounds=3)

    assert [round(event["seconds"]) for event in events] == [45, 45, 45]
    assert not any("late" in event for event in events)


def test_an_evaluation_waits_for_the_slow_node_but_the_rounds_do_not(tmp_path: Path) -> None:
    _, events, _ = run(tmp_path)

    everybody = {*(f"client-{n}" for n in range(6)), *(f"observer-{n}" for n in range(3))}
    assert [event["round"] for event in events if "clients" in event] == [4, 8]
    assert all(set(event["clients"]) == everybody for event in events if "clients" in event)


def test_an_old_update_counts_less_and_what_it_tells_of_its_client_counts_in_full() -> None:
    reply = Reply(
        10, {0: np.float32([3.0, -6.0])}, np.ones((1, 2)), None, 0.0, 0, {"loss": 1.0}, age=3
    )

    counted = reply.discounted()

    np.testing.assert_allclose(counted.deltas[0], [3.0 / math.sqrt(4), -6.0 / math.sqrt(4)])
    assert counted.label_counts is reply.label_counts
    assert counted.samples == 10


def test_the_late_update_moves_the_models_by_hand(tmp_path: Path) -> None:
    # Prepare: plain averages of one model; what everybody sends is noted
    sent: dict[tuple[int, int], np.ndarray] = {}

    def watch(grid: TimedGrid) -> None:
        def noted(message: Message, answer: Any) -> Message:
            reply: Message = answer()
            if message.metadata.message_type == "train":
                number = int(message.metadata.group_id)
                node = message.metadata.dst_node_id

                def note(parcel: Any) -> None:
                    sent[number, node] = parcel.arrays[deltas_of(parcel)[0]].copy()

                repacked(reply, note)
            return reply

        grid.behaviours = dict.fromkeys(grid.contexts, noted)

    plain = {"clusters": 1, "optimizer": "sgd", "max-norm": 0.0}
    before, _, _ = run(tmp_path / "four", watch, rounds=4, **plain)
    four = dict(sent)
    after, events, _ = run(tmp_path / "five", watch, rounds=5, **plain)

    # Execute: by hand, all clients hold as many samples
    assert events[4]["late"] == {"client-0": 4}
    assert all((sent[key] == value).all() for key, value in four.items())
    fresh = [sent[5, node] for node in range(101, 106)]
    mean = (sum(fresh) + sent[1, SLOW] / math.sqrt(5)) / 6

    # Assert
    np.testing.assert_allclose(
        after.rounds.state.models[0], before.rounds.state.models[0] + mean, atol=1e-6
    )


def test_discovery_goes_on_without_the_slow_node_and_places_it_when_it_answers(
    tmp_path: Path,
) -> None:
    done, events, _ = run(
        tmp_path, start="discover", discover_after=2, rounds=16, clusters=3, samples_per_client=150
    )

    state = done.rounds.state
    assert state.numbers[FOUND] < 6
    found = next(e for e in events if e.get("discovery", {}).get("established"))
    assert "client-0" not in found["discovery"]["clients"]
    # Its first late update is one of the only model that there was: it no longer counts.
    assert state.clients["client-0"].cluster in state.clusters
    concepts = {(r.concept, r.cluster) for r in state.clients.values() if r.role == "train"}
    assert len(concepts) == len({c for c, _ in concepts})


def test_discovery_does_not_wait_for_nodes_that_are_rounds_behind(tmp_path: Path) -> None:
    def two_of_six_are_slow(grid: TimedGrid) -> None:
        grid.seconds = {**grid.seconds, SLOW + 1: 200.0}

    done, events, _ = run(
        tmp_path, two_of_six_are_slow, slow=200.0, start="discover", discover_after=3, rounds=4,
        clusters=3, samples_per_client=150, quorum=0.6,
    )  # fmt: skip

    # Four of six are fewer than the 80 % of the clients that it waits for where all can answer.
    assert done.rounds.state.numbers[FOUND] == 3
    found = next(e for e in events if e.get("discovery", {}).get("established"))
    assert set(found["discovery"]["clients"]) == {f"client-{n}" for n in (2, 3, 4, 5)}


@pytest.mark.parametrize("fault", ["error", "huge"])
def test_a_late_reply_that_cannot_be_used_is_refused_like_any_other(
    tmp_path: Path, fault: str
) -> None:
    def break_it(grid: TimedGrid) -> None:
        def act(message: Message, answer: Any) -> Message:
            if message.metadata.message_type != "train":
                return answer()
            if fault == "error":
                return Message(Error(code=2, reason="disk on fire"), reply_to=message)

            def enlarge(parcel: Any) -> None:
                for name in deltas_of(parcel):
                    parcel.arrays[name] = np.full_like(parcel.arrays[name], 1e30)

            return repacked(answer(), enlarge)

        grid.behaviours[SLOW] = act

    done, events, _ = run(tmp_path, break_it)

    assert done.rounds.state.is_finite()
    assert [list(event["failed"]) for event in events[:6]] == [[], [], [], [], ["client-0"], []]
    assert ("strikes" in events[4]) == (fault == "huge")
    assert done.rounds.state.clients["client-0"].strikes == (fault == "huge")


def test_who_never_answers_is_given_up_at_the_deadline_of_its_own_message(tmp_path: Path) -> None:
    done, events, grid = run(tmp_path, slow=1e9, deadline=35.0, rounds=6)

    # Asked in round 1 at 0 seconds: over after 35, in round 4. Then it is asked again.
    assert [list(event["failed"]) for event in events[:5]] == [[], [], [], ["client-0"], []]
    assert list(events[5]["failed"]) == ["client-0"]  # in the evaluation at the end
    # Once while it was behind, then at both deadlines.
    assert done.rounds.state.clients["client-0"].silent == 3
    assert [node for node, kind in grid.sent if kind == "train"].count(SLOW) == 2


def test_a_round_goes_on_with_late_replies_alone_if_everybody_is_busy(tmp_path: Path) -> None:
    def slow(grid: TimedGrid) -> None:
        grid.seconds = {100 + n: 10.0 * (n + 1) for n in range(CLIENTS)}

    _, events, _ = run(tmp_path, slow, quorum=0.5, min_replies=0.5, rounds=6)

    assert [event["round"] for event in events] == [1, 2, 3, 4, 5, 6]
    assert all(event["attempts"] == 1 for event in events)
    assert any("late" in event for event in events)


def test_a_run_with_late_replies_is_resumed(tmp_path: Path) -> None:
    first, _, _ = run(tmp_path, rounds=4)
    assert first.rounds.state.round == 4

    done, events, _ = run(tmp_path, rounds=8, resume=True)

    assert [event["round"] for event in events] == list(range(1, 9))
    assert done.rounds.state.round == 8
    # Nobody waits any more for what the first run asked.
    assert not any("late" in event for event in events[4:7])


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "cfl", "start": None, "clusters": None},
        {"algorithm": "apfl", "start": None, "clusters": None},
        {"algorithm": "ifca"}, {"algorithm": "fedem"},
        {"aggregation": "median"}, {"optimizer": "adam"}, {"count_noise": 1.0},
        {"transport": "int8"}, {"shared_body": True}, {"adaptive": True, "merge": True},
        {"fraction": 0.5}, {"window": 2},
    ],
    ids=str,
)  # fmt: skip
def test_late_replies_go_with_everything_else(tmp_path: Path, settings: dict[str, Any]) -> None:
    done, events, _ = run(tmp_path, **settings)

    state: ServerState = done.rounds.state
    assert state.is_finite()
    assert state.round == 8
    assert not any(event["failed"] for event in events)


def test_a_quorum_below_the_replies_that_are_needed_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quorum = 0.3: expected at least .*min-replies = 0.5"):
        configured(quorum=0.3)
