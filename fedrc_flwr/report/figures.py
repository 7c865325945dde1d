"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.state import ServerState


def literal(text: str) -> str:
    """A text with dollar signs escaped, which matplotlib would take for a formula."""
    return text.replace("$", r"\$")


def draw_mixture_weights(state: ServerState, path: Path) -> None:
    """Mixture weights by client, sorted by true concept and cluster, as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [
        (record.concept, int(weights.argmax()), name, weights)
        for name, record in state.clients.items()
        if record.role == TRAIN and (weights := record.mixture_weights()) is not None
    ]
    rows.sort(key=lambda row: row[:3])
    weights = np.array([row[3] for row in rows])
    concepts = [row[0] for row in rows]
    labelled = len(rows) <= 60
    height = 1.6 + (0.24 * len(rows) if labelled else 12.0)
    figure = Figure(figsize=(3.2 + 0.75 * len(state.clusters), height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(state.clusters)), [f"cluster {c}" for c in state.clusters])
    axes.xaxis.tick_top()
    axes.set_yticks(
        range(len(rows)) if labelled else [], [literal(row[2]) for row in rows] if labelled else []
    )
    axes.tick_params(length=0)
    for edge in np.flatnonzero(np.diff(concepts)):
        axes.axhline(edge + 0.5, color="#c2410c", linewidth=1.5)
    for concept in sorted(set(concepts) - {-1}):
        middle = float(np.mean(np.flatnonzero(np.array(concepts) == concept)))
        axes.annotate(f"concept {concept}", (1.02, middle), xycoords=("axes fraction", "data"),
                      rotation=270, va="center", color="#c2410c")  # fmt: skip
    if labelled:
        for (row, column), value in np.ndenumerate(weights):
            if value >= 0.005:
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8,
                          color="white" if value > 0.6 else "black")  # fmt: skip
    axes.set_title(f"Mixture weights after round {state.round}")
    figure.colorbar(image, ax=axes, shrink=0.6, pad=0.12, label="weight")
    figure.savefig(path, dpi=130)
