"""A run on the terminal: a line per round, a progress bar, and a summary."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedrc_flwr.report.log import Event


class Terminal:
    """Shows events as they come; plain lines where there is no terminal."""

    def __init__(self, rounds: int, console: Console | None = None) -> None:
        self._rounds = rounds
        self.console = console or Console(highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=rounds)
        self._undecided = ""

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, event: Event) -> None:
        """Print a round's line and move the bar."""
        if event.get("event") == "round":
            self.console.print(round_line(event, self._rounds), soft_wrap=True, markup=False)
            undecided = event.get("undecided", "")
            if undecided and undecided != self._undecided:
                self.console.print(f"  {hidden(undecided)}", soft_wrap=True, markup=False)
            self._undecided = undecided
            self._bar.update(self._task, completed=event["round"], description="training")


def hidden(undecided: str) -> str:
    """What noise on the statistics left undecided, as a sentence."""
    return f"Undecided because of noise on the statistics: {undecided}."


def round_line(event: Event, rounds: int) -> str:
    """One round in one line."""
    loss = "-" if event["loss"] is None else f"{event['loss']:.3f}"
    shares = " ".join(f"{share:.2f}" for share in event["shares"])
    parts = [
        f"round {event['round']:>{len(str(rounds))}}/{rounds}",
        f"{len(event['clusters'])} clusters [{shares}]",
        f"loss {loss}",
    ]
    if event.get("local_accuracy") is not None:
        parts.append(f"local {event['local_accuracy']:.3f}")
    if event.get("global_accuracy") is not None:
        parts.append(f"global {event['global_accuracy']:.3f}")
    parts.append(f"{event['seconds']:.1f} s")
    if event.get("removed"):
        parts.append("removed " + ", ".join(str(c) for c in event["removed"]))
    parts += [f"merged {gone} into {stays}" for gone, stays in event.get("merged", [])]
    if event.get("failed"):
        parts.append("without " + ", ".join(sorted(event["failed"])))
    if event.get("epsilon") is not None:
        parts.append(f"epsilon {event['epsilon']:.2f}")
    return "  ".join(parts)


def summary_lines(summary: dict[str, Any], directory: Path) -> list[str]:
    """The end of a run in a few lines."""

    def number(name: str) -> str:
        value = summary.get(name)
        return "-" if value is None else f"{value:.3f}"

    lines = [
        f"{summary.get('algorithm')} on {summary.get('scenario')}, seed {summary.get('seed')}: "
        f"{summary.get('status')} after {summary.get('rounds')} rounds, "
        f"{summary.get('seconds', 0):.0f} seconds",
        f"  clusters left        {summary.get('clusters')}",
        f"  local accuracy       {number('local_accuracy')}",
        f"  global accuracy      {number('global_accuracy')}",
    ]
    if summary.get("fine_tuned_local_accuracy") is not None:
        lines.append(f"  fine-tuned, local    {number('fine_tuned_local_accuracy')}")
    lines.append(f"  adjusted Rand index  {number('adjusted_rand_index')}")
    if summary.get("epsilon") is not None:
        lines.append(f"  epsilon spent        {number('epsilon')} (statistics only)")
    if summary.get("undecided"):
        lines.append(f"  {hidden(summary['undecided'])}")
    return [*lines, f"results in {directory}"]
