"""The concepts that discovery and FLUX find, given the same network and the same clients.

    python benchmarks/fingerprints.py --federations digits,thirty --seeds 0,1,2,3,4 --summary

Every federation is trained with the recipe `default` until discovery groups the clients for the
first time. In that moment they are grouped three times from the features of the same network: as
discovery does, and as FLUX does with and without its class-conditional part (see flux.py). Each
grouping is a line of the results file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from concepts import settings
from flux import described, grouped
from sklearn.metrics import adjusted_rand_score

from fedrc_flwr.algorithms import places
from fedrc_flwr.config import load_config
from fedrc_flwr.discovery import grouping
from fedrc_flwr.em import Floats
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.state import ServerState


class Measured(Exception):
    """The clients are about to be grouped; their state and names are the arguments."""


def compare(federation: str, seed: int) -> list[dict[str, Any]]:
    """The three groupings of a federation."""
    config = load_config(settings(federation, seed))
    rounds, carrier = in_memory(config)
    collect = places.fingerprints_of

    def measured(state: ServerState, names: list[str]) -> Floats:
        raise Measured(state, names)

    places.fingerprints_of = measured
    with described() as sent:
        try:
            rounds.run(carrier, config.rounds, config.rounds, lambda state, metrics: None)
            raise RuntimeError("the clients were not grouped")
        except Measured as reached:
            state, names = reached.args
        finally:
            places.fingerprints_of = collect
        fingerprints = collect(state, names)
        moments = sent(fingerprints)
    concepts = [state.clients[name].concept for name in names]
    rows = {
        "found": grouping.find(fingerprints, state.arrays["scatter"]),
        "flux": grouped(moments, per_label=True),
        "flux plain": grouped(moments, per_label=False),
    }
    return [
        {
            "federation": federation, "seed": seed, "row": row, "round": state.round,
            "sizes": sorted(np.unique(found.groups, return_counts=True)[1].tolist(), reverse=True),
            "index": adjusted_rand_score(concepts, found.groups),
            "concepts": len(set(concepts)),
        }
        for row, found in rows.items()
    ]  # fmt: skip


def summary(lines: list[dict[str, Any]]) -> None:
    """Print a table of all groupings."""
    print("| federation | row | seeds | groups | clients in the largest | index, mean (by seed) |")
    print("|---|---|---|---|---|---|")
    for federation, row in dict.fromkeys((one["federation"], one["row"]) for one in lines):
        some = sorted(
            (one for one in lines if (one["federation"], one["row"]) == (federation, row)),
            key=lambda one: int(one["seed"]),
        )
        indices = [one["index"] for one in some]
        shown = f"{np.mean(indices):.3f} ({' '.join(f'{i:.2f}' for i in indices)})"
        print(
            f"| {federation} | {row} | {' '.join(str(one['seed']) for one in some)} "
            f"| {' '.join(str(len(one['sizes'])) for one in some)} "
            f"| {' '.join(str(one['sizes'][0]) for one in some)} "
            f"| {shown if some[0]['concepts'] > 1 else '-'} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", default="")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--results", type=Path, default=Path("outputs/fingerprints.jsonl"))
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = options.results.read_text().splitlines() if options.results.exists() else []
    lines = [json.loads(line) for line in known]
    done = {(one["federation"], one["seed"]) for one in lines}
    for seed in map(int, options.seeds.split(",")):
        for federation in filter(None, options.federations.split(",")):
            if (federation, seed) in done:
                continue
            found = compare(federation, seed)
            options.results.parent.mkdir(parents=True, exist_ok=True)
            with options.results.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in found)
            lines += found
            print(federation, seed, *((f["row"], round(f["index"], 2)) for f in found), flush=True)
    if options.summary:
        summary(lines)


if __name__ == "__main__":
    main()
