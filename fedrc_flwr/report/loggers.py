"""Sending a run's metrics to TensorBoard, MLflow or Weights & Biases.

``run.loggers`` names them; the JSON lines are always written. Loggers work in a separate thread. If
one fails or hangs, a warning is logged once and the run continues without it.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedrc_flwr.report.log import EVALUATED, OF_A_ROUND, Event
from fedrc_flwr.settings import Scalar

LEFT_OUT = ("round", "elapsed", "time")
PATIENCE_SECONDS = 30.0  # for what is left to write when the run has ended


class Logger(Protocol):
    """Receives a run's metrics. A new logger needs these methods and a line in ``LOGGERS``."""

    def start(self, config: Mapping[str, Scalar], directory: Path, first_round: int) -> None:
        """The run begins, or continues with ``first_round``."""

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """A round has ended."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run has ended; nothing follows."""


class TensorBoard:
    """Event files in the run's directory ``tensorboard``."""

    def start(self, config: Mapping[str, Scalar], directory: Path, first_round: int) -> None:
        """Later rounds of an earlier attempt are marked as deleted."""
        from torch.utils.tensorboard import SummaryWriter

        place = str(directory / "tensorboard")
        self._writer = SummaryWriter(place, purge_step=first_round)
        lines = "\n".join(f"    {key} = {value}" for key, value in config.items())
        self._writer.add_text("config", lines, first_round - 1)

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """One scalar per number."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, summary: Mapping[str, Any]) -> None:
        """Close the file."""
        self._writer.close()


class MLflow:
    """A run in the experiment ``fedrc`` of the server that MLFLOW_TRACKING_URI names."""

    def start(self, config: Mapping[str, Scalar], directory: Path, first_round: int) -> None:
        """A resumed run continues its MLflow run."""
        from mlflow import MlflowClient

        self._client = MlflowClient()
        known = directory / "mlflow.id"
        if first_round > 1 and known.exists():
            self._run = known.read_text("utf-8").strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name("fedrc")
        place = experiment.experiment_id if experiment else self._client.create_experiment("fedrc")
        self._run = self._client.create_run(place, run_name=directory.name).info.run_id
        known.write_text(self._run, "utf-8")
        for key, value in config.items():
            self._client.log_param(self._run, key, value)

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """One metric per number; the round is its step."""
        for name, value in metrics.items():
            self._client.log_metric(self._run, name, value, step=number)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Report how the run ended."""
        completed = summary.get("status") == "completed"
        self._client.set_terminated(self._run, "FINISHED" if completed else "FAILED")


class WeightsAndBiases:
    """A run in the project ``fedrc``; WANDB_MODE, WANDB_PROJECT and so on are wandb's own."""

    def start(self, config: Mapping[str, Scalar], directory: Path, first_round: int) -> None:
        """A resumed run continues its wandb run."""
        import os

        import wandb

        known = directory / "wandb.id"
        if first_round == 1 or not known.exists():
            known.write_text(uuid.uuid4().hex, "utf-8")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedrc"),
            name=directory.name,
            id=known.read_text("utf-8").strip(),
            resume="allow",
            dir=str(directory),
            config=dict(config),
        )

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        """All numbers under the round as step."""
        self._run.log(dict(metrics), step=number)

    def end(self, summary: Mapping[str, Any]) -> None:
        """Report how the run ended."""
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=0 if summary.get("status") == "completed" else 1)


LOGGERS: dict[str, Callable[[], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def numbers(event: Event) -> dict[str, float]:
    """The numbers of a round's metrics, the clusters' shares by id."""
    found = {
        key: float(value)
        for key, value in event.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in LEFT_OUT
    }
    clusters, shares = event.get("clusters") or [], event.get("shares") or []
    found |= {f"share/cluster-{c}": float(s) for c, s in zip(clusters, shares, strict=False)}
    if event.get("event") == EVALUATED:
        return {key: value for key, value in found.items() if key not in OF_A_ROUND}
    return found | {
        "clusters": float(len(clusters)),
        "failed": float(len(event.get("failed") or [])),
    }


class Loggers:
    """All loggers of a run, in one thread that the run waits for only at its end."""

    def __init__(self, names: Iterable[str], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._living = {name: LOGGERS[name]() for name in names}
        self._tasks: queue.SimpleQueue[Callable[[Logger], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="loggers", daemon=True)
        if self._living:
            self._thread.start()

    def start(self, config: Mapping[str, Scalar], directory: Path, first_round: int) -> None:
        """The run begins, or continues with ``first_round``."""
        self._tasks.put(lambda logger: logger.start(config, directory, first_round))

    def round(self, event: Event) -> None:
        """A round has ended or has been evaluated, with these metrics."""
        number, found = int(event["round"]), numbers(event)
        self._tasks.put(lambda logger: logger.round(number, found))

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run has ended: wait a little for what is left to be written."""
        self._tasks.put(lambda logger: logger.end(summary))
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join(PATIENCE_SECONDS)
            if self._thread.is_alive():
                self._warn(f"loggers did not end within {PATIENCE_SECONDS:.0f} seconds: given up")

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            for name, logger in list(self._living.items()):
                try:
                    task(logger)
                except Exception as error:  # other packages may raise anything
                    del self._living[name]
                    hint = f"; pip install 'fedrc-flwr[{name}]'" * isinstance(error, ImportError)
                    self._warn(
                        f"logger {name} failed and is left out ({type(error).__name__}: {error})"
                        + hint
                    )
