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

from deploy import doctor, launch, submit
from deploy.certificates import facts, load_certificate
from deploy.files import SuperLinkFile
from deploy.preflight import ERROR, OK, WARNING, Finding
from deploy.submit import Submitted
from fedrc_flwr.cli import FAILED, MISUSED, app
from fedrc_flwr.config import RunConfig, load_config, parse_setting
from fedrc_flwr.errors import ConfigError, RunError
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

    def register(self, public_key: Path) -> dict[str, Any]:
        self.asked.append(public_key)
        return self._answer

    def unregister(self, node_id: str) -> dict[str, Any]:
        self.asked.append(node_id)
        return self._answer

    def nodes(self) -> list[dict[str, Any]]:
        if not self._answer["success"]:
            raise RunError("the nodes cannot be listed: nobody there")
        return [{"node-id": "9", "status": "online"}]


def answering(monkeypatch: pytest.MonkeyPatch, **answer: Any) -> Control:
    control = Control(answer)
    monkeypatch.setattr(submit, "connect", lambda file, scratch: control)
    monkeypatch.setattr(doctor, "connect", lambda file, scratch: control)
    return control


def test_node_register_and_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = answering(monkeypatch, success=True, **{"node-id": "9"})
    path = superlink_yaml(tmp_path)
    monkeypatch.chdir(tmp_path)

    let_in = fedrc("node", "register", path, "a.pub")
    shut_out = fedrc("node", "remove", path, "9")

    assert (let_in.exit_code, shut_out.exit_code) == (0, 0)
    assert let_in.stdout == "node-id: 9\n"
    # Flower's program runs elsewhere: it must be told the whole path.
    assert control.asked == [tmp_path / "a.pub", "9"]


def test_a_refused_node_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, success=False, **{"error-message": "public key already in use"})

    result = fedrc("node", "register", superlink_yaml(tmp_path), "a.pub")

    assert result.exit_code == MISUSED
    assert result.stderr == "fedrc: public key already in use\n"


def test_node_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, success=True)

    result = fedrc("node", "list", superlink_yaml(tmp_path))

    assert result.exit_code == 0
    assert result.stdout == "1 nodes registered, 1 online\n  node 9: online\n"


def test_node_list_of_a_server_that_is_away_is_no_empty_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, success=False)

    result = fedrc("node", "list", superlink_yaml(tmp_path))

    assert result.exit_code == MISUSED
    assert "0 nodes" not in result.output
    assert "nobody there" in result.stderr


# --- the long-lived programs and the doctor ------------------------------------------------------


@pytest.mark.parametrize("name", ["superlink", "serverapp", "supernode"])
def test_a_launch_that_is_refused_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    launched = []

    def refuse(path: Path) -> None:
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

    result = fedrc(
        "run", superlink_yaml(tmp_path), "--name", "first", "--resume", "--set", "rounds=9"
    )

    assert result.exit_code == 0, result.output
    ((config, name, _),) = submission.calls
    assert name == "first"
    assert (config.scenario, config.seed, config.rounds) == ("digits", 7, 9)
    assert config.run.resume
    assert config.local.learning_rate == 0.2, "as recorded, whatever the recipe says today"


def test_run_says_how_to_go_on_after_a_failure(tmp_path: Path, submission: Submission) -> None:
    submission.completed = False
    path = superlink_yaml(tmp_path)

    result = fedrc("run", path, "--name", "first")

    assert result.exit_code == FAILED
    assert "the run did not complete: Flower reports finished:failed: it died" in result.stderr
    assert f"to continue: fedrc run {path} --name first --resume" in result.stderr


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
