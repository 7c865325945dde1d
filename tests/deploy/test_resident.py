"""The node's own process: what it checks, what it keeps, and what it says when things go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.app import Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from loopback import node_yaml
from tiny_app import COUNTING, FakeFleet, bundle_of

from deploy.bundle import hash_of
from deploy.files import read_node_file
from deploy.node import warm
from deploy.node.resident import QUICK, SLOW, ResidentNode, Stopped, pause
from deploy.node.tally import Tally
from deploy.node.warm import WarmWorker

ANY = {"policy": {"apps": ["any"]}}


class Setup:
    """A node with a worker of its own, and a fleet that tells what it sent."""

    def __init__(self, folder: Path, bundles: dict[int, bytes], **settings: Any) -> None:
        self.path = node_yaml(folder, **{**ANY, **settings})
        self.fleet = FakeFleet(bundles)
        self.worker = WarmWorker(read_node_file(self.path))
        self.tally = Tally()
        self.node = ResidentNode(self.path, self.fleet, self.worker, self.tally)  # type: ignore[arg-type]

    def ask(self, run: int = 1, **asked: Any) -> Message:
        """The node's reply to a message of a run."""
        before = len(self.fleet.replies)
        self.node._handle(*self.fleet.message(run, **asked))
        (reply,) = self.fleet.replies[before:]
        return reply

    def answer(self, run: int = 1, **asked: Any) -> dict[str, Any]:
        reply = self.ask(run, **asked)
        assert reply.has_content(), reply.error
        return dict(reply.content["answer"])


Make = Callable[..., Setup]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))  # where apps are unpacked
    made: list[Setup] = []

    def build(bundles: dict[int, bytes], **settings: Any) -> Setup:
        made.append(Setup(tmp_path / "site", bundles, **settings))
        return made[-1]

    yield build
    for setup in made:
        setup.worker.stop()


def workers() -> list[psutil.Process]:
    """This process's workers, without the copies that they make of themselves."""
    children = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
    return [c for c in children if "deploy.node.worker" in " ".join(c.cmdline())]


def test_messages_of_a_run_share_a_process_and_the_state_in_flowers_context(
    make: Make, tmp_path: Path
) -> None:
    setup = make({1: bundle_of(tmp_path / "app"), 2: bundle_of(tmp_path / "copy")})

    first, second = setup.answer(), setup.answer()
    other_run = setup.answer(2)

    assert (first["times"], second["times"], other_run["times"]) == (1, 2, 1)
    assert first["process"] == second["process"] == other_run["process"] != os.getpid()
    assert first["node"] == "hospital-a"
    assert setup.tally.messages == {"train": 3}
    assert setup.tally.workers == 1
    assert setup.tally.worker_memory > 0
    assert len(setup.fleet.confirmed) == 3


def test_another_app_gets_another_process_and_the_first_one_ends(
    make: Make, tmp_path: Path
) -> None:
    bundles = {1: bundle_of(tmp_path / "one"), 2: bundle_of(tmp_path / "other", told="second")}
    setup = make(bundles)

    first, second, again = setup.answer(1), setup.answer(2), setup.answer(1)

    assert [a["told"] for a in (first, second, again)] == ["first", "second", "first"]
    assert len({a["process"] for a in (first, second, again)}) == 3
    assert again["times"] == 2, "the state is the node's, not the process's"
    assert [worker.pid for worker in workers()] == [again["process"]]


def test_an_app_that_is_not_allowed_is_not_imported_while_another_one_is_warm(
    make: Make, tmp_path: Path
) -> None:
    loot = tmp_path / "loot"
    allowed = bundle_of(tmp_path / "allowed")
    hostile = bundle_of(tmp_path / "hostile", f"    pathlib.Path({str(loot)!r}).touch()\n")
    setup = make({1: allowed, 2: hostile}, policy={"apps": [hash_of(allowed)]})
    process = setup.answer()["process"]

    reply = setup.ask(2)

    assert reply.has_error()
    assert "policy" in reply.error.reason
    assert not loot.exists()
    assert setup.answer()["process"] == process
    assert setup.tally.refused == {"app-not-allowed": 1}


def test_a_changed_policy_is_in_force_from_the_next_message_on(make: Make, tmp_path: Path) -> None:
    setup = make({1: bundle_of(tmp_path / "app")})
    assert setup.answer()["times"] == 1

    text = setup.path.read_text()
    setup.path.write_text(text.replace("- any", "- installed"))
    refused = setup.ask()
    setup.path.write_text(text.replace("policy:", "policy:\n  least-noise: 2.0"))
    noiseless = setup.ask()
    setup.path.write_text("name: [broken")
    unreadable = setup.ask()
    setup.path.write_text(text)

    assert all(reply.has_error() for reply in (refused, noiseless, unreadable))
    assert str(tmp_path) not in unreadable.error.reason
    assert setup.answer()["times"] == 2


DEADLY = """
    if told.get("die"):
        os._exit(3)
    if told.get("fail"):
        raise ValueError("patient 4711 in /home/secret")
"""


@pytest.mark.parametrize("isolated", [False, True])
def test_a_worker_that_dies_is_told_at_once_and_replaced(
    make: Make, tmp_path: Path, isolated: bool
) -> None:
    setup = make({1: bundle_of(tmp_path / "app", DEADLY + COUNTING)}, isolate_tasks=isolated)
    assert setup.answer()["times"] == 1

    died, failed = setup.ask(die=True), setup.ask(fail=True)

    assert died.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert failed.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert "4711" not in failed.error.reason
    assert "/home" not in failed.error.reason
    assert setup.answer()["times"] == 2
    assert setup.tally.died == 1
    assert setup.tally.workers == 2
    assert len(workers()) == 1


def test_a_task_in_isolation_is_a_copy_of_the_worker_and_leaves_nothing(
    make: Make, tmp_path: Path
) -> None:
    body = "    os.environ['LEFT'] = os.environ.get('LEFT', '') + 'x'\n" + COUNTING.replace(
        '"told":', '"left": os.environ["LEFT"], "told":'
    )
    setup = make({1: bundle_of(tmp_path / "app", body)}, isolate_tasks=True)

    first, second = setup.answer(), setup.answer()

    assert first["process"] != second["process"]
    assert (first["left"], second["left"]) == ("x", "x")
    assert second["times"] == 2
    (worker,) = workers()
    assert worker.pid not in (first["process"], second["process"])


def test_a_worker_above_its_memory_is_replaced_after_the_task(make: Make, tmp_path: Path) -> None:
    setup = make({1: bundle_of(tmp_path / "app")}, worker_memory=1)

    first, second = setup.answer(), setup.answer()

    assert first["process"] != second["process"]
    assert second["times"] == 2
    assert workers() == []


def test_a_worker_is_let_go_after_a_long_silence(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make({1: bundle_of(tmp_path / "app")})
    setup.answer()
    setup.worker.rest()
    assert len(workers()) == 1

    monkeypatch.setattr(warm, "KEEP_SECONDS", -1.0)
    setup.worker.rest()

    assert workers() == []
    assert setup.answer()["times"] == 2


def test_an_app_that_cannot_be_imported_is_an_error_and_gets_a_new_process(
    make: Make, tmp_path: Path
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    app = tmp_path / "app"
    bundle_of(app)
    source = app / "tiny" / "app.py"
    source.write_text(
        f"import pathlib\nassert not pathlib.Path({str(flag)!r}).exists()\n{source.read_text()}"
    )
    setup = make({1: build_fab_from_disk(app)})

    assert setup.ask().error.code == ErrorCode.LOAD_CLIENT_APP_EXCEPTION
    flag.unlink()
    assert setup.answer()["times"] == 1


def test_a_message_that_is_too_large_is_refused_and_the_node_goes_on(
    make: Make, tmp_path: Path
) -> None:
    setup = make({1: bundle_of(tmp_path / "app")}, largest_message=1)

    large = setup.ask(much="x" * 1_100_000)

    assert "largest-message" in large.error.reason
    assert setup.answer()["times"] == 1


FORGING = """
    answer = Message(RecordDict({"answer": ConfigRecord({"times": 0})}), reply_to=message)
    answer.metadata.__dict__["_run_id"] = 99
    return answer
"""


def test_a_reply_to_another_message_does_not_leave_the_node(make: Make, tmp_path: Path) -> None:
    setup = make({1: bundle_of(tmp_path / "app", FORGING)})

    reply = setup.ask()

    assert reply.has_error()
    assert reply.metadata.run_id == 1


def test_a_node_that_is_stopped_in_mid_training_says_so_and_signs_off(
    make: Make, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    body = f"    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(600)\n"
    setup = make({1: bundle_of(tmp_path / "app", body)})

    def stop() -> None:
        while not begun.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    def stopped(number: int, frame: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stopped)
    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(Stopped):
            setup.node._handle(*setup.fleet.message(1))
        setup.node.leave()
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join()

    (reply,) = setup.fleet.replies
    assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
    assert "stopped" in reply.error.reason
    assert setup.fleet.signed_off
    assert workers() == []


def test_a_worker_does_not_outlive_a_node_that_was_killed(tmp_path: Path) -> None:
    script = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
from pathlib import Path
from test_resident import Setup
from tiny_app import bundle_of
setup = Setup(Path({str(tmp_path / "site")!r}), {{1: bundle_of(Path({str(tmp_path / "app")!r}))}})
answer = setup.answer()
print(answer["process"], flush=True)
time.sleep(600)
"""
    home = {**os.environ, "FLWR_HOME": str(tmp_path / "flower")}
    node = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=home
    )
    assert node.stdout is not None
    worker = psutil.Process(next(int(line) for line in node.stdout if line.strip().isdecimal()))

    node.kill()
    node.wait()

    gone, _ = psutil.wait_procs([worker], timeout=30)
    assert gone or worker.status() == psutil.STATUS_ZOMBIE


def test_questions_are_frequent_in_a_run_and_rare_without_one() -> None:
    assert pause(silence=0.0, answer=0.0) == QUICK
    assert pause(silence=3600.0, answer=0.0) == SLOW
    assert QUICK < pause(silence=20.0, answer=0.0) < SLOW
    assert QUICK < pause(silence=0.0, answer=0.05) < SLOW, "a busy SuperLink is asked less"
    assert pause(silence=0.0, answer=60.0) == SLOW


REFUSING = """
    class PolicyError(Exception):
        code = str(told["code"])

    if told["how"] == "reply":
        answer = {"code": str(told["code"]), "name": "a"}
        return Message(RecordDict({"refusal": ConfigRecord(answer)}), reply_to=message)
    if told["how"] == "samples":
        answer = {"samples": 215, "times": 1}
        return Message(RecordDict({"answer": ConfigRecord(answer)}), reply_to=message)
    try:
        raise PolicyError if told["how"] == "policy" else ValueError
    except Exception:
        raise RuntimeError("told in other words") from None
"""


def test_what_the_app_refuses_is_counted_by_reason_and_apart_from_failures(
    make: Make, tmp_path: Path
) -> None:
    setup = make({1: bundle_of(tmp_path / "app", REFUSING)})

    for how, code in (
        ("policy", "epsilon-spent"), ("policy", "/home/me/patients.csv"), ("reply", "no-data"),
        ("other", ""), ("samples", ""), ("samples", ""),
    ):  # fmt: skip
        setup.ask(how=how, code=code)

    assert setup.tally.refused == {"epsilon-spent": 1, "failed": 1, "no-data": 1}
    assert setup.tally.failed == 1
    assert setup.tally.samples == 430
