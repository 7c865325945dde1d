"""What travels: broadcasts and replies as Flower records, and back, checked on arrival.

The only module of the library that imports Flower. Every network is one flat vector: in a
deployment each array is a request of its own. Where half the bytes are wanted, the parameters
travel as float16 of their share of the largest of them, which travels beside them. Running
statistics always travel as float32: rounded, an update could make a variance negative, and a large
variance among the parameters would leave those few digits.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.base import Broadcast, Reply
from fedrc_flwr.errors import WireError
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import Membership

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)

SCHEMA = 2
ENROL = "query.enrol"
HEADER_AT_MOST = 4096  # bytes before an array's numbers
STATISTICS = "-statistics"  # after the name of an array whose statistics travel apart


@dataclass(frozen=True)
class Enrolment:
    """What a client says of itself once.

    Which labels it holds is not part of it: that is what the noise on the counts protects.
    """

    name: str
    role: str
    samples: int
    classes: int
    concept: int
    style: str


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
            "exponent": broadcast.exponent,
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
    """A broadcast for one client, which is told its cluster; the arrays are shared."""
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
        name: _joined(_rescaled(_unpack(array), name, config), arrays.get(name + STATISTICS))
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
        label_prior=_unpack(_record(content, "statistics", ArrayRecord)["label-prior"]),
        exponent=float(str(config["exponent"])),
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
            raise WireError(f"update {name!r} is of no cluster that was sent")
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
    """A vector whose statistics travelled apart from its parameters."""
    return parameters if statistics is None else np.concatenate([parameters, _unpack(statistics)])


def _checked_update(
    arrays: ArrayRecord, name: str, parameters: int, size: int, config: ConfigRecord
) -> Vector:
    if arrays[name].dtype != "float16":
        return np.asarray(_checked_array(arrays[name], name, (size,), np.float32))
    packed = _checked_array(arrays[name], name, (parameters,), np.float16)
    delta = _rescaled(packed, name, config)
    if not np.isfinite(delta).all():
        raise WireError(f"{name!r} is out of range")
    if size == parameters:
        return delta
    apart = name + STATISTICS
    if apart not in arrays:
        raise WireError(f"has no {apart!r}")
    _checked_array(arrays[apart], apart, (size - parameters,), np.float32)
    return _joined(delta, arrays[apart])


class VectorArray(Array):
    """An Array that is packed into bytes, as Flower would do it, only where bytes are wanted.

    Between the processes of a simulation it travels as the vector that it is, which the engine
    keeps in memory that all of them see: no copy is made of it on arrival.
    """

    __qualname__ = Array.__qualname__  # the name under which Flower sends it in a deployment

    def __init__(self, vector: NDArray[Any]) -> None:
        self.vector = vector
        self.dtype, self.shape, self.stype = str(vector.dtype), vector.shape, "numpy.ndarray"

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """NumPy's own pickle of the vector, which leaves its bytes out of the stream."""
        return _as_array, (self.vector,)

    @functools.cached_property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes. Flower's own way goes through a growing buffer, at ten times the cost."""
        return b"".join((_header(self.vector), np.ascontiguousarray(self.vector).data))

    def numpy(self) -> NDArray[Any]:
        """The vector itself, not to be written to."""
        return self.vector


def _as_array(vector: NDArray[Any]) -> VectorArray:
    return VectorArray(vector)


def _header(vector: NDArray[Any]) -> bytes:
    """What stands before an array's numbers in NumPy's format."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    return header.getvalue()


def payload(content: RecordDict) -> int:
    """Bytes of the arrays in a message."""
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    return sum(_size(array) for record in records for array in record.values())


def _size(array: Array) -> int:
    if isinstance(array, VectorArray):
        return len(_header(array.vector)) + array.vector.nbytes
    return len(array.data)


def _unpack(array: Array) -> NDArray[Any]:
    """What an Array holds, where its bytes lie; not to be written to."""
    if isinstance(array, VectorArray):
        return array.vector
    header = io.BytesIO(array.data[:HEADER_AT_MOST])
    version = np.lib.format.read_magic(header)
    if version != (1, 0) or array.stype != "numpy.ndarray":
        raise ValueError(f"{array.stype} in version {version}, expected NumPy's own in (1, 0)")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
    values = np.frombuffer(array.data, dtype, offset=header.tell())
    return values.reshape(shape, order="F" if fortran else "C")


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

    Not by way of ``content.array_records`` and its like: each look at those makes a circle of
    references that holds the message's networks until Python happens to collect garbage.
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
    return _checked_array(record[name], name, shape, np.float64)


def _checked_array(array: Array, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    # The declared shape is checked before anything is unpacked, the real one after.
    if tuple(array.shape) != shape:
        raise WireError(f"{name!r} has shape {tuple(array.shape)}, expected {shape}")
    try:
        values = _unpack(array)
    except Exception as error:  # there is no end to what NumPy raises on bytes from elsewhere
        raise WireError(f"{name!r} cannot be read: {error}") from None
    if values.shape != shape or values.dtype != dtype:
        raise WireError(
            f"{name!r} is {values.dtype} of shape {values.shape}, expected {np.dtype(dtype)} of "
            f"shape {shape}"
        )
    if not np.isfinite(values).all():
        raise WireError(f"{name!r} holds NaN or infinity")
    return values
