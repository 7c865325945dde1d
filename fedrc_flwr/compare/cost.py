"""How long a comparison takes on this machine, from timed rounds, and about how long on a GPU.

A round of one client is timed on made-up samples of the right shape, fewer than the client has, so
that nothing needs the data and a large network costs seconds. Time grows linearly with samples; the
rest is arithmetic.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedrc_flwr.compare.plan import Cell, read_comparison
from fedrc_flwr.config import RunConfig, build_algorithm, load_config
from fedrc_flwr.data.scenario import OBSERVE, TRAIN, ClientData, GroundTruth, Split, scenario_of
from fedrc_flwr.engine.client import DiskStates
from fedrc_flwr.engine.in_process import in_memory, one_thread, thread_limit

#: Timing goes on with four times as many samples until it has taken this many seconds.
ENOUGH = 0.1
FEWEST = 4
#: What the paper reports: hours of one run with 3 clusters and 200 rounds on an RTX 3090.
GPU_HOURS = 9.0
GPU_RUN = ("main", "CIFAR-10", "FedRC")
#: Algorithms that train all their models on every client.
MIXTURES = ("fedrc", "fedem")


@dataclass(frozen=True)
class Line:
    """Seconds as a straight line over the number of samples."""

    fixed: float
    each: float

    def at(self, samples: float) -> float:
        """Seconds for so many."""
        return self.fixed + self.each * samples


@dataclass(frozen=True)
class Kind:
    """What a run costs: a client's training, and an evaluation."""

    training: Line
    evaluation: Line

    def seconds(self, config: RunConfig) -> float:
        """Of a whole run."""
        scenario = scenario_of(config.data, config.seed)
        own, observed = scenario.sizes()
        sampled = config.federation.sample_size(scenario.clients)
        evaluations = -(-config.rounds // config.run.evaluation_interval())
        training = config.rounds * sampled * self.training.at(own)
        judged = scenario.clients * self.evaluation.at(own)
        judged += scenario.observers * self.evaluation.at(observed)
        return training + evaluations * judged


def timed(config: RunConfig) -> Kind:
    """Time one kind of run; a round without the longer training before concepts are found."""
    own, _ = scenario_of(config.data, config.seed).sizes()
    config = replace(config, local=config.local.for_samples(own))
    points: list[tuple[int, float, float]] = []
    samples = min(FEWEST, own)
    while True:
        points.append((samples, *_measured(config, samples)))
        if samples == own or (sum(points[-1][1:]) > ENOUGH and len(points) > 1):
            break
        samples = min(own, 4 * samples)
    return Kind(
        _line([(size, training) for size, training, _ in points[-2:]]),
        _line([(size, evaluation) for size, _, evaluation in points[-2:]]),
    )


def _line(points: list[tuple[int, float]]) -> Line:
    """The line through the last two points; through the origin where there is only one."""
    (small, fast), (large, slow) = points[0], points[-1]
    if small == large:
        return Line(0.0, slow / large)
    each = max((slow - fast) / (large - small), 0.0)
    return Line(max(slow - each * large, 0.0), each)


def _measured(config: RunConfig, samples: int) -> tuple[float, float]:
    """Seconds of one client's training and of its evaluation.

    Measured as the time of one core, so that other work on the machine does not count; large
    networks are taken to use all cores equally well.
    """
    scenario = scenario_of(config.data, config.seed)
    rng = np.random.default_rng(0)

    def split() -> Split:
        inputs = rng.random((samples, *scenario.input_shape), dtype=np.float32)
        return Split(inputs, rng.integers(scenario.classes, size=samples))

    truth = GroundTruth(0, "none")
    names = ("timed-0", "timed-1")
    clients = [ClientData(n, TRAIN, split(), split(), scenario.classes, truth) for n in names]
    clients.append(ClientData("timed", OBSERVE, split(), split(), scenario.classes, truth))
    quiet = logging.getLogger("flwr")
    before, quiet.level = quiet.level, logging.ERROR
    try:
        with tempfile.TemporaryDirectory() as folder:
            rounds, carrier = in_memory(
                config, clients, lambda name: DiskStates(Path(folder) / name, durable=False)
            )
            broadcast = rounds.broadcast(1, len(names))
            broadcast = replace(broadcast, phase=replace(broadcast.phase, passes=1))
            with thread_limit(rounds):
                threads = torch.get_num_threads()
            with one_thread():
                for name in names:  # the first one warms up
                    trained = _seconds(carrier.deliver(rounds.letters(broadcast, [name])))
                    asked = rounds.letters(broadcast, [name], trains=False)
                    judged = _seconds(carrier.deliver(asked))
                    if trained > ENOUGH:
                        break
    finally:
        quiet.level = before
    # An evaluation looks at both parts; a line over samples counts those of one.
    return trained / threads, judged / 2 / threads


def _seconds(work: Iterable[object]) -> float:
    """Of doing the work that an iterator does."""
    started = time.process_time()
    for _ in work:
        pass
    return time.process_time() - started


def estimated(cells: Iterable[Cell]) -> dict[tuple[str, str], tuple[int, float]]:
    """By federation and method: how many runs, and the seconds of all of them; each kind timed."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for cell in cells:
        number, seconds = found.get((cell.column, cell.row), (0, 0.0))
        one = seconds / number if number else _run_seconds(load_config(cell.settings))
        found[cell.column, cell.row] = (number + 1, seconds + one)
    return found


def _run_seconds(config: RunConfig) -> float:
    return timed(config).seconds(config)


def roughly(cells: Iterable[Cell]) -> float:
    """Seconds of all cells without timing each kind: FedAvg's round times the models trained."""
    return sum(_rough_seconds(cell) for cell in cells)


def on_gpu(seconds: float) -> float:
    """Seconds on an RTX 3090: as many times fewer as the run that the paper reports takes there.

    An estimate for networks of that size; small ones gain less.
    """
    name, column, row = GPU_RUN
    cells = read_comparison(name).cells()
    reported = next(cell for cell in cells if (cell.column, cell.row) == (column, row))
    return seconds * 3600 * GPU_HOURS / _rough_seconds(reported)


def _rough_seconds(cell: Cell) -> float:
    config = load_config(cell.settings)
    trained = build_algorithm(config).models if config.algorithm in MIXTURES else 1
    return trained * _timed_plain(config).seconds(config)


_PLAIN: dict[object, Kind] = {}


def _timed_plain(config: RunConfig) -> Kind:
    """FedAvg with the same network and local work, timed once."""
    scenario = scenario_of(config.data, config.seed)
    local = config.local.for_samples(scenario.sizes()[0])
    local = replace(local, learning_rate=0.1, prox_mu=0.0, decorr_beta=0.0)
    key = (config.model, local, scenario.input_shape, scenario.classes)
    if key not in _PLAIN:
        plain = load_config({"algorithm": "fedavg", "recipe": "paper"})
        _PLAIN[key] = timed(replace(plain, model=config.model, local=local, data=config.data))
    return _PLAIN[key]
