"""What the checks of replies cost: rounds with and without them, in one run.

    python benchmarks/checks.py
    python benchmarks/checks.py --scenario fashion-mnist-30

Two federations learn the same in one process, round by round in turn. In one of them nothing is
checked: neither the statistics nor the length and direction of the updates. The figure is the
median over rounds of the ratio of the processor time of the two rounds, with its quartiles. Clients
compute in the same process, as in the smallest of federations; the server's share is largest there.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fedrc_flwr import bounds
from fedrc_flwr.config import load_config
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.in_process import InProcess, in_memory
from fedrc_flwr.engine.letters import updates
from fedrc_flwr.engine.rounds import Rounds


def federation(given: dict[str, Any], checked: bool) -> tuple[Rounds, InProcess]:
    """A federation, with or without limits on the length and direction of updates."""
    config = load_config(given)
    if not checked:
        config = replace(config, server=replace(config.server, max_norm=0.0, max_opposition=0.0))
    return in_memory(config)


def seconds(rounds: Rounds, carrier: InProcess, number: int, checked: bool) -> float:
    """How long one round of training takes."""
    off: AbstractContextManager[Any] = nullcontext()
    if not checked:
        off = patch.object(bounds, "problem", lambda *_: None)
    with off:
        started = time.process_time()
        names = carrier.online(TRAIN)
        letters = rounds.letters(rounds.broadcast(number, len(names)), names)
        replies = updates(carrier.deliver(letters))
        if rounds.fold(number, replies, len(names)) is None:
            raise SystemExit(f"round {number} failed: {rounds.failed}")
        return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="digits")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    given = {
        "scenario": chosen.scenario, "recipe": chosen.recipe, "rounds": chosen.rounds,
        "data.clients": chosen.clients,
    }  # fmt: skip
    both = {checked: federation(given, checked) for checked in (True, False)}
    ratios = []
    for number in range(1, chosen.rounds + 1):
        order = (True, False) if number % 2 else (False, True)
        took = {checked: seconds(*both[checked], number, checked) for checked in order}
        if number > 2:  # the first rounds load and compile
            ratios.append(took[True] / took[False])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{chosen.scenario}, {chosen.clients} clients, {chosen.rounds} rounds: a round with checks "
        f"takes {middle:.3f} times as long as without (quartiles {low:.3f} and {high:.3f})"
    )


if __name__ == "__main__":
    main()
