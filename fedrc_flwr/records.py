"""Parts of a message as Flower records, checked on arrival."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedrc_flwr.arrays import checked_array
from fedrc_flwr.errors import WireError

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)

#: Most characters of a text that a client sends.
LONGEST = 128
#: The type of the message that asks a client to enrol.
ENROL = "query.enrol"
#: Version of the messages; both sides must speak the same.
SCHEMA = 3
#: Most metrics in a reply.
MOST_METRICS = 32


def record_of(content: RecordDict, name: str, kind: type[R]) -> R:
    """A record by name and kind.

    ``content.array_records`` and the like are not used: each access creates a reference cycle that
    keeps the message's networks until the next garbage collection.
    """
    record = content.get(name)
    if not isinstance(record, kind):
        raise WireError(f"has no {name!r} record")
    return record


def refuse_unknown(names: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Raise if there are records, arrays or keys that nobody asked for: they could hold anything.

    What is expected has known shapes, so nothing of unbounded size is left.
    """
    unknown = sorted(set(names) - set(expected))
    if unknown:
        raise WireError(f"holds {len(unknown)} unknown {what}, such as {unknown[0][:40]!r}")


def checked_config(content: RecordDict, name: str) -> ConfigRecord:
    """A configuration by name, refused if it is of another schema."""
    config = record_of(content, name, ConfigRecord)
    if config.get("schema") != SCHEMA:
        raise WireError(
            f"speaks schema version {config.get('schema')!r}, this side speaks {SCHEMA}: run the "
            "same version of fedrc-flwr on both sides"
        )
    return config


def metrics_of(content: RecordDict) -> dict[str, float]:
    """The metrics of a reply: finite numbers, and not too many."""
    checked_config(content, "reply")
    record = record_of(content, "metrics", MetricRecord)
    if len(record) > MOST_METRICS:
        raise WireError(f"holds {len(record)} metrics, expected at most {MOST_METRICS}")
    metrics: dict[str, float] = {}
    for name, value in record.items():
        if not isinstance(value, (int, float)) or not np.isfinite(value):
            raise WireError(f"metric {name[:40]!r} is {value!r:.40}, expected a finite number")
        metrics[checked_text(name, "a metric's name")] = float(value)
    return metrics


def sample_count(value: Any) -> int:
    """A number of samples, refused if it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WireError(f"number of samples is {value!r}, expected a whole number from 1")
    return value


def checked_text(value: Any, what: str, least: int = 0) -> str:
    """A short text in one line, refused if it is anything else."""
    if not isinstance(value, str) or not least <= len(value) <= LONGEST or not value.isprintable():
        raise WireError(
            f"{what} is {str(value)[:40]!r}, expected {least} to {LONGEST} printable characters"
        )
    return value


def statistic(record: Any, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """An array of a record: finite numbers of this shape and type."""
    if name not in record:
        raise WireError(f"has no {name!r}")
    return checked_array(record[name], name, shape, dtype)
