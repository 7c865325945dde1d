"""One bad client against the whole server side, with the real client app behind it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from grid import InMemoryGrid, deltas_of, repacked
from settings_of import PLAIN

from fedrc_flwr.config import load_config
from fedrc_flwr.records import Parcel
from fedrc_flwr.report.log import read_events
from fedrc_flwr.state import ServerState
from server_app.app import run_on_flower

SETTINGS = {
    **PLAIN, "rounds": 8, "data.clients": 6, "data.concept-shares": "1.0",
    "data.corrupted-shares": "0.0", "model.hidden": 16, "run.evaluate-every": 4, "local.epochs": 2,
    "federation.deadline": 60.0,
}  # fmt: skip
#: The published EM with two models, and discovery, which begins with one.
STARTS: dict[str, dict[str, Any]] = {
    "paper": {"fedrc.clusters": 2},
    "discover": {"fedrc.start": "discover", "fedrc.discover-after": 3},
}
Change = Callable[[Message], None]


def run(directory: Path, start: str, attack: Any = None, **settings: Any) -> ServerState:
    """A run in which client-1 attacks; without an attack, it is not there."""
    given = {**SETTINGS, **STARTS[start], **settings}
    config = load_config({"server.max-norm": 1.5, **given}).placed(directory)
    grid = InMemoryGrid(7, dict(config.to_dict()))
    if attack is None:
        grid.offline.add(101)
    else:
        grid.behaviours[101] = attack
    return run_on_flower(config, directory, grid).rounds.state  # type: ignore[arg-type]


def in_training(change: Change) -> Any:
    def act(message: Message, answer: Any) -> Message:
        reply: Message = answer()
        if message.metadata.message_type == "train" and not reply.has_error():
            change(reply)
        return reply

    return act


def of_1e30(reply: Message) -> None:
    def enlarge(parcel: Parcel) -> None:
        for name in deltas_of(parcel):
            parcel.arrays[name] = np.full_like(parcel.arrays[name], 1e30)

    repacked(reply, enlarge)


def with_1e12_samples(reply: Message) -> None:
    reply.content["reply"]["samples"] = 10**12


def with_invented_counts(reply: Message) -> None:
    def invent(parcel: Parcel) -> None:
        counts = np.zeros_like(parcel.arrays["label-counts"])
        counts[0, 0], counts[0, 1] = 1e9, -1e9
        parcel.arrays["label-counts"] = counts

    repacked(reply, invent)


def with_junk(reply: Message) -> None:
    reply.content["junk"] = ArrayRecord({"a": Array(np.zeros(1 << 20))})


def with_text(reply: Message) -> None:
    reply.content["reply"] = ConfigRecord({**reply.content["reply"], "note": "x" * (1 << 20)})


ATTACKS: dict[str, tuple[Change, str]] = {
    "an update of 1e30": (of_1e30, "times the median of"),
    "10^12 samples": (with_1e12_samples, "claims 1000000000000 samples, but enrolled with"),
    "invented counts": (with_invented_counts, "label counts are from -1e+09 to 1e+09"),
    "a megabyte of junk": (with_junk, "unknown records, such as 'junk'"),
    "a megabyte of text": (with_text, "unknown values, such as 'note'"),
}


def rounds_of(directory: Path) -> list[dict[str, Any]]:
    return [e for e in read_events(directory / "metrics.jsonl") if e["event"] == "round"]


@pytest.fixture(scope="module")
def without_it(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ServerState]:
    """The state after the same run without client-1."""

    @functools.cache
    def after(start: str) -> ServerState:
        folder = tmp_path_factory.mktemp("without")
        return run(folder, start, **{"federation.min-clients": 5})

    return after


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("start", STARTS)
def test_bad_client_is_named_put_into_quarantine_and_changes_nothing(
    tmp_path: Path, start: str, attack: str, without_it: Callable[[str], ServerState]
) -> None:
    change, words = ATTACKS[attack]

    state = run(tmp_path / "run", start, in_training(change))
    without = without_it(start)

    events = rounds_of(tmp_path / "run")
    assert all(words in event["strikes"]["client-1"] for event in events[:3])
    assert all(event["quarantined"] == ["client-1"] for event in events[2:])
    assert all(event["attempts"] == 1 and event["replied"] == 5 for event in events)
    assert state.clients["client-1"].label_counts is None
    assert state.clusters == without.clusters
    for cluster, model in without.models.items():
        np.testing.assert_allclose(state.models[cluster], model, rtol=1e-4, atol=1e-5)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["quarantined"] == ["client-1"]


@pytest.mark.parametrize("start", STARTS)
def test_claim_at_enrolment_gives_no_more_weight_than_ten_clients(
    tmp_path: Path, start: str
) -> None:
    def scale(parcel: Parcel) -> None:
        counts = parcel.arrays["label-counts"]
        parcel.arrays["label-counts"] = counts * (10**12 / counts.sum())

    def enrols_with_1e12(message: Message, answer: Any) -> Message:
        reply: Message = answer()
        record = {"query.enrol": "enrolment", "train": "reply"}.get(message.metadata.message_type)
        if record is not None:
            reply.content[record]["samples"] = 10**12
        if record == "reply":  # counts that fit the claim
            repacked(reply, scale)
        return reply

    state = run(tmp_path, start, enrols_with_1e12, rounds=2)

    honest = [r.samples for n, r in state.clients.items() if n != "client-1" and r.role == "train"]
    counts = state.clients["client-1"].label_counts
    assert counts is not None
    assert state.clients["client-1"].samples == 10 * np.median(honest)
    assert counts.sum() == pytest.approx(10 * np.median(honest))


def test_silent_client_does_not_cost_a_deadline_in_every_round(tmp_path: Path) -> None:
    def silent(message: Message, answer: Any) -> Message | None:
        return None if message.metadata.message_type in ("train", "evaluate") else answer()

    settings = {"federation.deadline": 1.0, "run.evaluate-every": 1}
    state = run(tmp_path, "paper", silent, **settings)

    events = rounds_of(tmp_path)
    # Asked in rounds 1 and 2, again in 4 and in 8, and never for an evaluation in the same round
    late = [event["round"] for event in events if "client-1" in event["failed"]]
    assert late == [1, 2, 4, 8]
    assert [e.get("resting") for e in events[1:4]] == [{"client-1": 4}, None, {"client-1": 8}]
    assert all(event["replied"] == 5 for event in events)
    assert state.clients["client-1"].strikes == 0
