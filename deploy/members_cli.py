"""The operator's commands about certificates and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.commands import ControlFile, answer, guard, succeed

if TYPE_CHECKING:
    from deploy.tunnel import Reach
    from fedrc_flwr.flower import Control

certs = typer.Typer(help="The federation's certificates.", no_args_is_help=True)
node = typer.Typer(help="The federation's nodes.", no_args_is_help=True)


@certs.command("init")
def certs_init(
    directory: Annotated[Path, typer.Argument(help="Directory to create them in.")],
    name: Annotated[
        list[str], typer.Option(help="Host name or address of the server. Repeatable.")
    ],
) -> None:
    """Make an authority and the server's certificate."""
    from deploy.certificates import check_names, create_authority, issue_server_certificate
    from deploy.operators import ensure_authority

    def work() -> None:
        check_names(name)
        create_authority(directory)
        ensure_authority(directory)
        issue_server_certificate(directory, name)
        typer.echo(f"made {directory}/ca.crt (copy it to every node) and {directory}/server.crt")

    guard(work)


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

    guard(work)


@certs.command("operator")
def certs_operator(
    directory: Annotated[Path, typer.Argument(help="The server's directory of certificates.")],
    name: Annotated[str, typer.Argument(help="The operator's name.")],
    output: Annotated[
        Path, typer.Option(help="Directory to create NAME.crt and NAME.key in.")
    ] = Path(),
) -> None:
    """Make a certificate for an operator who works from another machine."""
    from deploy.operators import issue_operator, operators_authority

    def work() -> None:
        first = operators_authority(directory) is None
        issue_operator(directory, name, output)
        restart = "; restart the SuperLink, which knows no operators yet" if first else ""
        typer.echo(f"made {output / name}.crt and {output / name}.key{restart}")

    guard(work)


@certs.command("withdraw")
def certs_withdraw(
    directory: Annotated[Path, typer.Argument(help="The server's directory of certificates.")],
    name: Annotated[str, typer.Argument(help="The operator's name.")],
) -> None:
    """Lock an operator out, from the next request on."""
    from deploy.operators import withdraw_operator

    def work() -> None:
        withdraw_operator(directory, name)
        typer.echo(f"{name} is no longer admitted")

    guard(work)


@node.command("key")
def node_key(path: Annotated[Path, typer.Argument(help="The private key's file.")]) -> None:
    """Make a node's key pair, on the node itself: the private key never leaves it."""
    from deploy.certificates import create_node_key

    def work() -> None:
        public = create_node_key(path)
        typer.echo(f"made {path}; copy {public} to the server and run there: fedrc node register")

    guard(work)


@node.command("register")
def node_register(
    file: ControlFile,
    public_key: Annotated[Path, typer.Argument(help="The node's .pub file.")],
    name: Annotated[
        str | None, typer.Option(help="As in its node.yaml; default: the .pub file's name.")
    ] = None,
) -> None:
    """Register a node by its public key, under the name that its node.yaml has."""
    from deploy.control import check_new_name, name_from, nodes_of

    def work(server: Reach, control: Control) -> str:
        called = name or name_from(public_key)
        check_new_name(called, nodes_of(server))
        succeed(control.register(public_key.resolve(), called))
        return f"registered {called}"

    answer(file, work)


@node.command("rotate")
def node_rotate(
    file: ControlFile,
    name: Annotated[str, typer.Argument(help="As `fedrc node list` shows it.")],
    public_key: Annotated[Path, typer.Argument(help="The .pub file of its new key.")],
) -> None:
    """Replace a node's key. It keeps its name, and with it its weights."""
    from deploy.control import check_new_key, find_node, nodes_of

    def work(server: Reach, control: Control) -> str:
        nodes = nodes_of(server)
        old = find_node(nodes, name)
        check_new_key(public_key, nodes)
        succeed(control.register(public_key.resolve(), name))
        succeed(control.unregister(str(old.id)))
        return f"{name} has a new key; the old one is no longer let in"

    answer(file, work)


@node.command("remove")
def node_remove(
    file: ControlFile, name: Annotated[str, typer.Argument(help="As `fedrc node list` shows it.")]
) -> None:
    """Remove a node."""
    from deploy.control import find_node, nodes_of

    def work(server: Reach, control: Control) -> str:
        found = find_node(nodes_of(server), name)
        succeed(control.unregister(str(found.id)))
        return f"removed {found.called}"

    answer(file, work)


@node.command("list")
def node_list(file: ControlFile) -> None:
    """Show the registered nodes."""
    from deploy.doctor import list_nodes
    from deploy.tunnel import reaching

    def work() -> None:
        with reaching(file) as server:
            for finding in list_nodes(server):
                typer.echo(finding.text)

    guard(work)
