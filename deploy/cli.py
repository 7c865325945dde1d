"""The operator's commands of ``fedrc``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy import node_cli
from deploy.commands import ControlFile, Log, ServerFile, answer, guard, guarded, succeed
from deploy.json_log import LogFormat, log_as
from deploy.members_cli import certs, node
from fedrc_flwr.errors import FAILED, STOPPED, ConfigError

if TYPE_CHECKING:
    from deploy.tunnel import Reach
    from fedrc_flwr.flower import Control


def add_commands(app: typer.Typer) -> None:
    """Add the operator's commands to ``fedrc``."""
    app.add_typer(certs, name="certs", rich_help_panel="Deploy and operate")
    app.add_typer(node, name="node", rich_help_panel="Deploy and operate")
    node.command("allow")(guarded(node_cli.allow))
    for command in (superlink, serverapp, doctor, run, stop, tunnel):
        app.command(rich_help_panel="Deploy and operate")(command)
    for command in (node_cli.supernode, node_cli.clientapp):
        app.command(rich_help_panel="Deploy and operate")(guarded(command))


def superlink(file: ServerFile, log: Log = LogFormat.text) -> None:
    """Check superlink.yaml and run the SuperLink, with the gate in front of it."""
    from deploy.launch import launch_superlink

    log_as(log, "superlink")
    guard(lambda: launch_superlink(file))


def serverapp(file: ServerFile, log: Log = LogFormat.text) -> None:
    """Run the executor of ServerApps next to the SuperLink."""
    from deploy.launch import launch_serverapp

    log_as(log, "serverapp")
    guard(lambda: launch_serverapp(file))


def doctor(
    server: Annotated[Path | None, typer.Option(help="The server's superlink.yaml.")] = None,
    node: Annotated[Path | None, typer.Option(help="A node's node.yaml.")] = None,
) -> None:
    """Check the server or a node: files, certificates, clocks, health, nodes, the last round."""
    from deploy.doctor import examine_node, examine_superlink
    from deploy.files import read_node_file, read_superlink_file
    from deploy.findings import ERROR, Finding

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

    guard(work)


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
        list[str] | None,
        typer.Option("--set", help="A setting, such as algorithm=fedavg. Repeatable."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The run's name; with --resume, the run to continue.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    retries: Annotated[
        int, typer.Option(min=0, help="How often to resume automatically if the server side fails.")
    ] = 0,
    log: Log = LogFormat.text,
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
        directory = server.outputs / run_name
        if not resume and has_checkpoint(directory):
            raise ConfigError(f"{directory} holds a run already: use --resume")
        if resume and not has_checkpoint(directory):
            raise ConfigError(
                f"{directory} has no checkpoint, because no round was finished: start the run "
                "again, without --resume"
            )
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

    log_as(log, "run")
    guard(work)


def stop(
    file: ControlFile,
    name: Annotated[str, typer.Argument(help="The run's name, as `fedrc run` printed it.")],
) -> None:
    """Stop a run; it can be resumed later."""
    from deploy.control import find_run, runs_of

    def work(server: Reach, control: Control) -> str:
        found = find_run(runs_of(server), name)
        succeed(control.stop(str(found.id)))
        again = f"fedrc run superlink.yaml --name {found.name} --resume"
        return f"stopped {found.name}; to continue, on the server: {again}"

    answer(file, work)


def tunnel(file: Annotated[Path, typer.Argument(help="An operator.yaml.")]) -> None:
    """Open the control interface on loopback, through the gate, for `flwr` and other programs."""
    from deploy.tunnel import keep_open, read_operator_file

    def work() -> None:
        operator = read_operator_file(file)
        keep_open(
            operator,
            lambda here: typer.echo(
                f"open on {here} (plain text, for this machine only) until Ctrl-C; in Flower's "
                f'config.toml: address = "{here}", insecure = true'
            ),
        )

    guard(work)
