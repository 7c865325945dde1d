"""Following a run and resuming it, against a stand-in for Flower's control interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loopback import superlink_file

from deploy import submit
from deploy.control import FORGOTTEN, Node
from deploy.files import SuperLinkFile
from deploy.submit import Lookout, follow, run
from fedrc_flwr.config import RunConfig, load_config
from fedrc_flwr.errors import RunError
from fedrc_flwr.report.log import write_json
from server_app.names import registered_names

Step = Callable[[Path], str]


def note(directory: Path, **event: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def checkpoint(directory: Path) -> None:
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    (directory / "checkpoints" / "round-000001.safetensors").touch()


def training(number: int) -> Step:
    def step(directory: Path) -> str:
        note(directory, event="round", round=number)
        checkpoint(directory)
        return "running"

    return step


def starting(directory: Path) -> str:
    return "pending"


def unanswered(directory: Path) -> str:
    """The SuperLink is away for a moment."""
    return ""


def completed(directory: Path) -> str:
    write_json(directory / "summary.json", {"status": "completed", "rounds": 2})
    return "finished:completed"


def failed_by_itself(directory: Path) -> str:
    write_json(directory / "summary.json", {"status": "failed", "reason": "too few replies"})
    return "finished:completed"


def killed(directory: Path) -> str:
    return "finished:failed"


def forgotten(directory: Path) -> str:
    """The SuperLink has come back with another database."""
    return FORGOTTEN


class Control:
    """Each submitted run goes through one list of steps, a step each time its status is asked."""

    def __init__(self, directory: Path, *attempts: list[Step], log: str = "") -> None:
        self._directory = directory
        self._attempts = list(attempts)
        self._steps: list[Step] = []
        self._log = log
        self.submitted: list[dict[str, Any]] = []
        self.apps: list[Path] = []

    def run(self, app: Path, settings: Mapping[str, Any]) -> str:
        if not self._attempts:
            raise RunError("flwr run refused the app: nobody there")
        self._steps = list(self._attempts.pop(0))
        self.apps.append(app)
        self.submitted.append(dict(settings))
        return f"id-{len(self.submitted)}"

    def status(self, run_id: str) -> str:
        assert run_id == f"id-{max(1, len(self.submitted))}"
        return self._steps.pop(0)(self._directory)

    def log(self, run_id: str) -> str:
        return self._log

    def begin(self, steps: list[Step]) -> Control:
        self._steps = list(steps)
        return self


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "STATUS_SECONDS", -1.0)
    monkeypatch.setattr(submit.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(submit, "nodes_of", lambda file: [Node(1, "a", "online")])


@pytest.fixture
def file(tmp_path: Path) -> SuperLinkFile:
    return superlink_file(tmp_path)


def following(directory: Path, *steps: Step, log: str = "") -> tuple[str, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    control = Control(directory, log=log).begin(list(steps))
    reason = follow(
        lambda: control.status("id-1"), lambda: control.log("id-1"), directory, events.append
    )
    return reason, events


# --- follow --------------------------------------------------------------------------------------


def test_a_run_that_both_call_completed_has_nothing_to_complain(tmp_path: Path) -> None:
    reason, _ = following(tmp_path / "a", starting, training(1), unanswered, completed)

    assert reason == ""


def test_completed_for_flower_but_not_for_the_run_is_failed(tmp_path: Path) -> None:
    reason, _ = following(tmp_path / "a", training(1), failed_by_itself)

    assert reason == "too few replies"


def test_completed_without_a_summary_is_failed(tmp_path: Path) -> None:
    reason, _ = following(tmp_path / "a", lambda directory: "finished:completed", log="gone")

    assert reason == "Flower reports finished:completed: gone"


def test_a_summary_of_a_run_that_flower_calls_failed_is_not_believed(tmp_path: Path) -> None:
    def killed_late(directory: Path) -> str:
        completed(directory)
        return "finished:failed"

    reason, _ = following(tmp_path / "a", killed_late, log="gone")

    assert reason == "Flower reports finished:failed: gone"


def test_a_run_that_waits_to_be_picked_up_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 6000, 10))
    monkeypatch.setattr(submit.time, "monotonic", lambda: next(clock))

    _, events = following(tmp_path / "a", *[starting] * 5, training(1), completed)

    assert [event["event"] for event in events] == ["pending", "round"]
    assert events[0]["seconds"] > submit.PENDING_SECONDS


def test_nodes_are_looked_for_until_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "NODES_SECONDS", -1.0)
    rounds: list[int] = []
    looks: list[int] = []
    control = Control(tmp_path / "a").begin([starting, training(1), training(2), completed])

    follow(
        lambda: control.status("id-1"),
        lambda: control.log("id-1"),
        tmp_path / "a",
        lambda event: rounds.append(event["round"]),
        lambda: looks.append(len(rounds)),
    )

    assert rounds == [1, 2]
    assert looks == [0, 0]


def test_a_killed_run_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    log = "\n".join([f"line {number}\n" for number in range(30)])

    reason, _ = following(tmp_path / "a", killed, log=log)

    assert reason.startswith("Flower reports finished:failed: line 20\nline 21\n")
    assert reason.endswith("line 29")


def test_metrics_are_passed_on_in_order_and_once(tmp_path: Path) -> None:
    def last_words(directory: Path) -> str:
        note(directory, event="round", round=3)
        return completed(directory)

    _, events = following(tmp_path / "a", training(1), starting, training(2), last_words)

    assert [event["round"] for event in events] == [1, 2, 3]


def test_what_an_earlier_run_noted_is_not_passed_on(tmp_path: Path) -> None:
    note(tmp_path / "a", event="round", round=1)

    _, events = following(tmp_path / "a", training(2), completed)

    assert [event["round"] for event in events] == [2]


def test_flower_is_not_asked_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A minute passes with each glance at the clock: asked once per STATUS_SECONDS, not per look.
    clock = iter(range(0, 6000, 60))
    monkeypatch.setattr(submit, "STATUS_SECONDS", 500.0)
    monkeypatch.setattr(submit.time, "monotonic", lambda: next(clock))
    looks = []
    monkeypatch.setattr(submit.time, "sleep", looks.append)

    reason, _ = following(tmp_path / "a", starting, completed)

    assert reason == ""
    assert len(looks) > 2, "there were more looks at the files than questions"


# --- the nodes -----------------------------------------------------------------------------------


def test_who_is_online_is_told_when_it_changes_and_written_for_the_run(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, nameless = Node(1, "a", "online"), Node(2, "b", "offline"), Node(3, "", "online")
    seen = iter([[a, b], [a, b], RunError("away"), [a, replace(b, status="online"), nameless]])

    def nodes_of(file: SuperLinkFile) -> list[Node]:
        found = next(seen)
        if isinstance(found, RunError):
            raise found
        return found

    monkeypatch.setattr(submit, "nodes_of", nodes_of)
    events: list[dict[str, Any]] = []
    lookout = Lookout(file, file.outputs / "first", events.append)

    for _ in range(4):
        lookout.look()

    assert [(event["online"], event["offline"]) for event in events] == [
        (["a"], ["b"]), (["a", "b", "node 3"], []),
    ]  # fmt: skip
    assert registered_names(file.outputs / "first") == {1: "a", 2: "b", 3: ""}


# --- run -----------------------------------------------------------------------------------------


def started(file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, *attempts: list[Step]) -> Control:
    control = Control(file.outputs / "first", *attempts, log="it died")
    monkeypatch.setattr(submit, "connect", lambda file, scratch: control)
    monkeypatch.setattr(submit, "status_of", lambda file, run_id: control.status(run_id))
    return control


def test_a_run_that_goes_well_is_submitted_once(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [training(1), completed])
    config = load_config({"rounds": 2})
    events: list[dict[str, Any]] = []

    done = run(file, config, "first", events.append, retries=3, app=tmp_path)

    assert done.completed
    assert done.reason == ""
    assert done.summary == {"status": "completed", "rounds": 2}
    assert done.directory == file.outputs / "first"
    assert control.apps == [tmp_path]
    # Every key is handed over, so that neither scenario nor recipe is read again.
    expected = {"run.output-dir": str(file.outputs), "run.name": "first", "resolved": True}
    assert control.submitted == [{**config.to_dict(), **expected}]
    assert control.submitted[0]["rounds"] == 2
    assert control.submitted[0]["run.resume"] is False
    assert [event["event"] for event in events] == ["nodes", "submitted", "round"]


def test_a_run_is_the_operators_where_and_under_what_name(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [completed])
    config = load_config({"run.output-dir": "/elsewhere", "run.name": "other"})

    run(file, config, "first", lambda event: None, app=tmp_path)

    assert control.submitted[0]["run.output-dir"] == str(file.outputs)
    assert control.submitted[0]["run.name"] == "first"


def test_a_retry_resumes_only_from_a_checkpoint(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [killed], [training(1), killed], [training(2), completed])
    events: list[dict[str, Any]] = []

    done = run(file, RunConfig(), "first", events.append, retries=5, app=tmp_path)

    assert done.completed
    assert [settings["run.resume"] for settings in control.submitted] == [False, False, True]
    retries = [event for event in events if event["event"] == "retry"]
    assert [event["attempt"] for event in retries] == [1, 2]
    assert all("it died" in event["reason"] for event in retries)
    assert [event["round"] for event in events if event["event"] == "round"] == [1, 2]


def test_retries_come_to_an_end(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, *[[killed]] * 5)
    events: list[dict[str, Any]] = []

    done = run(file, RunConfig(), "first", events.append, retries=2, app=tmp_path)

    assert not done.completed
    assert done.reason == "Flower reports finished:failed: it died"
    assert len(control.submitted) == 3
    retries = [event for event in events if event["event"] == "retry"]
    assert len(retries) == 2, "the last failure is the result, not another retry"


def test_a_run_that_the_superlink_has_forgotten_is_resumed_at_once(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [training(1), forgotten], [training(2), completed])
    events: list[dict[str, Any]] = []

    done = run(file, RunConfig(), "first", events.append, retries=1, app=tmp_path)

    assert done.completed
    assert [settings["run.resume"] for settings in control.submitted] == [False, True]
    (retry,) = [event for event in events if event["event"] == "retry"]
    assert "its database was lost" in retry["reason"]


def test_a_run_that_was_stopped_is_not_tried_again(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [training(1), lambda directory: "finished:stopped"])

    done = run(file, RunConfig(), "first", lambda event: None, retries=3, app=tmp_path)

    assert (done.completed, done.reason) == (False, "it was stopped")
    assert len(control.submitted) == 1


def test_without_retries_a_failure_is_final(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [training(1), failed_by_itself], [completed])

    done = run(file, RunConfig(), "first", lambda event: None, app=tmp_path)

    assert not done.completed
    assert "too few replies" in done.reason
    assert done.summary["status"] == "failed"
    assert len(control.submitted) == 1


def test_asked_to_resume_every_attempt_resumes(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [killed], [completed])

    run(file, RunConfig().resumed(), "first", lambda event: None, retries=1, app=tmp_path)

    assert [settings["run.resume"] for settings in control.submitted] == [True, True]


@pytest.mark.parametrize(("told", "expected"), [(4, 4), (0, 0)], ids=["before", "after"])
def test_a_retry_goes_back_again_unless_the_run_has_done_so(
    told: int,
    expected: int,
    file: SuperLinkFile,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def dies(directory: Path) -> str:
        write_json(directory / "config.json", {"run.resume-round": told})
        checkpoint(directory)
        return killed(directory)

    control = started(file, monkeypatch, [dies], [completed])

    run(file, RunConfig().resumed(4), "first", lambda event: None, retries=1, app=tmp_path)

    assert [given["run.resume-round"] for given in control.submitted] == [4, expected]


def test_the_summary_of_an_earlier_attempt_is_not_taken_for_this_ones(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    completed(file.outputs / "first")
    started(file, monkeypatch, [lambda directory: "finished:completed"])

    done = run(file, RunConfig().resumed(), "first", lambda event: None, app=tmp_path)

    assert not done.completed
    assert done.summary == {}


def test_a_refused_submission_is_an_error(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started(file, monkeypatch)

    with pytest.raises(RunError, match="refused the app"):
        run(file, RunConfig(), "first", lambda event: None, retries=2, app=tmp_path)


def test_the_connection_is_the_one_of_the_file(file: SuperLinkFile, tmp_path: Path) -> None:
    submit.connect(file, tmp_path / "scratch")

    written = (tmp_path / "scratch" / "flwr" / "config.toml").read_text()
    assert f'address = "{file.control}"' in written
    assert f'root-certificates = "{tmp_path / "state" / "control" / "ca.crt"}"' in written


def test_a_superlink_that_stays_away_is_given_up(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(submit, "PATIENCE_SECONDS", -1.0)
    started(file, monkeypatch, [training(1), unanswered, completed])

    done = run(file, RunConfig(), "first", lambda event: None, app=tmp_path)

    assert not done.completed
    assert "the SuperLink has not answered" in done.reason


def test_a_retry_waits_for_a_superlink_that_is_being_restarted(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = started(file, monkeypatch, [killed], [training(1), completed])
    real, refusals = control.run, iter([True, True])

    def busy(app: Path, settings: Mapping[str, Any]) -> str:
        if control.submitted and next(refusals, False):
            raise RunError("connection refused")
        return real(app, settings)

    monkeypatch.setattr(control, "run", busy)

    done = run(file, RunConfig(), "first", lambda event: None, retries=1, app=tmp_path)

    assert done.completed, done.reason
    assert len(control.submitted) == 2
