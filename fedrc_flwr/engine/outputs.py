"""What a run writes: its configuration, metrics, checkpoints and summary, in one directory."""

from __future__ import annotations

import logging
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrc_flwr.checkpoint import (
    CHECKPOINTS,
    KEPT_STATES,
    Checkpoint,
    find_checkpoint,
    has_checkpoint,
    latest_checkpoint,
    load_checkpoint,
)
from fedrc_flwr.engine.directory import RUN_LOG, Claim
from fedrc_flwr.engine.saving import Saving
from fedrc_flwr.errors import CheckpointError, ConfigError
from fedrc_flwr.files import not_following
from fedrc_flwr.report.figures import draw_mixture_weights
from fedrc_flwr.report.headline import headline
from fedrc_flwr.report.history import history
from fedrc_flwr.report.log import (
    CONFIG,
    EVALUATED,
    EVALUATION,
    METRICS,
    SUMMARY,
    MetricsLog,
    read_events,
    read_json,
    write_json,
)
from fedrc_flwr.report.loggers import LOGGERS, Loggers
from fedrc_flwr.report.population import population
from fedrc_flwr.report.summary import summarise
from fedrc_flwr.report.tallies import recorded_tallies
from fedrc_flwr.settings import Scalar, key
from fedrc_flwr.state import ServerState
from fedrc_flwr.words import counted

log = logging.getLogger("flwr")  # Flower's logger, so that everything is in one log
LONGEST_NAME = 128  # of a run, in characters


@dataclass(frozen=True)
class RunSettings:
    """Where results go, how often models are evaluated and saved, and how a run is resumed."""

    name: str = key(
        "",
        "Name of the run's directory and of the clients' state. Empty: made from scenario, "
        "algorithm, seed and time. With `run.resume` and the name of an earlier run, that run "
        "continues.",
    )
    output_dir: str = key(
        "outputs",
        "Directory in which the run's directory is made, relative to where the server app runs.",
    )
    evaluate_every: int = key(
        5, "Evaluate after every so many rounds, and after the last.", low=1, rounds=True,
        common=True,
    )  # fmt: skip
    keep_checkpoints: int = key(3, "How many checkpoints are kept.", low=1)
    resume: bool = key(False, "Continue from the newest checkpoint in the run's directory.")
    resume_round: int = key(
        0,
        "With `run.resume`: continue after this round and repeat the later ones. 0: after the "
        "newest checkpoint.",
        low=0,
    )
    loggers: str = key(
        "",
        "Where metrics go besides `metrics.jsonl`: any of `tensorboard`, `mlflow`, `wandb`, "
        "separated by commas. Each is an extra of the package.",
    )
    state_dir: str = key(
        "",
        "Directory for the state of clients whose node configuration names none. Empty: the state "
        "is kept in memory.",
    )
    device: str = key(
        "",
        "Device that clients compute on: `cuda`, `cuda:1` or `cpu`. Empty: `cuda` where there is "
        "one. A node's own configuration takes precedence.",
        common=True,
    )

    def __post_init__(self) -> None:
        if self.name in (".", "..") or set(self.name) & set("/\\\0"):
            raise ConfigError(
                f"run.name = {self.name[:LONGEST_NAME]!r}: expected the name of a directory, not a "
                "path"
            )
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise ConfigError(
                f"run.name = {self.name[:LONGEST_NAME]!r}: expected at most {LONGEST_NAME} "
                "characters, all of them printable"
            )
        if self.resume_round and not self.resume:
            raise ConfigError(
                f"run.resume-round = {self.resume_round}: only with run.resume = true"
            )
        self.logger_names()

    def logger_names(self) -> list[str]:
        """The loggers that ``loggers`` names."""
        names = [name.strip() for name in self.loggers.split(",") if name.strip()]
        if not set(names) <= set(LOGGERS):
            raise ConfigError(
                f"run.loggers = {self.loggers!r}: expected any of {', '.join(LOGGERS)}, separated "
                "by commas"
            )
        return names

    def placed(self, directory: Path, state_dir: Path | None) -> RunSettings:
        """The same for a run in this directory."""
        folder = self.state_dir if state_dir is None else str(state_dir)
        return replace(
            self, name=directory.name, output_dir=str(directory.parent), state_dir=folder
        )

    def resumed(self, after_round: int) -> RunSettings:
        """The same, to continue a run."""
        return replace(self, resume=True, resume_round=after_round)

    def continues(self) -> bool:
        """Whether the run starts from a checkpoint."""
        return self.resume

    def evaluation_interval(self) -> int:
        """Rounds from one evaluation to the next."""
        return self.evaluate_every

    def device_of(self, own: object) -> str:
        """The device of a client: the one that its node names, if any."""
        return self.device if own is None else str(own)

    def state_folder(self, own: str) -> str:
        """The directory of clients' states: the one that the node names, if any."""
        return own or self.state_dir

    def known_as(self, otherwise: str) -> str:
        """The run's name for its clients."""
        return self.name or otherwise

    def states_to_keep(self) -> int:
        """How many states a client keeps, so that it has one for every checkpoint."""
        return max(KEPT_STATES, self.keep_checkpoints + 1)

    def directory(self, scenario: str, algorithm: str, seed: int) -> Path:
        """The run's directory: the named one, or a new one."""
        return Path(self.output_dir) / (self.name or new_name(scenario, algorithm, seed))


def new_name(scenario: str, algorithm: str, seed: int) -> str:
    """The default name of a run."""
    stem, now = Path(scenario).stem, time.strftime("%Y%m%d-%H%M%S")
    return f"{stem}-{algorithm}-seed{seed}-{now}"


@dataclass(frozen=True)
class Network:
    """What is needed to use a run's models: the shape of a sample, the classes, the layout."""

    input_shape: tuple[int, ...]
    classes: int
    layout: str


class Outputs:
    """One run's directory.

    Parameters
    ----------
    recorded : every setting of the run, under its dotted name
    settings : the section of it that is read here
    """

    def __init__(
        self,
        directory: Path,
        recorded: dict[str, Scalar],
        settings: RunSettings,
        network: Network,
    ) -> None:
        self.directory = directory
        self.recorded = recorded
        self.settings = settings
        self.network = network
        if not settings.resume and has_checkpoint(directory):
            raise ConfigError(
                f"{directory} holds a run already: choose another run.name, or set run.resume"
            )
        self._claim = Claim(directory)
        self._metrics = MetricsLog(directory)
        self.saving = Saving(directory / CHECKPOINTS, settings.keep_checkpoints)
        self._file = open(  # noqa: SIM115, closed with the run
            directory / RUN_LOG, "a", encoding="utf-8", opener=not_following
        )
        self._handler = logging.StreamHandler(self._file)
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(self._handler)
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO)  # as Flower does, where it is imported
        self._loggers = Loggers(settings.logger_names(), lambda text: log.warning("%s", text))
        self._started = time.monotonic()
        self._seconds_before = 0.0
        self._evaluation: dict[str, Any] = {}
        self._undecided = ""

    def resumed(self) -> ServerState:
        """The state to continue from; log lines of later rounds are removed."""
        folder, wanted = self.directory / CHECKPOINTS, self.settings.resume_round
        if wanted:
            checkpoint = load_checkpoint(find_checkpoint(folder, wanted))
        else:
            checkpoint, problems = latest_checkpoint(folder)
            for problem in problems:
                log.warning("skipped: %s", problem)
        if checkpoint.layout != self.network.layout:
            raise CheckpointError(
                f"the checkpoint in {self.directory} holds another network than model.network = "
                f"{self.recorded['model.network']!r} of this configuration"
            )
        self._metrics.rewind(checkpoint.state.round)
        if read_json(self.directory / EVALUATION).get("round", 0) > checkpoint.state.round:
            (self.directory / EVALUATION).unlink()
        events = read_events(self.directory / METRICS)
        self._seconds_before = max((e.get("elapsed", 0.0) for e in events), default=0.0)
        for event in events:
            self._remember(event)
        log.info("resuming after round %s", checkpoint.state.round)
        return checkpoint.state

    def start(self, first_round: int) -> None:
        """Record the configuration."""
        write_json(self.directory / CONFIG, self.recorded)
        log.info("results go to %s", self.directory)
        self._loggers.start(self.recorded, self.directory, first_round)

    def note(self, event: dict[str, Any]) -> None:
        """Log something that happened between rounds."""
        self._metrics.append({**event, "time": round(time.time(), 3)})

    def round_done(self, state: ServerState, metrics: dict[str, Any]) -> dict[str, Any]:
        """Log, then begin to write a checkpoint; returns what was logged.

        If it crashes in between, the extra lines are removed on resuming.
        """
        self.saving.done()
        self._remember(metrics)
        event = {
            "event": "round",
            **metrics,
            "time": round(time.time(), 3),
            "elapsed": round(self._elapsed(), 3),
            "server_peak_megabytes": _peak_megabytes(),
        }
        self._metrics.append(event)
        self._loggers.round(event)
        self.saving.save(self._checkpoint(state))
        wanted = self.settings.resume_round
        if wanted and state.round == wanted + 1:
            # The run has gone back; from now on, resuming continues after its last round.
            self.saving.done()
            write_json(self.directory / CONFIG, {**self.recorded, "run.resume-round": 0})
        return event

    def evaluated(self, state: ServerState, outcome: dict[str, Any]) -> dict[str, Any]:
        """Log the evaluation of the models after a round; returns what was logged."""
        self._evaluation = outcome
        tallies = outcome.get("tallies")
        if tallies:
            write_json(self.directory / EVALUATION, recorded_tallies(state, tallies))
        event = {
            "event": EVALUATED,
            **{name: value for name, value in outcome.items() if name != "tallies"},
            "time": round(time.time(), 3),
            "elapsed": round(self._elapsed(), 3),
        }
        self._metrics.append(event)
        self._loggers.round(event)
        return event

    def owes_evaluation(self, round_number: int) -> bool:
        """Whether no evaluation of this round has been logged."""
        return self._evaluation.get("round") != round_number

    def finish(
        self, state: ServerState, status: str, epsilon: float | None, reason: str = ""
    ) -> dict[str, Any]:
        """Write and return the summary, on a full disk too."""
        self._claim.free_reserve()
        told = history(read_events(self.directory / METRICS))
        people = population(self._checkpoint(state), told.judged)
        summary = summarise(
            state, self.recorded, status, self._elapsed(), self._evaluation, epsilon, reason,
            self._undecided, headline(self.recorded, told, people, status, reason),
        )  # fmt: skip
        write_json(self.directory / SUMMARY, summary)
        self._metrics.append({"event": "end", **summary})
        try:
            if state.reported():
                draw_mixture_weights(state, self.directory / "mixture_weights.png")
        except OSError as error:
            log.warning("mixture_weights.png is not written: %s", error)
        self._loggers.end(summary)
        rounds = counted(state.round, "round")
        log.info("%s after %s; results in %s", status, rounds, self.directory)
        self.close()
        return summary

    def close(self) -> None:
        """Stop writing the run's log."""
        self.saving.close()
        log.removeHandler(self._handler)
        self._handler.close()
        self._file.close()
        self._claim.give_up()

    def _checkpoint(self, state: ServerState) -> Checkpoint:
        network = self.network
        return Checkpoint(
            state, self.recorded, network.input_shape, network.classes, network.layout
        )

    def _elapsed(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def _remember(self, metrics: dict[str, Any]) -> None:
        """Remember what the summary needs of a round."""
        self._undecided = metrics.get("undecided", "")
        if "clients" in metrics:  # of a run that is resumed
            self._evaluation = metrics


def _peak_megabytes() -> float:
    """Peak memory of this process so far."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (1024**2 if sys.platform == "darwin" else 1024)
