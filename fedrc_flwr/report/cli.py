"""The commands ``fedrc report`` and ``fedrc watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrc_flwr.errors import MISUSED, ConfigError, DataError, FedRCError

Run = Annotated[Path, typer.Argument(help="The run's directory.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to ``fedrc``."""
    for command in (report, watch):
        app.command(rich_help_panel="Use the result")(command)


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="The run's directory; several are put side by side.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="File for the page; default: report.html in the run's directory, or beside.html "
            "here for several runs."
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also draw every figure as PNG and SVG into this directory.")
    ] = None,
) -> None:
    """Make one HTML page of a run, which may still be running or have crashed."""
    from fedrc_flwr.report.contents import gather
    from fedrc_flwr.report.drawings import draw_figures
    from fedrc_flwr.report.page import write_beside, write_page

    try:
        if len(runs) > 1 and figures is not None:
            raise ConfigError(f"--figures draws one run: {len(runs)} were given; name one")
        path = write_page(runs[0], output) if len(runs) == 1 else write_beside(runs, output)
        drawn = draw_figures(gather(runs[0]), figures) if figures is not None else []
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    typer.echo(f"report in {path.resolve()}")
    if figures is not None:
        typer.echo(f"{len(drawn)} pictures in {figures.resolve()}")


def watch(
    run: Run,
    host: Annotated[
        str, typer.Option(help="Address to listen on; a token is required beyond loopback.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
) -> None:
    """Serve a live page of a run."""
    import secrets

    from fedrc_flwr.report.watch import address_of, bind, serve

    try:
        if not run.is_dir():
            raise DataError(f"{run}: no such directory; name the directory of a run")
        listening, local = bind(host, port)
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    token = None if local else secrets.token_urlsafe(24)
    typer.echo(f"watching {run} on {address_of(listening, host, token)} (Ctrl-C to stop)")
    if not local:
        typer.echo("the connection is not encrypted: use a TLS proxy on untrusted networks")
    serve(run, listening, token)


def show_page(run: Path, err: bool = False) -> None:
    """Make a run's page at its end and say where it is; errors are only reported."""
    from fedrc_flwr.report.page import write_page

    if not run.is_dir():
        return  # it ended before its first round
    try:
        typer.echo(f"report in {write_page(run).resolve()}", err=err)
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: no report: {error}", err=True)
