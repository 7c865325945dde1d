"""The metrics log: whole lines only, whatever a crash leaves behind."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrc_flwr.report.log import METRICS, MetricsLog, MetricsTail, read_events, write_json


def event(round_number: int, **more: Any) -> dict[str, Any]:
    return {"event": "round", "round": round_number, **more}


def filled(directory: Path, rounds: int) -> tuple[MetricsLog, Path]:
    log = MetricsLog(directory)
    for number in range(1, rounds + 1):
        log.append(event(number))
    return log, directory / METRICS


def rounds_in(path: Path) -> list[int]:
    return [e["round"] for e in read_events(path)]


# --- writing ------------------------------------------------------------------------------------


def test_events_are_appended_one_a_line(tmp_path: Path) -> None:
    _, path = filled(tmp_path / "new", 2)

    MetricsLog(tmp_path / "new").append(event(3, loss=0.5, shares=[0.25, 0.75], name="ü"))

    lines = path.read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        event(1),
        event(2),
        event(3, loss=0.5, shares=[0.25, 0.75], name="ü"),
    ]


def test_text_with_line_breaks_stays_on_its_line(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 0)
    reason = "first\nsecond\r\x85third\u2028fourth"

    log.append(event(1, failed={"ward": reason}))

    assert read_events(path) == [event(1, failed={"ward": reason})]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_become_null(tmp_path: Path, number: float) -> None:
    log, path = filled(tmp_path, 0)

    log.append(event(1, loss=number, deep={"list": [1.0, number, (number,)]}))

    assert "NaN" not in path.read_text()
    assert "Infinity" not in path.read_text()
    assert read_events(path) == [event(1, loss=None, deep={"list": [1.0, None, [None]]})]


@pytest.mark.parametrize("torn", ['{"event": "round", "rou', "{", '{"round": 3}'])
def test_torn_last_line_does_not_swallow_the_next_event(tmp_path: Path, torn: str) -> None:
    _, path = filled(tmp_path, 2)
    with path.open("a") as file:
        file.write(torn)

    MetricsLog(tmp_path).append(event(4))

    assert rounds_in(path) == [1, 2, 4]


def test_torn_only_line_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"event": "rou')

    MetricsLog(tmp_path).append(event(1))

    assert rounds_in(tmp_path / METRICS) == [1]


def test_opening_does_not_change_whole_lines(tmp_path: Path) -> None:
    _, path = filled(tmp_path, 3)
    before = path.read_bytes()

    MetricsLog(tmp_path)

    assert path.read_bytes() == before


# --- reading ------------------------------------------------------------------------------------


def test_file_that_is_not_there_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / METRICS) == []


@pytest.mark.parametrize("noise", [b"{torn", b"[1, 2]", b"3", b"", b"\xff\xfe", b"null"])
def test_lines_that_are_no_events_are_skipped(tmp_path: Path, noise: bytes) -> None:
    log, path = filled(tmp_path, 1)
    path.write_bytes(path.read_bytes() + noise + b"\n")

    log.append(event(2))

    assert rounds_in(path) == [1, 2]


# --- rewinding ----------------------------------------------------------------------------------


def test_rewinding_forgets_later_rounds_only(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 5)
    log.append({"event": "note"})

    log.rewind(3)
    log.append(event(4, again=True))

    assert read_events(path) == [
        event(1),
        event(2),
        event(3),
        {"event": "note"},
        event(4, again=True),
    ]


def test_rewinding_forgets_an_end_that_is_no_longer_one(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 2)
    stopped, completed = ({"event": "end", "rounds": number} for number in (2, 4))
    log.append(stopped)
    log.append(completed)

    log.rewind(3)

    assert read_events(path) == [event(1), event(2), stopped]


def test_rewinding_drops_a_torn_line(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 2)
    with path.open("a") as file:
        file.write('{"event": "round", "rou')

    log.rewind(2)

    assert path.read_text().endswith("}\n")
    assert rounds_in(path) == [1, 2]


def test_rewinding_where_nothing_was_written_is_harmless(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)

    log.rewind(3)

    assert read_events(tmp_path / METRICS) == []


# --- following ----------------------------------------------------------------------------------


def test_tail_gives_each_event_once_as_the_file_grows(tmp_path: Path) -> None:
    tail = MetricsTail(tmp_path / METRICS)
    before = tail.read()
    log, _ = filled(tmp_path, 2)
    first = tail.read()
    log.append(event(3))
    second = tail.read()

    assert before == []
    assert first == [event(1), event(2)]
    assert second == [event(3)]
    assert tail.read() == []


def test_tail_starts_after_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 3)
    tail = MetricsTail(path)

    log.append(event(4))

    assert tail.read() == [event(4)]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 200), max_size=8))
def test_tail_waits_for_the_rest_of_a_line(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("tail") / METRICS
    events = [event(number, name="ü") for number in (1, 2, 3)]
    content = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in events).encode()
    places = sorted({0, *(cut % len(content) for cut in cuts), len(content)})
    tail = MetricsTail(path)

    seen = []
    for start, end in pairwise(places):
        with path.open("ab") as file:
            file.write(content[start:end])
        seen += tail.read()
        assert seen == events[: content[:end].count(b"\n")]

    assert seen == events


def test_tail_goes_on_after_the_file_was_rewound(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 5)
    tail = MetricsTail(path)

    log.rewind(3)
    after_rewinding = tail.read()
    log.append(event(4, again=True))

    assert after_rewinding == []
    assert tail.read() == [event(4, again=True)]


def test_tail_survives_a_file_that_was_rewound_and_grew_beyond_where_it_was(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 5)
    tail = MetricsTail(path)

    log.rewind(3)
    log.append(event(4, note="longer than what was there before, up to the middle of this line"))
    tail.read()
    log.append(event(5, again=True))

    assert tail.read() == [event(5, again=True)]


def test_tail_skips_a_line_that_is_torn(tmp_path: Path) -> None:
    log, path = filled(tmp_path, 1)
    tail = MetricsTail(path)
    with path.open("a") as file:
        file.write('{"event": "rou\n')

    log.append(event(2))

    assert tail.read() == [event(2)]


# --- other files --------------------------------------------------------------------------------


def test_json_file_is_written_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "new" / "summary.json"

    write_json(path, {"epsilon": math.inf, "status": "completed"})

    assert json.loads(path.read_text()) == {"epsilon": None, "status": "completed"}
    assert [p.name for p in path.parent.iterdir()] == ["summary.json"]


def test_json_that_cannot_be_written_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"status": "completed"})

    with pytest.raises(TypeError):
        write_json(path, {"status": object()})

    assert json.loads(path.read_text()) == {"status": "completed"}
