"""``fedrc compare``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrc_flwr.errors import FAILED, MISUSED, STOPPED, ConfigError, FedRCError

if TYPE_CHECKING:
    from fedrc_flwr.compare.plan import Comparison


def add_commands(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Train on this machine")(compare)


def compare(
    comparison: Annotated[
        str | None,
        typer.Argument(help="A ready-made comparison (see --list), or a .yaml file."),
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(help="Instead of a comparison: name or path of a scenario.")
    ] = None,
    algorithms: Annotated[
        str, typer.Option(help="With --scenario: the algorithms, separated by commas.")
    ] = "fedavg,ifca,fedem,fedrc",
    row: Annotated[list[str] | None, typer.Option(help="Run this row alone. Repeatable.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Run this column alone. Repeatable.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "",
    learning_rates: Annotated[
        str, typer.Option(help="Learning rates to try with every method, separated by commas.")
    ] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting for all rows that do not set it. Repeatable."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Fraction of clients, data and rounds: 0.1 is a tenth.")
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="Minutes instead of days: 30 clients of FashionMNIST and a small network.",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Directory for the results; give it again to continue.")
    ] = None,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List the ready-made comparisons, what each reproduces and how long it takes.",
        ),
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Tell how long it would take, and exit.")
    ] = False,
    stop_behind: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="End runs whose training accuracy is this much below that of the same method with "
            "another learning rate, such as 0.1.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="in-process, or flower: its simulation engine.")
    ] = "in-process",
    cpus: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --engine flower: how many clients compute at the same time."
        ),
    ] = None,
) -> None:
    """Run several algorithms on the same federation and put them side by side.

    Finished runs are kept: after a stop, the same command continues where it was.
    """
    from fedrc_flwr.compare.budget import catalogue, told
    from fedrc_flwr.compare.plan import WEIGHTS, check, part, with_changes
    from fedrc_flwr.compare.runner import open_directory
    from fedrc_flwr.compare.small import small as smaller
    from fedrc_flwr.config import NAME_IT, parse_setting
    from fedrc_flwr.plugins import refuse_code
    from fedrc_flwr.settings import flattened
    from fedrc_flwr.simulation import check_engine

    if listed:
        for text in catalogue():
            typer.echo(text)
        return

    try:
        planned = _planned(comparison, scenario, algorithms)
        given = dict(parse_setting(text) for text in settings or [])
        for named in (*planned.rows.values(), *planned.columns.values(), planned.settings):
            refuse_code(f"comparison {comparison}", flattened(named), given.values(), NAME_IT)
        planned = with_changes(
            part(smaller(planned, flattened(given)) if small else planned, row or [], column or []),
            tuple(int(seed) for seed in _numbers("--seeds", seeds, int)),
            _numbers("--learning-rates", learning_rates, float),
            given,
            scale,
        )
        check_engine(engine, cpus)
        check(planned, data=not estimate)
        for key in given:
            if rows := [name for name, own in planned.rows.items() if key in own]:
                typer.echo(f"note: these rows keep their own {key}: {'; '.join(rows)}", err=True)
        if WEIGHTS in given and (
            names := [name for name in planned.columns if not planned.takes_weights(name)]
        ):
            typer.echo(f"note: {WEIGHTS} does not concern: {'; '.join(names)}", err=True)
        directory = output or Path("outputs") / f"compare-{Path(comparison or scenario or '').stem}"
        if not estimate:
            open_directory(directory, planned)
        for text in told(directory, planned):
            typer.echo(text)
        if estimate:
            return
        code = _run(planned, directory, engine, cpus, stop_behind)
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    raise typer.Exit(code)


def _planned(comparison: str | None, scenario: str | None, algorithms: str) -> Comparison:
    from fedrc_flwr.compare.plan import comparison_names, of_scenario, read_comparison

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


def _run(
    comparison: Comparison, directory: Path, engine: str, cpus: int | None, margin: float | None
) -> int:
    from fedrc_flwr.compare.behind import watching
    from fedrc_flwr.compare.output import write_results
    from fedrc_flwr.compare.progress import Progress
    from fedrc_flwr.compare.results import figures, lines
    from fedrc_flwr.compare.runner import RUNS, Stopped, finished, run_cell, was_ended
    from fedrc_flwr.compare.sharing import Sharing
    from fedrc_flwr.compare.tables import write_tables
    from fedrc_flwr.config import load_config
    from fedrc_flwr.simulation import IN_PROCESS

    sharing = Sharing(directory, list(comparison.cells()))
    cells = sharing.cells
    rounds = [load_config(cell.settings).rounds for cell in cells]
    failed = 0
    with Progress(rounds) as progress:
        for number, cell in enumerate(cells):
            if finished(directory, cell) or was_ended(directory, cell):
                progress.skip(number, cell.name)
                continue
            started = time.monotonic()
            follow = [progress.begin(number, cell.name)]
            if engine == IN_PROCESS:
                if row := sharing.take_over(cell):
                    progress.say(f"{cell.name}: all rounds are those of {row}")
                follow.append(sharing.forking(cell))
            if margin is not None:
                follow.append(watching(directory, comparison, cell, rounds[number], margin))
            try:
                outcome = run_cell(directory, cell, follow, engine, cpus)
            except Stopped:
                progress.say(f"stopped; the same command continues it: --output {directory}")
                write_results(directory, comparison)
                return STOPPED
            failed += not (outcome.completed or was_ended(directory, cell))
            reason = "" if outcome.completed else outcome.reason
            found = figures(directory / RUNS / cell.folder)
            progress.end(number, cell.name, found, reason, time.monotonic() - started)
            write_tables(directory, comparison, lines(directory, comparison))
        for path in write_results(directory, comparison):
            progress.say(str(path))
    typer.echo((directory / "table.md").read_text("utf-8"))
    return FAILED if failed else 0
