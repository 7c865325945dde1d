"""Short names for settings in tests: the section is found, or is the algorithm's own."""

from __future__ import annotations

from typing import Any

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.config import RunConfig, all_keys, load_config

#: Settings that every test federation starts from: nothing chosen by size, no recipe's schedule.
PLAIN = {
    "recipe": "paper", "local.epochs": 1, "local.batch-size": 128, "local.learning-rate": 0.06,
    "rounds": 200,
}  # fmt: skip


def dotted(keys: dict[str, Any]) -> dict[str, Any]:
    """``{"learning_rate": 0.1}`` as ``{"local.learning-rate": 0.1}``; dotted names stay."""
    algorithm = str(keys.get("algorithm", RunConfig.algorithm))
    known = all_keys()
    result = {}
    for name, value in keys.items():
        dashes = name.replace("_", "-")
        if dashes in known:
            result[dashes] = value
            continue
        own = f"{algorithm}.{dashes}"
        ends = [key for key in known if key.rpartition(".")[2] == dashes]
        shared = [key for key in ends if key.partition(".")[0] in SHARED]
        found = [own] if own in known else shared
        assert len(found) == 1, f"{name}: {found or ends or 'no such setting'}"
        result[found[0]] = value
    return result


SHARED = ("run", "data", "model", "local", "server", "federation", "privacy")


def of_one_algorithm(given: dict[str, Any]) -> dict[str, Any]:
    """Without the settings of algorithms that do not run: tests of several share theirs."""
    others = set(ALGORITHMS) - {str(given.get("algorithm", RunConfig.algorithm))}
    return {name: value for name, value in given.items() if name.partition(".")[0] not in others}


def configured(**keys: Any) -> RunConfig:
    """A configuration of the given settings over plain ones."""
    return load_config(of_one_algorithm({**PLAIN, **dotted(keys)}))
