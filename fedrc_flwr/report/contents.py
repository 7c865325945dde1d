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
from fedrc_flwr.errors import CheckpointError, DataError
from fedrc_flwr.report.history import History, history
from fedrc_flwr.report.log import CONFIG, METRICS, SUMMARY, plain, read_events, read_json
from fedrc_flwr.report.population import Population, nobody, population
from fedrc_flwr.report.summary import adjusted_rand_index

#: Paths are left out, because a page may be passed on.
LEFT_OUT = (
    "run.output-dir", "run.name", "run.state-dir", "run.resume", "run.resume-round", "resolved",
    "data.directory", "scenario", "algorithm", "seed",
)  # fmt: skip
NAMES = {name: algorithm.title for name, algorithm in ALGORITHMS.items()}
UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Contents:
    """One run, ready to be drawn.

    Parameters
    ----------
    status : completed, failed, stopped; unfinished: running, or killed
    facts : what was run and what came out, as label and text
    settings : keys whose values differ from the defaults: key, value, default
    notes : what is missing, and why
    """

    name: str
    status: str
    reason: str
    written: str
    outcome: str
    facts: list[tuple[str, str]]
    figures: list[tuple[str, str]]
    settings: list[tuple[str, str, str]]
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
    summary, config = read_json(directory / SUMMARY), read_json(directory / CONFIG)
    told = history(read_events(directory / METRICS))
    notes: list[str] = []
    checkpoint = _checkpoint(directory, notes)
    people = nobody()
    if checkpoint is not None:
        config = config or checkpoint.config
        people = population(checkpoint, told.judged)
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
    status = str(summary.get("status") or UNFINISHED)
    rand = summary.get("adjusted_rand_index")
    if rand is None and checkpoint is not None:
        rand = adjusted_rand_index(checkpoint.state)
    return Contents(
        name=directory.resolve().name,
        status=status,
        reason=str(summary.get("reason") or ""),
        written=_written(directory),
        outcome=outcome(config, told, people, ended=status == "completed"),
        facts=_facts(config, told, people),
        figures=_figures(told, people, rand),
        settings=changed(config),
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


def outcome(config: dict[str, Any], told: History, people: Population, ended: bool) -> str:
    """The result, or the progress, in one sentence."""
    if not told.last_round:
        return "No round has finished yet."
    algorithm = NAMES.get(str(config.get("algorithm")), str(config.get("algorithm") or "The run"))
    rounds = _count(told.last_round, "round")
    if not people.clusters:
        return f"{algorithm} finished {rounds}; there is no checkpoint to read its clusters from."
    clients = _count(people.training, "client")
    name = str(config.get("algorithm"))
    if len(people.clusters) == 1 and config.get(f"{name}.clusters", 1) == 1:
        start = f"{algorithm} trained one model for {clients} in {rounds}"
    elif not ended:
        models = _count(len(people.clusters), "cluster")
        start = f"{algorithm} has {models} for {clients} after {rounds}"
    elif config.get(f"{name}.adaptive") or config.get(f"{name}.merge"):
        found = _count(len(people.clusters), "concept")
        start = f"{algorithm} found {found} among {clients} in {rounds}"
    else:
        models = _count(len(people.clusters), "cluster")
        start = f"{algorithm} trained {models} for {clients} in {rounds}"
    served = [c for c in people.clusters if c.accuracy is not None]
    if not served:
        return f"{start}; nothing has been evaluated yet."
    if len(served) > 6:
        rates = sorted(c.accuracy for c in served if c.accuracy is not None)
        return f"{start}; the clusters' accuracies range from {rates[0]:.1%} to {rates[-1]:.1%}."
    if len(served) == 1:
        return f"{start}; accuracy is {served[0].accuracy:.1%}."
    each = [f"{c.accuracy:.1%} in cluster {c.id} ({_count(c.clients, 'client')})" for c in served]
    return f"{start}; accuracy is {', '.join(each[:-1])} and {each[-1]}."


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
    observers = f" and {_count(people.observers, 'observer')}" if people.observers else ""
    algorithm = str(config.get("algorithm", ""))
    facts = [
        ("scenario", Path(str(config.get("scenario", ""))).stem),
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and "/" in value:
        return Path(value).name
    return "empty" if value == "" else str(value)
