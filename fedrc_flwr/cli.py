"""The ``fedrc`` command."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy import cli as deploy_cli
from fedrc_flwr import inference_cli
from fedrc_flwr.compare import cli as compare_cli
from fedrc_flwr.configuration import describe_keys, load_config, parse_setting, scenario_names
from fedrc_flwr.errors import ConfigError, FedRCError
from fedrc_flwr.report import cli as report_cli

app = typer.Typer(
    help="Robust clustered federated learning on Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FAILED, MISUSED = 1, 2


scenarios = typer.Typer(help="Look at scenarios: who holds what.", no_args_is_help=True)
app.add_typer(scenarios, name="scenario")


@app.callback()
def _main() -> None:
    """Robust clustered federated learning on Flower."""


@app.command()
def config() -> None:
    """Print all run-configuration keys with defaults and ranges, as Markdown."""
    typer.echo(describe_keys(), nl=False)


@scenarios.command("list")
def list_scenarios() -> None:
    """Name the ready-made scenarios."""
    for name in scenario_names():
        checked = load_config({"scenario": name})
        typer.echo(f"{name:<18}{checked.clients:>4} clients  {checked.dataset:<15}{checked.model}")


@scenarios.command("show")
def show_scenario(
    scenario: Annotated[str, typer.Argument(help="Name or path of a scenario file.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A run-config key: key=value. Repeatable.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A picture of it, as PNG.")] = None,
) -> None:
    """Tell what each client of a scenario holds, as a table and as one picture."""
    from fedrc_flwr.data.scenario import scenario_of
    from fedrc_flwr.report import scenario as report

    try:
        if output is not None and output.suffix.lower() != ".png":
            raise ConfigError(f"--output {output}: expected the name of a .png file")
        checked = load_config(_settings(scenario, settings or [], None, False))
        built = scenario_of(checked)
        outlines = [built.outline(index) for index in range(len(built))]
        if output is not None:
            title = f"{Path(checked.scenario).stem}, seed {checked.seed}"
            try:
                report.draw(outlines, built.classes, title, output)
            except OSError as error:
                raise ConfigError(f"--output {output}: {error}") from None
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    for line in report.table(outlines):
        typer.echo(line)
    typer.echo(report.totals(outlines))


@app.command()
def simulate(
    scenario: Annotated[
        str | None,
        typer.Option(help=f"Name ({', '.join(scenario_names())}) or path of a scenario file."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A run-config key: key=value. Repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Directory for this run's results; must be a new one.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --output after its last round.")
    ] = False,
    from_round: Annotated[
        int | None,
        typer.Option(min=1, help="With --resume: go on after this round, do later ones anew."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Virtual clients that compute at once.")
    ] = None,
) -> None:
    """Run a federation of virtual clients on this machine, through Flower's simulation engine."""
    from fedrc_flwr.checkpoint import has_checkpoint
    from fedrc_flwr.data.own import located
    from fedrc_flwr.data.scenario import scenario_of
    from fedrc_flwr.report.terminal import Terminal, summary_lines
    from fedrc_flwr.simulation import simulate as run

    try:
        given = _settings(scenario, settings or [], output, resume, from_round)
        checked = load_config(given)
        given |= located(checked)
        checked = load_config(given)
        scenario_of(checked).client(0)  # missing or broken data is told before anything starts
        # Flower takes scalars only: what the user wrote in another form goes on as it was read.
        given = {name: value for name, value in checked.to_dict().items() if name in given}
        directory = output or Path("outputs") / (
            f"{Path(checked.scenario).stem}-{checked.algorithm}-seed{checked.seed}-"
            + time.strftime("%Y%m%d-%H%M%S")
        )
        with Terminal(checked.rounds) as terminal:
            outcome = run(given, directory, terminal.show, cpus=cpus)
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    if not outcome.completed:
        typer.echo(f"fedrc: the run did not complete: {outcome.reason}", err=True)
        if has_checkpoint(directory):
            typer.echo(f"to go on: fedrc simulate --output {directory} --resume", err=True)
        report_cli.show_page(directory, err=True)
        raise typer.Exit(FAILED)
    for line in summary_lines(outcome.summary, directory.resolve()):
        typer.echo(line)
    report_cli.show_page(directory)


def _settings(
    scenario: str | None,
    settings: list[str],
    output: Path | None,
    resume: bool,
    from_round: int | None = None,
) -> dict[str, Any]:
    """The run-config keys that the command line asks for."""
    from fedrc_flwr.checkpoint import CHECKPOINTS, find_checkpoint

    given: dict[str, Any] = {}
    if from_round is not None and not resume:
        raise ConfigError("--from-round needs --resume")
    if resume:
        if output is None:
            raise ConfigError("--resume needs --output, the directory of the run to go on with")
        try:
            given = dict(json.loads((output / "config.json").read_text("utf-8")), resume=True)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{output} holds no run to resume: {error}") from None
        if from_round is not None:
            find_checkpoint(output / CHECKPOINTS, from_round)
            given["resume-round"] = from_round
    elif output is not None and output.exists() and not output.is_dir():
        raise ConfigError(f"{output} is a file: give a new directory")
    elif output is not None and output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty: give a new directory, or --resume its run")
    if scenario is not None:
        given["scenario"] = scenario
    given |= dict(parse_setting(text) for text in settings)
    return given


def resumed_settings(directory: Path) -> dict[str, Any]:
    """The keys under which the run in a directory was started, to go on with it."""
    try:
        given: dict[str, Any] = json.loads((directory / "config.json").read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{directory} holds no run to resume: {error}") from None
    return {**given, "resume": True}


for commands in (compare_cli, report_cli, inference_cli, deploy_cli):
    commands.add_commands(app)

if __name__ == "__main__":
    app()
