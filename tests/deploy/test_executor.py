"""The node's port: its health, and who may become its executor."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from loopback import node_file

from deploy.files import NodeFile
from deploy.node import executor
from deploy.node.door import Door
from deploy.node.executor import (
    RemoteWorker,
    Stranger,
    _introduced,
    _serve,
    prove_to_executor,
    prove_to_node,
)
from deploy.node.frames import Broken, Outcome, Task, WorkerDied, receive, send
from deploy.node.tally import Tally
from deploy.node.warm import Abandoned

TASK = Task(b"bundle", True, b"tree", {"aa": b"1", "bb": b""}, b"context", 12.5)


class Echo:
    """In place of a worker: its answer says what it was asked."""

    def __init__(self, dies: bool = False) -> None:
        self.dies = dies

    def execute(self, task: Task, asker: socket.socket | None = None) -> Outcome:
        if self.dies:
            raise WorkerDied("exit code -9")
        return Outcome(b"reply", task.message, task.objects, task.context, "", "", len(task.bundle))

    def rest(self) -> None:
        pass


@pytest.fixture
def file(tmp_path: Path) -> NodeFile:
    made = node_file(tmp_path, executor_secret="secret")
    made.secret.write_bytes(b"hush")
    return made


@pytest.fixture
def node(file: NodeFile) -> Iterator[RemoteWorker]:
    """A node that waits for an executor on its port."""
    worker = RemoteWorker(file)
    with closing_door(Door(file.listen, Tally(online=True), worker.welcome)):
        yield worker
        worker.stop()


class closing_door:
    def __init__(self, door: Door) -> None:
        self.door = door

    def __enter__(self) -> None:
        self.door.open()

    def __exit__(self, *_: object) -> None:
        self.door.shutdown()
        self.door.server_close()


def wait_for(node: RemoteWorker) -> None:
    for _ in range(500):
        if node.ready:
            return
        threading.Event().wait(0.01)
    raise AssertionError("no executor came")


def at_work(connection: socket.socket, worker: Echo) -> threading.Thread:
    def work() -> None:
        with connection, suppress(Broken):
            _serve(connection, worker)  # type: ignore[arg-type]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_frames_arrive_as_they_were_sent() -> None:
    here, there = socket.socketpair()
    with closing(here), closing(there):
        TASK.send(here)
        assert Task.receive(there) == TASK
        outcome = Outcome(b"r", b"t", {"cc": b"x" * 100_000}, b"s", "failed", "", 7)
        thread = threading.Thread(target=outcome.send, args=(here,))
        thread.start()
        assert Outcome.receive(there) == outcome
        thread.join()
        WorkerDied("exit code 1").send(here)
        with pytest.raises(WorkerDied, match="exit code 1"):
            Outcome.receive(there)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        b"\0\0\0\2{}",
        b"\0\0\0\5hello",
        b'\0\0\0\x0e{"parts":[-1]}',
        b'\0\0\0\x16{"parts":[99999999999]}',
        b'\0\0\0\x0e{"parts":["a"]',
        b"\0\0",
    ],
)
def test_a_frame_against_the_protocol_is_refused_before_anything_is_kept(sent: bytes) -> None:
    here, there = socket.socketpair()
    with closing(there):
        with closing(here):
            here.sendall(sent)
        with pytest.raises(Broken):
            receive(there, 4096)


def test_an_executor_with_the_secret_gets_the_tasks(node: RemoteWorker, file: NodeFile) -> None:
    assert not node.ready
    with pytest.raises(WorkerDied, match="no executor"):
        node.execute(TASK)

    at_work(_introduced(file), Echo())
    wait_for(node)

    assert node.execute(TASK) == Outcome(b"reply", b"tree", TASK.objects, b"context", "", "", 6)
    assert node.execute(TASK).memory == 6


def test_a_dead_worker_is_told_and_a_gone_executor_is_noticed(
    node: RemoteWorker, file: NodeFile
) -> None:
    connection = _introduced(file)
    at_work(connection, Echo(dies=True))
    wait_for(node)
    with pytest.raises(WorkerDied, match="exit code -9"):
        node.execute(TASK)
    assert node.ready, "the executor itself is well"

    connection.shutdown(socket.SHUT_RDWR)
    while node.ready:
        threading.Event().wait(0.01)
    at_work(_introduced(file), Echo())
    wait_for(node)

    assert node.execute(TASK).reply == b"reply"


def test_the_last_executor_takes_the_place_of_an_earlier_one(
    node: RemoteWorker, file: NodeFile
) -> None:
    first = _introduced(file)
    wait_for(node)
    at_work(_introduced(file), Echo())

    with closing(first), pytest.raises(Broken):
        receive(first)  # its connection is closed
    assert node.execute(TASK).reply == b"reply"


def test_a_local_stranger_without_the_secret_gets_no_task(
    node: RemoteWorker, file: NodeFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = tmp_path / "guess"
    wrong.write_bytes(b"guess")

    with pytest.raises(Broken):
        _introduced(replace(file, executor_secret=wrong))
    # Its proof cannot be replayed, because each connection has another question.
    assert not node.ready
    with pytest.raises(WorkerDied, match="no executor"):
        node.execute(TASK)


def test_a_stranger_on_the_nodes_port_gets_nothing_out_of_an_executor() -> None:
    node, stranger = socket.socketpair()
    with closing(node), closing(stranger):
        thread = threading.Thread(target=send, args=(stranger, {}, [b"n" * 32]))
        thread.start()
        failures: list[type[Exception]] = []

        def introduce() -> None:
            try:
                prove_to_node(node, b"hush")
            except Exception as error:
                failures.append(type(error))

        executor_ = threading.Thread(target=introduce)
        executor_.start()
        receive(stranger)
        send(stranger, {}, [b"p" * 32])
        executor_.join()
        thread.join()

    assert failures == [Stranger]


def test_both_sides_agree_only_with_the_same_secret() -> None:
    for theirs, welcome in ((b"hush", True), (b"other", False)):
        here, there = socket.socketpair()
        with closing(here), closing(there):
            refused: list[Exception] = []

            def prove(secret: bytes = theirs, connection: socket.socket = there) -> None:
                try:
                    prove_to_node(connection, secret)
                except (Stranger, Broken) as error:
                    refused.append(error)  # noqa: B023

            thread = threading.Thread(target=prove)
            thread.start()
            if welcome:
                prove_to_executor(here, b"hush")
            else:
                with pytest.raises(Stranger):
                    prove_to_executor(here, b"hush")
                here.close()
            thread.join()
            assert bool(refused) != welcome


def test_an_executor_gives_up_a_task_whose_node_has_gone(tmp_path: Path) -> None:
    from deploy.node.warm import WarmWorker

    worker = WarmWorker(node_file(tmp_path))
    working, result = socket.socketpair()
    node, asker = socket.socketpair()
    with closing(working), closing(result), closing(asker):
        node.close()
        with pytest.raises(Abandoned):
            worker._wait(working, asker)


def test_health_says_whether_the_node_is_signed_on_and_at_work(file: NodeFile) -> None:
    tally = Tally()
    address = f"http://{file.listen}"
    with closing_door(Door(file.listen, tally, None)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{address}/health")
        assert caught.value.code == 503
        tally.online, tally.busy = True, True
        with urllib.request.urlopen(f"{address}/health") as answer:
            assert json.loads(answer.read()) == {"status": "ok", "busy": True}
        for path in ("/executor", "/v1/anything"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{address}{path}")
            assert caught.value.code == 404


def test_an_executor_says_when_the_node_takes_none(file: NodeFile) -> None:
    with (
        closing_door(Door(file.listen, Tally(), None)),
        pytest.raises(Broken, match="started with --alone"),
    ):
        executor._introduced(file)
