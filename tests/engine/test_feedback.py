"""What rounding to 8 bits takes from a client's updates reaches the server later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grid import InMemoryGrid
from settings_of import configured

from fedrc_flwr.algorithms.messages import Broadcast, Phase, Reply
from fedrc_flwr.checkpoint import latest_checkpoint
from fedrc_flwr.engine.client import LOST, DiskStates, MemoryStates, Participant
from fedrc_flwr.engine.in_process import run_in_process
from fedrc_flwr.state import ClientState, Membership
from fedrc_flwr.transport import as_it_arrives
from server_app.app import run_on_flower

#: Beside the first number, the others are less than half a step of 1/127 each.
UPDATE = np.float32([1.0, 0.003, -0.002, 0.0005])


class Steady:
    """An algorithm whose clients always send the same update."""

    def train(self, broadcast: Broadcast, state: ClientState, client: Any) -> Any:
        reply = Reply(4, {0: UPDATE}, np.ones((1, 2)), None, 0.0, 0, {"loss": 1.0, "accuracy": 0.5})
        return reply, replace(state, round=broadcast.round, vectors={"own": UPDATE})


def broadcast(number: int, cluster: int = 7) -> Broadcast:
    return Broadcast(
        round=number, membership=Membership((cluster,)), models=[0 * UPDATE], body=None,
        parameters=4, body_parameters=0, label_prior=np.ones((1, 2)), phase=Phase(),
    )  # fmt: skip


def client(states: Any, transport: str = "int8") -> Participant:
    data = SimpleNamespace(name="a", role="train", fit=[0] * 4, test=[], classes=2)
    bank: Any = SimpleNamespace(device="cpu")
    algorithm: Any = Steady()
    return Participant(algorithm, data, bank, states, 0.0, True, 1, transport=transport)  # type: ignore[arg-type]


def received(someone: Participant, rounds: range, cluster: int = 7) -> np.ndarray:
    """The sum of what the server reads in these rounds."""
    total = np.zeros(4)
    for number in rounds:
        reply, state = someone.train(broadcast(number, cluster), 0.0)
        total += as_it_arrives(reply.deltas[0], 4, "int8")
        someone.states.save(state)
    return total


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_nothing_is_lost_for_ever(tmp_path: Path, kind: str) -> None:
    states: Any = MemoryStates() if kind == "memory" else DiskStates(tmp_path)
    someone = client(states)

    total = received(someone, range(1, 101))

    # A step of the largest number that is sent, at most, is still on its way.
    np.testing.assert_allclose(total, 100 * UPDATE, atol=1.1 / 127)
    assert not as_it_arrives(UPDATE, 4, "int8")[1:].any(), "without feedback nothing would arrive"
    kept = someone.states.load(101)
    assert kept is not None
    assert set(kept.vectors) == {"own", f"{LOST}7"}
    np.testing.assert_allclose(kept.vectors[f"{LOST}7"], 100 * UPDATE - total, atol=1e-5)


def test_a_round_that_is_repeated_counts_what_was_lost_once() -> None:
    someone = client(MemoryStates())
    received(someone, range(1, 4))

    first, _ = someone.train(broadcast(4), 0.0)
    again, _ = someone.train(broadcast(4), 0.0)

    np.testing.assert_array_equal(first.deltas[0], again.deltas[0])


def test_what_was_lost_of_a_cluster_that_is_gone_is_forgotten() -> None:
    someone = client(MemoryStates())
    received(someone, range(1, 4), cluster=7)

    reply, state = someone.train(broadcast(4, cluster=8), 0.0)

    np.testing.assert_array_equal(reply.deltas[0], UPDATE)
    assert set(state.vectors) == {"own", f"{LOST}8"}


@pytest.mark.parametrize("transport", ["float32", "float16"])
def test_nothing_is_kept_where_nothing_is_rounded_to_8_bits(transport: str) -> None:
    reply, state = client(MemoryStates(), transport).train(broadcast(1), 0.0)

    np.testing.assert_array_equal(reply.deltas[0], UPDATE)
    assert set(state.vectors) == {"own"}


@pytest.mark.parametrize(
    "settings",
    [
        {"start": "discover", "discover_after": 2},
        {"start": "paper", "clusters": 2, "shared_body": True},
        {"algorithm": "apfl"},
    ],
    ids=str,
)
def test_both_engines_learn_the_same_in_8_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    config = configured(
        scenario="digits", clients=6, samples_per_client=40, hidden=8, observers_per_concept=1,
        rounds=4, evaluate_every=2, transport="int8", **settings,
    )  # fmt: skip
    run_in_process(config, tmp_path / "one")
    grid: Any = InMemoryGrid(9, {**config.to_dict(), "resolved": True})

    flower = run_on_flower(config, tmp_path / "other", grid).rounds.state

    state = latest_checkpoint(tmp_path / "one" / "checkpoints")[0].state
    assert state.clusters == flower.clusters
    for cluster, model in state.models.items():
        np.testing.assert_allclose(flower.models[cluster], model, atol=1e-5)
