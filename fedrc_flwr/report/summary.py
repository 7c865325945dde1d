"""The final numbers of a run, for summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.data.settings import title
from fedrc_flwr.engine.conduct import quarantined
from fedrc_flwr.report.headline import Headline
from fedrc_flwr.state import ServerState


def adjusted_rand_index(state: ServerState) -> float | None:
    """Agreement of the training clients' likeliest clusters with their true concepts, if known."""
    from sklearn.metrics import adjusted_rand_score

    pairs = [
        (record.concept, int(weights.argmax()))
        for record in state.clients.values()
        if record.role == TRAIN
        and record.concept >= 0
        and (weights := record.mixture_weights()) is not None
    ]
    if not pairs:
        return None
    concepts, clusters = zip(*pairs, strict=True)
    return float(adjusted_rand_score(concepts, clusters))


def summarise(
    state: ServerState,
    recorded: Mapping[str, Any],
    status: str,
    seconds: float,
    last_evaluation: dict[str, Any],
    epsilon: float | None,
    reason: str = "",
    undecided: str = "",
    said: Headline | None = None,
) -> dict[str, Any]:
    """The content of summary.json."""
    return {
        **({"headline": said.text, "verdict": said.kinds[0]} if said else {}),
        "status": status,
        **({"reason": reason} if reason else {}),
        "rounds": state.round,
        "seconds": round(seconds, 3),
        "clusters": len(state.clusters),
        "local_accuracy": last_evaluation.get("local_accuracy"),
        "global_accuracy": last_evaluation.get("global_accuracy"),
        **{k: v for k, v in last_evaluation.items() if k.startswith("fine_tuned_")},
        "scores": last_evaluation.get("scores"),
        "adjusted_rand_index": adjusted_rand_index(state),
        "epsilon": epsilon,
        "undecided": undecided,
        **({"quarantined": locked} if (locked := quarantined(state)) else {}),
        "algorithm": recorded["algorithm"],
        "scenario": title(str(recorded["scenario"]), str(recorded.get("data.dataset", ""))),
        "seed": recorded["seed"],
    }
