"""What each client of a scenario holds: a table, and one picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fedrc_flwr.data.scenario import OBSERVE, Outline
from fedrc_flwr.words import counted

SHOWN_LABELS = 6


def table(outlines: Iterable[Outline]) -> Iterator[str]:
    """One line per client: samples, labels with their numbers, the most frequent first, truth."""
    yield f"{'client':<14}{'role':<9}{'fit':>6}{'test':>6}  {'concept':<9}{'style':<24}labels"
    for outline in outlines:
        truth = outline.truth
        concept = "unknown" if truth.concept < 0 else str(truth.concept)
        yield (
            f"{outline.name:<14}{outline.role:<9}{outline.fit:>6}{outline.test:>6}  "
            f"{concept:<9}{truth.style:<24}{_labels(outline)}"
        )


def totals(outlines: list[Outline]) -> str:
    """The federation in one line."""
    trained = [outline for outline in outlines if outline.role != OBSERVE]
    samples = sum(len(outline.labels) for outline in trained)
    styled = sum(outline.truth.style != "none" for outline in trained)
    concepts = sorted({outline.truth.concept for outline in trained} - {-1})
    shares = ", ".join(
        f"concept {c}: {sum(outline.truth.concept == c for outline in trained)}" for c in concepts
    )
    return (
        f"{counted(len(trained), 'training client')} with {counted(samples, 'sample')} "
        f"({shares or 'concepts unknown'}; {styled} corrupted), "
        f"{counted(len(outlines) - len(trained), 'observer')}"
    )


def _labels(outline: Outline) -> str:
    values, counts = np.unique(outline.labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shown = [f"{values[i]}:{counts[i]}" for i in order[:SHOWN_LABELS]]
    more = len(values) - len(shown)
    return " ".join([*shown, *([f"and {more} more"] if more else [])])


def draw(outlines: list[Outline], classes: int, title: str, path: Path) -> None:
    """Label histogram by client as columns of a picture; below, each one's concept and style."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = sorted(
        outlines,
        key=lambda o: (
            o.role == OBSERVE,
            o.truth.concept,
            o.truth.style != "none",
            _style(o),
            o.name,
        ),
    )
    counts = np.stack([np.bincount(o.labels, minlength=classes) for o in rows], axis=1)
    shares = counts / counts.sum(axis=0)
    concepts = sorted({o.truth.concept for o in rows})
    styles = sorted({_style(o) for o in rows}, key=lambda style: (style != "none", style))
    width = float(np.clip(3 + 0.09 * len(rows), 8, 24))
    figure = Figure(figsize=(width, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    top, middle, bottom = figure.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": [14, 1, 1]}
    )
    image = top.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    top.set_ylabel("label")
    top.set_title(title)
    figure.colorbar(image, ax=top, pad=0.01, label="share of the client's samples")
    colours = [colormaps["Set2"](i % 8) for i in range(len(concepts))]
    strip = [[concepts.index(o.truth.concept) for o in rows]]
    middle.imshow(strip, cmap=ListedColormap(colours), aspect="auto", interpolation="nearest",
                  vmin=-0.5, vmax=len(concepts) - 0.5)  # fmt: skip
    named = ["unknown" if c < 0 else str(c) for c in concepts]
    hues = ["#eeeeee" if s == "none" else colormaps["tab20"](i % 20) for i, s in enumerate(styles)]
    strip = [[styles.index(_style(o)) for o in rows]]
    bottom.imshow(strip, cmap=ListedColormap(hues), aspect="auto", interpolation="nearest",
                  vmin=-0.5, vmax=len(styles) - 0.5)  # fmt: skip
    for axes, name in ((middle, "concept"), (bottom, "style")):
        axes.set_yticks([0], [name])
        axes.tick_params(length=0)
    trained = sum(o.role != OBSERVE for o in rows)
    for axes in (top, middle, bottom):
        if trained < len(rows):
            axes.axvline(trained - 0.5, color="#c2410c", linewidth=1.5)
    if trained < len(rows):
        top.annotate("observers \N{RIGHTWARDS ARROW}", (trained - 0.5, 1.0), color="#c2410c",
                     xycoords=("data", "axes fraction"), ha="right", va="bottom",
                     fontsize=9)  # fmt: skip
    if len(rows) <= 60:
        bottom.set_xticks(range(len(rows)), [o.name for o in rows], rotation=90, fontsize=7)
    else:
        bottom.set_xlabel(f"{len(rows)} clients, by concept, style and name")
    handles = [Patch(color=c, label=f"concept {n}") for c, n in zip(colours, named, strict=True)]
    handles += [Patch(color=h, label=s) for h, s in zip(hues, styles, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def _style(outline: Outline) -> str:
    """The style without its severity."""
    name, dash, severity = outline.truth.style.rpartition("-")
    return name if dash and severity.isdecimal() else outline.truth.style
