"""``fedrc compare``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from fedrc_flwr.compare.plan import (
    Comparison,
    check,
    comparison_names,
    of_scenario,
    read_comparison,
    with_changes,
)
from fedrc_flwr.configuration import load_config, parse_setting
from fedrc_flwr.errors import ConfigError, FedRCError

FAILED, MISUSED, STOPPED = 1, 2, 130


def add_commands(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(compare)


def compare(
    comparison: Annotated[
        str | None,
        typer.Argument(help=f"Ready-made ({', '.join(comparison_names())}) or a .yaml file."),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Instead of a comparison: a scenario's name or file, and ...")
    ] = None,
    algorithms: Annotated[
        str, typer.Option(help="... the algorithms to run on it, separated by commas.")
    ] = "fedavg,ifca,fedem,fedrc",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "",
    learning_rates: Annotated[
        str, typer.Option(help="Learning rates to try with every method, separated by commas.")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value for all rows without one of their own. Repeatable."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Share of clients, data and rounds: 0.1 is a tenth.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Directory for all of it; the same again to go on.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Virtual clients at once.")] = None,
) -> None:
    """Run several algorithms on the same federation and put them side by side.

    What is done is not repeated: after a stop, the same command goes on.
    """
    from fedrc_flwr.compare.runner import open_directory

    try:
        planned = _planned(comparison, scenario, algorithms)
        given = dict(parse_setting(text) for text in settings or [])
        planned = with_changes(
            planned,
            tuple(int(seed) for seed in _numbers("--seeds", seeds, int)),
            _numbers("--learning-rates", learning_rates, float),
            given,
            scale,
        )
        check(planned)
        for key in given:
            if rows := [name for name, own in planned.rows.items() if key in own]:
                typer.echo(
                    f"note: {key} stays as the comparison has it in: {'; '.join(rows)}", err=True
                )
        directory = output or Path("outputs") / f"compare-{comparison or Path(scenario or '').stem}"
        open_directory(directory, planned)
        code = _run(planned, directory, cpus)
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    raise typer.Exit(code)


def _planned(comparison: str | None, scenario: str | None, algorithms: str) -> Comparison:
    if (comparison is None) == (scenario is None):
        raise ConfigError(
            "give either a comparison or --scenario; ready-made comparisons are "
            + ", ".join(comparison_names())
        )
    if comparison is not None:
        return read_comparison(comparison)
    names = [part.strip() for part in algorithms.split(",") if part.strip()]
    return of_scenario(str(scenario), names)


def _numbers(option: str, text: str, kind: type) -> tuple[float, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected numbers separated by commas") from None


def _run(comparison: Comparison, directory: Path, cpus: int | None) -> int:
    from fedrc_flwr.compare.progress import Progress
    from fedrc_flwr.compare.results import figures, lines, write_results, write_tables
    from fedrc_flwr.compare.runner import RUNS, Stopped, finished, run_cell

    cells = list(comparison.cells())
    failed = 0
    with Progress([load_config(cell.settings).rounds for cell in cells]) as progress:
        for number, cell in enumerate(cells):
            if finished(directory, cell):
                progress.skip(number, cell.name)
                continue
            started = time.monotonic()
            follow = progress.begin(number, cell.name)
            try:
                outcome = run_cell(directory, cell, follow, cpus)
            except Stopped:
                progress.say(f"stopped; the same command goes on: --output {directory}")
                write_results(directory, comparison)
                return STOPPED
            failed += not outcome.completed
            reason = "" if outcome.completed else outcome.reason
            found = figures(directory / RUNS / cell.folder)
            progress.end(number, cell.name, found, reason, time.monotonic() - started)
            write_tables(directory, comparison, lines(directory, comparison))
        for path in write_results(directory, comparison):
            progress.say(str(path))
    typer.echo((directory / "table.md").read_text("utf-8"))
    return FAILED if failed else 0
