"""What the metrics tell about a round."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedrc_flwr.algorithms.messages import Phase, RoundReport, RoundResult
from fedrc_flwr.engine import conduct
from fedrc_flwr.screening import Verdict
from fedrc_flwr.state import ServerState

#: Clients whose mixture weights are recorded in every round, and whose replies are by name.
MOST_WEIGHED = 200


def trained(
    state: ServerState, result: RoundResult, report: RoundReport, phase: Phase, sampled: int
) -> dict[str, Any]:
    """The outcome of a round's training.

    Parameters
    ----------
    state : the state after the round
    phase : what kind of E-step the round had
    sampled : how many clients were to be asked
    """
    return {
        "round": state.round,
        "exponent": phase.exponent,
        "clusters": list(state.clusters),
        "shares": state.shares().tolist(),
        "members": _members(state),
        "movement": report.movement,
        "removed": list(report.adaptation.removed),
        "merged": [list(pair) for pair in report.adaptation.merged],
        "undecided": report.adaptation.undecided,
        **({} if report.discovery is None else {"discovery": report.discovery}),
        "loss": _mean(result, "loss"),
        "train_accuracy": _mean(result, "accuracy"),
        "client_ready_seconds": _mean(result, "ready_seconds"),
        "client_seconds": _mean(result, "seconds"),
        "sampled": sampled,
        "replied": len(result.records),
        "started_afresh": sorted(n for n, m in result.metrics.items() if m.get("fresh")),
        "weights": _weights(state, list(result.records)),
    }


def behaved(
    state: ServerState,
    round_number: int,
    answered: set[str],
    strikes: dict[str, str],
    verdict: Verdict | None,
) -> dict[str, Any]:
    """Whose replies were used in this round, who was struck and why, who is left out of the next.

    What is empty is left out, and so are the names of a large federation's replies.
    """
    clipped = {} if verdict is None else verdict.clipped
    told = {
        "answered": sorted(answered - set(strikes)) if len(answered) <= MOST_WEIGHED else [],
        "strikes": dict(sorted(strikes.items())),
        "clipped": {name: round(ratio, 2) for name, ratio in sorted(clipped.items())},
        "quarantined": conduct.quarantined(state),
        "resting": conduct.resting(state, round_number + 1),
    }
    return {name: value for name, value in told.items() if value}


def _members(state: ServerState) -> list[int]:
    """How many clients have their largest weight on each of the current clusters."""
    weights = [record.mixture_weights() for record in state.reported().values()]
    homes = [int(each.argmax()) for each in weights if each is not None]
    return [homes.count(k) for k in range(len(state.clusters))]


def _weights(state: ServerState, names: list[str]) -> dict[str, list[float]]:
    """The mixture weights of these clients over the current clusters.

    Large federations are thinned, because the metrics would grow by all of them in every round.
    """
    shown = sorted(names)[:: math.ceil(len(names) / MOST_WEIGHED)]
    weights = {name: state.clients[name].mixture_weights() for name in shown}
    return {n: [round(float(v), 3) for v in w] for n, w in weights.items() if w is not None}


def _mean(result: RoundResult, metric: str) -> float:
    """A metric's mean over the round's samples."""
    values = [m.get(metric, math.nan) for m in result.metrics.values()]
    return float(np.average(values, weights=[r.samples for r in result.records.values()]))
