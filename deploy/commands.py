"""What the operator's commands have in common."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.json_log import LogFormat
from fedrc_flwr.errors import MISUSED, FedRCError, RunError

if TYPE_CHECKING:
    from deploy.tunnel import Reach
    from fedrc_flwr.flower import Control

ServerFile = Annotated[Path, typer.Argument(help="The server's superlink.yaml.")]
ControlFile = Annotated[
    Path, typer.Argument(help="The server's superlink.yaml; elsewhere, an operator.yaml.")
]

Log = Annotated[
    LogFormat, typer.Option("--log", help="How to write the log; json: an object a line.")
]


def answer(file: Path, work: Callable[[Reach, Control], str]) -> None:
    """Do something on the server of a file and print what came of it."""
    from deploy.submit import connect
    from deploy.tunnel import reaching

    def connected() -> None:
        with reaching(file) as server, tempfile.TemporaryDirectory(prefix="fedrc-") as scratch:
            typer.echo(work(server, connect(server, Path(scratch))))

    guard(connected)


def succeed(said_by_flower: dict[str, object]) -> None:
    """Refuse an answer of Flower's that is not a success."""
    if not said_by_flower.get("success"):
        said = str(said_by_flower.get("error-message", said_by_flower)).strip().splitlines()
        hint = "; a key is registered only once: make a new pair with `fedrc node key`"
        raise RunError(said[-1].rstrip(".") + hint * ("Public key already in use" in said[-1]))


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The same command, whose expected errors are told in one sentence."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        guard(lambda: command(*args, **kwargs))

    return call


def guard(work: Callable[[], None]) -> None:
    """Print expected errors as one sentence instead of a traceback."""
    try:
        work()
    except (FedRCError, OSError) as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
