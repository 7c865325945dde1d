"""Updates that point against the others', beside a straightforward computation and in a run."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from settings_of import configured

from fedrc_flwr.algorithms import direction
from fedrc_flwr.algorithms.direction import Directions
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.combining import BODY
from fedrc_flwr.engine.attacker import Attacker
from fedrc_flwr.engine.conduct import forgiven
from fedrc_flwr.engine.in_process import in_memory
from fedrc_flwr.state import ClientRecord, Membership, ServerState

CLASSES, SIZE = 4, 6000


def shares(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(CLASSES), count)


def updates(labels: np.ndarray, seed: int, common: float = 1.0) -> np.ndarray:
    """What all want, what each wants because of its labels, and chance."""
    rng = np.random.default_rng(seed)
    everybody, by_label = rng.normal(size=SIZE), rng.normal(size=(CLASSES, SIZE))
    own = rng.normal(size=(len(labels), SIZE))
    pulled = (labels - labels.mean(axis=0)) @ by_label
    return (common * everybody + 3.0 * pulled + own).astype(np.float32)


def of_clients(count: int) -> ServerState:
    clients = {f"client-{i:02d}": ClientRecord("train", 50) for i in range(count)}
    return ServerState(0, Membership((0,)), {}, None, clients, parameters=SIZE)


def reply_of(deltas: dict[int, np.ndarray], share: np.ndarray, noise: float = 0.0) -> Reply:
    return Reply(50, deltas, 50.0 * share[None, :], None, noise, 0, {})


def noted(sent: np.ndarray, labels: np.ndarray, seed: int = 0, **extra: Any) -> Directions:
    directions, state = Directions(seed, 0.3), of_clients(len(sent))
    for i, (update, share) in enumerate(zip(sent, labels, strict=True)):
        reply = reply_of({0: update}, share, extra.get("noise", 0.0))
        assert directions.take(f"client-{i:02d}", reply, state) is None
    return directions


def plain_score(cosines: np.ndarray, similar: np.ndarray, trusted: list[int]) -> list[float]:
    """One pass without leaving anybody out, pair by pair."""
    pairs = [(i, j) for i in trusted for j in trusted if i < j]
    terms = np.array([[1.0, similar[i, j]] for i, j in pairs])
    seen = np.array([cosines[i, j] for i, j in pairs])
    a, b = (max(float(v), 0.0) for v in np.linalg.lstsq(terms, seen, rcond=None)[0])
    spread = np.mean([(cosines[i, j] - a - b * similar[i, j]) ** 2 for i, j in pairs])
    found = []
    for i in range(len(cosines)):
        others = [j for j in trusted if j != i]
        wanted = [a + b * similar[i, j] for j in others]
        top = sum(w * cosines[i, j] for w, j in zip(wanted, others, strict=True))
        found.append(top / (sum(w * w for w in wanted) + 4.0 * spread))
    return [min(max(value, -1.0), 1.0) for value in found]


def test_score_is_that_of_a_computation_pair_by_pair() -> None:
    labels = shares(12, 1)
    unit = updates(labels, 2)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    cosines, similar = unit @ unit.T, direction.similarities(list(labels))

    found = direction.score(cosines, similar, np.ones(12, dtype=bool))

    np.testing.assert_allclose(found, plain_score(cosines, similar, list(range(12))), rtol=1e-6)
    assert found.min() > 0


def test_those_turned_round_do_not_speak_for_each_other() -> None:
    labels = shares(12, 3)
    sent = updates(labels, 4)
    sent[[2, 7, 9]] *= -1
    unit = sent / np.linalg.norm(sent, axis=1, keepdims=True)
    cosines, similar = unit @ unit.T, direction.similarities(list(labels))
    everybody = np.ones(12, dtype=bool)

    found = direction.score(cosines, similar, everybody)

    turned = direction.signs(cosines, similar, everybody)
    honest = [i for i in range(12) if i not in (2, 7, 9)]
    assert np.flatnonzero(turned < 0).tolist() == [2, 7, 9]
    with_all = plain_score(cosines, similar, list(range(12)))
    assert max(found[[2, 7, 9]]) < -0.4
    assert min(found[honest]) > 0
    assert np.mean(found[honest]) > np.mean([with_all[i] for i in honest])


@pytest.mark.parametrize("seed", range(5))
def test_signs_are_those_of_the_clients_that_were_turned_round(seed: int) -> None:
    labels = shares(20, 20 + seed)
    sent = updates(labels, 30 + seed)
    sent[[1, 4, 11, 17]] *= -1
    unit = sent / np.linalg.norm(sent, axis=1, keepdims=True)
    cosines, similar = unit @ unit.T, direction.similarities(list(labels))

    found = direction.signs(cosines, similar, np.ones(20, dtype=bool))

    assert np.flatnonzero(found < 0).tolist() == [1, 4, 11, 17]


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_turned_round_where_nobody_attacks(seed: int) -> None:
    labels = shares(8, seed)
    unit = updates(labels, 40 + seed)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)

    similar = direction.similarities(list(labels))
    found = direction.signs(unit @ unit.T, similar, np.ones(8, dtype=bool))

    np.testing.assert_array_equal(found, 1.0)


def test_sketches_have_the_cosines_of_the_updates() -> None:
    sent = updates(shares(8, 5), 6)
    sketches = np.stack([Directions(9, 0.3)._sketch(update, 0) for update in sent])

    def cosines(vectors: np.ndarray) -> np.ndarray:
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit @ unit.T

    error = cosines(sketches) - cosines(sent.astype(np.float64))
    assert np.abs(error).max() < 5 / np.sqrt(direction.WIDTH)
    short = sent[:, : direction.WIDTH]
    exact = np.stack([Directions(9, 0.3)._sketch(update, 0) for update in short])
    np.testing.assert_allclose(cosines(exact), cosines(short.astype(np.float64)), atol=1e-6)


def test_sketch_of_a_long_update_uses_all_of_it() -> None:
    long = np.zeros(direction.PIECE + 3, dtype=np.float32)
    long[-1] = 2.0

    assert np.linalg.norm(Directions(1, 0.3)._sketch(long, 0)) == pytest.approx(2.0)


def test_other_seeds_draw_other_signs() -> None:
    update = updates(shares(2, 0), 1)[0]

    assert not np.allclose(
        Directions(1, 0.3)._sketch(update, 0), Directions(2, 0.3)._sketch(update, 0)
    )
    assert not np.allclose(
        Directions(1, 0.3)._sketch(update, 0), Directions(1, 0.3)._sketch(update, 1)
    )


@pytest.mark.parametrize("common", [0.0, 1.0])
def test_updates_turned_round_are_found_and_no_others(common: float) -> None:
    labels = shares(30, 7)
    sent = updates(labels, 8, common)
    attackers = [3, 8, 11, 20, 25, 29]
    sent[attackers] *= -1
    records = {f"client-{i:02d}": ClientRecord("train", 50) for i in range(30)}

    records, opposed = noted(sent, labels).judged(records)

    assert set(opposed) == {f"client-{i:02d}" for i in attackers}
    assert "server.max-opposition = 0.3" in opposed["client-03"]
    assert all(0 <= record.opposed <= 1 for record in records.values())


def test_average_needs_several_rounds_and_saves_nothing_up() -> None:
    labels = shares(8, 9)
    honest = updates(labels, 10)
    records = {f"client-{i:02d}": ClientRecord("train", 50) for i in range(8)}
    for _ in range(10):
        records, opposed = noted(honest, labels).judged(records)
        assert not opposed
    sleeper = honest.copy()
    sleeper[4] *= -1
    taken = 0
    while not opposed:
        records, opposed = noted(sleeper, labels).judged(records)
        taken += 1

    assert set(opposed) == {"client-04"}
    assert 1 < taken < 15


def test_few_members_noise_and_nothing_sent_decide_nothing() -> None:
    labels = shares(10, 11)
    sent = updates(labels, 12)
    sent[1] *= -1

    assert noted(sent[:4], labels[:4]).scores([]) == {}
    assert noted(0 * sent, labels).scores([]) == {}
    assert noted(sent, labels, noise=1.0).scores([]) != {}
    silent = Directions(0, 0.3, compares=False)
    silent.take("client-00", reply_of({0: sent[0]}, labels[0]), of_clients(1))
    assert silent.scores([]) == {}


def test_shared_body_counts_and_huge_updates_do_not_warn() -> None:
    labels = shares(10, 13)
    bodies, heads = updates(labels, 14), updates(labels, 15)[:, :500]
    bodies[3] *= -1
    directions, state = Directions(0, 0.3), of_clients(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in range(10):
            sent = {0: heads[i] * 0 + np.float32(1e30), BODY: bodies[i]} if i == 9 else {
                0: heads[i], BODY: bodies[i]
            }  # fmt: skip
            directions.take(f"client-{i:02d}", reply_of(sent, labels[i]), state)
        scores = directions.scores(["client-09"])

    assert scores["client-03"][0] < 0.1 < min(scores[f"client-{i:02d}"][0] for i in (0, 1, 2, 4, 5))


def test_client_that_is_opposed_already_sends_in_vain() -> None:
    sent, labels, state = updates(shares(6, 1), 2), shares(6, 1), of_clients(6)
    record = replace(state.clients["client-02"], opposed=0.5)
    state = replace(state, clients={**state.clients, "client-02": record})
    directions = Directions(0, 0.3)

    said = [
        directions.take(f"client-{i:02d}", reply_of({0: sent[i]}, labels[i]), state)
        for i in range(6)
    ]

    assert [i for i, words in enumerate(said) if words] == [2]
    assert reply_of({0: sent[0]}, labels[0]).without_updates().deltas == {}


def run(kind: str, rounds: int, **given: Any) -> tuple[Any, list[dict[str, Any]], set[str]]:
    config = configured(
        **{
            "recipe": "default", "data.clients": 20, "rounds": rounds, "seed": 5,
            "attack.kind": kind, **given,
        }
    )  # fmt: skip
    engine, carrier = in_memory(config)
    events: list[dict[str, Any]] = []
    engine.run(carrier, rounds, rounds, lambda state, metrics: events.append(metrics))
    attackers = {n for n, p in carrier.participants.items() if isinstance(p, Attacker)}
    return engine.state, events, attackers


def test_clients_that_turn_their_updates_round_end_in_quarantine() -> None:
    state, events, attackers = run("sign-flip", 8)

    assert len(attackers) == 4
    # One is in a cluster that is too small for comparisons: its updates are not used, that is all.
    quarantined = set(events[-1]["quarantined"])
    assert len(quarantined) == 3
    assert quarantined | (set(events[-1]["failed"])) == attackers
    struck = {name for event in events for name in event.get("strikes", {})}
    assert struck == attackers
    # Left out from the round after the first on, and measured all the same.
    assert attackers <= set(events[1]["failed"])
    assert all("point against" in events[1]["failed"][name] for name in attackers)
    name = min(attackers)
    back = forgiven(state, name).clients[name]
    assert (back.opposed, back.compared, back.strikes) == (0.0, 0.0, 0)


def test_nobody_is_opposed_where_nobody_attacks_or_it_is_switched_off() -> None:
    _, events, _ = run("none", 7)
    assert not any("strikes" in event for event in events)

    state, events, attackers = run("sign-flip", 2, **{"server.max-opposition": 0.0})
    assert not any("strikes" in event for event in events)
    assert all(state.clients[name].compared == 0 for name in attackers)
