"""The commands on a node's own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.commands import Log
from deploy.json_log import LogFormat, log_as

NodesFile = Annotated[Path, typer.Argument(help="This node's node.yaml.")]


def supernode(
    file: NodesFile,
    alone: Annotated[
        bool, typer.Option("--alone", help="`fedrc clientapp` executes its tasks.")
    ] = False,
    log: Log = LogFormat.text,
) -> None:
    """Check node.yaml and run the node."""
    from deploy.launch import launch_supernode

    log_as(log, "supernode")
    launch_supernode(file, alone)


def clientapp(file: NodesFile, log: Log = LogFormat.text) -> None:
    """Execute a node's tasks as another user, beside `fedrc supernode --alone`."""
    from deploy.launch import launch_clientapp

    log_as(log, "clientapp")
    launch_clientapp(file)


def allow(
    file: NodesFile,
    app: Annotated[
        str | None,
        typer.Argument(help="A bundle's hash, its .fab file, or the directory of an app."),
    ] = None,
) -> None:
    """Let a node execute an app, by the hash of its bundle. Without one: print what is allowed."""
    from deploy import allowing
    from deploy.files import read_node_file

    policy = read_node_file(file).policy
    if app is None:
        typer.echo("\n".join(policy.apps))
        return
    added = allowing.bundle_hash(app)
    allowing.allow(file, policy.apps, added)
    typer.echo(f"{file} allows {added}; it is in force from the next message on")
