"""The Flower ServerApp: configuration in, a directory of results out."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrc_flwr.config import RunConfig, from_flower
from fedrc_flwr.engine.run import Run
from server_app.enrolment import Roster
from server_app.strategy import ClusteredStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, one federation."""
    config = from_flower(context.run_config)
    directory = config.run.directory(config.scenario, config.algorithm, config.seed)
    run_on_flower(config, directory, grid)


def run_on_flower(config: RunConfig, directory: Path, grid: Grid) -> Run:
    """One run whose clients are Flower's nodes."""
    run = Run(config, directory)
    exchange = run.rounds.settings.exchange()
    roster = Roster(grid, run.scenario.classes, exchange.window)
    strategy = ClusteredStrategy(run.rounds, roster, run.layout, grid)

    def enrol() -> None:
        trainers, everybody = run.rounds.settings.awaited(run.scenario.clients, len(run.scenario))
        roster.wait(trainers, everybody, exchange.enrolment_timeout, run.rounds.enrol)

    run.go(strategy, enrol)
    return run
