"""The operator's commands of ``fedrc``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from fedrc_flwr.errors import FAILED, MISUSED, ConfigError, FedRCError, RunError

certs = typer.Typer(help="The federation's certificates.", no_args_is_help=True)
node = typer.Typer(help="The federation's nodes.", no_args_is_help=True)
ServerFile = Annotated[Path, typer.Argument(help="The server's superlink.yaml.")]


def add_commands(app: typer.Typer) -> None:
    """Add the operator's commands to ``fedrc``."""
    app.add_typer(certs, name="certs")
    app.add_typer(node, name="node")
    for command in (superlink, serverapp, supernode, doctor, run, stop):
        app.command()(command)


@certs.command("init")
def certs_init(
    directory: Annotated[Path, typer.Argument(help="Directory to create them in.")],
    name: Annotated[
        list[str], typer.Option(help="Host name or address of the server. Repeatable.")
    ],
) -> None:
    """Make an authority and the server's certificate."""
    from deploy.certificates import check_names, create_authority, issue_server_certificate

    def work() -> None:
        check_names(name)
        create_authority(directory)
        issue_server_certificate(directory, name)
        typer.echo(f"made {directory}/ca.crt (copy it to every node) and {directory}/server.crt")

    _guard(work)


@certs.command("renew")
def certs_renew(
    directory: Annotated[Path, typer.Argument(help="Their directory.")],
    name: Annotated[
        list[str] | None, typer.Option(help="New list of names; default: the current ones.")
    ] = None,
) -> None:
    """Renew the server's certificate under the same authority. Restart the SuperLink afterwards."""
    from deploy.certificates import (
        SERVER_CERTIFICATE,
        facts,
        issue_server_certificate,
        load_certificate,
    )

    def work() -> None:
        names = name or facts(load_certificate(directory / SERVER_CERTIFICATE)).names
        certificate = issue_server_certificate(directory, names)
        typer.echo(
            f"renewed for {', '.join(names)} until {certificate.not_valid_after_utc:%Y-%m-%d}"
        )

    _guard(work)


@node.command("key")
def node_key(path: Annotated[Path, typer.Argument(help="The private key's file.")]) -> None:
    """Make a node's key pair, on the node itself: the private key never leaves it."""
    from deploy.certificates import create_node_key

    def work() -> None:
        public = create_node_key(path)
        typer.echo(f"made {path}; copy {public} to the server and run there: fedrc node register")

    _guard(work)


@node.command("register")
def node_register(
    file: ServerFile, public_key: Annotated[Path, typer.Argument(help="The node's .pub file.")]
) -> None:
    """Register a node by its public key."""
    _answer(file, lambda control: control.register(public_key.resolve()))


@node.command("remove")
def node_remove(
    file: ServerFile, node_id: Annotated[str, typer.Argument(help="As `fedrc node list` shows.")]
) -> None:
    """Remove a node."""
    _answer(file, lambda control: control.unregister(node_id))


@node.command("list")
def node_list(file: ServerFile) -> None:
    """Show the registered nodes."""
    from deploy.doctor import list_nodes
    from deploy.files import read_superlink_file

    def work() -> None:
        for finding in list_nodes(read_superlink_file(file)):
            typer.echo(finding.text)

    _guard(work)


def superlink(file: ServerFile) -> None:
    """Check superlink.yaml and run the SuperLink."""
    from deploy.launch import launch_superlink

    _guard(lambda: launch_superlink(file))


def serverapp(file: ServerFile) -> None:
    """Run the executor of ServerApps next to the SuperLink."""
    from deploy.launch import launch_serverapp

    _guard(lambda: launch_serverapp(file))


def supernode(file: Annotated[Path, typer.Argument(help="This node's node.yaml.")]) -> None:
    """Check node.yaml and run the node."""
    from deploy.launch import launch_supernode

    _guard(lambda: launch_supernode(file))


def doctor(
    server: Annotated[Path | None, typer.Option(help="The server's superlink.yaml.")] = None,
    node: Annotated[Path | None, typer.Option(help="A node's node.yaml.")] = None,
) -> None:
    """Check the server or a node: files, certificates, clocks, health, nodes, the last round."""
    from deploy.doctor import examine_node, examine_superlink
    from deploy.files import read_node_file, read_superlink_file
    from deploy.preflight import ERROR, Finding

    def work() -> None:
        if server is None and node is None:
            raise ConfigError("give --server superlink.yaml or --node node.yaml")
        findings: list[Finding] = []
        if server is not None:
            findings += _show(examine_superlink(read_superlink_file(server)))
        if node is not None:
            findings += _show(examine_node(read_node_file(node)))
        if any(finding.level == ERROR for finding in findings):
            raise typer.Exit(FAILED)

    def _show(findings: Iterable[Finding]) -> list[Finding]:
        shown = []
        for finding in findings:
            typer.echo(str(finding))
            shown.append(finding)
        return shown

    _guard(work)


def run(
    file: ServerFile,
    scenario: Annotated[
        str | None, typer.Option(help="Name or path of a scenario: who holds what.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name or path of a recipe: how to learn.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting: section.key=value. Repeatable.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; with --resume, the run to continue.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    retries: Annotated[
        int, typer.Option(min=0, help="How often to resume automatically if the server side fails.")
    ] = 0,
) -> None:
    """Run the app on a deployed federation and follow it to its end."""
    from deploy.files import read_superlink_file
    from deploy.submit import run as submit
    from fedrc_flwr.checkpoint import has_checkpoint
    from fedrc_flwr.config import load_config, parse_setting, recorded_config
    from fedrc_flwr.engine.outputs import new_name
    from fedrc_flwr.report.cli import show_page
    from fedrc_flwr.report.log import Event
    from fedrc_flwr.report.terminal import Terminal, summary_lines

    def work() -> None:
        server = read_superlink_file(file)
        if resume and not name:
            raise ConfigError("--resume needs --name, the name of the run to continue")
        if resume and (scenario, recipe) != (None, None):
            raise ConfigError(
                "--resume continues a run with its own data and recipe: change single settings "
                "with --set"
            )
        changes = dict(parse_setting(text) for text in settings or [])
        given = changes if not resume else recorded_config(server.outputs / str(name), changes)
        given |= {} if scenario is None else {"scenario": scenario}
        given |= {} if recipe is None else {"recipe": recipe}
        given |= {} if name is None else {"run.name": name}  # checked with all the others
        config = load_config(given)
        run_name = name or new_name(config.scenario, config.algorithm, config.seed)
        if not resume and has_checkpoint(server.outputs / run_name):
            raise ConfigError(f"{server.outputs / run_name} holds a run already: use --resume")
        run_id = ""
        with Terminal(config.rounds) as terminal:

            def show(event: Event) -> None:
                nonlocal run_id
                run_id = event.get("run_id", run_id)
                if event.get("event") == "retry":
                    line = f"attempt {event['attempt']} failed, trying again: {event['reason']}"
                    terminal.console.print(line, soft_wrap=True, markup=False)
                terminal.show(event)

            try:
                done = submit(server, config, run_name, show, retries)
            except KeyboardInterrupt:
                typer.echo(
                    f"fedrc: no longer watching; the run continues. To stop it: "
                    f"fedrc stop {file} {run_id}",
                    err=True,
                )
                raise typer.Exit(FAILED) from None
        if not done.completed:
            typer.echo(f"fedrc: the run did not complete: {done.reason}", err=True)
            typer.echo(f"to continue: fedrc run {file} --name {run_name} --resume", err=True)
            show_page(done.directory, err=True)
            raise typer.Exit(FAILED)
        for line in summary_lines(done.summary, done.directory):
            typer.echo(line)
        show_page(done.directory)

    _guard(work)


def stop(
    file: ServerFile, run_id: Annotated[str, typer.Argument(help="As `fedrc run` printed it.")]
) -> None:
    """Stop a run; it can be resumed later."""
    _answer(file, lambda control: control.stop(run_id))


def _answer(file: Path, call: Callable[..., dict[str, object]]) -> None:
    from deploy.files import read_superlink_file
    from deploy.submit import connect

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="fedrc-") as scratch:
            answer = call(connect(read_superlink_file(file), Path(scratch)))
        if not answer.get("success"):
            raise RunError(str(answer.get("error-message", answer)))
        typer.echo(", ".join(f"{k}: {v}" for k, v in answer.items() if k != "success"))

    _guard(work)


def _guard(work: Callable[[], None]) -> None:
    """Print expected errors as one sentence instead of a traceback."""
    try:
        work()
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
