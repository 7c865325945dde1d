"""What comparisons cost, in words: the list of the ready-made ones, and one before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedrc_flwr.compare import cost
from fedrc_flwr.compare.plan import Comparison, comparison_names, read_comparison
from fedrc_flwr.compare.runner import finished, was_ended
from fedrc_flwr.compare.small import small
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.words import counted

#: Below this, telling how long something takes takes longer than doing it.
SHORT = 60.0
#: The paper's figures that are no comparison.
ELSEWHERE = "Figures 8 and 9: python examples/toy_case.py. Figures 1, 5 and 10 show no results."


def catalogue() -> Iterator[str]:
    """The ready-made comparisons, what each stands for and how long it takes."""
    yield f"{'':<18}{'reproduces':<28}{'runs':>5}{'here':>10}{'a GPU':>10}{'--small':>10}"
    for name in comparison_names():
        comparison = read_comparison(name)
        cells = list(comparison.cells())
        here = cost.roughly(cells)
        try:
            little = duration(cost.roughly(small(comparison).cells()))
        except ConfigError:
            little = "-"
        yield (
            f"{name:<18}{comparison.reproduces or '-':<28}{len(cells):>5}{duration(here):>10}"
            f"{duration(cost.on_gpu(here)):>10}{little:>10}  {comparison.title}"
        )
    yield ""
    yield ELSEWHERE
    yield (
        "All seeds and learning rates. Here: a timed round of FedAvg with each network on one core "
        "of this machine (all cores for a large network), times the models that a method trains. "
        "A GPU: as many times less as for the one run whose time the paper gives, nine hours on an "
        "RTX 3090; small networks gain less from a GPU."
    )


def told(directory: Path, comparison: Comparison) -> Iterator[str]:
    """How long the runs that are left take, each kind timed."""
    cells = [
        cell
        for cell in comparison.cells()
        if not finished(directory, cell) and not was_ended(directory, cell)
    ]
    if not cells:
        return
    kinds = cost.estimated(cells)
    total = sum(seconds for _, seconds in kinds.values())
    yield (
        f"{counted(len(cells), 'run')} of {counted(len(kinds), 'kind')}: about {duration(total)} "
        "if nothing else keeps this machine busy, from a timed round of each kind"
    )
    if total > SHORT:
        slowest = sorted(kinds.items(), key=lambda kind: -kind[1][1] / kind[1][0])[:3]
        for (column, row), (number, seconds) in slowest:
            yield f"  {column}: {row}: {duration(seconds / number)} a run"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``12 days``, ``3 years``."""
    for size, unit in ((365 * 86400, "years"), (86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit in ("h", "min") and seconds >= 1.5 * size):
            number = seconds / size
            return (
                f"{number:.1f} {unit}" if number < 10 and unit == "h" else f"{number:,.0f} {unit}"
            )
    return f"{seconds:.0f} s"
