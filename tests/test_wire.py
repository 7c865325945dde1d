"""Messages: what is sent is what arrives, and what does not fit is refused with its reason."""

from __future__ import annotations

import dataclasses
import gc
import io
import math
import pickle
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given
from hypothesis import strategies as st

from fedrc_flwr import wire
from fedrc_flwr.aggregation import BODY
from fedrc_flwr.algorithms.messages import Broadcast, Phase, Reply
from fedrc_flwr.arrays import ALIGNED, PackedArray, joined, parts_of, pieces_of
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.errors import WireError
from fedrc_flwr.metrics import BINS, Evaluation, Tally
from fedrc_flwr.records import SCHEMA, Parcel, closed, opened, payload
from fedrc_flwr.state import Membership

CLASSES = 3
SIZE = 5
PARAMETERS = 3  # the rest of a network's numbers are running statistics
ROLES = ("train", "observe")


def make_broadcast(
    body: bool = False, merged: dict[int, int] | None = None, phase: Phase | None = None
) -> Broadcast:
    rng = np.random.default_rng(0)
    return Broadcast(
        round=4,
        membership=Membership((3, 7), merged or {}),
        models=[rng.normal(size=SIZE).astype(np.float32) for _ in range(2)],
        body=rng.normal(size=8).astype(np.float32) if body else None,
        parameters=PARAMETERS,
        body_parameters=8,
        label_prior=rng.random((2, CLASSES)),
        phase=phase or Phase(exponent=0.1 + 0.2, compares=True),
    )


def make_reply(
    body: bool = False, table: bool = True, positions: tuple[int, ...] = (0, 1)
) -> Reply:
    rng = np.random.default_rng(1)
    deltas = {k: rng.normal(size=SIZE).astype(np.float32) for k in positions}
    if body:
        deltas[BODY] = rng.normal(size=8).astype(np.float32)
    return Reply(
        samples=20,
        deltas=deltas,
        label_counts=rng.normal(size=(2, CLASSES)),
        cross_losses=rng.normal(size=(2, 2)) if table else None,
        noise=0.1 + 0.2,
        releases=6,
        metrics={"loss": 1 / 3, "accuracy": 0.5},
    )


def travel(content: RecordDict) -> RecordDict:
    """What arrives after a way through real bytes."""
    sent = recorddict_to_proto(content).SerializeToString()
    return recorddict_from_proto(ProtoRecordDict.FromString(sent))


def assert_same(one: Any, other: Any) -> None:
    for name in vars(one):
        _assert_same_value(getattr(one, name), getattr(other, name))


def _assert_same_value(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _assert_same_value(a, b)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_same_value(one[key], other[key])
    else:
        assert one == other


def good_parcel() -> Parcel:
    """What a reply that is accepted consists of."""
    return opened(travel(wire.encode_reply(make_reply(), make_broadcast())), "reply")


def decode(parcel: Parcel) -> Reply:
    return wire.decode_reply(travel(closed("reply", parcel)), make_broadcast(), CLASSES)


def with_array(name: str, values: np.ndarray) -> Parcel:
    parcel = good_parcel()
    parcel.arrays[name] = values
    return parcel


def with_values(**values: Any) -> Parcel:
    parcel = good_parcel()
    parcel.values |= values
    return parcel


def without(part: str, name: str) -> Parcel:
    parcel = good_parcel()
    del getattr(parcel, part)[name]
    return parcel


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


# --- there and back -----------------------------------------------------------------------------


PARTS = [
    np.arange(5, dtype=np.float32),
    np.zeros(0, dtype=np.float32),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([-3, 100, 7], dtype=np.int8),
]


def test_parts_lie_behind_each_other_as_flower_would_pack_their_bytes() -> None:
    # Prepare: by hand, each part filled up with zeros
    by_hand = b"".join(part.tobytes() + b"\0" * (-len(part.tobytes()) % ALIGNED) for part in PARTS)

    # Execute
    packed, flowers = PackedArray(PARTS), Array(np.frombuffer(by_hand, dtype=np.uint8))

    # Assert
    assert (packed.dtype, packed.shape, packed.stype) == (
        flowers.dtype,
        flowers.shape,
        "numpy.ndarray",
    )
    assert packed.data == flowers.data
    # In a deployment it goes in pieces under a name made from its class and its bytes.
    assert packed.deflate() == flowers.deflate()
    assert packed.object_id == flowers.object_id
    outlines = [(str(part.dtype), part.shape) for part in PARTS]
    for array in (packed, flowers):
        for part, arrived in zip(PARTS, parts_of(array, outlines), strict=True):
            np.testing.assert_array_equal(arrived, part)
            assert arrived.dtype == part.dtype
    alone = RecordDict({"arrays": ArrayRecord()})
    alone["arrays"]["packed"] = packed
    assert payload(alone) == len(flowers.data)


def test_arrays_are_joined_as_flower_would_inflate_them() -> None:
    record = ArrayRecord()
    zeros = np.zeros(3_000_000, dtype=np.float32)  # chunks that are the same, and are sent once
    record["packed"] = PackedArray([np.arange(3_000_000, dtype=np.float32), zeros])
    record["other"] = Array(np.arange(4.0))
    whole = RecordDict({"arrays": record})
    contents = {n: each.deflate() for n, each in get_all_nested_objects(whole).items()}

    flowers = inflate_object_from_contents(whole.object_id, dict(contents))
    ours = inflate_object_from_contents(whole.object_id, contents, objects=joined(contents))

    assert isinstance(ours, RecordDict)
    assert ours.object_id == flowers.object_id == whole.object_id
    for name, array in record.items():
        assert ours["arrays"][name].data == array.data


@pytest.mark.parametrize("numbers", [1, 1_310_720, 3_000_000], ids=["small", "whole", "several"])
def test_flower_knows_a_packed_array_by_the_same_names_as_its_own(numbers: int) -> None:
    part = np.arange(numbers, dtype=np.float32)
    packed = PackedArray([part])
    flowers = Array(packed.dtype, packed.shape, packed.stype, packed.data)

    assert packed.object_id == flowers.object_id
    assert list(packed.children) == list(flowers.children)
    for ours, theirs in zip(packed.children.values(), flowers.children.values(), strict=True):
        assert b"".join(pieces_of(ours)) == ours.deflate() == theirs.deflate()


def test_what_arrives_is_not_copied() -> None:
    content = travel(wire.encode_broadcast(make_broadcast(body=True), "layout"))
    data = np.frombuffer(content["arrays"]["packed"].data, dtype=np.uint8)

    arrived = wire.decode_broadcast(content, "layout")

    for vector in [*arrived.models, arrived.body]:
        assert np.shares_memory(vector, data)
        assert vector.flags.aligned


@pytest.mark.parametrize("kind", ["broadcast", "reply"])
def test_a_message_is_one_configuration_and_one_array(kind: str) -> None:
    broadcast = make_broadcast(body=True)
    content = {
        "broadcast": wire.encode_broadcast(broadcast, "layout"),
        "reply": wire.encode_reply(make_reply(body=True), broadcast),
    }[kind]

    assert list(content) == [kind, "arrays"]
    assert list(content["arrays"]) == ["packed"]


def test_between_processes_of_a_simulation_networks_travel_beside_the_message():
    content = wire.encode_broadcast(make_broadcast(body=True), "layout")
    buffers: list[pickle.PickleBuffer] = []

    pickled = pickle.dumps(content, protocol=5, buffer_callback=buffers.append)
    arrived = pickle.loads(pickled, buffers=buffers)

    sent, received = content["arrays"]["packed"], arrived["arrays"]["packed"]
    assert len(buffers) == len(sent.parts)
    for mine, theirs in zip(sent.parts, received.parts, strict=True):
        assert np.shares_memory(mine, theirs)
    assert received.deflate() == sent.deflate()


def test_a_message_that_was_read_holds_its_networks_no_longer():
    broadcast = make_broadcast()
    down, up = (
        wire.encode_broadcast(broadcast, "layout"),
        wire.encode_reply(make_reply(), broadcast),
    )
    networks = [weakref.ref(content["arrays"]["packed"]) for content in (down, up)]
    gc.collect()
    gc.disable()
    try:
        payload(down)
        wire.decode_broadcast(down, "layout")
        statistics = wire.decode_reply(up, broadcast, CLASSES).label_counts
        del down, up
        assert [network() for network in networks] == [None] * 2
        assert statistics.base is None  # whoever keeps it does not keep the message
    finally:
        gc.enable()


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_any_pickle_of_a_message_is_read_again(protocol):
    content = wire.encode_broadcast(make_broadcast(body=True), "layout")

    arrived = pickle.loads(pickle.dumps(content, protocol=protocol))

    received = wire.decode_broadcast(arrived, "layout")
    for mine, theirs in zip(received.models, make_broadcast(body=True).models, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("order", ["C", "F"])
def test_statistics_arrive_whatever_their_order_in_memory(order):
    sent = make_broadcast()
    sent = dataclasses.replace(sent, label_prior=np.asarray(sent.label_prior, order=order))

    received = wire.decode_broadcast(travel(wire.encode_broadcast(sent, "layout")), "layout")

    np.testing.assert_array_equal(received.label_prior, sent.label_prior)


def halved(vector):
    """Each number to a relative 2**-11, small ones to 2**-25 of the largest."""
    largest = np.abs(vector).max()
    return np.maximum(np.abs(vector) * 2.0**-11, largest * 2.0**-25) * 1.01


@pytest.mark.parametrize("body", [False, True])
def test_half_precision_halves_the_bytes_and_keeps_three_digits(body):
    # Prepare: numbers far beyond what float16 itself can hold
    sent, reply = make_broadcast(body), make_reply(body=body)
    sent.models[0][:] *= 1e6
    reply.deltas[0][:] *= 1e-9

    # Execute
    down = travel(wire.encode_broadcast(sent, "layout", "float16"))
    up = travel(wire.encode_reply(reply, sent, "float16"))
    arrived = wire.decode_broadcast(down, "layout")
    answer = wire.decode_reply(up, sent, CLASSES)

    # Assert: parameters to three digits, statistics as they were
    for before, after in zip(sent.models, arrived.models, strict=True):
        assert after.dtype == np.float32
        assert (np.abs(after - before)[:PARAMETERS] <= halved(before[:PARAMETERS])).all()
        np.testing.assert_array_equal(after[PARAMETERS:], before[PARAMETERS:])
    assert (arrived.body is None) is not body
    for k, delta in reply.deltas.items():
        count = 8 if k == BODY else PARAMETERS
        assert (np.abs(answer.deltas[k] - delta)[:count] <= halved(delta[:count])).all()
        np.testing.assert_array_equal(answer.deltas[k][count:], delta[count:])
    for arrays in (opened(down, "broadcast").arrays, opened(up, "reply").arrays):
        for name, array in arrays.items():
            if name.startswith(("cluster-", "body")):
                apart = name.endswith(("-statistics", "-scale"))
                assert array.dtype == ("float32" if apart else "float16")


def test_a_large_variance_leaves_the_parameters_their_digits_in_half_precision():
    # Prepare: beside a variance of 1e6, 0.1 would be in float16's subnormal range
    sent = make_broadcast()
    sent.models[0][:] = [0.1, -0.2, 0.3, 0.0, 1e6]

    # Execute
    content = wire.encode_broadcast(sent, "layout", "float16")
    arrived = wire.decode_broadcast(content, "layout").models[0]

    # Assert
    np.testing.assert_allclose(arrived, sent.models[0], rtol=2.0**-11)


def rounded_parcel(precision: str) -> Parcel:
    """What a reply with one update in fewer bits consists of."""
    reply = make_reply(positions=(1,))
    return opened(wire.encode_reply(reply, make_broadcast(), precision), "reply")


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("missing", "has no 'cluster-7-statistics'"),
        ("longer", "has shape"),
        ("not finite", "NaN or infinity"),
        ("alone", "'cluster-7-(scale|statistics)' does not belong to any update"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(change, words, precision):
    parcel = rounded_parcel(precision)
    if change == "alone":
        del parcel.arrays["cluster-7"]
    elif change == "missing":
        del parcel.arrays["cluster-7-statistics"]
    else:
        numbers = {"longer": [1, 2, 3], "not finite": [1, math.nan]}[change]
        parcel.arrays["cluster-7-statistics"] = np.float32(numbers)

    with pytest.raises(WireError, match=words):
        decode(parcel)


@pytest.mark.parametrize("suffix", ["-scale", "-statistics"])
def test_an_exact_update_with_more_than_itself_is_refused(suffix):
    with pytest.raises(WireError, match="unknown arrays"):
        decode(with_array(f"cluster-3{suffix}", np.ones(1, dtype=np.float32)))


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_an_update_of_zeros_travels_in_fewer_bits(precision):
    reply = make_reply(positions=(1,))
    reply.deltas[1][:] = 0

    parcel = opened(travel(wire.encode_reply(reply, make_broadcast(), precision)), "reply")

    np.testing.assert_array_equal(decode(parcel).deltas[1], reply.deltas[1])


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("scale", [None, 0.0, -1.0, math.nan, math.inf, 3e38, [1.0, 1.0]])
def test_fewer_bits_without_a_sane_scale_are_refused(scale, precision):
    # Prepare: 3e38 is a float32 itself, but not together with what it scales
    parcel = rounded_parcel(precision)
    numbers = parcel.arrays["cluster-7"]
    parcel.arrays["cluster-7"] = np.full_like(numbers, 9)
    if scale is None:
        del parcel.arrays["cluster-7-scale"]
    else:
        parcel.arrays["cluster-7-scale"] = np.atleast_1d(np.float32(scale))

    # Execute and assert
    with pytest.raises(WireError, match=r"scales|out of range"):
        decode(parcel)


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize("merged", [{}, {0: 3, 5: 0}])
def test_broadcast_arrives_as_it_was_sent(body: bool, merged: dict[int, int]) -> None:
    sent = make_broadcast(body, merged)

    arrived = wire.decode_broadcast(travel(wire.encode_broadcast(sent, "layout")), "layout")

    assert_same(arrived, sent)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("shares", [(), (0.3, 0.7)])
def test_what_a_round_is_arrives_with_the_broadcast(
    pooled: bool, prior: bool, shares: tuple[float, ...]
) -> None:
    phase = Phase(0.1 + 0.2, pooled, prior, shares=shares)

    content = travel(wire.encode_broadcast(make_broadcast(phase=phase), "layout"))

    assert_same(wire.decode_broadcast(content, "layout").phase, phase)


def test_a_broadcast_tells_a_client_its_cluster() -> None:
    content = wire.encode_broadcast(replace(make_broadcast(False, {}), assigned=7), "layout")

    assert wire.decode_broadcast(travel(content), "layout").assigned == 7


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("body", [False, True])
def test_a_yardstick_travels_beside_the_models(body: bool, precision: str) -> None:
    broadcast = make_broadcast(body, phase=Phase(measures=True))
    yardstick = broadcast.body if broadcast.body is not None else broadcast.models[1]

    sent = replace(broadcast, yardstick=yardstick)
    arrived = wire.decode_broadcast(
        travel(wire.encode_broadcast(sent, "layout", precision)), "layout"
    )

    assert arrived.phase.measures
    assert arrived.yardstick is not None
    np.testing.assert_allclose(
        arrived.yardstick, yardstick, atol=2e-3 if precision == "float16" else 0
    )


def test_a_fingerprint_arrives_as_it_was_sent_and_is_refused_where_it_does_not_fit() -> None:
    broadcast = make_broadcast(phase=Phase(compares=True, measures=True))
    rng = np.random.default_rng(2)
    reply = replace(
        make_reply(), fingerprint=rng.random((2, CLASSES, 6)), scatter=rng.random((5, 5))
    )

    arrived = wire.decode_reply(travel(wire.encode_reply(reply, broadcast)), broadcast, CLASSES)

    assert_same(arrived, reply)
    for wrong in (
        replace(reply, scatter=rng.random((5, 4))),
        replace(reply, scatter=rng.random((65, 65))),
        replace(reply, fingerprint=rng.random((2, CLASSES, 5))),
        replace(reply, fingerprint=np.full((2, CLASSES, 6), np.nan)),
        replace(reply, fingerprint=None),
    ):
        with pytest.raises(WireError):
            wire.decode_reply(travel(wire.encode_reply(wrong, broadcast)), broadcast, CLASSES)


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("positions", [(), (0,), (1,), (0, 1)])
def test_reply_arrives_as_it_was_sent(body: bool, table: bool, positions: tuple[int, ...]) -> None:
    broadcast = make_broadcast(body, phase=Phase(compares=table))
    sent = make_reply(body, table, positions)

    content = travel(wire.encode_reply(sent, broadcast))
    arrived = wire.decode_reply(content, broadcast, CLASSES)

    assert_same(arrived, sent)


def test_update_travels_under_its_clusters_id() -> None:
    content = wire.encode_reply(make_reply(positions=(1,)), make_broadcast())

    assert set(opened(content, "reply").arrays) == {"label-counts", "cross-losses", "cluster-7"}


def test_loss_table_that_nobody_asked_for_is_refused() -> None:
    content = travel(wire.encode_reply(make_reply(table=True), make_broadcast()))

    with pytest.raises(WireError, match="1 unknown arrays, such as 'cross-losses'"):
        wire.decode_reply(content, make_broadcast(phase=Phase()), CLASSES)


JUNK = np.zeros(1 << 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.arrays.update({"junk": JUNK}), "unknown arrays.*'junk'"),
        (lambda p: p.arrays.update({"x" * 10**6: JUNK}), "an array's name is 'x{40}'"),
        (lambda p: p.values.update({"junk": "x" * 10**6}), "unknown values.*'junk'"),
        (lambda p: p.values.update({"x" * 10**6: 1}), r"unknown values, such as 'x{40}'$"),
        (lambda p: p.metrics.update({"x" * 10**6: 1.0}), "a metric's name is 'x{40}'"),
        (lambda p: p.metrics.update({f"m{i}": 1.0 for i in range(99)}), "metrics .* expected at"),
    ],
    ids=["array", "array's name", "text", "key", "metric", "metrics"],
)
def test_reply_with_more_than_was_asked_for_is_refused(change: Any, words: str) -> None:
    parcel = good_parcel()
    change(parcel)

    with pytest.raises(WireError, match=words) as caught:
        decode(parcel)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("where", ["record", "array beside the packed one"])
def test_records_that_nobody_asked_for_are_refused(where: str) -> None:
    content = wire.encode_reply(make_reply(), make_broadcast())
    if where == "record":
        content["junk"] = ArrayRecord({"a": Array(JUNK)})
    else:
        content["arrays"]["junk"] = Array(JUNK)

    with pytest.raises(WireError, match=r"unknown (records|arrays), such as 'junk'"):
        wire.decode_reply(content, make_broadcast(), CLASSES)


@pytest.mark.parametrize("part", ["values", "arrays"])
def test_evaluation_with_more_than_was_asked_for_is_refused(part: str) -> None:
    content = wire.encode_evaluation(Evaluation({"accuracy": 1.0, "samples": 1.0}))
    parcel = opened(content, "reply")
    getattr(parcel, part)["junk"] = JUNK if part == "arrays" else "junk"

    with pytest.raises(WireError, match=rf"unknown {part}, such as 'junk'"):
        wire.decode_evaluation(closed("reply", parcel), CLASSES, 2)


def test_metrics_arrive_as_they_were_sent() -> None:
    sent = {"accuracy": 0.1 + 0.2, "samples": 12.0}

    arrived = wire.decode_evaluation(travel(wire.encode_evaluation(Evaluation(sent))), CLASSES, 2)

    assert arrived == Evaluation(sent)


def tally_of(classes: int) -> Tally:
    confusion = np.arange(classes**2).reshape(classes, classes)
    scores = np.zeros((2, BINS), dtype=np.int64)
    scores[1, 7] = confusion.sum()
    return Tally(confusion, np.array([0, 4]), scores if classes == 2 else None)


@pytest.mark.parametrize("classes", [2, CLASSES])
def test_counts_of_predictions_arrive_in_one_array(classes: int) -> None:
    sent = Evaluation({"samples": classes**2 * (classes**2 - 1) / 2}, tally_of(classes))

    content = travel(wire.encode_evaluation(sent))
    arrived = wire.decode_evaluation(content, classes, clusters=2)

    assert list(opened(content, "reply").arrays) == ["tally"]
    assert arrived.tally is not None
    assert sent.tally is not None
    for name, value in vars(sent.tally).items():
        np.testing.assert_array_equal(getattr(arrived.tally, name), value)


@pytest.mark.parametrize(
    ("samples", "clusters", "words"),
    [(35.0, 2, "not those of its 35"), (3.0, 2, "not those of its 3"), (36.0, 3, "shape")],
)
def test_counts_that_do_not_fit_are_refused(samples: float, clusters: int, words: str) -> None:
    content = wire.encode_evaluation(Evaluation({"samples": samples}, tally_of(CLASSES)))

    with pytest.raises(WireError, match=words):
        wire.decode_evaluation(travel(content), CLASSES, clusters)


def test_enrolment_arrives_as_it_was_sent() -> None:
    sent = Enrolment("ward/ü", "observe", samples=12, classes=CLASSES, concept=-1, style="")

    arrived = wire.decode_enrolment(travel(wire.encode_enrolment(sent)), CLASSES, ROLES)

    assert arrived == sent


# --- broadcasts that a client refuses -----------------------------------------------------------


def test_broadcast_of_another_network_is_refused() -> None:
    content = wire.encode_broadcast(make_broadcast(), "layout")

    with pytest.raises(WireError, match="network differs"):
        wire.decode_broadcast(content, "another layout")


def test_broadcast_of_another_schema_is_refused() -> None:
    content = wire.encode_broadcast(make_broadcast(), "layout")
    content["broadcast"] = ConfigRecord({**content.config_records["broadcast"], "schema": 1})

    with pytest.raises(WireError, match="schema version 1, this side speaks 5"):
        wire.decode_broadcast(content, "layout")


def test_empty_broadcast_is_refused() -> None:
    with pytest.raises(WireError, match="no 'broadcast' record"):
        wire.decode_broadcast(RecordDict(), "layout")


# --- replies that the server refuses ------------------------------------------------------------

GOOD_DELTA = np.ones(SIZE, dtype=np.float32)
ARRAYS = [
    ("cluster-3", GOOD_DELTA),
    ("label-counts", np.ones((2, CLASSES))),
    ("cross-losses", np.ones((2, 2))),
]


def assert_refused(content: RecordDict, *words: str) -> None:
    """Refused with these words; neither the message nor the broadcast is touched."""
    broadcast = make_broadcast()
    before = recorddict_to_proto(content).SerializeToString()
    with pytest.raises(WireError) as refusal:
        wire.decode_reply(content, broadcast, CLASSES)
    for word in words:
        assert word in str(refusal.value)
    assert_same(broadcast, make_broadcast())
    assert recorddict_to_proto(content).SerializeToString() == before


def sent(parcel: Parcel) -> RecordDict:
    return travel(closed("reply", parcel))


def test_the_reply_that_the_refused_ones_are_made_of_is_accepted() -> None:
    for name, values in ARRAYS:
        assert decode(with_array(name, values)).samples == 20
    assert_same(decode(good_parcel()), make_reply())


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("name", "values"), ARRAYS)
def test_one_number_that_is_not_finite_is_refused(
    name: str, values: np.ndarray, number: float
) -> None:
    poisoned = values.copy()
    poisoned.flat[-1] = number

    assert_refused(sent(with_array(name, poisoned)), name, "NaN or infinity")


@pytest.mark.parametrize(("name", "values"), ARRAYS)
def test_wrong_shape_is_refused(name: str, values: np.ndarray) -> None:
    shapes = [(*values.shape[:-1], values.shape[-1] + 1), (1, *values.shape), (values.size + 7,)]

    for shape in shapes:
        wrong = np.ones(shape, dtype=values.dtype)
        assert_refused(sent(with_array(name, wrong)), name, str(shape), str(values.shape))


@pytest.mark.parametrize(("name", "values"), ARRAYS)
def test_wrong_dtype_is_refused_with_the_right_one(name: str, values: np.ndarray) -> None:
    # An update may be in fewer bits, with scales
    right = {values.dtype.name} | ({"float16", "int8"} if name == "cluster-3" else set())
    for dtype in {"float16", "float32", "float64", "int8", "uint32"} - right:
        wrong = values.astype(dtype)
        assert_refused(sent(with_array(name, wrong)), name, dtype, values.dtype.name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"array-types": ["int64"] * 4}, "a type other than"),
        ({"array-types": ["object"] * 4}, "a type other than"),
        ({"array-types": ["float32"] * 3}, "a name and a type each"),
        ({"array-types": ["float64"] * 4}, "announced are"),
        ({"array-names": ["label-counts"] * 4}, "a name and a type each"),
        ({"array-names": [1, 2, 3, 4]}, "an array's name is '1'"),
        ({"array-names": "abcd"}, "array-names is 'abcd', expected a list"),
        ({"array-axes": [1, 1, 1, 1]}, "incomplete"),
        ({"array-axes": [-1, 3, 2, 2]}, "whole numbers"),
        ({"array-axes": [2.0, 2.0, 1.0, 1.0]}, "whole numbers"),
        ({"array-lengths": [10**15, 3, 2, 2, 5, 5]}, "announced are"),
        ({"array-lengths": [2, -3, 2, 2, 5, 5]}, "whole numbers"),
        ({"array-lengths": [2, 3, 2, 2, 5]}, "incomplete"),
    ],
    ids=str,
)
def test_arrays_that_are_not_as_announced_are_refused(change: dict[str, Any], words: str) -> None:
    content = sent(good_parcel())
    content["reply"] = ConfigRecord({**content["reply"], **change})

    assert_refused(content, words)


def test_parts_of_a_simulation_that_are_not_as_announced_are_refused() -> None:
    content = wire.encode_reply(make_reply(), make_broadcast())
    content["arrays"]["packed"].parts[0] = JUNK

    with pytest.raises(WireError, match="not those that it announces"):
        wire.decode_reply(content, make_broadcast(), CLASSES)


def packed_bytes() -> bytes:
    return bytes(sent(good_parcel())["arrays"]["packed"].data)


def with_bytes(data: bytes, stype: str = "numpy.ndarray") -> RecordDict:
    content = sent(good_parcel())
    shape = content["arrays"]["packed"].shape
    content["arrays"] = ArrayRecord({"packed": Array("uint8", shape, stype, data)})
    return content


def test_header_that_claims_more_than_there_is_memory_is_refused() -> None:
    buffer = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(buffer, about)

    assert_refused(with_bytes(buffer.getvalue() + GOOD_DELTA.tobytes()), "cannot be read")


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, GOOD_DELTA)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 64,
        b"PK\x03\x04 not an archive",
        _npz(),
        pickle.dumps([1.0] * SIZE),
        npy(GOOD_DELTA),
        packed_bytes()[:-1],
        packed_bytes()[:20],
        b"\x93NUMPY\x01\x00v\x00" + b"{" * 118,
        b"\x93NUMPY\x09\x00" + packed_bytes()[8:],
    ],
    ids=[
        "empty", "zeros", "broken-zip", "npz", "pickle", "another", "short", "cut", "no-header",
        "version",
    ],
)  # fmt: skip
def test_garbage_instead_of_an_array_is_refused(data: bytes) -> None:
    assert_refused(with_bytes(data), "its arrays")


def test_array_in_another_serialisation_is_refused() -> None:
    assert_refused(with_bytes(packed_bytes(), "torch.tensor"), "torch.tensor")


@given(position=st.integers(0, 300), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_damaged_array_is_refused_or_still_fits(position: int, byte: int, cut: int) -> None:
    data = bytearray(packed_bytes())
    data[position % len(data)] = byte

    try:
        reply = wire.decode_reply(
            with_bytes(bytes(data[:cut] if cut > 100 else data)), make_broadcast(), CLASSES
        )
    except WireError:
        return

    for delta in reply.deltas.values():
        assert (delta.dtype, delta.shape) == (GOOD_DELTA.dtype, GOOD_DELTA.shape)
    for array in [*reply.deltas.values(), reply.label_counts, reply.cross_losses]:
        assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("parcel", "words"),
    [
        (with_values(schema=1), ("schema version 1", "speaks 5")),
        (with_values(schema="2"), ("schema version '2'",)),
        (with_values(round=3), ("round 3", "expected 4")),
        (without("values", "round"), ("round None",)),
        (with_values(samples=0), ("samples is 0",)),
        (with_values(samples=-20), ("samples is -20",)),
        (with_values(samples=20.0), ("samples is 20.0",)),
        (with_values(samples=True), ("samples is True",)),
        (with_values(samples="20"), ("samples is '20'",)),
        (with_values(samples=[20]), ("samples is [20]",)),
        (without("values", "samples"), ("samples is None",)),
        (with_values(noise=-1.0), ("noise -1.0",)),
        (with_values(noise=math.nan), ("noise nan",)),
        (with_values(noise=math.inf), ("noise inf",)),
        (with_values(noise="none"), ("noise 'none'",)),
        (with_values(releases=1.5), ("releases 1.5",)),
        (with_values(releases=-1), ("releases -1",)),
        (without("values", "releases"), ("releases None",)),
        (with_array("cluster-0", GOOD_DELTA), ("'cluster-0'", "unknown arrays")),
        (with_array("body", GOOD_DELTA), ("'body'", "unknown arrays")),
        (without("arrays", "label-counts"), ("label-counts",)),
        (without("arrays", "cross-losses"), ("cross-losses",)),
        (without("metrics", "loss"), ("lacks the metric 'loss'",)),
        (without("metrics", "accuracy"), ("lacks the metric 'accuracy'",)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_reply_that_does_not_fit_is_refused_with_its_reason(
    parcel: Parcel, words: tuple[str, ...]
) -> None:
    assert_refused(sent(parcel), *words)


@pytest.mark.parametrize("record", ["reply", "arrays"])
def test_reply_without_one_of_its_records_is_refused(record: str) -> None:
    content = sent(good_parcel())
    del content[record]

    assert_refused(content, f"no {record!r} record")


def test_record_of_another_kind_is_refused() -> None:
    content = sent(good_parcel())
    content["arrays"] = ConfigRecord({"packed": 1.0})

    assert_refused(content, "no 'arrays' record")


def test_reply_without_its_packed_array_is_refused() -> None:
    content = sent(good_parcel())
    content["arrays"] = ArrayRecord()

    assert_refused(content, "has no arrays")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_metric_that_is_no_finite_number_is_refused(value: Any) -> None:
    parcel = good_parcel()
    parcel.metrics["loss"] = value

    assert_refused(sent(parcel), "'loss'", repr(value))


@pytest.mark.parametrize("values", [[0.5], ["a", "b"]])
def test_metrics_without_a_number_each_are_refused(values: list[Any]) -> None:
    content = sent(good_parcel())
    content["reply"]["metric-values"] = values

    assert_refused(content, "metric")


def test_evaluation_of_another_schema_is_refused() -> None:
    content = wire.encode_evaluation(Evaluation({"accuracy": 1.0}))
    content["reply"] = ConfigRecord({"schema": 0})

    with pytest.raises(WireError, match="schema version 0"):
        wire.decode_evaluation(content, CLASSES, 2)


# --- enrolments that the server refuses ---------------------------------------------------------

ENROLMENT = Enrolment("ward", "train", samples=12, classes=CLASSES, concept=0, style="none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": 3}, "name is '3'"),
        ({"role": "spy"}, "role is 'spy'"),
        ({"samples": 0}, "samples is 0"),
        ({"samples": -1}, "samples is -1"),
        ({"samples": 1.5}, "samples is 1.5"),
        ({"samples": True}, "samples is True"),
        ({"classes": CLASSES + 1}, "has 4 classes, this federation has 3"),
        ({"concept": "zero"}, "concept is 'zero'"),
        ({"style": 3}, "style is '3'"),
        ({"schema": 9}, "schema version 9"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_enrolment_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    content = RecordDict(
        {"enrolment": ConfigRecord({"schema": SCHEMA, **vars(ENROLMENT), **change})}
    )

    with pytest.raises(WireError, match=words):
        wire.decode_enrolment(content, CLASSES, ROLES)


@pytest.mark.parametrize("missing", vars(ENROLMENT))
def test_enrolment_without_one_of_its_parts_is_refused(missing: str) -> None:
    parts = {k: v for k, v in vars(ENROLMENT).items() if k != missing}
    content = RecordDict({"enrolment": ConfigRecord({"schema": SCHEMA, **parts})})

    with pytest.raises(WireError, match=f"lacks '{missing}'"):
        wire.decode_enrolment(content, CLASSES, ROLES)
