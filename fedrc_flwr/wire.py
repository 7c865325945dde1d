"""Broadcasts and replies as Flower records, checked on arrival.

Besides ``arrays`` and ``records``, this is the only module of the library that imports Flower.
Every network is one flat vector, because in a deployment each array is a separate request. In half
precision, parameters are divided by the largest of them and sent as float16 with that scale.
Running statistics stay float32: rounding could make a variance negative.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Phase, Reply
from fedrc_flwr.arrays import VectorArray, checked_array, size_of, unpack
from fedrc_flwr.discovery.fingerprint import MOST_FEATURES
from fedrc_flwr.em import Floats
from fedrc_flwr.engine.admission import VERSION, Refusal, same_minor
from fedrc_flwr.engine.rounds import Enrolment
from fedrc_flwr.errors import WireError
from fedrc_flwr.layout import Vector
from fedrc_flwr.metrics import Evaluation, Tally
from fedrc_flwr.records import (
    SCHEMA,
    checked_config,
    checked_text,
    metrics_of,
    record_of,
    refuse_unknown,
    sample_count,
    statistic,
)  # fmt: skip
from fedrc_flwr.state import Membership

YARDSTICK = -2  # key of the network that fingerprints are taken with
#: What a reply consists of, and what its configuration says besides scales.
REPLY = ("reply", "deltas", "statistics", "metrics")
REPLY_KEYS = ("schema", "round", "samples", "noise", "releases")
STATISTICS = "-statistics"  # suffix of an array's running statistics, which are sent separately


def encode_broadcast(broadcast: Broadcast, layout: str, half: bool = False) -> RecordDict:
    """A broadcast as records; the same records serve all of a round's messages."""
    membership = broadcast.membership
    vectors = dict(zip(membership.clusters, broadcast.models, strict=True))
    if broadcast.body is not None:
        vectors[BODY] = broadcast.body
    if broadcast.yardstick is not None:
        vectors[YARDSTICK] = broadcast.yardstick
    models, scales = _packed(vectors, broadcast, half)
    config = ConfigRecord(
        {
            "schema": SCHEMA,
            "layout": layout,
            "round": broadcast.round,
            "exponent": broadcast.phase.exponent,
            "pooled": broadcast.phase.pooled,
            "prior": broadcast.phase.prior,
            "compares": broadcast.phase.compares,
            "measures": broadcast.phase.measures,
            "listens": broadcast.phase.listens,
            "passes": broadcast.phase.passes,
            "clusters": list(membership.clusters),
            "merged": [c for pair in sorted(membership.merged.items()) for c in pair],
            "parameters": broadcast.parameters,
            "body-parameters": broadcast.body_parameters,
            "assigned": broadcast.assigned,
            "cohort": broadcast.cohort,
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


def models_of(content: RecordDict) -> ArrayRecord:
    """The networks of a broadcast."""
    return record_of(content, "models", ArrayRecord)


def decode_broadcast(content: RecordDict, layout: str) -> Broadcast:
    """The inverse of ``encode_broadcast``; refuses another schema or another network."""
    config = checked_config(content, "broadcast")
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
    return Broadcast(
        round=_ints(config, "round")[0],
        membership=Membership(clusters, dict(zip(pairs[::2], pairs[1::2], strict=True))),
        models=[models[_array_name(c)] for c in clusters],
        body=models.get(_array_name(BODY)),
        parameters=_ints(config, "parameters")[0],
        body_parameters=_ints(config, "body-parameters")[0],
        label_prior=unpack(record_of(content, "statistics", ArrayRecord)["label-prior"]),
        phase=_phase(config),
        assigned=_ints(config, "assigned")[0],
        yardstick=models.get(_array_name(YARDSTICK)),
        cohort=_ints(config, "cohort")[0],
    )


def _phase(config: ConfigRecord) -> Phase:
    """What kind of round a broadcast's values say."""
    flags = {n: bool(config[n]) for n in ("pooled", "prior", "compares", "measures", "listens")}
    return Phase(float(str(config["exponent"])), **flags, passes=_ints(config, "passes")[0])


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
    if reply.fingerprint is not None and reply.scatter is not None:
        statistics["fingerprint"] = Array(reply.fingerprint)
        statistics["scatter"] = Array(reply.scatter)
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


def decode_reply(content: RecordDict, broadcast: Broadcast, classes: int) -> Reply:
    """A client's reply, refused unless every number of it fits the broadcast it answers."""
    refuse_unknown(content, REPLY, "records")
    config = checked_config(content, "reply")
    if config.get("round") != broadcast.round:
        raise WireError(f"answers round {config.get('round')!r}, expected {broadcast.round}")
    samples = sample_count(config.get("samples"))
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
    refuse_unknown(config, [*REPLY_KEYS, *(f"scale-{name}" for name in sizes)], "values")
    deltas: dict[int, Vector] = {}
    arrays = record_of(content, "deltas", ArrayRecord)
    for name in arrays:
        whole = name.removesuffix(STATISTICS)
        if whole not in sizes or whole not in arrays:
            raise WireError(f"update {name!r} does not belong to any cluster that was sent")
        if name == whole:
            position, parameters, size = sizes[name]
            deltas[position] = _checked_update(arrays, name, parameters, size, config)
    statistics = record_of(content, "statistics", ArrayRecord)
    counts = statistic(statistics, "label-counts", (len(clusters), classes))
    compares, measures = broadcast.phase.compares, broadcast.phase.measures
    asked = ["label-counts", *["cross-losses"] * compares, *["fingerprint", "scatter"] * measures]
    refuse_unknown(statistics, asked, "statistics")
    table = statistic(statistics, "cross-losses", (len(clusters),) * 2) if compares else None
    metrics = metrics_of(content)
    if missing := {"loss", "accuracy"} - set(metrics):
        raise WireError(f"lacks the metric {min(missing)!r}")
    taken = _fingerprint(statistics, classes) if measures else (None, None)
    return Reply(samples, deltas, counts, table, noise, releases, metrics, *taken)


def _fingerprint(statistics: ArrayRecord, classes: int) -> tuple[Floats, Floats]:
    """A client's fingerprint (C, 1 + D) and scatter (D, D)."""
    shape = tuple(statistics["scatter"].shape) if "scatter" in statistics else ()
    if len(shape) != 2 or not 0 < shape[0] <= MOST_FEATURES or shape[0] != shape[1]:
        raise WireError(f"a fingerprint was asked for; its scatter has the shape {shape}")
    return (
        statistic(statistics, "fingerprint", (classes, 1 + shape[0])),
        statistic(statistics, "scatter", shape),
    )


def encode_evaluation(evaluation: Evaluation) -> RecordDict:
    """What a client reports when it is evaluated, as records."""
    numbers: dict[str, Any] = dict(evaluation.metrics)
    content = RecordDict(
        {"reply": ConfigRecord({"schema": SCHEMA}), "metrics": MetricRecord(numbers)}
    )
    if evaluation.tally is not None:
        content["counts"] = ArrayRecord({"tally": Array(evaluation.tally.flat())})
    return content


def decode_evaluation(content: RecordDict, classes: int, clusters: int) -> Evaluation:
    """A client's evaluation, refused unless its counts are those of its test samples."""
    refuse_unknown(content, ("reply", "metrics", "counts"), "records")
    metrics = metrics_of(content)
    if "counts" not in content:
        return Evaluation(metrics)
    shape = (Tally.length(classes, clusters),)
    refuse_unknown(arrays := record_of(content, "counts", ArrayRecord), ("tally",), "counts")
    counts = statistic(arrays, "tally", shape, np.uint32)
    tally, samples = Tally.unflat(counts, classes, clusters), metrics.get("samples", 0.0)
    if not tally.fits(samples):
        raise WireError(f"counts of predictions are not those of its {samples:g} test samples")
    return Evaluation(metrics, tally)


def encode_enrolment(answer: Enrolment | Refusal) -> RecordDict:
    """A client's answer to the enrolment query."""
    kind = "enrolment" if isinstance(answer, Enrolment) else "refusal"
    return RecordDict({kind: ConfigRecord({"schema": SCHEMA, **vars(answer)})})


def decode_refusal(content: RecordDict) -> Refusal | None:
    """Why a client cannot take part, if that is its answer to the enrolment query."""
    if "refusal" not in content:
        return None
    config = checked_config(content, "refusal")
    return Refusal(**{k: checked_text(config.get(k, ""), k) for k in Refusal.__dataclass_fields__})


def decode_enrolment(content: RecordDict, classes: int, roles: tuple[str, ...]) -> Enrolment:
    """The inverse of ``encode_enrolment``; refuses a client that cannot take part."""
    refuse_unknown(content, ("enrolment",), "records")
    config = checked_config(content, "enrolment")
    try:
        fields: dict[str, Any] = {k: config[k] for k in Enrolment.__dataclass_fields__}
    except KeyError as error:
        raise WireError(f"enrolment lacks {error}") from None
    enrolment = Enrolment(**fields)
    for what, least in (("name", 1), ("style", 0), ("version", 0)):
        checked_text(fields[what], what, least)
    if enrolment.role not in roles:
        raise WireError(f"role is {enrolment.role!r}, expected one of {', '.join(roles)}")
    sample_count(enrolment.samples)
    if enrolment.classes != classes:
        raise WireError(f"has {enrolment.classes} classes, this federation has {classes}")
    if not isinstance(enrolment.concept, int):
        raise WireError(f"concept is {enrolment.concept!r}, expected a whole number")
    if not same_minor(enrolment.version):
        raise WireError(Refusal(enrolment.name, VERSION, version=str(enrolment.version)).reason())
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
            scales[f"scale-{name}"] = scale
            arrays[name] = VectorArray((parameters / np.float32(scale)).astype(np.float16))
            if len(statistics):
                arrays[name + STATISTICS] = VectorArray(statistics)
        else:
            arrays[name] = VectorArray(vector)
    return arrays, scales


def _parameters(broadcast: Broadcast, cluster: int) -> int:
    of_body = cluster == BODY or (cluster == YARDSTICK and broadcast.body is not None)
    return broadcast.body_parameters if of_body else broadcast.parameters


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
    scale = config.get(f"scale-{name}")
    if not isinstance(scale, float) or not 0 < scale <= float(np.finfo(np.float32).max):
        raise WireError(f"{name!r} travels in half precision with a scale of {scale!r}")
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        return values.astype(np.float32) * np.float32(scale)


def _array_name(cluster: int) -> str:
    return {BODY: "body", YARDSTICK: "yardstick"}.get(cluster, f"cluster-{cluster}")


def _ints(config: ConfigRecord, name: str) -> list[int]:
    values = config[name]
    return [int(v) for v in (values if isinstance(values, list) else [values])]
