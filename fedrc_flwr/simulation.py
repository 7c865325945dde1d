"""Running the app in local simulation, from start to a clean end.

``flwr run`` alone leaves a SuperLink running, installs the app's dependencies again and exits with
0 even if the run failed. This module starts a private SuperLink on a free port with its own home
directory, submits the app with ``flwr run``, finds out how the run ended, and stops everything that
it started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fedrc_flwr import flower
from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.scenario import scenario_of
from fedrc_flwr.engine.directory import SUPERLINK_LOG, client_states
from fedrc_flwr.errors import ConfigError, DataError, RunError
from fedrc_flwr.machine import HOLDING, usable_cores
from fedrc_flwr.models import check_model
from fedrc_flwr.report.log import METRICS, SUMMARY, Event, MetricsTail, read_json, write_json

MARK = "FEDRC_SIMULATION"
START_SECONDS = 90.0
STOP_SECONDS = 10.0
#: What runs the clients on this machine.
FLOWER, IN_PROCESS = "flower", "in-process"


@dataclass(frozen=True)
class Outcome:
    """How a run on this machine ended."""

    completed: bool
    summary: dict[str, Any]
    reason: str


def check_engine(engine: str, cpus: int | None) -> None:
    """Refuse an engine that does not exist, and an option that it does not have."""
    if engine not in (FLOWER, IN_PROCESS):
        raise ConfigError(f"--engine {engine!r}: expected {FLOWER} or {IN_PROCESS}")
    if engine == IN_PROCESS and cpus is not None:
        raise ConfigError(
            f"--cpus {cpus}: in process, one client computes at a time; leave it out, or use "
            f"--engine {FLOWER}"
        )


def run_here(
    config: RunConfig,
    directory: Path,
    on_event: Callable[[Event], None],
    engine: str = FLOWER,
    cpus: int | None = None,
) -> Outcome:
    """Run a configuration on this machine with its results in ``directory``.

    Parameters
    ----------
    engine : ``flower``, its simulation engine, or ``in-process``, which starts nothing
    on_event : called with each line of the run's metrics as it is written
    cpus : virtual clients that compute at once on Flower's engine; None for one per core
    """
    scenario = scenario_of(config.data, config.seed)
    check_model(config.model, scenario.input_shape, scenario.classes)
    if engine == FLOWER:
        return simulate(config, directory, on_event, cpus=cpus)
    from fedrc_flwr.engine.in_process import run_in_process

    directory = directory.resolve()
    (directory / SUMMARY).unlink(missing_ok=True)  # of an earlier attempt
    with _terminate_as_interrupt():
        try:
            placed = config.placed(directory, client_states(directory))
            return Outcome(True, run_in_process(placed, directory, on_event), "")
        except (ConfigError, DataError):
            raise
        except (Exception, KeyboardInterrupt):
            # The run has written why; as on Flower's engine, it is one run that failed.
            summary = read_json(directory / SUMMARY)
            if not summary.get("reason"):
                raise
            return Outcome(False, summary, str(summary["reason"]))


def simulate(
    config: RunConfig,
    directory: Path,
    on_event: Callable[[Event], None],
    app: Path | None = None,
    cpus: int | None = None,
) -> Outcome:
    """Run a configuration in simulation with its results in ``directory``.

    Parameters
    ----------
    on_event : called with each line of the run's metrics as it is written
    app : the Flower app's directory; None for this package
    cpus : virtual clients that compute at once; None for one per core
    """
    directory = directory.resolve()
    config = config.placed(directory, client_states(directory))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SUMMARY).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedrc-") as home, _terminate_as_interrupt():
        simulation = _Simulation(Path(home), directory)
        try:
            simulation.start()
            simulation.submit(config, app or flower.find_app(Path(home)), cpus)
            simulation.follow(on_event)
            return simulation.outcome()
        except KeyboardInterrupt:
            return simulation.failed("stopped", "stopped by the user")
        except RunError as error:
            return simulation.failed("failed", str(error))
        finally:
            simulation.stop()


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Being told to end by SIGTERM stops what was started, just as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Simulation:
    def __init__(self, home: Path, directory: Path) -> None:
        self._home = home
        self._directory = directory
        self._log = directory / SUPERLINK_LOG
        self._port = _free_port()
        self._mark = uuid.uuid4().hex
        self._superlink: subprocess.Popen[bytes] | None = None
        self._process: psutil.Process | None = None
        self._run_id = ""
        self._environment = {
            **HOLDING,
            **flower.environment(),
            MARK: self._mark,
            "RAY_TMPDIR": str(home),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        self._control = flower.Control(home / "flwr", self._environment)

    def start(self) -> None:
        """Start the SuperLink and wait until it answers."""
        flower.write_connection(self._home / "flwr", f"127.0.0.1:{self._port}", ca=None)
        with open(self._log, "wb") as log:
            self._superlink = subprocess.Popen(
                flower.simulation_superlink(self._port), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, cwd=self._directory,
                env={**self._environment, "FLWR_HOME": str(self._home / "flwr")},
                start_new_session=True,
            )  # fmt: skip
        ends = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._superlink.poll() is not None:
                raise RunError(f"the SuperLink ended at once: {self._last_words()}")
            if time.monotonic() > ends:
                raise RunError(f"the SuperLink did not answer within {START_SECONDS:.0f} seconds")
            time.sleep(0.1)

    def submit(self, config: RunConfig, app: Path, cpus: int | None) -> None:
        """Hand the app in through ``flwr run``."""
        federation = _federation_config(len(scenario_of(config.data, config.seed)), cpus)
        self._run_id = self._control.run(app, config.to_dict(), federation)

    def follow(self, on_event: Callable[[Event], None]) -> None:
        """Pass the run's metrics on as they are written, until its process has ended."""
        tail = MetricsTail(self._directory / METRICS)
        appeared = False
        ends = time.monotonic() + START_SECONDS
        while True:
            running = self._runs()
            for event in tail.read():
                on_event(event)
            if (self._directory / SUMMARY).exists():
                break
            if running:
                appeared, ends = True, time.monotonic() + START_SECONDS
            elif appeared:
                # On a busy machine a process may end before the one that does the work has started.
                if self._control.status(self._run_id).startswith("finished"):
                    break
                self._process = None
            if not running and time.monotonic() > ends:
                if appeared:
                    break
                raise RunError(f"the run did not start: {self._last_words()}")
            time.sleep(0.2)
        for event in tail.read():
            on_event(event)

    def outcome(self) -> Outcome:
        """How the run ended; both Flower and the run's summary must report success."""
        ends = time.monotonic() + START_SECONDS
        while self._runs() and time.monotonic() < ends:  # asking Flower costs a second of computing
            time.sleep(0.1)
        status = ""
        while not status.startswith("finished") and time.monotonic() < ends:
            status = self._control.status(self._run_id)
        summary = read_json(self._directory / SUMMARY)
        if status == "finished:completed" and summary.get("status") == "completed":
            return Outcome(True, summary, "")
        reason = summary.get("reason") or f"Flower reports {status!r}: {self._app_words()}"
        return self.failed("failed", reason)

    def failed(self, status: str, reason: str) -> Outcome:
        """A failed outcome, with a summary even if the run could not write one."""
        summary = read_json(self._directory / SUMMARY)
        summary = {**summary, "status": status, "reason": reason}
        write_json(self._directory / SUMMARY, summary)
        return Outcome(False, summary, f"{reason}\nlog: {self._log}")

    def stop(self) -> None:
        """Stop all processes of this simulation, gently first."""
        if self._superlink is not None and self._superlink.poll() is None:
            self._superlink.send_signal(signal.SIGTERM)
        ends = time.monotonic() + STOP_SECONDS
        while (left := self._marked()) and time.monotonic() < ends:
            time.sleep(0.1)
        for process in left:
            _kill(process)
        psutil.wait_procs(left, timeout=STOP_SECONDS)
        if self._superlink is not None:
            self._superlink.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/health", timeout=2
            ) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _runs(self) -> bool:
        """Whether the process of the run (ServerApp and simulation engine) is running."""
        if self._superlink is None or self._superlink.poll() is not None:
            raise RunError(f"the SuperLink died: {self._last_words()}")
        if self._process is None:
            candidates = (p for p in self._marked() if "flwr-simulation" in _command(p))
            self._process = next(candidates, None)
            return self._process is not None
        return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get(MARK) == self._mark
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _app_words(self) -> str:
        """The end of the app's log, from Flower."""
        lines = self._control.log(self._run_id).splitlines()
        return "\n".join([line for line in lines if line.strip()][-15:])

    def _last_words(self) -> str:
        """The last lines of the log."""
        text = self._log.read_text("utf-8", errors="replace") if self._log.exists() else ""
        return "\n".join([line for line in text.splitlines() if line.strip()][-15:])


def _federation_config(clients: int, cpus: int | None) -> str:
    """One core per virtual client, as many at once as there are cores; GPUs shared evenly."""
    cores = cpus or usable_cores()
    parts = [f"num-supernodes={clients}", "client-resources-num-cpus=1",
             f"init-args-num-cpus={cores}"]  # fmt: skip
    if Path("/dev/nvidia0").exists():
        import torch

        gpus = torch.cuda.device_count()
        if gpus:
            parts += [
                f"client-resources-num-gpus={min(1.0, gpus / cores)}",
                f"init-args-num-gpus={gpus}",
            ]
    return " ".join(parts)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
