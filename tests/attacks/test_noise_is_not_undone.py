"""What a client's noise hides is not given away beside it; a node's limits hold in every run."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from settings_of import configured

from client_app.app import app
from client_app.ledger import LEDGER, Ledger
from client_app.node import participant
from fedrc_flwr import wire
from fedrc_flwr.algorithms.messages import Broadcast, Phase, Reply
from fedrc_flwr.config import build_algorithm
from fedrc_flwr.engine.run import initial_models
from fedrc_flwr.errors import ConfigError, PolicyError, RunError
from fedrc_flwr.metrics import Evaluation
from fedrc_flwr.privacy import PrivacySettings, epsilon_spent
from fedrc_flwr.records import ENROL
from fedrc_flwr.simulation import IN_PROCESS, run_here

#: Thresholds under which a client without noise leaves most clusters out.
RUN = configured(
    clients=4, observers_per_concept=0, hidden=8, clusters=4, skip_below=0.1,
    skip_cluster_below=0.5, epochs=2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _inside_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def context_of(folder: Path, run: dict[str, Any] | None = None, **node_config: Any) -> Context:
    node = {
        "partition-id": 0, "name": "hospital-a", "state-dir": str(folder), "delta": 1e-5,
        **{name.replace("_", "-"): value for name, value in node_config.items()},
    }  # fmt: skip
    settings = {**RUN.to_dict(), "resolved": True, **(run or {})}
    return Context(run_id=1, node_id=9, node_config=node, state=RecordDict(), run_config=settings)


def broadcast(round_number: int = 1, cohort: int = 0, phase: Phase | None = None) -> Broadcast:
    algorithm = build_algorithm(RUN)
    state = algorithm.initial_state(initial_models(RUN, algorithm.models))
    sent = algorithm.broadcast(state, round_number, 10)
    # Two models that always answer 0, and are therefore hardly trained by anybody.
    towards_zero = np.zeros_like(sent.models[0])
    towards_zero[-10] = 6.0  # the first bias of the last layer
    bad = [*sent.models[:2], *(model + towards_zero for model in sent.models[2:])]
    return replace(sent, models=bad, cohort=cohort, phase=phase or sent.phase)


def answer(context: Context, kind: str, sent: Broadcast) -> RecordDict:
    content = wire.encode_broadcast(sent, participant(context).bank.layout)
    return app(Message(content, dst_node_id=9, message_type=kind), context).content


def train(context: Context, sent: Broadcast) -> Reply:
    return wire.decode_reply(answer(context, MessageType.TRAIN, sent), sent, 10)


def evaluate(context: Context, sent: Broadcast) -> Evaluation:
    return wire.decode_evaluation(answer(context, MessageType.EVALUATE, sent), 10, 4)


def test_a_client_with_noise_sends_an_update_of_every_cluster(tmp_path: Path) -> None:
    open_reply = train(context_of(tmp_path / "open"), broadcast())
    noisy_reply = train(context_of(tmp_path / "noisy", count_noise=5.0), broadcast())

    assert len(open_reply.deltas) < 4, "without noise, clusters of no use are left out"
    assert set(noisy_reply.deltas) == {0, 1, 2, 3}
    assert all(np.abs(delta).max() > 0 for delta in noisy_reply.deltas.values())


def test_a_client_with_noise_does_not_tell_its_cluster(tmp_path: Path) -> None:
    assert "cluster" in evaluate(context_of(tmp_path), broadcast()).metrics
    told = evaluate(context_of(tmp_path, count_noise=5.0), broadcast())

    assert "cluster" not in told.metrics
    assert told.tally is None


def test_a_run_records_nothing_but_sums_of_clients_with_noise(tmp_path: Path) -> None:
    config = configured(clients=4, rounds=1, hidden=4, evaluate_every=1, count_noise=5.0)

    done = run_here(config, tmp_path / "run", lambda event: None, IN_PROCESS)

    assert done.completed, done.reason
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    event = next(e for e in map(json.loads, lines) if e["event"] == "evaluation")
    assert {frozenset(told) for told in event["clients"].values()} == {frozenset({"samples"})}
    assert 0 < event["local_accuracy"] <= 1


# --- the clip ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_run", "of_node", "used"), [(0.0, 1.0, 1.0), (1.0, 0.25, 0.25), (0.1, 0.25, 0.1)]
)
def test_a_run_cannot_loosen_the_nodes_clip(
    tmp_path: Path, of_run: float, of_node: float, used: float
) -> None:
    context = context_of(
        tmp_path, {"privacy.count-clip": of_run}, count_noise=1e-9, largest_clip=of_node
    )

    counts = train(context, broadcast()).label_counts

    samples = len(participant(context).data.fit)
    assert np.linalg.norm(counts) <= used * samples * (1 + 1e-6)
    assert participant(context).algorithm.privacy.count_clip == used


# --- releases over the node's lifetime -----------------------------------------------------------


def test_releases_are_counted_over_runs_of_whatever_name(tmp_path: Path) -> None:
    counted = [
        train(context_of(tmp_path, {"run.name": name}, count_noise=5.0), broadcast(number)).releases
        for name, number in (("first", 1), ("second", 1), ("second", 2), ("third", 1))
    ]

    assert counted == [1, 2, 3, 4]


def test_a_run_beyond_the_nodes_epsilon_is_refused_under_any_name(tmp_path: Path) -> None:
    samples = len(participant(context_of(tmp_path)).data.fit)
    noise = 2.0 * samples
    two = epsilon_spent(math.sqrt(2) * samples / noise, 1e-5)
    limits = {"count_noise": noise, "most_epsilon": two * 1.01, "largest_clip": 1.0}
    for name in ("first", "second"):
        train(context_of(tmp_path, {"run.name": name}, **limits), broadcast())

    # A delta of the run's own does not make it cheaper.
    more = {"run.name": "third", "privacy.delta": 0.5}
    with pytest.raises(RunError, match="it has spent the epsilon that its policy allows"):
        train(context_of(tmp_path, more, **limits), broadcast())

    assert Ledger(tmp_path, None, 1e-5).epsilon() == pytest.approx(two)


def test_every_kind_of_release_is_charged_before_it_is_made(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, None, 1e-5)
    settings = PrivacySettings()

    ledger.charge(settings, 100, 50.0, Phase(compares=True, measures=True).releases())
    ledger.charge(settings, 100, 0.0, 1)

    entry = json.loads((tmp_path / LEDGER).read_text())
    assert entry == {"releases": 4, "spent": 4 * (100 / 50.0) ** 2, "without_noise": 1}


def test_a_damaged_account_stops_the_node_and_not_the_counting(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text("{")

    with pytest.raises(ConfigError, match="restore it"):
        Ledger(tmp_path, 1.0, 1e-5).charge(PrivacySettings(), 10, 1.0, 1)


def test_nothing_is_entered_for_a_refused_release(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 0.5, 1e-5)

    for _ in range(2):
        with pytest.raises(PolicyError, match="epsilon-spent"):
            ledger.charge(PrivacySettings(), 100, 1.0, 1)

    assert ledger.releases() == 0


# --- the cohort ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_a_round_of_fewer_clients_than_demanded_is_refused(tmp_path: Path, kind: str) -> None:
    context = context_of(tmp_path, smallest_cohort=3)

    answer(context, kind, broadcast(cohort=3))
    for cohort in (0, 2):
        with pytest.raises(RunError, match="its policy demands that more clients take part"):
            answer(context, kind, broadcast(cohort=cohort))


# --- what is trained on --------------------------------------------------------------------------


def test_an_observer_is_not_trained_on_whatever_the_server_asks(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="it observes, and is never trained on"):
        train(context_of(tmp_path, role="observe"), broadcast())


def test_a_run_cannot_leave_a_node_a_handful_of_samples_to_train_on(tmp_path: Path) -> None:
    few = {"data.test-fraction": 0.9}
    content = app(
        Message(RecordDict(), dst_node_id=9, message_type=ENROL),
        context_of(tmp_path, few, least_samples=100),
    ).content

    refused = wire.decode_refusal(content)
    assert refused is not None
    assert "lower 'data.test-fraction'" in refused.reason()
    assert len(participant(context_of(tmp_path, least_samples=100)).data.fit) >= 100


def test_a_node_with_own_data_does_not_open_the_file_that_a_run_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((30, 64)), y=np.arange(30) % 10)
    theirs = tmp_path / "other-patients.csv"
    theirs.write_text("a;b;label\n1;2;0\n")
    named = {
        "scenario": "none", "data.dataset": str(theirs), "data.classes": 10,
        "data.input-shape": "64",
    }  # fmt: skip
    opened: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and listening:
            opened.append(str(arguments[0]))

    listening = True
    sys.addaudithook(note)
    found = participant(context_of(tmp_path / "state", named, dataset=str(tmp_path / "own.npz")))
    listening = False

    assert len(found.data.fit) == 27
    assert str(tmp_path / "own.npz") in opened
    assert str(theirs) not in opened
