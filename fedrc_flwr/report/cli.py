"""The commands of ``fedrc`` that show a run; thin on the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrc_flwr.errors import DataError, FedRCError

MISUSED = 2
Run = Annotated[Path, typer.Argument(help="The run's directory.")]


def add_commands(app: typer.Typer) -> None:
    """Hang the commands into ``fedrc``."""
    for command in (report, watch):
        app.command()(command)


def report(
    run: Run,
    output: Annotated[
        Path | None, typer.Option(help="The page's file; default: report.html in the run.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also draw every figure as PNG and SVG into this directory.")
    ] = None,
) -> None:
    """Make one HTML page of a run: also while it goes on, or after a crash."""
    from fedrc_flwr.report.contents import gather
    from fedrc_flwr.report.drawings import draw_figures
    from fedrc_flwr.report.page import write_page

    try:
        path = write_page(run, output)
        drawn = draw_figures(gather(run), figures) if figures is not None else []
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    typer.echo(f"report in {path.resolve()}")
    if figures is not None:
        typer.echo(f"{len(drawn)} pictures in {figures.resolve()}")


def watch(
    run: Run,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond loopback a token is asked for.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
) -> None:
    """Serve a run's page while the run goes on; it updates by itself."""
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
    typer.echo(f"watching {run} on {address_of(listening, host, token)} (Ctrl-C ends it)")
    if not local:
        typer.echo("the page travels unencrypted: put TLS in front where the network is not yours")
    serve(run, listening, token)


def show_page(run: Path, err: bool = False) -> None:
    """At the end of a run, make its page and say where it is; a page that fails harms nothing."""
    from fedrc_flwr.report.page import write_page

    if not run.is_dir():
        return  # it ended before it began
    try:
        typer.echo(f"report in {write_page(run).resolve()}", err=err)
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: no report: {error}", err=True)
