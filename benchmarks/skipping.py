"""What leaving out negligible responsibilities does to the result once the clusters have formed.

    python benchmarks/skipping.py

On each seed a federation with formed clusters (see bare.formed) goes on twice: dense, and with the
default thresholds of `local.skip-below` and `local.skip-cluster-below`. FashionMNIST, three
concepts, `cnn`. Two of them go on at a time, in a process each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from statistics import mean, median
from typing import Any

import torch
from bare import FORMING, formed, machine, one_round, write_section

from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.judging import judge

DENSE = {"local.skip-below": 0.0, "local.skip-cluster-below": 0.0}


def go_on(task: tuple[dict[str, Any], int]) -> dict[str, float]:
    """Rounds from formed clusters: accuracy, seconds and networks sent."""
    settings, rounds = task
    torch.set_num_threads(1)
    federation, carrier = formed(settings)
    seconds, sent = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        sent.append(one_round(federation, carrier))
        seconds.append(time.perf_counter() - started)
    names = carrier.online(TRAIN) + carrier.online(OBSERVE)
    last = federation.broadcast(federation.state.round)
    asked = federation.letters(last, names, trains=False)
    answers = {letter.name: answer for letter, answer in carrier.deliver(asked)}
    judged = judge(answers, federation.state.clients, federation.state.clusters)
    return {
        "local": judged["local_accuracy"],
        "global": judged["global_accuracy"],
        "seconds": median(seconds),
        "sent": mean(sent[-3:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_args()
    lines = [
        f"{machine()}; {arguments.clients} clients of 400 samples and as many to test on, "
        f"{FORMING} rounds to form the clusters and {arguments.rounds} from there; networks sent "
        "in the last three",
        "",
        "| seed | | local | global | of the dense round's time | networks sent by a client |",
        "|---|---|---|---|---|---|",
    ]
    differences: dict[str, list[float]] = {"local": [], "global": []}
    seeds = arguments.seeds.split(",")
    tasks = []
    for seed in seeds:
        settings = {
            "seed": int(seed), "data.clients": arguments.clients, "data.samples-per-client": 800,
            "data.test-fraction": 0.5,
        }  # fmt: skip
        tasks += [({**settings, **more}, arguments.rounds) for more in (DENSE, {})]
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        for number, found in enumerate(pool.imap(go_on, tasks)):
            if number % 2 == 0:
                dense = found
            else:
                for scope, values in differences.items():
                    values.append(100 * (found[scope] - dense[scope]))
            lines.append(
                f"| {seeds[number // 2]} | {'skipping' if number % 2 else 'dense'} "
                f"| {found['local']:.4f} | {found['global']:.4f} "
                f"| {found['seconds'] / dense['seconds']:.2f} | {found['sent']:.2f} |"
            )
            print(lines[-1], flush=True)
    lines.append("")
    for scope, values in differences.items():
        lines.append(
            f"- {scope} accuracy, skipping against dense: {mean(values):+.2f} points in the mean; "
            f"by seed {', '.join(f'{v:+.2f}' for v in values)}"
        )
    write_section("skipping", lines)


if __name__ == "__main__":
    main()
