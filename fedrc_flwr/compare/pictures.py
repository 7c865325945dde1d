"""A comparison's curves: accuracy over rounds, a line for each method, mean over its seeds."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np

from fedrc_flwr.compare.plan import Comparison
from fedrc_flwr.compare.results import SCOPES, Line, judgement
from fedrc_flwr.compare.runner import RUNS
from fedrc_flwr.report.contents import gather
from fedrc_flwr.report.drawings import draw_figures
from fedrc_flwr.report.log import METRICS, read_events


def draw_curves(directory: Path, comparison: Comparison, table: list[Line]) -> list[Path]:
    """``curves-<federation>.png`` and ``.svg`` for each column that has any run done."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths: list[Path] = []
    for column in comparison.columns:
        members = [line for line in table if line.column == column]
        if not members:
            continue
        height = max(4.2, 0.6 + 0.25 * len(members))  # room for the legend
        figure, panels = pyplot.subplots(
            1, 2, figsize=(11, height), sharey=True, layout="constrained"
        )
        colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
        for axes, scope in zip(panels, SCOPES, strict=True):
            for index, line in enumerate(members):
                rounds, values = curve(directory, comparison, line, scope)
                style = "-" if index % 2 == 0 else "--"
                axes.plot(rounds, values, style, color=colours[index % 20], label=line.row)
            axes.set(xlabel="round", title=f"{scope} accuracy", ylim=(0, 1))
            axes.grid(alpha=0.3)
        panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        figure.suptitle(column.replace("$", r"\$"))
        stem = directory / f"curves-{_of_column(comparison, column)}"
        for path in (stem.with_suffix(".png"), stem.with_suffix(".svg")):
            figure.savefig(path, dpi=130)
            paths.append(path)
        pyplot.close(figure)
    return paths


def draw_clusters(directory: Path, comparison: Comparison, table: list[Line]) -> list[Path]:
    """Pictures of the clusters in the first run of each line, in ``clusters``."""
    paths: list[Path] = []
    for line in table:
        run, _ = first_run(directory, comparison, line)
        parts = run.relative_to(directory / RUNS).parts
        target = directory / "clusters" / "-".join(parts)
        if not target.exists():
            unfinished = target.with_name(target.name + ".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            draw_figures(gather(run), unfinished)
            unfinished.rename(target)
        paths.append(target)
    return paths


def first_run(directory: Path, comparison: Comparison, line: Line) -> tuple[Path, int]:
    """The directory of a line's first run, and its seed."""
    cell = next(cell for cell in comparison.cells() if line.counts(cell))
    return directory / RUNS / cell.folder, cell.seed


def curve(
    directory: Path, comparison: Comparison, line: Line, scope: str
) -> tuple[list[int], list[float]]:
    """Rounds in which all of a line's runs were evaluated, and the mean over them."""
    runs: list[dict[int, float]] = []
    for cell in comparison.cells():
        if line.counts(cell):
            events = read_events(directory / RUNS / cell.folder / METRICS)
            judged = {e["round"]: judgement(e, scope) for e in events if e.get("event") == "round"}
            runs.append(
                {number: value for number, value in judged.items() if not math.isnan(value)}
            )
    shared = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return shared, [float(np.mean([run[number] for run in runs])) for number in shared]


def _of_column(comparison: Comparison, column: str) -> str:
    return next(c.folder.parts[0] for c in comparison.cells() if c.column == column)
