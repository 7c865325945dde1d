"""The live view: what it answers, whom it refuses, and that it only reads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from made_runs import MadeRun
from typer.testing import CliRunner

from fedrc_flwr.cli import app
from fedrc_flwr.report import watch
from fedrc_flwr.report.watch import address_of, bind, viewer

TOKEN = "a-token-of-the-test"
HOME = "http://127.0.0.1"
AWAY = "http://server.example"


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "made").play(2)


def client(made: MadeRun, token: str | None = None, base: str = HOME) -> TestClient:
    return TestClient(viewer(made.directory, token), base_url=base, follow_redirects=False)


def rounds(reply: object) -> int:
    return int(json.loads(reply.text)["history"]["last_round"])  # type: ignore[attr-defined]


def test_page_is_the_live_one(made: MadeRun) -> None:
    reply = client(made).get("/")

    assert reply.status_code == 200
    assert 'data-live="yes"' in reply.text
    assert "connect-src 'self'" in reply.text


def test_new_rounds_appear_in_the_contents(made: MadeRun) -> None:
    web = client(made)
    first = web.get("/contents.json")

    made.play(1)
    second = web.get("/contents.json")

    assert (rounds(first), rounds(second)) == (2, 3)
    assert first.headers["etag"] != second.headers["etag"]


def test_nothing_is_sent_or_computed_while_nothing_changes(
    made: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    original = watch.gather
    monkeypatch.setattr(watch, "gather", lambda run: calls.append(run) or original(run))
    web = client(made)
    tag = web.get("/contents.json").headers["etag"]

    again = web.get("/contents.json", headers={"If-None-Match": tag})

    assert (again.status_code, again.content) == (304, b"")
    assert len(calls) == 1


def test_run_that_has_not_begun_and_then_begins(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    web = TestClient(viewer(tmp_path / "run", None), base_url=HOME)
    before = web.get("/contents.json")

    MadeRun(tmp_path / "run").play(1)

    assert rounds(before) == 0
    assert rounds(web.get("/contents.json")) == 1


def test_line_that_is_being_written_is_shown_once_it_is_whole(made: MadeRun) -> None:
    web = client(made)
    path = made.directory / "metrics.jsonl"
    made.round = 3
    line = (json.dumps(made.metrics()) + "\n").encode()
    with open(path, "ab") as file:
        file.write(line[:50])
    torn = rounds(web.get("/contents.json"))

    with open(path, "ab") as file:
        file.write(line[50:])

    assert (torn, rounds(web.get("/contents.json"))) == (2, 3)


def test_viewer_changes_nothing_in_the_run(made: MadeRun) -> None:
    def files() -> dict[str, tuple[bytes, int]]:
        return {
            str(p): (p.read_bytes(), p.stat().st_mtime_ns)
            for p in made.directory.rglob("*")
            if p.is_file()
        }

    before = files()
    web = client(made)
    web.get("/")
    web.get("/contents.json")

    assert files() == before


def test_directory_that_vanished_is_said(made: MadeRun) -> None:
    web = client(made)
    made.directory.rename(made.directory.with_name("moved"))

    assert web.get("/").status_code == 404
    assert web.get("/contents.json").status_code == 404


# --- who may look -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/contents.json"])
@pytest.mark.parametrize(
    "given",
    [{}, {"params": {"token": "wrong"}}, {"params": {"token": ""}}, {"params": {"token": "tökén"}},
     {"headers": {"Authorization": "Bearer wrong"}}, {"headers": {"Authorization": TOKEN}},
     {"headers": {"Cookie": f"{watch.COOKIE}=wrong"}}],
    ids=["nothing", "wrong", "empty", "not-ascii", "bearer-wrong", "no-scheme", "cookie-wrong"],
)  # fmt: skip
def test_request_without_the_token_is_refused(
    made: MadeRun, path: str, given: dict[str, dict[str, str]]
) -> None:
    reply = client(made, TOKEN, AWAY).get(path, **given)  # type: ignore[arg-type]

    assert reply.status_code == 401
    assert made.directory.name not in reply.text
    assert TOKEN not in reply.text


def test_token_in_the_address_becomes_a_cookie_and_leaves_the_address(made: MadeRun) -> None:
    web = client(made, TOKEN, AWAY)

    first = web.get("/", params={"token": TOKEN})

    assert first.status_code == 303
    assert first.headers["location"] == "/"
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=strict" in first.headers["set-cookie"]
    assert web.get("/").status_code == 200
    assert web.get("/contents.json").status_code == 200


def test_token_in_a_header_will_do(made: MadeRun) -> None:
    web = client(made, TOKEN, AWAY)

    reply = web.get("/contents.json", headers={"Authorization": f"Bearer {TOKEN}"})

    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:9", 200), ("evil.example", 421),
     ("127.0.0.1.evil.example", 421), ("localhost.evil.example:8000", 421)],
)  # fmt: skip
def test_on_loopback_a_foreign_name_is_refused(made: MadeRun, host: str, status: int) -> None:
    for path in ("/", "/contents.json"):
        assert client(made).get(path, headers={"Host": host}).status_code == status


def test_nothing_else_is_served(made: MadeRun) -> None:
    web = client(made)

    for path in (
        "/docs",
        "/openapi.json",
        "/config.json",
        "/../config.json",
        "/%2e%2e/config.json",
    ):
        assert web.get(path).status_code == 404
    assert web.post("/contents.json").status_code == 405


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_what_counts_as_loopback(host: str, local: bool) -> None:
    listening, found = bind(host, 0)
    with listening:
        assert found is local
        assert address_of(listening, host, "t").endswith(f":{listening.getsockname()[1]}/?token=t")


def test_port_that_is_taken_is_refused_with_a_sentence(made: MadeRun) -> None:
    listening, _ = bind("127.0.0.1", 0)
    with listening:
        listening.listen()
        port = str(listening.getsockname()[1])
        result = CliRunner().invoke(app, ["watch", str(made.directory), "--port", port])

    assert result.exit_code == 2
    assert "choose another port" in result.stderr


def test_watching_what_is_no_run_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["watch", str(tmp_path / "gone")])

    assert result.exit_code == 2
    assert "no such directory" in result.stderr


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def watching(made: MadeRun, request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """The real command; gives the address that it prints, and its process id."""
    host = getattr(request, "param", "127.0.0.1")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedrc_flwr.cli", "watch", str(made.directory), "--host", host],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield line.split(" on ")[1].split()[0], process.pid
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_command_serves_on_loopback(watching: tuple[str, int], made: MadeRun) -> None:
    with urllib.request.urlopen(watching[0] + "contents.json", timeout=60) as reply:
        assert json.load(reply)["name"] == made.directory.name


@pytest.mark.parametrize("watching", ["0.0.0.0"], indirect=True)
def test_command_beyond_loopback_asks_for_its_token(watching: tuple[str, int]) -> None:
    address = watching[0].replace("0.0.0.0", "127.0.0.1")
    bare, _, token = address.partition("?token=")

    assert len(token) >= 32
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(bare + "contents.json", timeout=60)
    request = urllib.request.Request(
        bare + "contents.json", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200
