"""The operator's commands of ``fedrc``."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy import node_cli
from fedrc_flwr.errors import FAILED, MISUSED, STOPPED, ConfigError, FedRCError, RunError

if TYPE_CHECKING:
    from deploy.files import SuperLinkFile
    from fedrc_flwr.flower import Control

certs = typer.Typer(help="The federation's certificates.", no_args_is_help=True)
node = typer.Typer(help="The federation's nodes.", no_args_is_help=True)
ServerFile = Annotated[Path, typer.Argument(help="The server's superlink.yaml.")]


def add_commands(app: typer.Typer) -> None:
    """Add the operator's commands to ``fedrc``."""
    app.add_typer(certs, name="certs")
    app.add_typer(node, name="node")
    node.command("allow")(guarded(node_cli.allow))
    for command in (superlink, serverapp, doctor, run, stop):
        app.command()(command)
    for command in (node_cli.supernode, node_cli.clientapp):
        app.command()(guarded(command))


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
    file: ServerFile,
    public_key: Annotated[Path, typer.Argument(help="The node's .pub file.")],
    name: Annotated[
        str | None, typer.Option(help="As in its node.yaml; default: the .pub file's name.")
    ] = None,
) -> None:
    """Register a node by its public key, under the name that its node.yaml has."""
    from deploy.control import check_new_name, name_from, nodes_of

    def work(server: SuperLinkFile, control: Control) -> str:
        called = name or name_from(public_key)
        check_new_name(called, nodes_of(server))
        _succeed(control.register(public_key.resolve(), called))
        return f"registered {called}"

    _answer(file, work)


@node.command("remove")
def node_remove(
    file: ServerFile, name: Annotated[str, typer.Argument(help="As `fedrc node list` shows it.")]
) -> None:
    """Remove a node."""
    from deploy.control import find_node, nodes_of

    def work(server: SuperLinkFile, control: Control) -> str:
        found = find_node(nodes_of(server), name)
        _succeed(control.unregister(str(found.id)))
        return f"removed {found.called}"

    _answer(file, work)


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
        str | None, typer.Option(help="Name or path of a scenario: who holds which data.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name or path of a recipe: how to learn.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="Schema of the nodes' own data, written by `fedrc check --schema`."),
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
    from deploy.progress import lines_of
    from deploy.submit import run as submit
    from fedrc_flwr import __version__
    from fedrc_flwr.checkpoint import has_checkpoint
    from fedrc_flwr.config import load_config, parse_setting, recorded_config
    from fedrc_flwr.engine.outputs import new_name
    from fedrc_flwr.report.cli import show_page
    from fedrc_flwr.report.log import Event
    from fedrc_flwr.report.terminal import Terminal, summary_lines
    from fedrc_flwr.settings import flattened

    def work() -> None:
        server = read_superlink_file(file)
        if resume and not name:
            raise ConfigError("--resume needs --name, the name of the run to continue")
        if resume and (scenario, recipe, schema) != (None, None, None):
            raise ConfigError(
                "--resume continues a run with its own data and recipe: change single settings "
                "with --set"
            )
        changes = flattened(dict(parse_setting(text) for text in settings or []))
        if "run.output-dir" in changes:
            raise ConfigError(f"run.output-dir: results go to {server.outputs}, as {file} says")
        if name is not None and changes.get("run.name", name) != name:
            raise ConfigError("run.name: --name says how the run is called; give one of them")
        given = changes if not resume else recorded_config(server.outputs / str(name), changes)
        given |= {} if scenario is None else {"scenario": scenario}
        given |= {} if recipe is None else {"recipe": recipe}
        given |= {} if schema is None else {"data.schema": str(schema)}
        given |= {} if name is None else {"run.name": name}  # checked with all the others
        config = load_config(given).carried()
        run_name = config.run.known_as(new_name(config.named(), config.algorithm, config.seed))
        if not resume and has_checkpoint(server.outputs / run_name):
            raise ConfigError(f"{server.outputs / run_name} holds a run already: use --resume")
        typer.echo(f"fedrc-flwr {__version__}: run {run_name} on {server.address}")
        submitted = False
        with Terminal(config.rounds) as terminal:

            def show(event: Event) -> None:
                nonlocal submitted
                submitted = submitted or event.get("event") == "submitted"
                for line in lines_of(event, str(file)):
                    terminal.console.print(line, soft_wrap=True, markup=False)
                terminal.show(event)

            try:
                done = submit(server, config, run_name, show, retries)
            except KeyboardInterrupt:
                going_on = f"the run continues. To stop it: fedrc stop {file} {run_name}"
                typer.echo(
                    f"fedrc: {f'no longer watching; {going_on}' if submitted else 'stopped'}",
                    err=True,
                )
                raise typer.Exit(FAILED if submitted else STOPPED) from None
        if not done.completed:
            typer.echo(f"fedrc: the run did not complete: {done.reason}", err=True)
            if has_checkpoint(done.directory):
                typer.echo(f"to continue: fedrc run {file} --name {run_name} --resume", err=True)
            show_page(done.directory, err=True)
            raise typer.Exit(FAILED)
        for line in summary_lines(done.summary, done.directory):
            typer.echo(line)
        show_page(done.directory)

    _guard(work)


def stop(
    file: ServerFile,
    name: Annotated[str, typer.Argument(help="The run's name, as `fedrc run` printed it.")],
) -> None:
    """Stop a run; it can be resumed later."""
    from deploy.control import find_run, runs_of

    def work(server: SuperLinkFile, control: Control) -> str:
        found = find_run(runs_of(server), name)
        _succeed(control.stop(str(found.id)))
        return f"stopped {found.name}; to continue: fedrc run {file} --name {found.name} --resume"

    _answer(file, work)


def _answer(file: Path, work: Callable[[SuperLinkFile, Control], str]) -> None:
    """Do something on the server of a file and print what came of it."""
    from deploy.files import read_superlink_file
    from deploy.submit import connect

    def connected() -> None:
        server = read_superlink_file(file)
        with tempfile.TemporaryDirectory(prefix="fedrc-") as scratch:
            typer.echo(work(server, connect(server, Path(scratch))))

    _guard(connected)


def _succeed(answer: dict[str, object]) -> None:
    """Refuse an answer of Flower's that is not a success."""
    if not answer.get("success"):
        said = str(answer.get("error-message", answer)).strip().splitlines()
        hint = "; a key is registered only once: make a new pair with `fedrc node key`"
        raise RunError(said[-1].rstrip(".") + hint * ("Public key already in use" in said[-1]))


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The same command, whose expected errors are told in one sentence."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        _guard(lambda: command(*args, **kwargs))

    return call


def _guard(work: Callable[[], None]) -> None:
    """Print expected errors as one sentence instead of a traceback."""
    try:
        work()
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
