"""The Flower ClientApp: messages in, messages out, and the state changed last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity
from settings_of import configured

from client_app import app as module
from client_app.app import app
from client_app.node import participant, run_of
from fedrc_flwr import wire
from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.errors import ConfigError, DivergedError, WireError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.models import build_model
from fedrc_flwr.records import ENROL

RUN_CONFIG = configured(
    clients=4, clusters=2, hidden=4, samples_per_client=40, adaptive=True, merge=True, name="trial"
).to_dict() | {"resolved": True}
OBSERVER = 4


@pytest.fixture(autouse=True)
def _inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(params=["context", "disk"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Context:
    """A training client that keeps its state in memory, or on disk."""
    folder = str(tmp_path) if request.param == "disk" else ""
    return make_context(**{"state-dir": folder})


def make_context(partition: int = 0, **node_config: Any) -> Context:
    return Context(
        run_id=1,
        node_id=9,
        node_config={"partition-id": partition, **node_config},
        state=RecordDict(),
        run_config=dict(RUN_CONFIG),
    )


def broadcast_of(context: Context, round_number: int) -> Broadcast:
    """The server's models before it has learnt anything."""
    client, network = participant(context), run_of(context).model
    models = [build_model(network, (8, 8), client.data.classes, seed) for seed in range(2)]
    state = client.algorithm.initial_state(models)
    return client.algorithm.broadcast(state, round_number, client.data.classes)


def send(context: Context, kind: str, content: RecordDict) -> RecordDict:
    return app(Message(content, dst_node_id=9, message_type=kind), context).content


def instruction(context: Context, round_number: int) -> RecordDict:
    return wire.encode_broadcast(
        broadcast_of(context, round_number), participant(context).bank.layout
    )


def train(context: Context, round_number: int) -> Reply:
    answer = send(context, MessageType.TRAIN, instruction(context, round_number))
    return wire.decode_reply(answer, broadcast_of(context, round_number), 10)


def evaluate(context: Context, round_number: int) -> dict[str, float]:
    return evaluation(context, round_number).metrics


def evaluation(context: Context, round_number: int) -> Evaluation:
    answer = send(context, MessageType.EVALUATE, instruction(context, round_number))
    return wire.decode_evaluation(answer, 10, len(broadcast_of(context, round_number).models))


def everything_kept(context: Context) -> Any:
    """The client's whole state, in memory and on disk."""
    records = {
        name: recorddict_to_proto(RecordDict({name: record})).SerializeToString()
        for name, record in context.state.items()
    }
    folder = Path(str(context.node_config.get("state-dir") or "/nonexistent"))
    files = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return records, files


# --- enrolment ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "name", "role", "samples"),
    [(0, "client-0", "train", 36), (3, "client-3", "train", 36), (4, "observer-0", "observe", 180)],
)
def test_client_says_who_it_is(partition: int, name: str, role: str, samples: int) -> None:
    answer = send(make_context(partition), ENROL, RecordDict())

    enrolment = wire.decode_enrolment(answer, classes=10, roles=("train", "observe"))
    assert (enrolment.name, enrolment.role, enrolment.samples) == (name, role, samples)


def test_enrolment_does_not_tell_which_labels_the_client_holds() -> None:
    answer = send(make_context(), ENROL, RecordDict())

    assert set(answer) == {"enrolment"}
    assert set(answer.config_records["enrolment"]) == {
        "schema", "name", "role", "samples", "classes", "concept", "style", "version",
    }  # fmt: skip


def test_enrolment_leaves_the_state_as_it_was(context: Context) -> None:
    train(context, 1)
    before = everything_kept(context)

    send(context, ENROL, RecordDict())

    assert everything_kept(context) == before


# --- training -----------------------------------------------------------------------------------


def test_reply_answers_the_broadcast(context: Context) -> None:
    reply = train(context, 1)

    assert reply.samples == 36
    assert set(reply.deltas) <= {0, 1}
    assert any(np.abs(delta).max() > 0 for delta in reply.deltas.values())
    assert reply.label_counts.sum() == pytest.approx(36)
    assert reply.cross_losses is not None
    assert (reply.noise, reply.releases) == (0.0, 0)


def test_state_after_a_round_is_kept_under_that_round(context: Context) -> None:
    reply = train(context, 3)

    state = participant(context).states.load(before_round=4)

    assert state is not None
    assert (state.round, state.clusters) == (3, (0, 1))
    np.testing.assert_allclose(state.mixture_weights, reply.label_counts.sum(axis=1) / 36)


def test_next_round_starts_from_the_state_of_the_last(context: Context) -> None:
    first = train(context, 1)

    second = train(context, 2)

    # The models are the same in both: only the weights have moved, towards the likelier cluster.
    assert not np.array_equal(first.label_counts, second.label_counts)
    assert second.label_counts.sum(axis=1).max() > first.label_counts.sum(axis=1).max()


def test_repeated_round_gives_the_same_reply(context: Context) -> None:
    train(context, 1)

    once, again = train(context, 2), train(context, 2)

    np.testing.assert_array_equal(once.label_counts, again.label_counts)
    np.testing.assert_array_equal(once.cross_losses, again.cross_losses)
    assert once.deltas.keys() == again.deltas.keys()
    for cluster, delta in once.deltas.items():
        np.testing.assert_array_equal(delta, again.deltas[cluster])


def test_client_without_a_state_says_so_after_the_first_round(context: Context) -> None:
    assert train(context, 1).metrics["fresh"] == 0.0
    assert train(context, 2).metrics["fresh"] == 0.0
    assert train(make_context(partition=1), 2).metrics["fresh"] == 1.0


def test_noise_is_reported_with_the_number_of_releases() -> None:
    noisy = make_context(**{"count-noise": 2.5})

    first, second = train(noisy, 1), train(noisy, 2)

    assert (first.noise, second.noise) == (2.5, 2.5)
    # The counts and the loss table, each round.
    assert (first.releases, second.releases) == (2, 4)


# --- failing ------------------------------------------------------------------------------------


def assert_fails_without_a_trace(context: Context, content: RecordDict, error: Any) -> None:
    before = everything_kept(context)
    with pytest.raises(error):
        send(context, MessageType.TRAIN, content)
    assert everything_kept(context) == before


@pytest.mark.parametrize("rounds_before", [0, 2])
def test_broadcast_of_another_network_leaves_the_state_as_it_was(
    context: Context, rounds_before: int
) -> None:
    for number in range(1, rounds_before + 1):
        train(context, number)
    content = wire.encode_broadcast(broadcast_of(context, 3), "another network")

    assert_fails_without_a_trace(context, content, WireError)


def test_broadcast_of_another_schema_leaves_the_state_as_it_was(context: Context) -> None:
    train(context, 1)
    content = instruction(context, 2)
    content["broadcast"] = ConfigRecord({**content.config_records["broadcast"], "schema": 99})

    assert_fails_without_a_trace(context, content, WireError)


@pytest.mark.parametrize("step", ["training", "encoding", "answering"])
def test_handler_that_fails_at_any_step_leaves_the_state_as_it_was(
    context: Context, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    train(context, 1)
    train(context, 2)
    content = instruction(context, 3)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("disk on fire")

    if step == "training":
        monkeypatch.setattr(type(participant(context).algorithm), "train", fail)
    elif step == "encoding":
        monkeypatch.setattr(wire, "encode_reply", fail)
    else:
        monkeypatch.setattr(module, "Message", fail)

    assert_fails_without_a_trace(context, content, RuntimeError)


def test_round_after_a_failed_one_is_as_if_nothing_had_happened(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(context, 1)
    with monkeypatch.context() as patch:
        patch.setattr(wire, "encode_reply", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(context, 2)
    undisturbed = make_context(**{"state-dir": ""})
    train(undisturbed, 1)

    np.testing.assert_array_equal(
        train(context, 2).label_counts, train(undisturbed, 2).label_counts
    )


def test_client_that_diverged_comes_back_as_it_was(context: Context) -> None:
    context.node_config["count-noise"] = 5.0
    first = train(context, 1)
    before = everything_kept(context)
    sound = dict(context.run_config)
    context.run_config["local.learning-rate"] = 1e30

    with pytest.raises(DivergedError, match=r"diverged in round 2: .* lower local.learning-rate"):
        send(context, MessageType.TRAIN, instruction(context, 2))

    assert everything_kept(context) == before
    context.run_config.update(sound)
    # What diverged was never sent, so that it is no release.
    assert train(context, 2).releases == 2 * first.releases > 0


def test_node_that_is_configured_wrongly_answers_nothing() -> None:
    context = make_context(device="warp-drive")

    with pytest.raises(ConfigError, match="warp-drive"):
        send(context, ENROL, RecordDict())


# --- evaluation ---------------------------------------------------------------------------------


def test_evaluation_reports_on_the_test_part_and_leaves_the_state_as_it_was(
    context: Context,
) -> None:
    train(context, 1)
    before = everything_kept(context)

    metrics = evaluate(context, 1)

    assert metrics["samples"] == 4.0
    assert 0.0 <= metrics["accuracy"] <= 1.0
    assert metrics["cluster"] in (0.0, 1.0)
    assert everything_kept(context) == before


def test_evaluation_uses_the_state_of_the_same_round(context: Context) -> None:
    client = participant(context)
    train(context, 1)
    state = client.states.load(before_round=2)
    assert state is not None

    metrics = evaluate(context, 1)

    assert metrics["cluster"] == float(state.clusters[int(state.mixture_weights.argmax())])
    expected = client.algorithm.evaluate(broadcast_of(context, 1), state, client.runtime(1))
    assert metrics == expected.metrics


def test_counts_are_sent_unless_the_node_adds_noise_or_says_never() -> None:
    def sends(**node: Any) -> bool:
        return evaluation(make_context(**node), 1).tally is not None

    assert sends()
    assert not sends(**{"count-noise": 5.0})
    assert sends(**{"count-noise": 5.0, "confusion": "always"})
    assert not sends(confusion="never")
    with pytest.raises(ConfigError, match="confusion = 'perhaps', expected without-noise, alway"):
        participant(make_context(confusion="perhaps"))


def test_observer_is_evaluated_without_ever_training() -> None:
    metrics = evaluate(make_context(OBSERVER), 1)

    assert metrics["samples"] == 180.0
    assert np.isfinite(metrics["loss"])


def test_what_a_repeated_round_sent_the_first_time_still_counts(tmp_path: Path) -> None:
    context = make_context(**{"state-dir": str(tmp_path), "count-noise": 5.0})

    releases = [train(context, number).releases for number in (1, 2, 2, 2)]

    each = releases[0]
    assert each > 0
    assert releases == [each, 2 * each, 3 * each, 4 * each]
