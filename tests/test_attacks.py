"""Attacks as a part of a scenario: who attacks, with what, and where it is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid import InMemoryGrid
from settings_of import configured

from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.attacks import KINDS, AttackSettings
from fedrc_flwr.bounds import problem
from fedrc_flwr.config import load_config, read_scenario
from fedrc_flwr.engine.attacker import Attacker
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.errors import ConfigError
from server_app.app import run_on_flower

TINY: dict[str, Any] = {
    "clients": 5, "samples_per_client": 30, "hidden": 6, "batch_size": 16, "rounds": 3,
    "attack.share": 0.2,
}  # fmt: skip


def reply() -> Reply:
    counts = np.array([[4.0, 2.0], [1.0, 3.0]])
    deltas = {0: np.array([3.0, -4.0], np.float32)}
    return Reply(10, deltas, counts, None, 0.0, 0, {"loss": 0.5, "accuracy": 0.9})


def changed(kind: str, name: str = "a", round_number: int = 1) -> np.ndarray:
    return AttackSettings(kind).changed_reply(reply(), (0, round_number), name).deltas[0]


def test_updates_by_hand() -> None:
    np.testing.assert_array_equal(changed("sign-flip"), [-3.0, 4.0])
    np.testing.assert_array_equal(changed("scale"), [-30.0, 40.0])
    np.testing.assert_array_equal(changed("huge"), np.full(2, 1e30, np.float32))
    assert np.linalg.norm(changed("gaussian")) == pytest.approx(5.0)
    assert np.linalg.norm(changed("collude")) == pytest.approx(10.0)


def test_only_those_that_collude_send_the_same() -> None:
    np.testing.assert_array_equal(changed("collude", "a"), changed("collude", "b"))
    assert (changed("gaussian", "a") != changed("gaussian", "b")).any()
    assert (changed("collude", round_number=1) != changed("collude", round_number=2)).any()


def test_claimed_counts_are_possible_ones() -> None:
    sent = AttackSettings("counts").changed_reply(reply(), (0, 1), "a")

    np.testing.assert_array_equal(sent.label_counts, [[6.0, 0.0], [4.0, 0.0]])
    assert problem(sent, 10) is None


def test_share_of_the_training_clients_attacks() -> None:
    attack = AttackSettings("scale", 0.2)

    assert len(attack.attackers(30, seed=0)) == 6
    assert attack.attackers(30, seed=0) == attack.attackers(30, seed=0)
    assert attack.attackers(30, seed=0) != attack.attackers(30, seed=1)
    assert AttackSettings("none", 0.5).attackers(30, seed=0) == set()


def test_label_flippers_train_on_wrong_labels_and_are_judged_by_true_ones() -> None:
    honest = in_memory(configured(**TINY))[1].participants
    flipping = in_memory(configured(**TINY, **{"attack.kind": "label-flip"}))[1].participants

    attackers = [name for name, p in flipping.items() if isinstance(p, Attacker)]
    assert len(attackers) == 1
    for name, participant in flipping.items():
        before, after = honest[name].data, participant.data
        np.testing.assert_array_equal(after.test.labels, before.test.labels)
        expected = (before.fit.labels + 5 * (name in attackers)) % 10
        np.testing.assert_array_equal(after.fit.labels, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("aggregation", ["mean", "trimmed", "median"])
def test_every_attack_leaves_a_finite_state(kind: str, aggregation: str) -> None:
    given = {"attack.kind": kind, "server.aggregation": aggregation, "server.max-norm": 1.5}
    config = configured(**TINY, **given)
    rounds, carrier = in_memory(config)
    events: list[dict[str, Any]] = []

    rounds.run(carrier, 3, 3, lambda state, metrics: events.append(metrics))

    assert rounds.state.is_finite()
    assert rounds.state.round == 3
    assert ("quarantined" in events[-1]) == (kind in ("huge", "scale"))


def test_flower_s_virtual_clients_attack_too(tmp_path: Path) -> None:
    config = configured(**TINY, **{"attack.kind": "huge"}).placed(tmp_path / "run")
    grid = InMemoryGrid(8, dict(config.to_dict()))

    run = run_on_flower(config, tmp_path / "run", grid)  # type: ignore[arg-type]

    attacker = config.attack.attackers(5, config.seed).pop()
    assert run.rounds.state.clients[f"client-{attacker}"].quarantined


class DeployedGrid(InMemoryGrid):
    """A grid that is not a simulation's."""


def test_deployment_refuses_attacks_on_both_sides(tmp_path: Path) -> None:
    config = configured(**TINY, **{"attack.kind": "scale"}).placed(tmp_path / "run")
    grid = DeployedGrid(0, dict(config.to_dict()))

    with pytest.raises(ConfigError, match=r"attack\.kind = 'scale': for simulations only"):
        run_on_flower(config, tmp_path / "run", grid)  # type: ignore[arg-type]

    from client_app.node import participant

    grid.add_node(100, 0, name="ward")
    with pytest.raises(ConfigError, match="for simulations only"):
        participant(grid.contexts[100])
    assert not (tmp_path / "run" / "config.json").exists()


def test_scenario_file_may_hold_an_attack(tmp_path: Path) -> None:
    path = tmp_path / "attacked.yaml"
    path.write_text("# Attacked.\ndata: {clients: 6}\nattack: {kind: sign-flip, share: 0.5}\n")

    assert read_scenario(str(path))["attack.kind"] == "sign-flip"
    config = load_config({"scenario": str(path)})
    assert len(config.attack.attackers(6, config.seed)) == 3
    assert replace(config.attack, kind="none").attackers(6, 0) == set()
