"""The Flower ServerApp: configuration in, a directory of results out."""

from __future__ import annotations

import logging
import resource
import sys
import time
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import log

from fedrc_flwr.algorithms import build_algorithm
from fedrc_flwr.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    find_checkpoint,
    has_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from fedrc_flwr.config import RunConfig
from fedrc_flwr.configuration import load_config
from fedrc_flwr.data.scenario import scenario_of
from fedrc_flwr.errors import CheckpointError, ConfigError, FedRCError
from fedrc_flwr.layout import fingerprint
from fedrc_flwr.models import build_model
from fedrc_flwr.report.figures import draw_mixture_weights
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY, MetricsLog, read_events, write_json
from fedrc_flwr.report.loggers import Loggers
from fedrc_flwr.report.summary import summarise
from fedrc_flwr.state import ServerState
from server_app.enrolment import Roster
from server_app.strategy import FedRC

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run, or resume, one federation."""
    config = load_config(context.run_config)
    directory = _run_directory(config)
    Run(config, directory, grid).go()


def _run_directory(config: RunConfig) -> Path:
    name = config.run_name or (
        f"{Path(config.scenario).stem}-{config.algorithm}-{config.seed}-"
        + time.strftime("%Y%m%d-%H%M%S")
    )
    return (Path(config.output_dir) / name).resolve()


def _peak_megabytes() -> float:
    """The most memory that this process has had so far."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (1024**2 if sys.platform == "darwin" else 1024)


class Run:
    """One run's state on disk and in memory."""

    def __init__(self, config: RunConfig, directory: Path, grid: Grid) -> None:
        self.config = config
        self.directory = directory
        if not config.resume and has_checkpoint(directory):
            raise ConfigError(
                f"{directory} holds a run already: choose another run-name, or set resume = true"
            )
        self.log = MetricsLog(directory)
        handler = logging.FileHandler(directory / "run.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("flwr").addHandler(handler)
        self.scenario = scenario_of(config)
        self.algorithm = build_algorithm(config)
        self._started = time.monotonic()
        self._seconds_before = 0.0
        self._evaluation: dict[str, Any] = {}
        self._undecided = ""
        shape, classes = self.scenario.input_shape, self.scenario.classes
        models = [
            build_model(config, shape, classes, seed=config.seed * 1_000 + k)
            for k in range(config.clusters)
        ]
        state = self.algorithm.initial_state(models)
        self.layout = fingerprint(models[0], config.shared_body)
        if config.resume:
            state = self._resumed()
        roster = Roster(grid, classes, config.window)
        self.strategy = FedRC(self.algorithm, state, roster, self.layout, classes, self._round_done)
        self._grid = grid
        self.loggers = Loggers(config.logger_names(), lambda text: log(WARNING, "%s", text))

    def go(self) -> None:
        """Enrol, train, evaluate, and write the summary whatever happens."""
        config = self.config
        write_json(self.directory / CONFIG, config.to_dict())
        log(INFO, "results go to %s", self.directory)
        self.loggers.start(config.to_dict(), self.directory, self.strategy.state.round + 1)
        try:
            trainers = config.min_clients or self.scenario.clients
            everybody = 0 if config.min_clients else len(self.scenario)
            roster = self.strategy.roster
            roster.wait(trainers, everybody, config.enrolment_timeout, self.strategy.enrolled)
            self.strategy.start(self._grid, ArrayRecord())
        except FedRCError as error:
            log(ERROR, "%s", error)
            self._finish("failed", str(error))
            raise
        except Exception as error:
            self._finish("failed", f"{type(error).__name__}: {error}")
            raise
        self._finish("completed", "")

    def _resumed(self) -> ServerState:
        folder, wanted = self.directory / CHECKPOINTS, self.config.resume_round
        if wanted:
            checkpoint = load_checkpoint(find_checkpoint(folder, wanted))
        else:
            checkpoint, problems = latest_checkpoint(folder)
            for problem in problems:
                log(WARNING, "skipped: %s", problem)
        if checkpoint.layout != self.layout:
            raise CheckpointError(
                f"the checkpoint in {self.directory} holds another network than model = "
                f"{self.config.model!r} of this configuration"
            )
        self.log.rewind(checkpoint.state.round)
        events = read_events(self.directory / METRICS)
        self._seconds_before = max((e.get("elapsed", 0.0) for e in events), default=0.0)
        for event in events:
            self._note(event)
        log(INFO, "resuming after round %s", checkpoint.state.round)
        return checkpoint.state

    def _elapsed(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _note(self, metrics: dict[str, Any]) -> None:
        """Remember what the summary needs of a round."""
        self._undecided = metrics.get("undecided", "")
        if "local_accuracy" in metrics or "global_accuracy" in metrics:
            self._evaluation = metrics

    def _round_done(self, state: ServerState, metrics: dict[str, Any]) -> None:
        """Log, then checkpoint: what a crash in between leaves too much is cut off on resuming."""
        self._note(metrics)
        metrics = {
            "event": "round",
            **metrics,
            "elapsed": round(self._elapsed(), 3),
            "server_peak_megabytes": _peak_megabytes(),
        }
        self.log.append(metrics)
        self.loggers.round(metrics)
        checkpoint = Checkpoint(
            state,
            self.config.to_dict(),
            self.scenario.input_shape,
            self.scenario.classes,
            self.layout,
        )
        save_checkpoint(self.directory / CHECKPOINTS, checkpoint, self.config.keep_checkpoints)
        if self.config.resume_round and state.round == self.config.resume_round + 1:
            # The run has gone back; who resumes it from now on goes on after its last round.
            write_json(self.directory / CONFIG, {**self.config.to_dict(), "resume-round": 0})

    def _finish(self, status: str, reason: str) -> None:
        state = self.strategy.state
        summary = summarise(
            state, self.config, status, self._elapsed(), self._evaluation, reason, self._undecided
        )
        if state.reported():
            draw_mixture_weights(state, self.directory / "mixture_weights.png")
        write_json(self.directory / SUMMARY, summary)
        self.log.append({"event": "end", **summary})
        self.loggers.end(summary)
        log(INFO, "%s after %s rounds; results in %s", status, state.round, self.directory)
