"""The tables of docs/threat-model.md: what attackers do to the accuracy of the others.

    python benchmarks/attacks.py digits
    python benchmarks/attacks.py fashion-mnist-30 --rounds 20

Every run has 30 clients in one process. The figure is the mean accuracy of the observers, who are
all honest, over the seeds, and in brackets its difference from the same runs without attackers,
which come first. A last list says where clients that flip their labels end up.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter, defaultdict
from statistics import mean
from typing import Any

import torch

from fedrc_flwr.attacks import KINDS
from fedrc_flwr.config import load_config
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.state import ServerState

SCENARIOS: dict[str, dict[str, Any]] = {
    "digits": {"data.clients": 30},
    "fashion-mnist-30": {
        "model.network": "mlp", "model.hidden": 128, "model.standardise": True,
    },
}  # fmt: skip
AGGREGATIONS = ("mean", "trimmed", "median")


def run(given: dict[str, Any]) -> tuple[float, ServerState, set[str]]:
    """The observers' accuracy, the last state, and the attackers."""
    config = load_config(given)
    rounds, carrier = in_memory(config)
    events: list[dict[str, Any]] = []
    rounds.run(
        carrier, config.rounds, config.rounds, lambda state, event: None,
        lambda state, outcome: events.append(outcome),
    )  # fmt: skip
    clients = [name for name, p in carrier.participants.items() if p.data.role == "train"]
    attackers = {clients[i] for i in config.attack.attackers(len(clients), config.seed)}
    return events[-1]["global_accuracy"], rounds.state, attackers


def places(state: ServerState, attackers: set[str]) -> Counter[str]:
    """In what company the attackers are: by cluster, how many of its members attack."""
    members: dict[int, list[bool]] = defaultdict(list)
    for name, record in state.clients.items():
        weights = record.mixture_weights()
        if record.role == "train" and weights is not None:
            members[int(weights.argmax())].append(name in attackers)
    found: Counter[str] = Counter()
    for flags in members.values():
        if any(flags):
            kind = "among attackers" if mean(flags) > 0.5 else "among honest clients"
            found[kind] += sum(flags)
    found["in quarantine"] = len(attackers) - sum(found.values())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--aggregations", nargs="+", default=AGGREGATIONS, choices=AGGREGATIONS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    base = {
        "scenario": chosen.scenario, "recipe": chosen.recipe, "rounds": chosen.rounds,
        "attack.share": chosen.share, **SCENARIOS[chosen.scenario],
    }  # fmt: skip
    flippers: Counter[str] = Counter()
    reference: dict[str, float] = {}
    print(f"| attack | {' | '.join(chosen.aggregations)} |")
    print("|---|" + "---|" * len(chosen.aggregations))
    for kind in chosen.kinds:
        cells = []
        for aggregation in chosen.aggregations:
            found = []
            for seed in chosen.seeds:
                given = {**base, "seed": seed, "server.aggregation": aggregation}
                accuracy, state, attackers = run({**given, "attack.kind": kind})
                found.append(accuracy)
                if kind == "label-flip":
                    flippers += places(state, attackers)
            lost = mean(found) - reference.setdefault(aggregation, mean(found))
            cells.append(f"{100 * mean(found):.1f} ({100 * lost:+.1f})")
            print(f"{kind}, {aggregation}: {found}", file=sys.stderr, flush=True)
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    if flippers:
        print("\nClients that flip their labels, at the end of all runs:")
        for where, count in flippers.most_common():
            print(f"- {count} {where}")


if __name__ == "__main__":
    main()
