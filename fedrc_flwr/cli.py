"""The ``fedrc`` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy import cli as deploy_cli
from fedrc_flwr import __version__
from fedrc_flwr.compare import cli as compare_cli
from fedrc_flwr.data import cli as data_cli
from fedrc_flwr.engine import cli as engine_cli
from fedrc_flwr.errors import FAILED, MISUSED, STOPPED, ConfigError, FedRCError
from fedrc_flwr.inference import cli as inference_cli
from fedrc_flwr.report import cli as report_cli
from fedrc_flwr.words import counted

if TYPE_CHECKING:
    from fedrc_flwr.config import RunConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
scenarios = typer.Typer(help="Scenarios: who holds which data.", no_args_is_help=True)
recipes = typer.Typer(help="Recipes: how to learn.", no_args_is_help=True)
app.add_typer(scenarios, name="scenario", rich_help_panel="Train on this machine")
app.add_typer(recipes, name="recipe", rich_help_panel="Train on this machine")
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, such as algorithm=fedavg. Repeatable.")
]
Scenario = Annotated[
    str | None, typer.Option(help="Name or path of a scenario: who holds which data.")
]
Recipe = Annotated[str | None, typer.Option(help="Name or path of a recipe: how to learn.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedrc-flwr {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Federated learning for clients that label the same inputs differently: FedRC on Flower.

    Try it with `fedrc simulate --scenario digits`, or on a table of your own with
    `fedrc check` and `fedrc simulate --data`.
    """


@app.command(rich_help_panel="Train on this machine")
def simulate(
    scenario: Scenario = None,
    recipe: Recipe = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your own data instead of a scenario: a table, .npz file or folder."),
    ] = None,
    label: data_cli.Label = None,
    client: data_cli.Client = None,
    ignore: data_cli.Ignore = None,
    columns: data_cli.Columns = None,
    settings: Settings = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Directory for the results: a new one, or with --resume the run's."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --output after its last round.")
    ] = False,
    from_round: Annotated[
        int | None,
        typer.Option(min=1, help="With --resume: continue after this round, repeat later ones."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="flower: its simulation engine; in-process: without Flower.")
    ] = "flower",
    cpus: Annotated[
        int | None,
        typer.Option(min=1, help="With --engine flower: how many clients compute at once."),
    ] = None,
) -> None:
    """Run a federation of virtual clients on this machine."""
    from fedrc_flwr.checkpoint import has_checkpoint
    from fedrc_flwr.engine.directory import check_new, clear
    from fedrc_flwr.report.terminal import Terminal, summary_lines
    from fedrc_flwr.simulation import FLOWER, check_engine, run_here

    try:
        check_engine(engine, cpus)
        own = data_cli.settings_of(data, label, client, ignore, columns)
        checked = _simulated(scenario, recipe, own, settings, output, resume, from_round)
        directory = output or checked.run.directory(
            checked.named(), checked.algorithm, checked.seed
        )
        if not resume:
            check_new(directory)
        for line in _chosen(checked):
            typer.echo(line)
        if not resume:
            clear(directory)
        with Terminal(checked.rounds) as terminal:
            outcome = run_here(checked, directory, terminal.show, engine, cpus)
    except FedRCError as error:
        typer.echo(f"fedrc: {error}", err=True)
        raise typer.Exit(MISUSED) from None
    except KeyboardInterrupt:  # before the run had begun
        raise typer.Exit(STOPPED) from None
    if not outcome.completed:
        typer.echo(f"fedrc: the run did not complete: {outcome.reason}", err=True)
        if has_checkpoint(directory):
            again = f"fedrc simulate --output {directory} --resume"
            again += f" --engine {engine}" * (engine != FLOWER)
            typer.echo(f"to continue: {again}", err=True)
        report_cli.show_page(directory, err=True)
        raise typer.Exit(STOPPED if outcome.summary.get("status") == "stopped" else FAILED)
    for line in summary_lines(outcome.summary, directory.resolve()):
        typer.echo(line)
    report_cli.show_page(directory)


@app.command(rich_help_panel="Train on this machine")
def config(
    everything: Annotated[bool, typer.Option("--all", help="All settings, by section.")] = False,
    toml: Annotated[
        bool, typer.Option("--toml", help="All settings as the tables of pyproject.toml.")
    ] = False,
) -> None:
    """Print the settings that people usually change, with defaults and ranges, as Markdown."""
    from fedrc_flwr import reference

    text = reference.toml_tables() if toml else reference.tables(everything)
    typer.echo(text, nl=False)


@scenarios.command("list")
def list_scenarios() -> None:
    """List the ready-made scenarios."""
    from fedrc_flwr.config import load_config, scenario_names
    from fedrc_flwr.data.settings import NO_SCENARIO

    for name in scenario_names():
        config = load_config({"scenario": name})
        held = f"{config.data.listed()}{config.model.named()}"
        typer.echo(f"{name:<18}{'your own data: --data' if name == NO_SCENARIO else held}")


@recipes.command("list")
def list_recipes() -> None:
    """List the ready-made recipes, each with the first line of its description."""
    from fedrc_flwr.config import RECIPES, recipe_names

    for name in recipe_names():
        first, *_ = [*(RECIPES / f"{name}.yaml").read_text("utf-8").splitlines(), ""]
        typer.echo(f"{name:<26}{first.lstrip('# ')}".rstrip())


@scenarios.command("show")
def show_scenario(
    scenario: Annotated[str, typer.Argument(help="Name or path of a scenario file.")],
    settings: Settings = None,
    output: Annotated[Path | None, typer.Option(help="A picture of it, as PNG.")] = None,
) -> None:
    """Show what each client of a scenario holds, as a table and as one picture."""
    from fedrc_flwr.data.scenario import scenario_of
    from fedrc_flwr.report import scenario as report

    try:
        if output is not None and output.suffix.lower() != ".png":
            raise ConfigError(f"--output {output}: expected the name of a .png file")
        checked = _config(scenario, None, settings)
        built = scenario_of(checked.data, checked.seed)
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


def _simulated(
    scenario: str | None,
    recipe: str | None,
    own: dict[str, str],
    settings: list[str] | None,
    output: Path | None,
    resume: bool,
    from_round: int | None,
) -> RunConfig:
    """The configuration that the command line asks for."""
    from fedrc_flwr.checkpoint import CHECKPOINTS, find_checkpoint
    from fedrc_flwr.config import parse_setting, recorded_config
    from fedrc_flwr.settings import flattened

    base: dict[str, Any] = {}
    changes = flattened(dict(parse_setting(text) for text in settings or []))
    if output is not None and (named := sorted({"run.name", "run.output-dir"} & set(changes))):
        raise ConfigError(f"{named[0]}: --output says where the results go; give one of them")
    if from_round is not None and not resume:
        raise ConfigError("--from-round needs --resume")
    if own and scenario is not None:
        raise ConfigError("give either --data or --scenario")
    if resume:
        if output is None:
            raise ConfigError("--resume needs --output, the directory of the run to continue")
        if (scenario, recipe) != (None, None) or own:
            raise ConfigError(
                "--resume continues a run with its own data and recipe: change single settings "
                "with --set"
            )
        base, settings = recorded_config(output, changes), None
        if from_round is not None:
            find_checkpoint(output / CHECKPOINTS, from_round)
            base["run.resume-round"] = from_round
            if int(base["rounds"]) <= from_round:
                raise ConfigError(
                    f"--from-round {from_round}: rounds = {base['rounds']} leaves no round to run"
                )
    base |= own
    return _config(scenario, recipe, settings, base)


def _config(
    scenario: str | None,
    recipe: str | None,
    settings: list[str] | None,
    base: dict[str, Any] | None = None,
) -> RunConfig:
    from fedrc_flwr.config import load_config, parse_setting

    given = dict(base or {})
    given |= {} if scenario is None else {"scenario": scenario}
    given |= {} if recipe is None else {"recipe": recipe}
    return load_config(given | dict(parse_setting(text) for text in settings or [])).located()


def _chosen(config: RunConfig) -> list[str]:
    """What will run, including what was chosen by default."""
    from fedrc_flwr.config import build_algorithm
    from fedrc_flwr.data.scenario import scenario_of
    from fedrc_flwr.data.telling import done_to

    scenario = scenario_of(config.data, config.seed)
    lines = done_to(scenario)
    # Missing or broken data is reported before anything starts.
    samples = len(scenario.client(0).fit)
    local = build_algorithm(config).local_settings(samples)
    return [
        f"{config.algorithm} on {config.named()}: {counted(scenario.clients, 'client')} and "
        f"{counted(scenario.observers, 'observer')}, {scenario.classes} classes, samples of shape "
        f"{scenario.input_shape}",
        *lines,
        f"network {config.model.chosen(scenario.input_shape)}; {local.described()} for a client of "
        f"{counted(samples, 'sample')}",
    ]


for commands in (data_cli, compare_cli, report_cli, inference_cli, deploy_cli, engine_cli):
    commands.add_commands(app)

if __name__ == "__main__":
    app()
