"""Parts of a message as Flower records, checked on arrival."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedrc_flwr.arrays import checked_array
from fedrc_flwr.errors import WireError

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)

#: The type of the message that asks a client to enrol.
ENROL = "query.enrol"
#: Version of the messages; both sides must speak the same.
SCHEMA = 3


def record_of(content: RecordDict, name: str, kind: type[R]) -> R:
    """A record by name and kind.

    ``content.array_records`` and the like are not used: each access creates a reference cycle that
    keeps the message's networks until the next garbage collection.
    """
    record = content.get(name)
    if not isinstance(record, kind):
        raise WireError(f"has no {name!r} record")
    return record


def checked_config(content: RecordDict, name: str) -> ConfigRecord:
    """A configuration by name, refused if it is of another schema."""
    config = record_of(content, name, ConfigRecord)
    if config.get("schema") != SCHEMA:
        raise WireError(
            f"speaks schema version {config.get('schema')!r}, this side speaks {SCHEMA}: run the "
            "same version of fedrc-flwr on both sides"
        )
    return config


def sample_count(value: Any) -> int:
    """A number of samples, refused if it is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WireError(f"number of samples is {value!r}, expected a whole number from 1")
    return value


def statistic(record: Any, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """An array of a record: finite numbers of this shape and type."""
    if name not in record:
        raise WireError(f"has no {name!r}")
    return checked_array(record[name], name, shape, dtype)
