"""A round of FedAvg here, in a plain Flower app and in pfl-research: time, processor time, memory.

    pip install pfl
    python benchmarks/peers.py
    python benchmarks/peers.py --network cnn --short 2 --long 8

The same clients of FashionMNIST, network, local SGD and number of rounds for everybody; nobody
evaluates but at the end. Each way is a process of its own, started with two numbers of rounds: the
difference is what rounds cost, without starting, reading data and the evaluation at the end. The
ways take turns. Processor time is that of all processes that a run starts, its daemons included;
memory is the largest sum of their proportional set sizes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from bare import machine, write_section
from concepts import MLP
from torch import Tensor, nn

from fedrc_flwr.config import RunConfig, load_config
from fedrc_flwr.data.scenario import scenario_of
from fedrc_flwr.engine.in_process import run_in_process
from fedrc_flwr.models import build_model
from fedrc_flwr.simulation import simulate

CLIENTS, SAMPLES, BATCH, RATE = 30, 200, 32, 0.05
MARK = "FEDRC_PEERS"
POLL = 0.2  # seconds
#: How the ways are called in the table, and the one that each is compared with.
WAYS = {
    "pfl": ("pfl-research, one process", "pfl"),
    "in process": ("this, one process (`--engine in-process`)", "pfl"),
    "three in process": ("this, one process, FedRC with three models in every round", "pfl"),
    "flower": ("a plain Flower app, its `FedAvg`", "flower"),
    "simulation": ("this, Flower's simulation", "flower"),
    "three in simulation": ("this, Flower's simulation, FedRC with three models", "flower"),
}


def configured(rounds: int, network: str, algorithm: str = "fedavg") -> RunConfig:
    """A run with plain local SGD and plain averages."""
    chosen = MLP if network == "mlp" else {"model.network": network}
    start = {"fedrc.start": "paper"} if algorithm == "fedrc" else {}
    return load_config(
        {
            "scenario": "fashion-mnist-30", "data.clients": CLIENTS, "rounds": rounds,
            "data.samples-per-client": SAMPLES, "data.observers-per-concept": 0,
            "algorithm": algorithm, "local.epochs": 1, "local.batch-size": BATCH,
            "local.learning-rate": RATE, "local.momentum": 0.0, "local.weight-decay": 0.0,
            "local.clip": 0.0, "server.optimizer": "sgd", "run.evaluate-every": 100_000,
            "run.loggers": "", **chosen, **start,
        }
    )  # fmt: skip


@lru_cache
def samples(client: int, network: str) -> tuple[Tensor, Tensor]:
    """A client's training samples."""
    config = configured(1, network)
    split = scenario_of(config.data, config.seed).client(client).fit
    return torch.from_numpy(np.ascontiguousarray(split.inputs)), torch.from_numpy(split.labels)


class Network(nn.Module):
    """The network, with the loss that pfl-research asks for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        config = configured(1, name)
        scenario = scenario_of(config.data, config.seed)
        shape = tuple(scenario.client(0).fit.inputs.shape[1:])
        self.network = build_model(config.model, shape, scenario.classes, config.seed)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        return self.network.head(self.network.body(inputs))  # type: ignore[no-any-return]

    def loss(self, inputs: Tensor, labels: Tensor, is_eval: bool = False) -> Tensor:
        """Cross-entropy."""
        self.train(not is_eval)
        return nn.functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Nothing is evaluated."""
        return {}


def as_flower(rounds: int, network: str) -> None:
    """The app that Flower's own quick start would have."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = Network(network)
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        inputs, labels = samples(int(context.node_config["partition-id"]), network)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for batch in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            model.loss(inputs[batch], labels[batch]).backward()
            optimizer.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(labels)}),
            }
        )
        return Message(content=content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        strategy.start(grid, ArrayRecord(Network(network).state_dict()), num_rounds=rounds)

    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1.0}})


def as_pfl(rounds: int, network: str) -> None:
    """FedAvg of pfl-research, in this process."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    module = Network(network)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    names = [str(client) for client in range(CLIENTS)]
    data = FederatedDataset(
        lambda name: Dataset(samples(int(name), network), user_id=name),
        MinimizeReuseUserSampler(names),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=100_000,
            train_cohort_size=CLIENTS, val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data), model,
        NNTrainHyperParams(
            local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE
        ),
        send_metrics_to_platform=False,
    )  # fmt: skip


def as_way(way: str, rounds: int, network: str) -> None:
    """One run, in this process."""
    if way == "flower":
        as_flower(rounds, network)
    elif way == "pfl":
        as_pfl(rounds, network)
    else:
        config = configured(rounds, network, "fedrc" if "three" in way else "fedavg")
        with tempfile.TemporaryDirectory() as scratch:
            if "process" in way:
                torch.set_num_threads(1)
                done = run_in_process(config, Path(scratch) / "run")["status"] == "completed"
            else:
                done = simulate(config, Path(scratch) / "run", lambda event: None).completed
        if not done:
            raise SystemExit(f"{way}: the run was not completed")


def measured(way: str, rounds: int, network: str) -> tuple[float, float, float]:
    """Seconds, processor seconds and megabytes of a run, and of everything that it starts."""
    started, largest, work = time.monotonic(), 0.0, {}
    mark = f"{way}-{time.monotonic_ns()}"
    command = [sys.executable, __file__, "--way", way, "--long", str(rounds), "--network", network]
    path = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with tempfile.TemporaryFile("w+") as said:
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        while run.poll() is None:
            memory, used = taken(mark)
            largest, work = max(largest, memory), work | used
            time.sleep(POLL)
        took = time.monotonic() - started
        said.seek(0)
        told = said.read()
    if run.returncode:
        raise SystemExit(f"{way} failed:\n{told[-3000:]}")
    return took, sum(work.values()), largest / 1e6


def taken(mark: str) -> tuple[float, dict[int, float]]:
    """A run's memory, shared pages divided among its processes, and their processor seconds."""
    memory, work = 0.0, {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                memory += process.memory_full_info().pss
                work[process.pid] = sum(process.cpu_times()[:2])
        except psutil.Error:
            continue
    return memory, work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--short", type=int, default=5, help="rounds")
    parser.add_argument("--long", type=int, default=45, help="rounds")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--way", help="run it in this process")
    given = parser.parse_args()
    if given.way:
        import peers  # under its name, so that Ray's workers find it

        peers.as_way(given.way, given.long, given.network)
        return
    ways = given.ways.split(",")
    if importlib.util.find_spec("pfl") is None:
        print("pfl-research is left out: `pip install pfl` installs it")
        ways = [way for way in ways if way != "pfl"]
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    work: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(given.times):
        for way in ways:
            short, long = (measured(way, n, given.network) for n in (given.short, given.long))
            rounds = given.long - given.short
            seconds[way].append((long[0] - short[0]) / rounds)
            work[way].append((long[1] - short[1]) / rounds)
            memory[way].append(long[2])
            print(way, seconds[way][-1], work[way][-1], memory[way][-1], flush=True)
    rows = []
    for way in ways:
        name, other = WAYS[way]
        figures: list[str] = []
        for of in (seconds, work, memory):
            mine = median(of[way])
            ratio = f" ({mine / median(of[other]):.2f})" if other in ways else ""
            figures.append(f"{mine:.0f} MB{ratio}" if of is memory else f"{mine:.3f}{ratio}")
        rows.append(f"| {name} | {' | '.join(figures)} |")
    write_section(
        f"peers, {given.network}",
        [
            f"{machine()}; FedAvg, {CLIENTS} clients of {SAMPLES} samples of FashionMNIST, "
            f"{given.network}, batches of {BATCH}; medians of {given.times}; in brackets: of "
            "pfl-research's or of the plain Flower app's",
            "",
            "| | seconds a round | processor seconds a round | memory |",
            "|---|---|---|---|",
            *rows,
        ],
    )


if __name__ == "__main__":
    main()
