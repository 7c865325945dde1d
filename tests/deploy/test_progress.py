"""What `fedrc run` prints while it waits."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.progress import lines_of

WAITING: dict[str, Any] = {
    "event": "waiting", "trainers": 3, "everybody": 0, "training": [], "observing": [],
    "asked": [], "offline": [], "refused": [], "seconds": 90,
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "nodes", "online": ["a", "b"], "offline": ["c"]},
         "nodes online: a, b; offline: c"),
        ({"event": "nodes", "online": [], "offline": ["c"]}, "nodes online: none; offline: c"),
        ({"event": "submitted", "run_id": "7"},
         "submitted as Flower's run 7; waiting for the server app"),
        ({"event": "pending", "seconds": 31.2},
         "the run has not been picked up for 31 seconds: is `fedrc serverapp s.yaml` running?"),
        ({"event": "enrolled", "client": "a", "role": "train", "samples": 40},
         "a enrolled: train, 40 samples"),
        ({"event": "refused", "client": "a", "reason": "its table has no column 'crp'"},
         "a is not enrolled: its table has no column 'crp'"),
        ({**WAITING, "asked": ["a"], "offline": ["c"]},
         "waiting for clients, up to 90 more seconds; 0 of 3 training clients; no answer yet from "
         "a; offline c"),
        ({**WAITING, "everybody": 4, "training": ["a", "b"], "observing": ["o"], "refused": ["c"]},
         "waiting for clients, up to 90 more seconds; 3 of 4 clients: a, b, o; not enrolled c"),
    ],
)  # fmt: skip
def test_events_of_the_start_in_words(event: dict[str, Any], line: str) -> None:
    assert lines_of(event, "s.yaml") == [line]


def test_without_nodes_it_says_how_to_get_some() -> None:
    (line,) = lines_of({"event": "nodes", "online": [], "offline": []}, "s.yaml")

    assert line.startswith("no nodes are registered: `fedrc node key` on a node")


def test_rounds_are_left_to_the_terminal() -> None:
    assert lines_of({"event": "round", "round": 1}, "s.yaml") == []
