"""A run on the terminal: a line per round, a progress bar, and a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from fedrc_flwr.report.bar import Bar
from fedrc_flwr.report.log import EVALUATED, Event
from fedrc_flwr.words import counted

#: What the line of an evaluation shows.
SHOWN = {
    "local_accuracy": "local",
    "local_balanced_accuracy": "balanced",
    "global_accuracy": "global",
}


class Terminal(Bar):
    """Shows events as they come; plain lines where there is no terminal.

    Without ``lines`` there is only the bar.
    """

    def __init__(self, rounds: int, console: Console | None = None, lines: bool = True) -> None:
        super().__init__(rounds, console, MofNCompleteColumn(), TimeElapsedColumn())
        self._rounds = rounds
        self._lines = lines
        self._undecided = ""

    def show(self, event: Event) -> None:
        """Print a round's line and move the bar."""
        if event.get("event") == "round":
            if self._lines:
                self._print(event)
            self.move(event["round"], "training")
        elif event.get("event") == EVALUATED and self._lines:
            self.say(evaluation_line(event))

    def _print(self, event: Event) -> None:
        self.say(round_line(event, self._rounds))
        if found := event.get("discovery"):
            self.say(f"  {discovered(found['sentence'])}")
        undecided = event.get("undecided", "")
        if undecided and undecided != self._undecided:
            self.say(f"  {hidden(undecided)}")
        self._undecided = undecided


def discovered(sentence: str) -> str:
    """What discovery found in a round, as a sentence."""
    return f"{sentence[:1].upper()}{sentence[1:]}."


def hidden(undecided: str) -> str:
    """What noise on the statistics left undecided, as a sentence."""
    return f"Undecided because of noise on the statistics: {undecided}."


def locked_out(names: list[str]) -> str:
    """Who is in quarantine, as a sentence."""
    return (
        f"In quarantine after three strikes: {', '.join(names)}. The run's log says why; "
        "`fedrc forgive` lets a client back in."
    )


def round_line(event: Event, rounds: int) -> str:
    """One round in one line."""
    loss = "-" if event["loss"] is None else f"{event['loss']:.3f}"
    shares = " ".join(f"{share:.2f}" for share in event["shares"])
    parts = [
        f"round {event['round']:>{len(str(rounds))}}/{rounds}",
        f"{counted(len(event['clusters']), 'cluster')} [{shares}]",
        f"loss {loss}",
    ]
    parts.append(f"{event['seconds']:.1f} s")
    if event.get("removed"):
        parts.append("removed " + ", ".join(str(c) for c in event["removed"]))
    parts += [f"merged {gone} into {stays}" for gone, stays in event.get("merged", [])]
    failed = event.get("failed", {})
    sampled, replied = event.get("sampled", 0), event.get("replied", 0)
    if replied + len(failed) < sampled:  # with a quorum: the others still may
        parts.append(f"{replied} of {sampled} replied")
    if event.get("late"):
        late = sorted(event["late"].items())
        parts.append("late " + ", ".join(f"{name} ({counted(age, 'round')})" for name, age in late))
    if failed:
        parts.append("without " + ", ".join(sorted(failed)))
    if event.get("quarantined"):
        parts.append("in quarantine " + ", ".join(event["quarantined"]))
    if event.get("epsilon") is not None:
        parts.append(f"epsilon {event['epsilon']:.2f}")
    return "  ".join(parts)


def evaluation_line(event: Event) -> str:
    """The evaluation of a round's models in one line."""
    parts = [f"  accuracy after round {event['round']}:"]
    for key, name in SHOWN.items():
        if event.get(key) is not None:
            parts.append(f"{name} {event[key]:.3f}")
    if event.get("failed"):
        parts.append("without " + ", ".join(sorted(event["failed"])))
    return "  ".join(parts if len(parts) > 1 else [*parts, "no client has test samples"])


def summary_lines(summary: dict[str, Any], directory: Path) -> list[str]:
    """The end of a run in a few lines."""

    def number(name: str) -> str:
        value = summary.get(name)
        return "-" if value is None else f"{value:.3f}"

    local = (summary.get("scores") or {}).get("local")
    lines = [
        f"{summary.get('algorithm')} on {summary.get('scenario')}, seed {summary.get('seed')}: "
        f"{summary.get('status')} after {counted(summary.get('rounds', 0), 'round')}, "
        f"{summary.get('seconds', 0):.0f} seconds",
        *([summary["headline"]] if summary.get("headline") else []),
        f"  clusters left        {summary.get('clusters')}",
        f"  local accuracy       {number('local_accuracy')}",
        *(beside_constant(local) if local else []),
    ]
    # What there is only with observers, fine-tuning, known concepts and noise.
    for name, text, note in (
        ("global_accuracy", "global accuracy", ""),
        ("fine_tuned_local_accuracy", "fine-tuned, local", ""),
        ("adjusted_rand_index", "adjusted Rand index", ""),
        ("epsilon", "epsilon spent", " (statistics only)"),
    ):
        if summary.get(name) is not None:
            lines.append(f"  {text:<20} {number(name)}{note}")
    if summary.get("quarantined"):
        lines.append(f"  {locked_out(summary['quarantined'])}")
    if summary.get("undecided"):
        lines.append(f"  {hidden(summary['undecided'])}")
    return [*lines, f"results in {directory}"]


def beside_constant(scores: dict[str, Any]) -> list[str]:
    """Scores pooled over the training clients' test samples, each beside a constant answer's."""
    lines = [
        f"  {name:<20} {scores[key]:.3f} (a constant answer: {scores[f'constant_{key}']:.3f})"
        for name, key in (
            ("accuracy, pooled", "accuracy"),
            ("balanced accuracy", "balanced_accuracy"),
            ("macro F1", "macro_f1"),
        )
    ]
    if scores.get("auc") is not None:
        lines.append(
            f"  {'AUC':<20} {scores['auc']:.3f} (a constant answer: 0.500; bins may move it by "
            f"{scores['auc_error']:.3f})"
        )
    return [*lines, f"  {'test samples':<20} {scores['samples']}"]
