"""Every figure of the report as PNG and SVG, for papers, from the same contents as the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrc_flwr.report.colours import cluster_colour
from fedrc_flwr.report.contents import Contents
from fedrc_flwr.report.figures import literal
from fedrc_flwr.report.history import Change, Series
from fedrc_flwr.report.population import Table
from fedrc_flwr.report.tallies import added

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, SOFT, GRID, LATE, FAILED = "#22262b", "#68707a", "#e6e4df", "#d08700", "#b3261e"
LINES = ("-", "-", "--", ":")
SHADES = ("#2f5f8f", "#b3261e", "#2f5f8f", "#68707a")
LABELLED_ROWS = 60
STYLE = {
    "font.size": 9.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedrc",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "grid.color": GRID,
    "legend.frameon": False,
}


def draw_figures(contents: Contents, directory: Path) -> list[Path]:
    """Write what there is to draw as NAME.png and NAME.svg; returns the files."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, size, draw in _plans(contents):
        with rc_context(STYLE):  # type: ignore[arg-type]
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure.add_subplot())
            for kind in ("png", "svg"):
                path = directory / f"{name}.{kind}"
                figure.savefig(path, dpi=200, metadata={"Date": None} if kind == "svg" else None)
                written.append(path)
    return written


Plan = tuple[str, tuple[float, float], Callable[["Axes"], None]]


def _plans(c: Contents) -> list[Plan]:
    """Name, size in inches and drawing of every figure that has something to show."""
    h, p = c.history, c.population
    ids = [cluster.id for cluster in p.clusters]
    wide, square = (6.0, 3.0), 1.6 + 0.7 * len(ids)
    weighed = sum(client.weights is not None for client in p.clients)
    plans: list[Plan | None] = [
        ("accuracy", wide, lambda a: _lines(a, h.accuracy, "accuracy", h.changes))
        if h.accuracy else None,
        ("loss", wide, lambda a: _lines(a, h.loss, "cross entropy (nats)", h.changes))
        if h.loss else None,
        ("confusion", (1.6 + 0.4 * len(p.labels), 1.4 + 0.4 * len(p.labels)),
         lambda a: _confusion(a, c))
        if any(k.confusion for k in p.clusters) and len(p.labels) <= LABELLED_ROWS else None,
        ("evidence", (2.2 + _height(len(h.discovery.clients)),) * 2, lambda a: _evidence(a, c))
        if h.discovery.evidence else None,
        ("shares", wide, lambda a: _shares(a, c)) if h.shares else None,
        ("weights", (square + 1.2, 0.8 + _height(weighed)), lambda a: _weights(a, c))
        if weighed else None,
        *(
            (name, (square + 1.0, 0.8 + 1.4 * _height(len(table.rows))), _bubbles(table, ids))
            if table.rows else None
            for name, table in
            (("concepts", p.concepts), ("styles", p.styles), ("classes", p.classes))
        ),
        ("prior", wide, lambda a: _prior(a, c)) if p.label_prior else None,
        ("failures", (6.0, 1.1 + _height(len(h.failures.clients))), lambda a: _failures(a, c))
        if h.failures.points else None,
        ("seconds", wide, lambda a: _lines(a, h.seconds, "seconds", [])) if h.seconds else None,
        ("traffic", wide, lambda a: _lines(a, h.traffic, "bytes", [])) if h.traffic else None,
        ("epsilon", wide, lambda a: _lines(a, h.epsilon, "epsilon", [])) if h.epsilon else None,
    ]  # fmt: skip
    return [plan for plan in plans if plan is not None]


def _height(rows: int) -> float:
    return 0.2 * rows if rows <= LABELLED_ROWS else min(12.0, 0.06 * rows)


def _lines(axes: Axes, series: list[Series], unit: str, changes: list[Change]) -> None:
    from matplotlib.ticker import EngFormatter

    for index, one in enumerate(series):
        x, y = zip(*one.points, strict=True)
        at = index if one.name != "while training" else len(LINES) - 1
        axes.plot(x, y, LINES[at], color=SHADES[at], label=one.name, linewidth=1.4)
    for number in sorted({change.round for change in changes}):
        axes.axvline(number, color=SOFT, linewidth=0.7, linestyle=(0, (4, 4)), zorder=0)
    if unit == "bytes":
        axes.yaxis.set_major_formatter(EngFormatter("B"))
        unit = ""
    axes.set_xlabel("round")
    axes.set_ylabel(unit)
    axes.grid(axis="y")
    if len(series) > 1:
        axes.legend(fontsize=8)


def _confusion(axes: Axes, c: Contents) -> None:
    labels = c.population.labels
    counts = np.zeros((len(labels), len(labels)))
    for label, predicted, samples in added(k.confusion for k in c.population.clusters):
        counts[label, predicted] = samples
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for (row, column), held in np.ndenumerate(counts):
        if held:
            axes.text(column, row, f"{held:.0f}", ha="center", va="center", fontsize=6.5,
                      color="white" if shares[row, column] > 0.6 else INK)  # fmt: skip
    axes.set_xticks(range(len(labels)), [literal(label) for label in labels], rotation=90)
    axes.set_yticks(range(len(labels)), [literal(label) for label in labels])
    axes.tick_params(length=0)
    axes.set(xlabel="predicted", ylabel="label")


def _evidence(axes: Axes, c: Contents) -> None:
    found = c.history.discovery
    values = np.array(found.evidence)
    most = max(float(np.quantile(np.abs(values), 0.9)), 1.0)
    drawn = axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most, interpolation="nearest")
    names = [literal(name) for name in found.clients] if len(values) <= LABELLED_ROWS else []
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for edge in np.flatnonzero(np.diff(found.groups)) + 0.5:
        axes.axhline(edge, color=INK, linewidth=0.8)
        axes.axvline(edge, color=INK, linewidth=0.8)
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.6)
    bar.set_label("evidence that two clients mean the same (nats)", fontsize=8)


def _shares(axes: Axes, c: Contents) -> None:
    shares, changes = c.history.shares, c.history.changes
    rounds = [number for number, _ in next(iter(shares.values()))]
    axes.stackplot(
        rounds,
        [[value for _, value in points] for points in shares.values()],
        colors=[cluster_colour(cluster) for cluster in shares],
        labels=[f"cluster {cluster}" for cluster in shares],
        alpha=0.9,
    )
    for number in sorted({change.round for change in changes}):
        texts = [
            f"{g.cluster} out" if g.into is None else f"{g.cluster} into {g.into}"
            for g in changes
            if g.round == number
        ]
        axes.axvline(number, color=INK, linewidth=0.8, linestyle=(0, (4, 4)))
        axes.annotate(", ".join(texts), (number, 1.0), xycoords=("data", "axes fraction"),
                      ha="center", va="bottom", fontsize=7, color=SOFT)  # fmt: skip
    axes.set(ylim=(0, 1), xlim=(rounds[0], max(rounds[-1], rounds[0] + 1)))
    axes.set_xlabel("round")
    axes.set_ylabel("share of all samples")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _weights(axes: Axes, c: Contents) -> None:
    from matplotlib.colors import to_rgb

    rows = [client for client in c.population.clients if client.weights is not None]
    weights = np.array([client.weights for client in rows])
    hues = np.array([to_rgb(cluster_colour(cluster.id)) for cluster in c.population.clusters])
    axes.imshow(
        1.0 - weights[:, :, None] * (1.0 - hues), aspect="auto", interpolation="nearest"
    )  # fmt: skip
    axes.set_xticks(range(len(hues)), [f"cluster {k.id}" for k in c.population.clusters])
    axes.xaxis.tick_top()
    labelled = len(rows) <= LABELLED_ROWS
    axes.set_yticks(range(len(rows)) if labelled else [],
                    [literal(client.name) for client in rows] if labelled else [])  # fmt: skip
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, client in enumerate(rows if labelled else []):
        if client.concept >= 0:
            axes.annotate(f"concept {client.concept}", (1.01, row), fontsize=7, color=SOFT,
                          xycoords=("axes fraction", "data"), va="center")  # fmt: skip
        for column, value in enumerate(client.weights or []):
            if value >= 0.005:
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5,
                          color="white" if value > 0.6 else INK)  # fmt: skip
    if not labelled and any(client.concept >= 0 for client in rows):
        concepts = np.array([[client.concept] for client in rows], dtype=float)
        strip = axes.inset_axes((1.02, 0.0, 0.05, 1.0))
        strip.imshow(concepts, cmap="Greys", aspect="auto", interpolation="nearest",
                     vmin=-1, vmax=concepts.max() + 1)  # fmt: skip
        strip.set(xticks=[], yticks=[])
        strip.set_title("concept", fontsize=7)


def _bubbles(table: Table, ids: list[int]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        values = np.array(table.values)
        y, x = np.indices(values.shape)
        sizes = 320.0 * values / max(float(values.max()), 1e-9)
        colours = [cluster_colour(ids[k]) for k in x.ravel()]
        axes.scatter(x.ravel(), y.ravel(), s=sizes.ravel(), c=colours, alpha=0.9, linewidths=0)
        axes.set_xticks(range(len(ids)), [f"cluster {i}" for i in ids])
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(table.rows)), [literal(row) for row in table.rows])
        axes.set(xlim=(-0.6, len(ids) - 0.4), ylim=(len(table.rows) - 0.4, -0.6))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.grid(axis="y")
        axes.set_axisbelow(True)

    return draw


def _prior(axes: Axes, c: Contents) -> None:
    prior = np.array(c.population.label_prior)
    width = 0.8 / len(prior)
    for k, cluster in enumerate(c.population.clusters):
        places = np.arange(prior.shape[1]) + (k - (len(prior) - 1) / 2) * width
        axes.bar(places, prior[k], width, color=cluster_colour(cluster.id),
                 label=f"cluster {cluster.id}")  # fmt: skip
    if prior.shape[1] <= 30:
        axes.set_xticks(range(prior.shape[1]))
    axes.set_xlabel("label")
    axes.set_ylabel("part of the cluster")
    axes.legend(fontsize=8)


def _failures(axes: Axes, c: Contents) -> None:
    told = c.history.failures
    late = told.late()
    for name, wanted, colour, marker in (("late", True, LATE, "o"), ("failed", False, FAILED, "^")):
        points = [(number, who) for number, who, why in told.points if late[why] == wanted]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=14, color=colour, marker=marker, label=name, linewidths=0)
    labelled = len(told.clients) <= LABELLED_ROWS
    axes.set_yticks(range(len(told.clients)) if labelled else [],
                    [literal(name) for name in told.clients] if labelled else [])  # fmt: skip
    axes.set(xlim=(0.5, c.history.last_round + 0.5), ylim=(len(told.clients) - 0.5, -0.5))
    axes.set_xlabel("round")
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
