"""The command ``fedrc check``, and the options about one's own data that other commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrc_flwr.errors import MISUSED, ConfigError, FedRCError

Label = Annotated[str | None, typer.Option(help="Column with the labels of your table.")]
Client = Annotated[
    str | None, typer.Option(help="Column that says which client each row belongs to.")
]
Ignore = Annotated[
    str | None, typer.Option(help="Columns of your table to leave out, separated by commas.")
]
Columns = Annotated[
    str | None,
    typer.Option(help="The only columns to use: name or name:kind, separated by commas."),
]


def add_commands(app: typer.Typer) -> None:
    """Add this command to ``fedrc``."""
    app.command(rich_help_panel="Train on this machine")(check)


def check(
    data: Annotated[
        str, typer.Argument(help="A .csv, .tsv, .parquet or .npz file, or a folder of images.")
    ],
    label: Label = None,
    client: Client = None,
    ignore: Ignore = None,
    columns: Columns = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="Write the schema to this file, for the nodes of a deployment to share; or check "
            "the data against it, if it exists."
        ),
    ] = None,
) -> None:
    """Look at your data: what is in it, what will be done to it, and whether it can be run."""
    from fedrc_flwr.data.own import fits, looked_at
    from fedrc_flwr.data.settings import DataSettings
    from fedrc_flwr.data.telling import report
    from fedrc_flwr.settings import build

    given = settings_of(Path(data), label, client, ignore, columns)
    if schema is not None and schema.exists():
        if any(option is not None for option in (label, client, ignore, columns)):
            raise _refused(
                ConfigError(f"{schema} says all about the columns: leave the options out")
            )
        try:
            typer.echo(fits(build(DataSettings, "data", {**given, "data.schema": str(schema)})))
        except FedRCError as error:
            raise _refused(error) from None
        return
    try:
        found = looked_at(build(DataSettings, "data", given), owners=schema is None)
        for line in report(found):
            typer.echo(line)
        if found.problems:
            raise typer.Exit(MISUSED)
        if schema is not None:
            found.required().save(schema)
            typer.echo(f"schema in {schema}: read it, and edit it where it tells too much")
    except FedRCError as error:
        raise _refused(error) from None


def settings_of(
    data: Path | None,
    label: str | None,
    client: str | None,
    ignore: str | None,
    columns: str | None,
) -> dict[str, str]:
    """The settings that these options stand for."""
    options = {
        "data.label-column": label,
        "data.client-column": client,
        "data.ignore": ignore,
        "data.columns": columns,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    if data is None:
        if chosen:
            raise ConfigError("--label, --client, --ignore and --columns need --data")
        return {}
    return {"scenario": "none", "data.dataset": str(data), **chosen}


def _refused(error: FedRCError) -> typer.Exit:
    typer.echo(f"fedrc: {error}", err=True)
    return typer.Exit(MISUSED)
