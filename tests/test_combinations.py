"""Every pair of options that people would combine, run once on a tiny federation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from settings_of import SHARED

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.config import RunConfig, load_config
from fedrc_flwr.data.scenario import OBSERVE, TRAIN, ClientData, GroundTruth, Split
from fedrc_flwr.engine.in_process import InProcess, in_memory
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.errors import ConfigError

torch.set_num_threads(1)
ROUNDS, CLASSES = 3, 3
#: For each option, the values that differ from what a run has without it.
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "algorithm": {name: {"algorithm": name} for name in ALGORITHMS if name != "fedrc"},
    "clustering": {
        "hard-test": {"clustering": "hard-test"},
        "hard-train": {"clustering": "hard-train"},
    },
    "e-step": {"adam": {"e-step": "adam"}},
    "annealing": {
        "by sample": {"annealing-rounds": 2},
        "by client": {"annealing-rounds": 2, "annealing-by": "client"},
    },
    "adaptive": {"removal": {"adaptive": True, "settle-rounds": 1, "settle-tolerance": 1.0,
                             "settle-loss": 100.0}},
    "merge": {"merging": {"merge": True, "settle-rounds": 1, "settle-tolerance": 1.0,
                          "settle-loss": 100.0}},
    "shared body": {"shared body": {"shared-body": True}},
    "noise": {"noise": {"privacy.count-noise": 2.0}},
    "fraction": {"half of the clients": {"federation.fraction": 0.5}},
    "server": {
        "momentum": {"server.optimizer": "momentum", "server.momentum": 0.5},
        "adam": {"server.optimizer": "adam", "server.learning-rate": 0.05},
        "rate 2": {"server.learning-rate": 2.0},
    },
    "fine-tuning": {"fine-tuning": {"fine-tune": True}},
    "terms": {"prox": {"local.prox-mu": 0.1}, "decorr": {"local.decorr-beta": 0.1}},
    "transport": {"float16": {"federation.transport": "float16"}},
}  # fmt: skip
VALUES = [(option, name) for option, values in OPTIONS.items() for name in values]
PAIRS = [pair for pair in itertools.combinations(VALUES, 2) if pair[0][0] != pair[1][0]]


def clients() -> list[ClientData]:
    """Two training clients and an observer for each of two ways to name three blobs."""
    rng = np.random.default_rng(0)
    centres = np.eye(CLASSES, 4, dtype=np.float32) * 4
    made = []
    for index in range(6):
        concept = index % 2
        true = rng.permutation(np.arange(24) % CLASSES)
        inputs = (centres[true] + rng.normal(0, 0.5, (24, 4))).astype(np.float32)
        labels = ((true + concept) % CLASSES).astype(np.int64)
        role = TRAIN if index < 4 else OBSERVE
        made.append(
            ClientData(
                name=f"{role}-{index}",
                role=role,
                fit=Split(inputs[:18], labels[:18]),
                test=Split(inputs[18:], labels[18:]),
                classes=CLASSES,
                truth=GroundTruth(concept, "none"),
            )
        )
    return made


CLIENTS = clients()
BASE = {
    "recipe": "paper", "rounds": ROUNDS, "seed": 1, "scenario": "none",
    "data.dataset": "nowhere.npz", "data.classes": CLASSES, "data.input-shape": "4",
    "model.network": "mlp", "model.hidden": 8, "local.epochs": 1, "local.batch-size": 10,
    "local.learning-rate": 0.2, "local.momentum": 0.5,
}  # fmt: skip


def settings(*chosen: tuple[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for option, name in chosen:
        given |= OPTIONS[option][name]
    algorithm = str(given.get("algorithm", "fedrc"))
    if algorithm == "feddecorr" or any(key.endswith("decorr-beta") for key in given):
        # In so small a network the decorrelation makes single updates thirty times as long.
        given["server.max-norm"] = 0.0
    own = {
        key if key.partition(".")[0] in (*SHARED, "algorithm") else f"{algorithm}.{key}": value
        for key, value in given.items()
    }
    return {**BASE, **own}


def refused(*chosen: tuple[str, str]) -> str:
    """Why a combination makes no sense, or nothing where it does."""
    given = settings(*chosen)
    algorithm = given.get("algorithm", "fedrc")
    known = load_config({**BASE, "algorithm": algorithm}).to_dict()
    if unknown := [key for key in given if key not in known]:
        return f"unknown key '{unknown[0]}'"
    if "local.prox-mu" in given and algorithm in ("fedsoft", "pfedme", "fedprox"):
        return "has a proximal term of its own"
    if "local.decorr-beta" in given and algorithm == "feddecorr":
        return "has a decorrelation term of its own"
    return ""


def run(config: RunConfig) -> tuple[Rounds, InProcess, list[dict[str, Any]]]:
    rounds, carrier = in_memory(config, CLIENTS)
    log: list[dict[str, Any]] = []
    rounds.run(
        carrier, config.rounds, ROUNDS, lambda state, metrics: log.append(metrics),
        lambda state, outcome: log.append({**log.pop(), **outcome}),
    )  # fmt: skip
    return rounds, carrier, log


def check(config: RunConfig) -> None:
    """What must hold of any run."""
    rounds, carrier, log = run(config)
    state, last = rounds.state, log[-1]
    assert [metrics["round"] for metrics in log] == list(range(1, ROUNDS + 1))
    assert not any(metrics["failed"] for metrics in log)
    assert state.is_finite()
    assert 1 <= len(state.clusters) <= rounds.algorithm.models
    assert np.sum(last["shares"]) == pytest.approx(1.0)
    for name in carrier.online(TRAIN):
        kept = carrier.participants[name].states.load(ROUNDS + 1)
        if kept is not None:  # with half of the clients a round, one may never have trained
            weights = kept.moved_to(state.membership).mixture_weights
            assert (weights >= 0).all()
            assert weights.sum() == pytest.approx(1.0)
    assert load_config({**config.to_dict(), "resolved": True}).to_dict() == {
        **config.to_dict(), "resolved": True,
    }  # fmt: skip
    assert rounds.algorithm.server == config.server
    assert rounds.algorithm.settings == config.algorithm_settings
    # Blobs far apart: a client that follows its own labels is far above a guess, and nobody who
    # learns anything is below what two contradicting concepts leave to one model.
    assert last["fit_accuracy"] >= 0.25
    if rounds.algorithm.is_personal and config.federation.sample_size(4) == 4:
        assert last["local_accuracy"] >= 1 / CLASSES


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_an_option_alone(value: tuple[str, str]) -> None:
    reason = refused(value)
    if reason:
        with pytest.raises(ConfigError, match=reason):
            load_config(settings(value))
    else:
        check(load_config(settings(value)))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0][1]} and {pair[1][1]}")
def test_a_pair_of_options(pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    reason = refused(*pair)
    if reason:
        with pytest.raises(ConfigError, match=reason):
            load_config(settings(*pair))
    else:
        check(load_config(settings(*pair)))
