"""The commands ``fedrc forgive`` and ``fedrc forget``, for a run that is not running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrc_flwr.errors import MISUSED, ConfigError, FedRCError

if TYPE_CHECKING:
    from fedrc_flwr.state import ServerState

Run = Annotated[Path, typer.Argument(help="The run's directory.")]
Client = Annotated[str, typer.Argument(help="The client's name.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands to ``fedrc``."""
    for command in (forgive, forget):
        app.command(rich_help_panel="Deploy and operate")(command)


def forgive(run: Run, client: Client) -> None:
    """Let a client out of quarantine: its strikes and pauses are gone when the run continues."""
    from fedrc_flwr.engine.conduct import forgiven

    _rewrite(run, client, lambda state: forgiven(state, client))
    typer.echo(f"{client} has no strikes any more and is asked again when the run continues")


def forget(run: Run, client: Client) -> None:
    """Remove what a client left in the server's state: counts, loss table, fingerprint, record."""
    from fedrc_flwr.engine.conduct import forgotten

    _rewrite(run, client, lambda state: forgotten(state, client))
    typer.echo(
        f"{client} is removed from the server's state. The models keep what they learnt from it, "
        f"and {run / 'metrics.jsonl'} keeps its name and figures"
    )


def _rewrite(run: Path, client: str, change: Callable[[ServerState], ServerState]) -> None:
    """Change a client in every checkpoint of a run."""
    from fedrc_flwr.checkpoint import CHECKPOINTS, has_checkpoint, rewrite_checkpoints
    from fedrc_flwr.engine.directory import Claim

    seen: set[str] = set()

    def changed(state: ServerState) -> ServerState:
        seen.update(state.clients)
        return change(state) if client in state.clients else state

    try:
        if not has_checkpoint(run):
            raise ConfigError(f"{run}: holds no checkpoint; give the directory of a run")
        claim = Claim(run)  # refused while the run is running
        try:
            rewrite_checkpoints(run / CHECKPOINTS, changed)
        finally:
            claim.give_up()
        if client not in seen:
            raise ConfigError(f"{run}: no client {client!r}; there are {', '.join(sorted(seen))}")
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
