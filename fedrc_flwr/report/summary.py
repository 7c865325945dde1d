"""What a run came to: the numbers that go into summary.json."""

from __future__ import annotations

from typing import Any

from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.privacy import epsilon_spent, gaussian_mu, sensitivity
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


def epsilon(state: ServerState, config: RunConfig) -> float | None:
    """The largest epsilon that any client has spent.

    None where a client adds no noise, or where nothing bounds what the noise hides: without
    clipping no epsilon is claimed.
    """
    reported = state.reported().values()
    if not reported or config.count_clip == 0 or any(record.noise <= 0 for record in reported):
        return None
    return max(
        epsilon_spent(
            gaussian_mu(r.releases, sensitivity(r.samples, config.count_clip), r.noise),
            config.privacy_delta,
        )
        for r in reported
    )


def summarise(
    state: ServerState,
    config: RunConfig,
    status: str,
    seconds: float,
    last_evaluation: dict[str, Any],
    reason: str = "",
    undecided: str = "",
) -> dict[str, Any]:
    """The content of summary.json."""
    return {
        "status": status,
        **({"reason": reason} if reason else {}),
        "rounds": state.round,
        "seconds": round(seconds, 3),
        "clusters": len(state.clusters),
        "local_accuracy": last_evaluation.get("local_accuracy"),
        "global_accuracy": last_evaluation.get("global_accuracy"),
        **{k: v for k, v in last_evaluation.items() if k.startswith("fine_tuned_")},
        "adjusted_rand_index": adjusted_rand_index(state),
        "epsilon": epsilon(state, config),
        "undecided": undecided,
        "algorithm": config.algorithm,
        "scenario": config.scenario,
        "seed": config.seed,
    }
