"""Broadcasts and replies as Flower records, checked on arrival.

Besides ``arrays``, this is the only module of the library that imports Flower. Every network is one
flat vector, because in a deployment each array is a separate request. In half precision, parameters
are divided by the largest of them and sent as float16, together with that scale. Running statistics
are always sent as float32: rounding an update could make a variance negative, and a large variance
would leave the parameters with few digits.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Phase, Reply
from fedrc_flwr.arrays import VectorArray, checked_array, size_of, unpack
from fedrc_flwr.engine.rounds import Enrolment
from fedrc_flwr.errors import WireError
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import Membership

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)

SCHEMA = 2
ENROL = "query.enrol"
STATISTICS = "-statistics"  # suffix of an array's running statistics, which are sent separately


def encode_broadcast(broadcast: Broadcast, layout: str, half: bool = False) -> RecordDict:
    """A broadcast as records; the same records serve all of a round's messages."""
    membership = broadcast.membership
    vectors = dict(zip(membership.clusters, broadcast.models, strict=True))
    if broadcast.body is not None:
        vectors[BODY] = broadcast.body
    models, scales = _packed(vectors, broadcast, half)
    config = ConfigRecord(
        {
            "schema": SCHEMA,
            "layout": layout,
            "round": broadcast.round,
            "exponent": broadcast.phase.exponent,
            "pooled": broadcast.phase.pooled,
            "prior": broadcast.phase.prior,
            "clusters": list(membership.clusters),
            "merged": [c for pair in sorted(membership.merged.items()) for c in pair],
            "parameters": broadcast.parameters,
            "body-parameters": broadcast.body_parameters,
            **scales,
        }
    )
    return RecordDict(
        {
            "broadcast": config,
            "models": models,
            "statistics": ArrayRecord({"label-prior": Array(broadcast.label_prior)}),
        }
    )


def addressed(content: RecordDict, assigned: int) -> RecordDict:
    """A broadcast for one client with its assigned cluster; the arrays are shared."""
    config = ConfigRecord({**_record(content, "broadcast", ConfigRecord), "assigned": assigned})
    return RecordDict({**content, "broadcast": config})


def models_of(content: RecordDict) -> ArrayRecord:
    """The networks of a broadcast."""
    return _record(content, "models", ArrayRecord)


def decode_broadcast(content: RecordDict, layout: str) -> Broadcast:
    """The inverse of ``encode_broadcast``; refuses another schema or another network."""
    config = _checked_config(content, "broadcast")
    if config["layout"] != layout:
        raise WireError(
            "the server's network differs from this client's: check that both run the same "
            "version with the same model"
        )
    clusters, pairs = tuple(_ints(config, "clusters")), _ints(config, "merged")
    arrays = models_of(content)
    models = {
        name: _joined(_rescaled(unpack(array), name, config), arrays.get(name + STATISTICS))
        for name, array in arrays.items()
        if not name.endswith(STATISTICS)
    }
    body = _array_name(BODY)
    return Broadcast(
        round=_ints(config, "round")[0],
        membership=Membership(clusters, dict(zip(pairs[::2], pairs[1::2], strict=True))),
        models=[models[_array_name(c)] for c in clusters],
        body=models.get(body),
        parameters=_ints(config, "parameters")[0],
        body_parameters=_ints(config, "body-parameters")[0],
        label_prior=unpack(_record(content, "statistics", ArrayRecord)["label-prior"]),
        phase=Phase(float(str(config["exponent"])), bool(config["pooled"]), bool(config["prior"])),
        assigned=_ints(config, "assigned")[0] if "assigned" in config else -1,
    )


def encode_reply(reply: Reply, broadcast: Broadcast, half: bool = False) -> RecordDict:
    """A reply as records; clusters without an update are left out."""
    clusters = broadcast.membership.clusters
    deltas, scales = _packed(
        {BODY if k == BODY else clusters[k]: delta for k, delta in reply.deltas.items()},
        broadcast,
        half,
    )
    statistics = {"label-counts": Array(reply.label_counts)}
    if reply.cross_losses is not None:
        statistics["cross-losses"] = Array(reply.cross_losses)
    config: dict[str, Any] = {
        "schema": SCHEMA,
        "round": broadcast.round,
        "samples": reply.samples,
        "noise": float(reply.noise),
        "releases": reply.releases,
        **scales,
    }
    return RecordDict(
        {
            "reply": ConfigRecord(config),
            "deltas": deltas,
            "statistics": ArrayRecord(statistics),
            "metrics": MetricRecord({k: float(v) for k, v in reply.metrics.items()}),
        }
    )


def decode_reply(content: RecordDict, broadcast: Broadcast, classes: int, merge: bool) -> Reply:
    """A client's reply, refused unless every number of it fits the broadcast it answers."""
    config = _checked_config(content, "reply")
    if config.get("round") != broadcast.round:
        raise WireError(f"answers round {config.get('round')!r}, expected {broadcast.round}")
    samples = _sample_count(config.get("samples"))
    noise, releases = config.get("noise"), config.get("releases")
    if (
        not isinstance(noise, float)
        or not 0 <= noise < np.inf
        or not isinstance(releases, int)
        or releases < 0
    ):
        raise WireError(f"noise {noise!r} and releases {releases!r} are not what a client sends")
    clusters = broadcast.membership.clusters
    sizes = {
        _array_name(c): (k, broadcast.parameters, len(m))
        for k, (c, m) in enumerate(zip(clusters, broadcast.models, strict=True))
    }
    if broadcast.body is not None:
        sizes[_array_name(BODY)] = (BODY, broadcast.body_parameters, len(broadcast.body))
    deltas: dict[int, Vector] = {}
    arrays = _record(content, "deltas", ArrayRecord)
    for name in arrays:
        whole = name.removesuffix(STATISTICS)
        if whole not in sizes or whole not in arrays:
            raise WireError(f"update {name!r} does not belong to any cluster that was sent")
        if name == whole:
            position, parameters, size = sizes[name]
            deltas[position] = _checked_update(arrays, name, parameters, size, config)
    statistics = _record(content, "statistics", ArrayRecord)
    shape = (len(clusters), classes)
    counts = _statistic(statistics, "label-counts", shape)
    table = _statistic(statistics, "cross-losses", (len(clusters),) * 2) if merge else None
    metrics = decode_metrics(content)
    if missing := {"loss", "accuracy"} - set(metrics):
        raise WireError(f"lacks the metric {min(missing)!r}")
    return Reply(samples, deltas, counts, table, noise, releases, metrics)


def encode_metrics(metrics: dict[str, float]) -> RecordDict:
    """An evaluation's outcome as records."""
    numbers: dict[str, Any] = dict(metrics)
    return RecordDict({"reply": ConfigRecord({"schema": SCHEMA}), "metrics": MetricRecord(numbers)})


def decode_metrics(content: RecordDict) -> dict[str, float]:
    """A client's metrics; all finite numbers."""
    _checked_config(content, "reply")
    metrics: dict[str, float] = {}
    for name, value in _record(content, "metrics", MetricRecord).items():
        if not isinstance(value, (int, float)) or not np.isfinite(value):
            raise WireError(f"metric {name!r} is {value!r}, expected a finite number")
        metrics[name] = float(value)
    return metrics


def encode_enrolment(enrolment: Enrolment) -> RecordDict:
    """A client's answer to the enrolment query."""
    config = {"schema": SCHEMA, **vars(enrolment)}
    return RecordDict({"enrolment": ConfigRecord(config)})


def decode_enrolment(content: RecordDict, classes: int, roles: tuple[str, ...]) -> Enrolment:
    """The inverse of ``encode_enrolment``; refuses a client that cannot take part."""
    config = _checked_config(content, "enrolment")
    try:
        fields: dict[str, Any] = {k: config[k] for k in Enrolment.__dataclass_fields__}
    except KeyError as error:
        raise WireError(f"enrolment lacks {error}") from None
    enrolment = Enrolment(**fields)
    if not isinstance(enrolment.name, str) or not enrolment.name:
        raise WireError("enrolment has no name")
    if enrolment.role not in roles:
        raise WireError(f"role is {enrolment.role!r}, expected one of {', '.join(roles)}")
    _sample_count(enrolment.samples)
    if enrolment.classes != classes:
        raise WireError(f"has {enrolment.classes} classes, this federation has {classes}")
    if not isinstance(enrolment.concept, int) or not isinstance(enrolment.style, str):
        raise WireError(
            f"concept is {enrolment.concept!r} and style is {enrolment.style!r}, expected a whole "
            "number and text"
        )
    return enrolment


def _packed(
    vectors: dict[int, Vector], broadcast: Broadcast, half: bool
) -> tuple[ArrayRecord, dict[str, Any]]:
    """Vectors by cluster as arrays, and their scales where they travel in half precision."""
    # Set one by one, since those that the record is made from would be replaced by plain ones.
    arrays, scales = ArrayRecord(), {}
    for cluster, vector in vectors.items():
        name = _array_name(cluster)
        if half:
            parameters, statistics = np.split(vector, [_parameters(broadcast, cluster)])
            scale = float(np.abs(parameters).max(initial=0.0)) or 1.0
            scales[_scale_name(name)] = scale
            arrays[name] = VectorArray((parameters / np.float32(scale)).astype(np.float16))
            if len(statistics):
                arrays[name + STATISTICS] = VectorArray(statistics)
        else:
            arrays[name] = VectorArray(vector)
    return arrays, scales


def _parameters(broadcast: Broadcast, cluster: int) -> int:
    return broadcast.body_parameters if cluster == BODY else broadcast.parameters


def _joined(parameters: Vector, statistics: Array | None) -> Vector:
    """A vector whose statistics were sent separately from its parameters."""
    return parameters if statistics is None else np.concatenate([parameters, unpack(statistics)])


def _checked_update(
    arrays: ArrayRecord, name: str, parameters: int, size: int, config: ConfigRecord
) -> Vector:
    if arrays[name].dtype != "float16":
        return np.asarray(checked_array(arrays[name], name, (size,), np.float32))
    packed = checked_array(arrays[name], name, (parameters,), np.float16)
    delta = _rescaled(packed, name, config)
    if not np.isfinite(delta).all():
        raise WireError(f"{name!r} is out of range")
    if size == parameters:
        return delta
    apart = name + STATISTICS
    if apart not in arrays:
        raise WireError(f"has no {apart!r}")
    checked_array(arrays[apart], apart, (size - parameters,), np.float32)
    return _joined(delta, arrays[apart])


def payload(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(size_of(array) for record in records for array in record.values())


def _rescaled(values: NDArray[Any], name: str, config: ConfigRecord) -> Vector:
    """A vector as it was before it was packed."""
    if values.dtype != np.float16:
        return values
    scale = config.get(_scale_name(name))
    if not isinstance(scale, float) or not 0 < scale <= float(np.finfo(np.float32).max):
        raise WireError(f"{name!r} travels in half precision with a scale of {scale!r}")
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        return values.astype(np.float32) * np.float32(scale)


def _scale_name(array_name: str) -> str:
    return f"scale-{array_name}"


def _array_name(cluster: int) -> str:
    return "body" if cluster == BODY else f"cluster-{cluster}"


def _ints(config: ConfigRecord, name: str) -> list[int]:
    values = config[name]
    return [int(v) for v in (values if isinstance(values, list) else [values])]


def _record(content: RecordDict, name: str, kind: type[R]) -> R:
    """A record by name and kind.

    ``content.array_records`` and the like are not used: each access creates a reference cycle that
    keeps the message's networks until the next garbage collection.
    """
    record = content.get(name)
    if not isinstance(record, kind):
        raise WireError(f"has no {name!r} record")
    return record


def _checked_config(content: RecordDict, name: str) -> ConfigRecord:
    config = _record(content, name, ConfigRecord)
    if config.get("schema") != SCHEMA:
        raise WireError(
            f"speaks schema version {config.get('schema')!r}, this side speaks {SCHEMA}: run the "
            "same version of fedrc-flwr on both sides"
        )
    return config


def _sample_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WireError(f"number of samples is {value!r}, expected a whole number from 1")
    return value


def _statistic(record: Any, name: str, shape: tuple[int, ...]) -> Any:
    if name not in record:
        raise WireError(f"has no {name!r}")
    return checked_array(record[name], name, shape, np.float64)
