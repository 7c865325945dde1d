"""What leaves a node when something is wrong with it, and what stays in its own log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app import app as module
from client_app.app import app
from fedrc_flwr import __version__, wire
from fedrc_flwr.engine.admission import Refusal
from fedrc_flwr.errors import DataError, RunError, WireError
from fedrc_flwr.records import ENROL

RUN = {
    "scenario": "none", "recipe": "paper", "data.dataset": "their-own", "data.classes": 3,
    "data.input-shape": "5", "data.concept-shares": "1", "data.corrupted-shares": "0",
    "model.hidden": 4, "fedrc.clusters": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def context_of(**node_config: Any) -> Context:
    keys = {"partition-id": 0, "name": "hospital-a", "version": __version__, **node_config}
    return Context(run_id=1, node_id=9, node_config=keys, state=RecordDict(), run_config=dict(RUN))


def enrol(**node_config: Any) -> RecordDict:
    message = Message(RecordDict(), dst_node_id=9, message_type=ENROL)
    return app(message, context_of(**node_config)).content


def secret_file(folder: Path, columns: int = 5) -> str:
    path = folder / "patients-of-dr-who.npz"
    np.savez(path, x=np.full((20, columns), 1234.5), y=np.arange(20) % 3)
    return str(path)


def test_node_that_can_take_part_says_its_release(tmp_path: Path) -> None:
    content = enrol(dataset=secret_file(tmp_path))

    enrolment = wire.decode_enrolment(content, classes=3, roles=("train",))
    assert (enrolment.name, enrolment.samples, enrolment.version) == (
        "hospital-a", 18, __version__,
    )  # fmt: skip


def test_reason_leaves_the_node_without_its_data_or_paths(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = secret_file(tmp_path, columns=6)
    logging.getLogger("flwr").addHandler(caplog.handler)

    content = enrol(dataset=path)

    refusal = wire.decode_refusal(content)
    assert refusal is not None
    assert (refusal.name, refusal.column) == ("hospital-a", "")
    everything = str(dict(content.config_records["refusal"])) + refusal.reason()
    assert "who" not in everything
    assert str(tmp_path) not in everything
    assert path in caplog.text, "the operator of the node reads what is wrong"
    logging.getLogger("flwr").removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DataError("row 3 of p.csv: 'Smith'", "missing-column", "crp"),
         Refusal("hospital-a", "missing-column")),  # no column of a schema that the run has
        (DataError("row 3 of p.csv: 'Smith'"), Refusal("hospital-a", "data")),
        (ValueError("could not convert 'Smith'"), Refusal("hospital-a", "failed")),
    ],
)  # fmt: skip
def test_codes_of_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: Refusal
) -> None:
    def fail(context: Context) -> Any:
        raise error

    monkeypatch.setattr(module, "participant", fail)

    assert wire.decode_refusal(enrol()) == expected


def test_node_of_another_release_refuses_before_it_reads_any_data() -> None:
    refusal = wire.decode_refusal(enrol(version="7.5.1", dataset="/not/there.npz"))

    assert refusal == Refusal("hospital-a", "version", version="7.5.1")
    assert f"it has fedrc-flwr 7.5.1, but this run needs {__version__}" in refusal.reason()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("could not convert 'Smith'"), "ValueError on the client; its own log"),
        (WireError("speaks schema version 99"), "speaks schema version 99"),
    ],
)
def test_failure_in_a_round_does_not_quote_the_data(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(context: Context) -> Any:
        raise error

    monkeypatch.setattr(module, "participant", fail)
    message = Message(RecordDict(), dst_node_id=9, message_type=MessageType.TRAIN)

    with pytest.raises((RunError, WireError), match=said) as caught:
        app(message, context_of())

    assert "Smith" not in str(caught.value)
