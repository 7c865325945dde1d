"""The operator's commands: exit codes and messages; and that the runbook's commands exist."""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from loopback import HOST, make_certificates, superlink_yaml
from typer.testing import CliRunner

from deploy import control, doctor, launch, submit
from deploy.certificates import create_node_key, facts, load_certificate, public_half
from deploy.control import FlowerRun, Node
from deploy.files import SuperLinkFile
from deploy.findings import ERROR, OK, WARNING, Finding
from deploy.submit import Submitted
from fedrc_flwr import __version__
from fedrc_flwr.cli import FAILED, MISUSED, app
from fedrc_flwr.config import RunConfig, load_config, parse_setting
from fedrc_flwr.data.encoding import NUMBER, Column
from fedrc_flwr.data.schema import Schema
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.report.log import write_json

RUNBOOK = (Path(__file__).parents[2] / "deploy" / "README.md").read_text()
SUMMARY = {"status": "completed", "rounds": 2, "seconds": 1.0, "algorithm": "fedrc"}


def fedrc(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# --- certificates and keys -----------------------------------------------------------------------


def test_certs_init(tmp_path: Path) -> None:
    made = tmp_path / "certificates"

    result = fedrc("certs", "init", made, "--name", "fedrc.example.org", "--name", HOST)

    assert result.exit_code == 0, result.output
    assert f"made {made}/ca.crt (copy it to every node)" in result.stdout
    assert facts(load_certificate(made / "server.crt")).names == ["fedrc.example.org", HOST]
    assert "PRIVATE" not in result.output


def test_certs_init_twice_is_refused(tmp_path: Path) -> None:
    fedrc("certs", "init", tmp_path, "--name", HOST)
    before = (tmp_path / "ca.key").read_bytes()

    result = fedrc("certs", "init", tmp_path, "--name", HOST)

    assert result.exit_code == MISUSED
    assert result.stderr.startswith(f"fedrc: {tmp_path} holds an authority already")
    assert (tmp_path / "ca.key").read_bytes() == before


def test_certs_init_with_a_bad_name_leaves_nothing_behind(tmp_path: Path) -> None:
    result = fedrc("certs", "init", tmp_path / "new", "--name", "fedrc.example.org:8000")

    assert result.exit_code == MISUSED
    assert "fedrc: --name 'fedrc.example.org:8000'" in result.stderr
    assert not (tmp_path / "new").exists()


def test_certs_init_where_nothing_can_be_written_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    result = fedrc("certs", "init", tmp_path / "file" / "new", "--name", HOST)

    assert result.exit_code == MISUSED
    assert result.stderr.startswith("fedrc: ")
    assert str(tmp_path / "file") in result.stderr


@pytest.mark.parametrize(
    ("flags", "names"),
    [([], ["a.example.org", HOST]), (["--name", "b.example.org"], ["b.example.org"])],
)
def test_certs_renew(tmp_path: Path, flags: list[str], names: list[str]) -> None:
    make_certificates(tmp_path, "a.example.org", HOST)
    authority = (tmp_path / "ca.crt").read_bytes()
    key = (tmp_path / "server.key").read_bytes()

    result = fedrc("certs", "renew", tmp_path, *flags)

    renewed = facts(load_certificate(tmp_path / "server.crt"))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"renewed for {', '.join(names)} until {renewed.not_after:%Y-%m-%d}\n"
    assert renewed.names == names
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert (tmp_path / "server.key").read_bytes() != key


def test_certs_renew_without_certificates(tmp_path: Path) -> None:
    result = fedrc("certs", "renew", tmp_path)

    assert result.exit_code == MISUSED
    assert f"fedrc: {tmp_path / 'server.crt'}" in result.stderr


def test_node_key(tmp_path: Path) -> None:
    path = tmp_path / "node.key"

    result = fedrc("node", "key", path)

    assert result.exit_code == 0, result.output
    assert f"copy {path}.pub to the server and run there: fedrc node register" in result.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "PRIVATE" not in result.output


def test_node_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    fedrc("node", "key", path)
    before = path.read_bytes()

    result = fedrc("node", "key", path)

    assert result.exit_code == MISUSED
    assert f"fedrc: {path} exists already" in result.stderr
    assert path.read_bytes() == before


# --- nodes ---------------------------------------------------------------------------------------


class Control:
    """Answers as it was told to."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer
        self.asked: list[object] = []

    def register(self, public_key: Path, name: str) -> dict[str, Any]:
        self.asked.append((public_key, name))
        return self._answer

    def unregister(self, node_id: str) -> dict[str, Any]:
        self.asked.append(node_id)
        return self._answer

    def stop(self, run_id: str) -> dict[str, Any]:
        self.asked.append(run_id)
        return self._answer


def answering(monkeypatch: pytest.MonkeyPatch, **answer: Any) -> Control:
    """A server with one node and two runs, of which one is under way."""
    made = Control(answer)
    runs = [FlowerRun(7, "first", "running"), FlowerRun(6, "old", "finished:stopped")]
    monkeypatch.setattr(submit, "connect", lambda file, scratch: made)
    for module in (doctor, control):
        monkeypatch.setattr(module, "nodes_of", lambda file: [Node(9, "b", "online")])
        monkeypatch.setattr(module, "runs_of", lambda file: runs)
    return made


def test_node_register_and_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, success=True).asked
    path = superlink_yaml(tmp_path)
    monkeypatch.chdir(tmp_path)

    let_in = fedrc("node", "register", path, "a.pub")
    named = fedrc("node", "register", path, "node.key.pub", "--name", "c")
    shut_out = fedrc("node", "remove", path, "b")

    assert (let_in.stdout, named.stdout) == ("registered a\n", "registered c\n")
    assert shut_out.stdout == "removed b\n"
    # Flower's program runs elsewhere: it must be told the whole path.
    assert asked == [(tmp_path / "a.pub", "a"), (tmp_path / "node.key.pub", "c"), "9"]


def test_node_rotate_registers_the_new_key_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, success=True).asked
    create_node_key(tmp_path / "new.key")

    done = fedrc("node", "rotate", superlink_yaml(tmp_path), "b", tmp_path / "new.key.pub")

    assert done.stdout == "b has a new key; the old one is no longer let in\n"
    assert asked == [(tmp_path / "new.key.pub", "b"), "9"]


def test_node_rotate_changes_nothing_if_the_key_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answering(monkeypatch, success=True).asked
    create_node_key(tmp_path / "new.key")
    known = [Node(9, "b", "online", public_half(tmp_path / "new.key"))]
    monkeypatch.setattr(control, "nodes_of", lambda file: known)

    done = fedrc("node", "rotate", superlink_yaml(tmp_path), "b", tmp_path / "new.key.pub")

    assert done.exit_code == MISUSED
    assert "is the key of b already: make a new one" in done.stderr
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["register", "FILE", "x.pub", "--name", "a\nb"], "expected characters that can be print"),
        (["register", "FILE", "node.key.pub"], "fedrc: node.key.pub: give --name"),
        (["register", "FILE", "b.pub"], "fedrc: a node called 'b' is registered already"),
        (["register", "FILE", "x.pub", "--name", "n" * 129], "expected 1 to 128 characters"),
        (["remove", "FILE", "z"], "fedrc: no node is called 'z'; registered: b"),
    ],
)
def test_a_node_without_a_proper_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    asked = answering(monkeypatch, success=True).asked
    path = str(superlink_yaml(tmp_path))

    result = fedrc("node", *[path if word == "FILE" else word for word in arguments])

    assert result.exit_code == MISUSED
    assert said in result.stderr
    assert asked == []


def test_a_refused_node_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "Using SuperLink: fedrc\n\n[code: 23] Public key already in use."
    answering(monkeypatch, success=False, **{"error-message": told})

    result = fedrc("node", "register", superlink_yaml(tmp_path), "a.pub")

    assert result.exit_code == MISUSED
    assert result.stderr == (
        "fedrc: [code: 23] Public key already in use; a key is registered only once: make a new "
        "pair with `fedrc node key`\n"
    )


def test_node_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, success=True)

    result = fedrc("node", "list", superlink_yaml(tmp_path))

    assert result.exit_code == 0
    assert result.stdout == "1 node registered, 1 online\n  b: online\n"


def test_node_list_of_a_server_that_is_away_is_no_empty_list(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates")

    result = fedrc("node", "list", superlink_yaml(tmp_path))

    assert result.exit_code == MISUSED
    assert "0 nodes" not in result.output
    assert "fedrc: the nodes cannot be listed: the SuperLink at" in result.stderr


def test_stop_is_told_the_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, success=True).asked
    path = superlink_yaml(tmp_path)

    stopped, old, unknown = (fedrc("stop", path, name) for name in ("first", "old", "new"))

    assert stopped.stdout == (
        "stopped first; to continue, on the server: fedrc run superlink.yaml --name first "
        "--resume\n"
    )
    assert old.stderr == "fedrc: run 'old' is not under way: it ended earlier (stopped)\n"
    assert unknown.stderr == "fedrc: no run is called 'new'; under way: first\n"
    assert asked == ["7"]


# --- the long-lived programs and the doctor ------------------------------------------------------


@pytest.mark.parametrize("name", ["superlink", "serverapp", "supernode"])
def test_a_launch_that_is_refused_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    launched = []

    def refuse(path: Path, alone: bool = False) -> None:
        launched.append(path)
        raise ConfigError("not started: the port is taken")

    monkeypatch.setattr(launch, f"launch_{name}", refuse)
    result = fedrc(name, tmp_path / "file.yaml")

    assert launched == [tmp_path / "file.yaml"]
    assert result.exit_code == MISUSED
    assert result.stderr == "fedrc: not started: the port is taken\n"


def test_the_doctor_wants_to_know_whom_to_examine() -> None:
    result = fedrc("doctor")

    assert result.exit_code == MISUSED
    assert result.stderr == "fedrc: give --server superlink.yaml or --node node.yaml\n"


@pytest.mark.parametrize(("level", "code"), [(OK, 0), (WARNING, 0), (ERROR, FAILED)])
def test_the_doctors_exit_code_is_fit_for_monitoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, code: int
) -> None:
    findings = [Finding(level, "as it is"), Finding(OK, "fine")]
    monkeypatch.setattr(doctor, "examine_superlink", lambda file: iter(findings))

    result = fedrc("doctor", "--server", superlink_yaml(tmp_path))

    assert result.exit_code == code
    assert result.stdout == f"{level:<7} as it is\nok      fine\n"


def test_the_doctor_refuses_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = fedrc("doctor", "--node", tmp_path / "node.yaml")

    assert result.exit_code == MISUSED
    assert str(tmp_path / "node.yaml") in result.stderr


# --- runs ----------------------------------------------------------------------------------------


class Submission:
    """Takes the place of deploy.submit.run."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunConfig, str, int]] = []
        self.completed = True
        self.events: list[dict[str, Any]] = []
        self.saves: list[Path] = []

    def __call__(
        self,
        file: SuperLinkFile,
        config: RunConfig,
        name: str,
        on_event: Callable[[dict[str, Any]], None],
        retries: int,
    ) -> Submitted:
        self.calls.append((config, name, retries))
        for event in self.events:
            on_event(event)
        for folder in self.saves:
            folder.mkdir(parents=True)
            (folder / "round-000001.safetensors").touch()
        reason = "" if self.completed else "Flower reports finished:failed: it died"
        return Submitted(self.completed, file.outputs / name, SUMMARY, reason)


@pytest.fixture
def submission(monkeypatch: pytest.MonkeyPatch) -> Submission:
    submission = Submission()
    monkeypatch.setattr(submit, "run", submission)
    return submission


def test_run_hands_on_what_was_asked_for(tmp_path: Path, submission: Submission) -> None:
    path = superlink_yaml(tmp_path)

    result = fedrc(
        "run", path, "--scenario", "digits-edge", "--recipe", "edge", "--set",
        "federation.min-clients=3", "--name", "first", "--retries", "3",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    ((config, name, retries),) = submission.calls
    asked = {"scenario": "digits-edge", "recipe": "edge", "federation.min-clients": 3}
    assert config == load_config({**asked, "run.name": "first"})
    assert (name, retries) == ("first", 3)
    assert str(tmp_path / "outputs" / "first") in result.stdout


def test_run_can_be_named_by_a_setting(tmp_path: Path, submission: Submission) -> None:
    result = fedrc("run", superlink_yaml(tmp_path), "--set", "run.name=mine")

    assert result.exit_code == 0, result.output
    assert submission.calls[0][1] == "mine"


def test_run_hands_on_the_content_of_the_schema(tmp_path: Path, submission: Submission) -> None:
    schema = Schema(("cold", "flu"), (Column("age", NUMBER),), "code")
    schema.save(tmp_path / "schema.json")

    result = fedrc("run", superlink_yaml(tmp_path), "--schema", tmp_path / "schema.json")
    missing = fedrc("run", superlink_yaml(tmp_path), "--schema", tmp_path / "none.json")

    assert result.exit_code == 0, result.output
    ((config, name, _),) = submission.calls
    sent = config.to_dict()
    assert sent["data.schema"] == schema.text(), "no path of this machine"
    assert (sent["scenario"], sent["data.dataset"], sent["data.directory"]) == ("none", "own", "")
    assert name.startswith("own-fedrc-seed0-")
    assert missing.exit_code == MISUSED
    assert "none.json: the schema cannot be read" in missing.stderr


def test_run_hands_numbers_on_as_numbers(tmp_path: Path, submission: Submission) -> None:
    # YAML reads 1e-3 as text and 1 as a whole number.
    result = fedrc(
        "run", superlink_yaml(tmp_path), "--set", "local.learning-rate=1e-3", "--set",
        "data.alpha=1",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    ((config, _, _),) = submission.calls
    numbers = (config.local.learning_rate, config.data.alpha)
    assert numbers == (0.001, 1.0)
    assert {type(number) for number in numbers} == {float}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set", "roundz=3"], "unknown key 'roundz'; did you mean 'rounds'?"),
        (["--set", "rounds=-1"], "rounds = -1"),
        (["--set", "rounds"], "expected key=value"),
        (["--scenario", "nothing"], "scenario = 'nothing': no such scenario"),
        (["--recipe", "nothing"], "recipe = 'nothing': no such recipe"),
        (["--name", "../../elsewhere"], "run.name = '../../elsewhere'"),
        (["--name", "a", "--set", "run.name=b"], "run.name: --name says how the run is called"),
        (["--set", "run.output-dir=here"], "run.output-dir: results go to"),
        (["--resume"], "--resume needs --name"),
        (["--resume", "--name", "never"], "holds no run to resume"),
    ],
)
def test_run_refuses_before_anything_is_submitted(
    tmp_path: Path, submission: Submission, flags: list[str], said: str
) -> None:
    result = fedrc("run", superlink_yaml(tmp_path), *flags)

    assert result.exit_code == MISUSED
    assert result.stderr.startswith("fedrc: ")
    assert said in result.stderr
    assert submission.calls == []


def test_run_does_not_go_over_an_earlier_one(tmp_path: Path, submission: Submission) -> None:
    (tmp_path / "outputs" / "first" / "checkpoints").mkdir(parents=True)
    (tmp_path / "outputs" / "first" / "checkpoints" / "round-000001.safetensors").touch()

    result = fedrc("run", superlink_yaml(tmp_path), "--name", "first")

    assert result.exit_code == MISUSED
    assert "holds a run already: use --resume" in result.stderr
    assert submission.calls == []


def test_run_resumes_under_the_settings_of_the_start(
    tmp_path: Path, submission: Submission
) -> None:
    directory = tmp_path / "outputs" / "first"
    recorded = {"scenario": "digits", "recipe": "default", "local.learning-rate": 0.2}
    write_json(directory / "config.json", {**recorded, "seed": 7, "rounds": 5})
    command = ("run", superlink_yaml(tmp_path), "--name", "first", "--resume", "--set", "rounds=9")

    too_early = fedrc(*command)
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "round-000001.safetensors").touch()
    result = fedrc(*command)

    assert too_early.exit_code == MISUSED
    assert "has no checkpoint" in too_early.stderr
    assert "without --resume" in too_early.stderr
    assert result.exit_code == 0, result.output
    ((config, name, _),) = submission.calls
    assert name == "first"
    assert (config.scenario, config.seed, config.rounds) == ("digits", 7, 9)
    assert config.run.resume
    assert config.local.learning_rate == 0.2, "as recorded, whatever the recipe says today"


@pytest.mark.parametrize("saved", [True, False])
def test_run_says_how_to_go_on_after_a_failure(
    tmp_path: Path, submission: Submission, saved: bool
) -> None:
    submission.completed = False
    path = superlink_yaml(tmp_path)
    if saved:
        submission.saves.append(tmp_path / "outputs" / "first" / "checkpoints")

    result = fedrc("run", path, "--name", "first")

    assert result.exit_code == FAILED
    assert "the run did not complete: Flower reports finished:failed: it died" in result.stderr
    how = f"to continue: fedrc run {path} --name first --resume"
    assert (how in result.stderr) == saved, "nothing to continue without a checkpoint"


def test_run_says_at_once_what_runs_and_who_is_there(
    tmp_path: Path, submission: Submission
) -> None:
    submission.events = [{"event": "nodes", "online": ["a"], "offline": ["b"]}]

    result = fedrc("run", superlink_yaml(tmp_path), "--name", "first")

    first, second, *_ = result.stdout.splitlines()
    assert first.startswith(f"fedrc-flwr {__version__}: run first on {HOST}:")
    assert second == "nodes online: a; offline: b"


def test_run_shows_that_it_tries_again(tmp_path: Path, submission: Submission) -> None:
    submission.events = [{"event": "retry", "attempt": 1, "reason": "[it] died"}]

    result = fedrc("run", superlink_yaml(tmp_path), "--name", "first", "--retries", "1")

    assert result.exit_code == 0, result.output
    assert "attempt 1 failed, trying again: [it] died" in result.stdout


# --- the runbook ---------------------------------------------------------------------------------


def commands_of_the_runbook() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", RUNBOOK, flags=re.DOTALL)
    whole = [block.replace("\\\n", " ") for block in blocks]
    lines = [line.partition("#")[0].strip() for block in whole for line in block.splitlines()]
    return [line for line in lines if re.match(r"(sudo -u fedrc env \S+ )?fedrc ", line)]


def spans_of_the_runbook() -> list[str]:
    return sorted(set(re.findall(r"`(fedrc [^`]+)`", RUNBOOK)))


def test_the_runbook_has_commands_at_all() -> None:
    assert len(commands_of_the_runbook()) >= 6
    assert len(spans_of_the_runbook()) >= 6


@pytest.mark.parametrize("line", commands_of_the_runbook())
def test_every_command_of_the_runbook_is_understood(line: str) -> None:
    words = shlex.split(line.removeprefix("sudo -u fedrc env PATH=$PATH "))[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]

    context = command.make_context("fedrc", list(words))

    assert context.params
    named = {k: v for k, v in context.params.items() if k in ("scenario", "recipe") and v}
    load_config({**named, **dict(map(parse_setting, context.params.get("settings") or []))})


@pytest.mark.parametrize("span", spans_of_the_runbook())
def test_every_command_that_the_runbook_mentions_exists(span: str) -> None:
    words = shlex.split(span)[1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        assert words[0] in command.commands, span
        command, words = command.commands[words[0]], words[1:]

    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
