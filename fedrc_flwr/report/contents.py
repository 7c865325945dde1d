"""What a report shows, computed once from a run's files; the page and the pictures draw it.

It only reads, so it can be made at any time: while the run is going, after a crash, or before the
first round.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.checkpoint import CHECKPOINTS, Checkpoint, has_checkpoint, latest_checkpoint
from fedrc_flwr.config import all_keys
from fedrc_flwr.data.settings import title
from fedrc_flwr.engine.directory import OF_A_FAILED_START
from fedrc_flwr.errors import CheckpointError, DataError
from fedrc_flwr.report.headline import WARNINGS, headline
from fedrc_flwr.report.history import History, history
from fedrc_flwr.report.log import (
    CONFIG,
    EVALUATION,
    METRICS,
    SUMMARY,
    plain,
    read_events,
    read_json,
)
from fedrc_flwr.report.population import Population, nobody, population
from fedrc_flwr.report.summary import adjusted_rand_index
from fedrc_flwr.report.tallies import read_tallies
from fedrc_flwr.words import counted

#: Paths are left out, because a page may be passed on.
LEFT_OUT = (
    "run.output-dir", "run.name", "run.state-dir", "run.resume", "run.resume-round", "resolved",
    "data.directory", "data.schema", "scenario", "algorithm", "seed",
)  # fmt: skip
NAMES = {name: algorithm.title for name, algorithm in ALGORITHMS.items()}
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Contents:
    """One run, ready to be drawn.

    Parameters
    ----------
    status : completed, failed, stopped; unfinished: running, or killed
    outcome : the headline without its warnings, which are the ``banners``, by kind
    facts : what was run and what came out, as label and text
    settings : keys whose values differ from the defaults: key, value, default
    sections : the sections of settings that the run read
    notes : what is missing, and why
    """

    name: str
    status: str
    reason: str
    written: str
    headline: str
    outcome: str
    banners: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    figures: list[tuple[str, str]]
    settings: list[tuple[str, str, str]]
    sections: list[str]
    notes: list[str]
    history: History
    population: Population

    def to_json(self) -> dict[str, Any]:
        """Plain lists, texts and numbers; no infinity and no NaN."""
        content: dict[str, Any] = plain(asdict(self))
        content["history"]["changes"] = [
            {**asdict(change), "text": change.text} for change in self.history.changes
        ]
        content["history"]["failures"]["late"] = self.history.failures.late()
        return content


def gather(directory: Path) -> Contents:
    """Read a run's directory."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory; name the directory of a run")
    found = {path.name for path in directory.iterdir()}
    if found and not found & {*OF_A_FAILED_START, CHECKPOINTS}:
        raise DataError(f"{directory}: holds no run; name the directory of a run")
    summary, config = read_json(directory / SUMMARY), read_json(directory / CONFIG)
    told = history(read_events(directory / METRICS))
    notes: list[str] = []
    checkpoint = _checkpoint(directory, notes)
    people = nobody()
    if checkpoint is not None:
        config = config or checkpoint.config
        people = population(checkpoint, told.judged, read_tallies(directory / EVALUATION))
        if len(people.clients) < people.total:
            notes.append(
                f"{len(people.clients)} of {people.total} clients are shown, chosen evenly; the "
                "figures by cluster include all of them."
            )
        if people.round < told.last_round:
            notes.append(
                f"Clients and clusters are those of round {people.round}, the last checkpoint; the "
                f"metrics reach to round {told.last_round}."
            )
    status, reason = str(summary.get("status") or UNFINISHED), str(summary.get("reason") or "")
    said = headline(config, told, people, status, reason)
    rand = summary.get("adjusted_rand_index")
    if rand is None and checkpoint is not None:
        rand = adjusted_rand_index(checkpoint.state)
    return Contents(
        name=directory.resolve().name,
        status=status,
        reason=reason,
        written=_written(directory),
        headline=said.text,
        outcome=" ".join(text for kind, text in said.sentences if kind not in WARNINGS),
        banners=[(kind, text) for kind, text in said.sentences if kind in WARNINGS],
        facts=_facts(config, told, people),
        figures=_figures(told, people, rand),
        settings=changed(config),
        sections=sorted({key.partition(".")[0] for key in config}),
        notes=notes,
        history=told,
        population=people,
    )


def changed(config: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Keys whose values differ from the defaults, with both."""
    defaults = {name: field.default for name, field in all_keys().items()}
    return [
        (key, _text(value), _text(defaults.get(key, "")))
        for key, value in config.items()
        if key not in LEFT_OUT and value != defaults.get(key)
    ]


def _checkpoint(directory: Path, notes: list[str]) -> Checkpoint | None:
    """The newest one that can be read, without its models."""
    if not has_checkpoint(directory):
        notes.append("There is no checkpoint yet: clients and clusters appear after round 1.")
        return None
    for last_try in (False, True):
        try:
            checkpoint, problems = latest_checkpoint(directory / CHECKPOINTS, models=False)
        except CheckpointError as error:
            # A running run may just have replaced the file.
            if last_try:
                notes.append(f"No checkpoint can be read: {error}")
        else:
            notes += [f"Skipped a checkpoint that cannot be read: {p}" for p in problems]
            return checkpoint
    return None


def _written(directory: Path) -> str:
    """When the run last wrote its metrics, in this machine's time."""
    path = directory / METRICS
    if not path.exists():
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))


def _facts(config: dict[str, Any], told: History, people: Population) -> list[tuple[str, str]]:
    """What was run."""
    if not config:
        return []
    observers = f" and {counted(people.observers, 'observer')}" if people.observers else ""
    algorithm = str(config.get("algorithm", ""))
    facts = [
        ("scenario", title(str(config.get("scenario", "")), str(config.get("data.dataset", "")))),
        ("algorithm", NAMES.get(algorithm, algorithm)),
        ("dataset", Path(str(config.get("data.dataset", ""))).name),
        ("network", str(config.get("model.network", ""))),
        ("clients", f"{people.training} training{observers}" if people.total else ""),
        ("rounds", f"{told.last_round} of {config.get('rounds', '?')}"),
        ("seed", str(config.get("seed", ""))),
    ]
    return [(label, text) for label, text in facts if text]


def _figures(told: History, people: Population, rand: float | None) -> list[tuple[str, str]]:
    """The most important numbers."""
    last = {series.name: series.points[-1][1] for series in told.accuracy}
    figures: list[tuple[str, str]] = []
    if people.clusters:
        figures.append(("clusters", str(len(people.clusters))))
    for name, label in (("training clients", "local accuracy"), ("observers", "global accuracy")):
        if name in last:
            figures.append((label, f"{last[name]:.1%}"))
    pooled = told.scores.get("local")
    if pooled:
        label = f"balanced accuracy (a constant answer: {pooled['constant_balanced_accuracy']:.1%})"
        figures.append((label, f"{pooled['balanced_accuracy']:.1%}"))
    if rand is not None:
        figures.append(("agreement with the true concepts (adjusted Rand index)", f"{rand:.3f}"))
    if told.epsilon:
        figures.append(
            ("epsilon spent on the label counts", f"{told.epsilon[0].points[-1][1]:.3g}")
        )
    if told.elapsed:
        figures.append(("time", _duration(told.elapsed)))
    if told.failures.total:
        figures.append(("replies not used", str(told.failures.total)))
    return figures


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and "/" in value:
        return Path(value).name
    return "empty" if value == "" else str(value)
