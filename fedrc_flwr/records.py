"""A message as Flower records: one configuration and one array, checked on arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedrc_flwr.arrays import (
    PackedArray,
    checked,
    flat_shapes,
    outline,
    outlines_of,
    parts_of,
    size_of,
)
from fedrc_flwr.errors import WireError

R = TypeVar("R", ArrayRecord, ConfigRecord)

#: Most characters of a text that a client sends.
LONGEST = 128
#: The type of the message that asks a client to enrol.
ENROL = "query.enrol"
#: Version of the messages; both sides must speak the same.
SCHEMA = 5
#: Most models in a broadcast, and most times as many local epochs as usual.
MOST_MODELS, MOST_PASSES = 500, 10
ROUNDING = 1e-6
#: Most metrics in a reply.
MOST_METRICS = 64
#: The record with the packed array, and its name in it.
ARRAYS, PACKED = "arrays", "packed"
#: Values of the configuration that tell what is in the array, and the metrics.
ABOUT = ("array-names", "array-types", "array-axes", "array-lengths", "metrics", "metric-values")


@dataclass
class Parcel:
    """What a message consists of: values, arrays and metrics, each by name."""

    values: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def closed(kind: str, parcel: Parcel) -> RecordDict:
    """A parcel as records: a configuration of this name and, if there are arrays, one array."""
    values, arrays = {"schema": SCHEMA, **parcel.values}, parcel.arrays
    if parcel.metrics:
        values["metrics"] = list(parcel.metrics)
        values["metric-values"] = [float(value) for value in parcel.metrics.values()]
    if not arrays:
        return RecordDict({kind: ConfigRecord(values)})
    outlines = [outline(part) for part in arrays.values()]
    values["array-names"] = list(arrays)
    values["array-types"] = [dtype for dtype, _ in outlines]
    values["array-axes"], values["array-lengths"] = flat_shapes(outlines)
    record = ArrayRecord()
    # Set on its own, since an array that the record is made from would be replaced by a plain one.
    record[PACKED] = PackedArray(list(arrays.values()))
    return RecordDict({kind: ConfigRecord(values), ARRAYS: record})


def opened(content: RecordDict, kind: str) -> Parcel:
    """The inverse of ``closed``; the arrays are not copied and must not be written to."""
    refuse_unknown(content, (kind, ARRAYS), "records")
    config = checked_config(content, kind)
    names, types, axes, lengths, metrics, numbers = (_list(config, name) for name in ABOUT)
    values = {n: v for n, v in config.items() if n not in (*ABOUT, "schema")}
    parcel = Parcel(values, {}, _metrics(metrics, numbers))
    if not names:
        refuse_unknown(content, (kind,), "records")
        return parcel
    texts = [checked_text(name, "an array's name") for name in names]
    if len(set(texts)) != len(types) or len(texts) != len(types):
        raise WireError("its arrays do not have a name and a type each")
    record = record_of(content, ARRAYS, ArrayRecord)
    refuse_unknown(record, (PACKED,), "arrays")
    if PACKED not in record:
        raise WireError("has no arrays")
    parts = parts_of(record[PACKED], outlines_of(types, axes, lengths))
    return Parcel(values, dict(zip(texts, parts, strict=True)), parcel.metrics)


def payload(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    record = content.get(ARRAYS)
    return sum(map(size_of, record.values())) if isinstance(record, ArrayRecord) else 0


def _list(config: ConfigRecord, name: str) -> list[Any]:
    value = config.get(name, [])
    if not isinstance(value, list):
        raise WireError(f"{name} is {value!r:.40}, expected a list")
    return value


def _metrics(names: list[Any], values: list[Any]) -> dict[str, float]:
    """The metrics of a message: finite numbers, and not too many."""
    if len(names) > MOST_METRICS or len(names) != len(values):
        raise WireError(
            f"holds {len(names)} metrics with {len(values)} values, expected at most {MOST_METRICS}"
        )
    metrics: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, (int, float)) or not np.isfinite(value):
            raise WireError(f"metric {name!r:.40} is {value!r:.40}, expected a finite number")
        metrics[checked_text(name, "a metric's name")] = float(value)
    return metrics


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


def statistic(
    arrays: dict[str, NDArray[Any]], name: str, shape: tuple[int, ...], dtype: Any = np.float64
) -> Any:
    """A small array: finite numbers of this shape and type.

    A copy, because whoever keeps it must not keep the whole message.
    """
    if name not in arrays:
        raise WireError(f"has no {name!r}")
    return checked(arrays[name], name, shape, dtype).copy()


@contextmanager
def understood() -> Iterator[None]:
    """Whatever a broadcast lacks or holds in the wrong place is one kind of error."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise WireError(f"the server's message cannot be understood: {error!r:.80}") from None


def check_round(
    clusters: int, passes: int, exponent: float, prior: NDArray[Any], shares: tuple[float, ...]
) -> None:
    """Refuse a round that no server of this release asks for.

    Parameters
    ----------
    clusters : how many models were sent
    passes : how many times as many local epochs as usual
    prior : the label prior, (K, C)
    shares : of the clusters in the client's samples, if it holds several concepts
    """
    fits = prior.ndim == 2 and len(prior) == clusters and np.isfinite(prior).all()
    if not fits or not (prior > 0).all():
        raise WireError("the server's label prior is none")
    if not 1 <= clusters <= MOST_MODELS or not 1 <= passes <= MOST_PASSES:
        raise WireError(f"the server asks for {passes} times the epochs on {clusters} models")
    if not 0 < exponent < np.inf:
        raise WireError(f"the server's E-step has the exponent {exponent}")
    if shares and not (
        len(shares) == clusters and all(s > 0 for s in shares) and abs(sum(shares) - 1) < ROUNDING
    ):
        raise WireError(f"the server's shares {shares} are not those of {clusters} models")
