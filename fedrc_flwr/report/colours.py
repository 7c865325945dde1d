"""One colour per cluster, the same in every picture and on the page."""

from __future__ import annotations

#: After Paul Tol's schemes: distinguishable with any colour vision, on light and dark.
PALETTE = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
    "#ee7733", "#44aa99", "#999933", "#bb88dd", "#997700", "#88a0b0",
)  # fmt: skip


def cluster_colour(cluster: int) -> str:
    """The colour of a cluster id."""
    return PALETTE[cluster % len(PALETTE)]
