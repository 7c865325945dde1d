"""Whether the concepts are found, and what it costs not to be told them.

    python benchmarks/concepts.py --federations digits,digits-skewed --seeds 0,1,2,3,4
    python benchmarks/concepts.py --summary

Every federation is trained with the recipe `default` and nothing else: K is never told. `--rows`
chooses what is run beside it: `told`, the same training with the true concepts in place of those
that were found (the ceiling), `fedavg`, FLUX's way of grouping clients in place of ours (`flux`
and `flux plain`, see flux.py), and other algorithms, that begin with the same groups or, told how
many concepts there are, as they were published. In the federations `two-in-one...` two clients
hold two concepts each, and their weights are in the results (see mixed.py). Each run is a line of
the results file; runs that are there already are not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare import machine
from flux import in_place_of_discovery
from mixed import shares, two_in_one
from tables import dealt

from fedrc_flwr.algorithms import places
from fedrc_flwr.config import load_config, parse_setting
from fedrc_flwr.discovery import grouping
from fedrc_flwr.discovery.grouping import Grouping
from fedrc_flwr.em import Floats
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.report.summary import adjusted_rand_index
from fedrc_flwr.state import ServerState

MLP = {"model.network": "mlp", "model.hidden": 128, "model.standardise": True}
THIRTY = {"scenario": "fashion-mnist-30", "rounds": 40, **MLP}
SHARES = {**THIRTY, "data.mix": "shares"}
ONE = {**SHARES, "data.concept-shares": "1"}
FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"scenario": "digits"},
    "digits-skewed": {"scenario": "digits", "data.alpha": 1.0},
    "thirty": THIRTY,
    "thirty-cnn": {"scenario": "fashion-mnist-30", "rounds": 40},
    "three-hundred": {
        "scenario": "fashion-mnist", "data.samples-per-client": 200, "rounds": 16, **MLP,
    },
    "concept-shift": {
        **SHARES, "data.concept-shares": "0.34,0.33,0.33", "data.corrupted-shares": "0,0,0",
        "data.alpha": "inf",
    },
    "label-shift": {**ONE, "data.corrupted-shares": "0"},
    "feature-shift": {**ONE, "data.corrupted-shares": "1", "data.alpha": "inf"},
    "label-and-feature-shift": {**ONE, "data.corrupted-shares": "1"},
    "five-concepts": {
        **SHARES, "data.concept-shares": "0.2,0.2,0.2,0.2,0.2",
        "data.corrupted-shares": "0.3,0.3,0.3,0.3,0.3",
    },
    "8-1-1": {
        **SHARES, "data.concept-shares": "0.8,0.1,0.1", "data.corrupted-shares": "0.3,0.3,0.3",
    },
    "alpha-0.5": {**THIRTY, "data.alpha": 0.5},
    "wrong-labels-pair": {**THIRTY, "data.label-noise": "pair"},
    "wrong-labels-symmetric": {**THIRTY, "data.label-noise": "symmetric"},
    "two-in-one": {"scenario": "digits"},
    "two-in-one-skewed": {"scenario": "digits", "data.alpha": 1.0},
    "two-in-one-thirty": THIRTY,
    "a-third": {**THIRTY, "federation.fraction": 1 / 3},
    "clinics": {},
    "breast cancer": {},
    "wine": {},
    "digits table": {},
}  # fmt: skip
#: How many there are, where it is not three, for algorithms that have to be told.
CONCEPTS = {"five-concepts": 5, "clinics": 2, "breast cancer": 2, "wine": 2, "digits table": 2}
OWN = Path("outputs/own-tables")


def settings(federation: str, seed: int) -> dict[str, Any]:
    """The federation's settings; those of tables are written to a file first."""
    given = FEDERATIONS[federation]
    if given:
        return {**given, "seed": seed}
    path = OWN / f"{federation}-{seed}.npz"
    if not path.exists():
        OWN.mkdir(parents=True, exist_ok=True)
        table = {"digits table": "digits"}.get(federation, federation)
        np.savez(path, **(clinics(seed) if federation == "clinics" else dealt(table, seed)))
    fraction = 0.1 if federation == "clinics" else 0.25
    return {"data.dataset": str(path), "data.test-fraction": fraction, "seed": seed}


def clinics(seed: int) -> dict[str, np.ndarray]:
    """The tutorial's clinics: ten, of which four swap two of three findings."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1.6, (3, 8))
    client = np.repeat(np.arange(10), 80)
    finding = rng.integers(0, 3, len(client))
    swaps = np.isin(client, (2, 5, 6, 9))
    return {
        "x": (centres[finding] + rng.normal(0, 1, (len(client), 8))).astype(np.float32),
        "y": np.where(swaps, np.array([1, 0, 2])[finding], finding),
        "client": client,
        "concept": swaps.astype(np.int64),
    }


@contextmanager
def told(state_of: Any) -> Iterator[None]:
    """Group the clients by their true concepts instead of by what was found."""

    def truth(fingerprints: Floats, scatter: Floats) -> Grouping:
        state: ServerState = state_of()
        names = sorted(n for n, r in state.clients.items() if r.role == "train")
        concepts = np.array([state.clients[n].concept for n in names])
        groups = np.unique(concepts, return_inverse=True)[1]
        weights = np.eye(groups.max() + 1)[groups]
        alone = np.zeros(len(groups), dtype=bool)
        evidence = np.zeros((len(groups), len(groups)))
        return Grouping(groups, weights, alone, evidence, alone, 0.0, True, "told")

    find, grouping.find = grouping.find, truth
    try:
        yield
    finally:
        grouping.find = find


@contextmanager
def flux(state_of: Any) -> Iterator[None]:
    """Describe clients by plain and class-conditional moments, as FLUX does by default."""
    with in_place_of_discovery(per_label=True):
        yield


@contextmanager
def flux_plain(state_of: Any) -> Iterator[None]:
    """Describe clients by plain moments alone."""
    with in_place_of_discovery(per_label=False):
        yield


@contextmanager
def as_it_is(state_of: Any) -> Iterator[None]:
    yield


ROWS: dict[str, tuple[dict[str, Any], Any]] = {
    "found": ({}, as_it_is),
    "told": ({"fedrc.discover-after": 5}, told),
    "fedavg": ({"algorithm": "fedavg"}, as_it_is),
    "flux": ({}, flux),
    "flux plain": ({}, flux_plain),
    **{
        f"{name} from the groups": ({"algorithm": name, f"{name}.start": "discover"}, as_it_is)
        for name in ("ifca", "fedem", "fedsoft")
    },
    **{
        name: ({"algorithm": name, f"{name}.start": "paper"}, as_it_is)
        for name in ("ifca", "fedem", "fedsoft")
    },
}


def run(federation: str, row: str, seed: int, changed: dict[str, Any]) -> dict[str, Any]:
    """One run, from beginning to end."""
    chosen, wrapped = ROWS[row]
    if chosen.get(f"{row}.start") == "paper":
        chosen = {**chosen, f"{row}.clusters": CONCEPTS.get(federation, 3)}
    config = load_config({**settings(federation, seed), **chosen, **changed})
    clients, mixed = two_in_one(config) if federation.startswith("two-in-one") else ([], {})
    rounds, carrier = in_memory(config, clients)
    events: list[dict[str, Any]] = []
    started = time.process_time()
    with wrapped(lambda: rounds.state):
        rounds.run(
            carrier, config.rounds, 10, lambda state, metrics: events.append(metrics),
            lambda state, outcome: events[-1].update(outcome),
        )  # fmt: skip
    state, last = rounds.state, events[-1]
    grouped = [event for event in events if event.get("discovery")]
    sentences = [f"{event['round']}: {event['discovery']['sentence']}" for event in grouped]
    return {
        "federation": federation,
        "row": named(row, changed),
        "seed": seed,
        "epsilon": last.get("epsilon"),
        "rounds": config.rounds,
        "clusters": len({r.cluster for r in state.clients.values() if r.cluster >= 0})
        if places.is_found(state)
        else len(state.clusters),
        "index": adjusted_rand_index(state),
        "local": last.get("local_accuracy"),
        "global": last.get("global_accuracy"),
        "curve": [[e["round"], e.get("local_accuracy"), e.get("global_accuracy")]
                  for e in events if e.get("local_accuracy") is not None],
        "said": sentences,
        "two in one": shares(state, mixed),
        "seconds": round(time.process_time() - started),
    }  # fmt: skip


def named(row: str, changed: dict[str, Any]) -> str:
    """The row with what was set."""
    return ", ".join([row, *(f"{name} = {value}" for name, value in changed.items())])


def summary(runs: list[dict[str, Any]]) -> None:
    """Print a table of all runs."""
    print("| federation | row | seeds | clusters | index, mean | index | local | global |")
    print("|---|---|---|---|---|---|---|---|")
    keys = dict.fromkeys((r["federation"], r["row"]) for r in runs)
    for federation, row in keys:
        some = sorted(
            (r for r in runs if (r["federation"], r["row"]) == (federation, row)),
            key=lambda r: int(r["seed"]),
        )
        indices = [r["index"] for r in some if r["index"] is not None]
        print(
            f"| {federation} | {row} | {' '.join(str(r['seed']) for r in some)} "
            f"| {' '.join(str(r['clusters']) for r in some)} "
            f"| {_mean(indices)} | {' '.join(f'{i:.2f}' for i in indices)} "
            f"| {_mean([r['local'] for r in some])} | {_mean([r['global'] for r in some])} |"
        )


def _mean(values: list[Any]) -> str:
    known = [v for v in values if v is not None]
    return f"{np.mean(known):.3f}" if known else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", default="")
    parser.add_argument("--rows", default="found")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--set", action="append", default=[], dest="changed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("outputs/concepts.jsonl"))
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changed = dict(parse_setting(text) for text in options.changed)
    known = options.results.read_text().splitlines() if options.results.exists() else []
    runs = [json.loads(line) for line in known]
    done = {(r["federation"], r["row"], r["seed"]) for r in runs}
    for federation in filter(None, options.federations.split(",")):
        for seed in map(int, options.seeds.split(",")):
            for row in options.rows.split(","):
                if (federation, named(row, changed), seed) in done:
                    continue
                result = run(federation, row, seed, changed)
                options.results.parent.mkdir(parents=True, exist_ok=True)
                with options.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                runs.append(result)
                shown = {k: v for k, v in result.items() if k not in ("curve", "said")}
                print(shown, flush=True)
    if options.summary:
        print(machine())
        summary(runs)


if __name__ == "__main__":
    main()
