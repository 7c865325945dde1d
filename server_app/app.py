"""The Flower ServerApp: configuration in, a directory of results out."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrc_flwr.config import RunConfig, from_flower
from fedrc_flwr.engine.progress import Pulse
from fedrc_flwr.engine.run import Run
from server_app.enrolment import Roster
from server_app.exchange import is_simulation
from server_app.names import nodes_have_keys, registered_names
from server_app.strategy import ClusteredStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, one federation."""
    config = from_flower(context.run_config)
    place = config.run.directory(config.named(), config.algorithm, config.seed)
    # A link in place of the run's own directory is refused, and so must not be resolved.
    run_on_flower(config, place.parent.resolve() / place.name, grid)


def run_on_flower(config: RunConfig, directory: Path, grid: Grid) -> Run:
    """One run whose clients are Flower's nodes."""
    if not is_simulation(grid):
        config.attack.refuse_in_deployment()
    run = Run(config, directory)
    if not is_simulation(grid):
        run.rounds.secret = secrets.randbits(63)
    exchange = run.rounds.settings.exchange()
    roster = Roster(
        grid,
        run.scenario.classes,
        exchange.window,
        lambda: registered_names(directory),
        run.outputs.note,
        nodes_have_keys(),
    )
    strategy = ClusteredStrategy(run.rounds, roster, run.layout, grid)

    def enrol() -> None:
        clients, everybody, needed = run.scenario.clients, len(run.scenario), False
        if run.scenario.on_nodes:
            # Everybody who is registered, unless the settings say how many are enough.
            clients, everybody, needed = 1, max(2, len(registered_names(directory))), True
        trainers, everybody = run.rounds.settings.awaited(clients, everybody)
        roster.wait(trainers, everybody, exchange.enrolment_timeout, run.rounds.enrol, needed)

    pulse = Pulse(directory, run.rounds.progress, lambda: run.rounds.state.round)
    with closing(roster), closing(strategy), pulse:
        run.go(strategy, enrol)
    return run
