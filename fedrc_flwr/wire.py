"""Broadcasts and replies as Flower records, checked on arrival.

Besides ``arrays`` and ``records``, this is the only module of the library that imports Flower. A
message is one configuration and one array, see ``records``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedrc_flwr import transport
from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Evaluates, Phase, Reply
from fedrc_flwr.arrays import checked
from fedrc_flwr.discovery.fingerprint import MOST_FEATURES
from fedrc_flwr.em import Floats
from fedrc_flwr.engine.admission import VERSION, Refusal, same_minor
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.errors import WireError
from fedrc_flwr.layout import Vector
from fedrc_flwr.metrics import Evaluation, Tally
from fedrc_flwr.records import (
    SCHEMA,
    Parcel,
    check_round,
    checked_config,
    checked_text,
    closed,
    opened,
    refuse_unknown,
    sample_count,
    statistic,
    understood,
)
from fedrc_flwr.state import Membership
from fedrc_flwr.transport import FLOAT32, SCALE, STATISTICS

YARDSTICK = -2  # key of the network that fingerprints are taken with
#: What a reply's values say.
REPLY = ("round", "samples", "noise", "releases")
#: Prefix of the metrics of an evaluation that comes with an update.
EVALUATED = "evaluation/"


def encode_broadcast(broadcast: Broadcast, layout: str, precision: str = FLOAT32) -> RecordDict:
    """A broadcast as records; the same records serve all of a round's messages."""
    membership = broadcast.membership
    vectors = dict(zip(membership.clusters, broadcast.models, strict=True))
    if broadcast.body is not None:
        vectors[BODY] = broadcast.body
    if broadcast.yardstick is not None:
        vectors[YARDSTICK] = broadcast.yardstick
    values = {
        "layout": layout,
        "round": broadcast.round,
        "exponent": broadcast.phase.exponent,
        "pooled": broadcast.phase.pooled,
        "prior": broadcast.phase.prior,
        "compares": broadcast.phase.compares,
        "measures": broadcast.phase.measures,
        "listens": broadcast.phase.listens,
        "passes": broadcast.phase.passes,
        "shares": [float(share) for share in broadcast.phase.shares],
        "clusters": list(membership.clusters),
        "merged": [c for pair in sorted(membership.merged.items()) for c in pair],
        "parameters": broadcast.parameters,
        "body-parameters": broadcast.body_parameters,
        "assigned": broadcast.assigned,
        "cohort": broadcast.cohort,
    }
    if (asked := broadcast.evaluates) is not None:
        values["evaluates"] = [asked.round, int(asked.prior), asked.cohort, *asked.clusters]
    arrays = {"label-prior": broadcast.label_prior, **_packed(vectors, broadcast, precision)}
    return closed("broadcast", Parcel(values, arrays))


def decode_broadcast(content: RecordDict, layout: str) -> Broadcast:
    """The inverse of ``encode_broadcast``; refuses another schema or another network."""
    with understood():
        return _broadcast(opened(content, "broadcast"), layout)


def _broadcast(parcel: Parcel, layout: str) -> Broadcast:
    values, arrays = parcel.values, parcel.arrays
    if values["layout"] != layout:
        raise WireError(
            "the server's network differs from this client's: check that both run the same "
            "version with the same model"
        )
    clusters, pairs = tuple(_ints(values, "clusters")), _ints(values, "merged")
    parameters, of_body = _ints(values, "parameters")[0], _ints(values, "body-parameters")[0]

    shares_body, phase = _array_name(BODY) in arrays, _phase(values)
    check_round(len(clusters), phase.passes, phase.exponent, arrays["label-prior"], phase.shares)

    def vector(key: int) -> Vector:
        name = _array_name(key)
        count = of_body if shares_body and key in (BODY, YARDSTICK) else parameters
        if name not in arrays:
            raise WireError(f"has no {name!r}")
        return transport.unpacked(name, arrays, count)

    return Broadcast(
        round=_ints(values, "round")[0],
        membership=Membership(clusters, dict(zip(pairs[::2], pairs[1::2], strict=True))),
        models=[vector(c) for c in clusters],
        body=vector(BODY) if shares_body else None,
        parameters=parameters,
        body_parameters=of_body,
        label_prior=arrays["label-prior"],
        phase=phase,
        assigned=_ints(values, "assigned")[0],
        yardstick=vector(YARDSTICK) if _array_name(YARDSTICK) in arrays else None,
        cohort=_ints(values, "cohort")[0],
        evaluates=_evaluates(_ints(values, "evaluates")) if "evaluates" in values else None,
    )


def _evaluates(numbers: list[int]) -> Evaluates:
    """What is to be evaluated before training."""
    number, prior, cohort, *clusters = numbers
    return Evaluates(number, tuple(clusters), bool(prior), cohort)


def _phase(values: Mapping[str, Any]) -> Phase:
    """What kind of round a broadcast's values say."""
    flags = {n: bool(values[n]) for n in ("pooled", "prior", "compares", "measures", "listens")}
    return Phase(
        float(values["exponent"]),
        **flags,
        passes=_ints(values, "passes")[0],
        shares=tuple(float(share) for share in values["shares"]),
    )


def encode_reply(reply: Reply, broadcast: Broadcast, precision: str = FLOAT32) -> RecordDict:
    """A reply as records; clusters without an update are left out."""
    clusters = broadcast.membership.clusters
    deltas = {BODY if k == BODY else clusters[k]: delta for k, delta in reply.deltas.items()}
    arrays: dict[str, NDArray[Any]] = {"label-counts": reply.label_counts}
    if reply.cross_losses is not None:
        arrays["cross-losses"] = reply.cross_losses
    if reply.fingerprint is not None and reply.scatter is not None:
        arrays["fingerprint"] = reply.fingerprint
        arrays["scatter"] = reply.scatter
    values = {
        "round": broadcast.round,
        "samples": reply.samples,
        "noise": float(reply.noise),
        "releases": reply.releases,
    }
    metrics = dict(reply.metrics)
    if reply.evaluation is not None:
        metrics |= {EVALUATED + name: value for name, value in reply.evaluation.metrics.items()}
        if reply.evaluation.tally is not None:
            arrays["tally"] = reply.evaluation.tally.flat()
    packed = _packed(deltas, broadcast, precision)
    return closed("reply", Parcel(values, {**arrays, **packed}, metrics))


def decode_reply(content: RecordDict, broadcast: Broadcast, classes: int) -> Reply:
    """A client's reply, refused unless every number of it fits the broadcast it answers."""
    parcel = opened(content, "reply")
    values, arrays = parcel.values, parcel.arrays
    refuse_unknown(values, REPLY, "values")
    if values.get("round") != broadcast.round:
        raise WireError(f"answers round {values.get('round')!r}, expected {broadcast.round}")
    samples = sample_count(values.get("samples"))
    noise, releases = values.get("noise"), values.get("releases")
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
    compares, measures = broadcast.phase.compares, broadcast.phase.measures
    asked = ["label-counts", *["cross-losses"] * compares, *["fingerprint", "scatter"] * measures]
    metrics, evaluation = parcel.metrics, None
    if (evaluates := broadcast.evaluates) is not None:
        asked.append("tally")
        found = {k: v for k, v in metrics.items() if k.startswith(EVALUATED)}
        metrics = {k: v for k, v in metrics.items() if k not in found}
        told = {name.removeprefix(EVALUATED): value for name, value in found.items()}
        evaluation = _evaluation(told, arrays, classes, len(evaluates.clusters))
    deltas: dict[int, Vector] = {}
    others = []
    for name in arrays:
        whole = name.removesuffix(STATISTICS).removesuffix(SCALE)
        if whole not in sizes:
            others.append(name)
        elif whole not in arrays:
            raise WireError(f"update {name!r} does not belong to any update that was sent")
        elif name == whole:
            position, parameters, size = sizes[name]
            deltas[position] = _checked_update(arrays, name, parameters, size)
    refuse_unknown(others, asked, "arrays")
    counts = statistic(arrays, "label-counts", (len(clusters), classes))
    table = statistic(arrays, "cross-losses", (len(clusters),) * 2) if compares else None
    if missing := {"loss", "accuracy"} - set(metrics):
        raise WireError(f"lacks the metric {min(missing)!r}")
    measured, scatter = _fingerprint(arrays, classes) if measures else (None, None)
    return Reply(
        samples, deltas, counts, table, noise, releases, metrics, measured, scatter, evaluation
    )


def _fingerprint(arrays: dict[str, NDArray[Any]], classes: int) -> tuple[Floats, Floats]:
    """A client's fingerprint (2, C, 1 + D) and scatter (D, D)."""
    shape = arrays["scatter"].shape if "scatter" in arrays else ()
    if len(shape) != 2 or not 0 < shape[0] <= MOST_FEATURES or shape[0] != shape[1]:
        raise WireError(f"a fingerprint was asked for; its scatter has the shape {shape}")
    return (
        statistic(arrays, "fingerprint", (2, classes, 1 + shape[0])),
        statistic(arrays, "scatter", shape),
    )


def encode_evaluation(evaluation: Evaluation) -> RecordDict:
    """What a client reports when it is evaluated, as records."""
    counts = {} if evaluation.tally is None else {"tally": evaluation.tally.flat()}
    return closed("reply", Parcel({}, counts, evaluation.metrics))


def decode_evaluation(content: RecordDict, classes: int, clusters: int) -> Evaluation:
    """A client's evaluation, refused unless its counts are those of its test samples."""
    parcel = opened(content, "reply")
    refuse_unknown(parcel.values, (), "values")
    refuse_unknown(parcel.arrays, ("tally",), "arrays")
    return _evaluation(parcel.metrics, parcel.arrays, classes, clusters)


def _evaluation(
    metrics: dict[str, float], arrays: dict[str, NDArray[Any]], classes: int, clusters: int
) -> Evaluation:
    if "tally" not in arrays:
        return Evaluation(metrics)
    shape = (Tally.length(classes, clusters),)
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
    vectors: dict[int, Vector], broadcast: Broadcast, precision: str
) -> dict[str, NDArray[Any]]:
    """Vectors by cluster as the arrays that travel."""
    arrays: dict[str, NDArray[Any]] = {}
    for cluster, vector in vectors.items():
        name, parameters = _array_name(cluster), _parameters(broadcast, cluster)
        arrays |= transport.packed(name, vector, parameters, precision)
    return arrays


def _parameters(broadcast: Broadcast, cluster: int) -> int:
    of_body = cluster == BODY or (cluster == YARDSTICK and broadcast.body is not None)
    return broadcast.body_parameters if of_body else broadcast.parameters


def _checked_update(
    arrays: dict[str, NDArray[Any]], name: str, parameters: int, size: int
) -> Vector:
    """An update: of the whole length in float32, or of its parameters in fewer bits."""
    apart, dtype = name + STATISTICS, arrays[name].dtype
    exact = dtype not in (np.float16, np.int8)
    needed = [*[name + SCALE] * (not exact), *[apart] * (not exact and size > parameters)]
    refuse_unknown({name + SCALE, apart} & set(arrays), needed, "arrays")
    if exact:
        return checked(arrays[name], name, (size,), np.float32)
    checked(arrays[name], name, (parameters,), dtype)
    if apart in needed:
        statistic(arrays, apart, (size - parameters,), np.float32)
    return transport.unpacked(name, arrays, parameters)


def _array_name(cluster: int) -> str:
    return {BODY: "body", YARDSTICK: "yardstick"}.get(cluster, f"cluster-{cluster}")


def _ints(values: Mapping[str, Any], name: str) -> list[int]:
    found = values[name]
    return [int(v) for v in (found if isinstance(found, list) else [found])]
