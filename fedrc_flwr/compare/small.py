"""The small form of a comparison on images: minutes on a laptop instead of days on a GPU."""

from __future__ import annotations

from dataclasses import replace

from fedrc_flwr.compare.plan import Comparison, Settings
from fedrc_flwr.config import read_scenario
from fedrc_flwr.errors import ConfigError

NAME = "FashionMNIST, 30 clients"
#: What every run of a small form is.
SMALL: Settings = {
    "scenario": "fashion-mnist",
    "data.clients": 30,
    "data.samples-per-client": 400,
    "data.copies": 1,
    "model.network": "mlp",
    "model.hidden": 64,
    "model.standardise": True,
    "rounds": 60,
    "run.evaluate-every": 10,
    "local.weight-decay": 0.003,
    "server.optimizer": "momentum",
    "server.momentum": 0.9,
}
RATES = (0.1,)
#: Datasets that it stands in for, by the names that columns have.
IMAGES = {
    "fashion-mnist": "FashionMNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}


def small(comparison: Comparison, given: Settings | None = None) -> Comparison:
    """The same rows on a small federation of FashionMNIST with a small network.

    Columns that differ in what the small form decides itself become one. What the user has
    ``given`` is applied later, and told here.
    """
    settings = {**SMALL, **comparison.small}
    columns: dict[str, Settings] = {}
    paper = {}
    for name, own in comparison.columns.items():
        scenario = str({**own, **comparison.settings}.get("scenario", ""))
        dataset = read_scenario(scenario).get("data.dataset") if scenario else None
        if dataset not in IMAGES:
            raise ConfigError(
                f"--small: the column {name!r} is not on one of the paper's image datasets: use "
                "--scale, or --set rounds=... and data.clients=..."
            )
        left = {key: value for key, value in own.items() if key not in settings}
        if left in columns.values():
            continue
        called = name.replace(IMAGES[dataset], "FashionMNIST") if left else NAME
        columns[called] = left
        paper[called] = comparison.paper.get(name, {})
    true = {**settings, **(given or {})}
    clients, samples = true["data.clients"], true["data.samples-per-client"]
    told = (
        f"A small form: {clients} clients of FashionMNIST with {samples} images each, a network of "
        f"two hidden layers of {true['model.hidden']} units, {true['rounds']} rounds, a "
        f"learning rate of {RATES[0]:g}, a weight decay of {true['local.weight-decay']:g} and "
        "server momentum, instead of the paper's data, network and rounds."
    )
    return replace(
        comparison,
        columns=columns,
        rates=RATES,
        settings={**comparison.settings, **settings},
        paper=paper,
        differs=(told, *comparison.differs),
    )
