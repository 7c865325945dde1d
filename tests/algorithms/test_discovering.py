"""A run that begins with one model, finds the concepts, and gives each client its own model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from settings_of import configured

from fedrc_flwr.algorithms import discovering
from fedrc_flwr.algorithms.discovering import AGAIN, FALLBACK_MODELS
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.algorithms.places import FALLBACK, FOUND, GROUPED, MEASURED, SEVERAL, UNPLACED
from fedrc_flwr.checkpoint import latest_checkpoint
from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.scenario import OBSERVE, TRAIN, Scenario
from fedrc_flwr.engine.in_process import InProcess, in_memory, run_in_process
from fedrc_flwr.engine.rounds import Rounds

AFTER = 3


def discovering_config(**keys: Any) -> RunConfig:
    given = {
        "scenario": "digits", "start": "discover", "discover_after": AFTER, "epochs": 2,
        "batch_size": 16, "local.learning-rate": 0.1, "rounds": 5, **keys,
    }  # fmt: skip
    return configured(**given)


def run(**keys: Any) -> tuple[Rounds, InProcess, list[dict[str, Any]]]:
    config, events = discovering_config(**keys), []
    rounds, carrier = in_memory(config)
    rounds.run(carrier, config.rounds, 2, lambda state, metrics: events.append(metrics))
    return rounds, carrier, events


def concepts_and_clusters(rounds: Rounds) -> set[tuple[int, int]]:
    return {(r.concept, r.cluster) for r in rounds.state.clients.values() if r.role == TRAIN}


def test_one_model_until_the_concepts_are_found_and_then_one_model_for_each_client() -> None:
    rounds, carrier, events = run()

    # Every concept has one cluster, and every cluster one concept.
    pairs = concepts_and_clusters(rounds)
    assert len(pairs) == len({c for c, _ in pairs}) == len({k for _, k in pairs}) == 3
    assert [len(event["clusters"]) for event in events] == [1, 1, 3, 3, 3]
    assert rounds.state.numbers[FOUND] == AFTER
    found = events[AFTER - 1]["discovery"]
    assert found["sentence"].startswith("3 concepts among 12 clients")
    assert np.shape(found["evidence"]) == (12, 12)
    # A broadcast of one model and its label prior for each client, as in FedAvg.
    model = next(iter(rounds.state.models.values())).nbytes
    plain, evaluating = [event for event in events if event["round"] in (AFTER + 1, AFTER + 2)]
    assert plain["bytes_down"] == 12 * (model + 80)
    # Those that train evaluate what they receive; the observers receive all models.
    assert evaluating["bytes_down"] == 12 * (model + 80) + 3 * (3 * model + 240)
    assert carrier.traffic() == (0, 0)


def test_clients_that_label_alike_keep_one_model() -> None:
    rounds, _, events = run(concept_shares="1", corrupted_shares="0", alpha=1.0)

    assert rounds.state.clusters == (0,)
    assert {r.cluster for r in rounds.state.clients.values() if r.role == TRAIN} == {0}
    assert events[AFTER - 1]["discovery"]["sentence"].startswith("nothing to part")


def test_clients_that_are_sampled_later_are_measured_with_the_same_yardstick() -> None:
    rounds, _, _ = run(fraction=0.5, rounds=10)

    yardstick = rounds.state.arrays["yardstick"]
    assert yardstick.dtype == np.float32
    assert rounds.state.numbers[FOUND] > AFTER  # it waited for more fingerprints
    assert len(rounds.state.clusters) == 3
    assert all(r.fingerprint is None for r in rounds.state.clients.values() if r.role == OBSERVE)
    placed = {(r.concept, r.cluster) for r in rounds.state.clients.values() if r.cluster >= 0}
    assert len({c for c, _ in placed}) == len(placed) == 3


def test_a_run_that_is_resumed_around_the_discovery_ends_with_the_same_models(tmp_path) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    run_in_process(discovering_config().placed(straight), straight)
    for last in (AFTER - 1, AFTER, 5):
        config = discovering_config(rounds=last).placed(resumed)
        run_in_process(config.resumed() if resumed.exists() else config, resumed)

    (one, _), (other, _) = (
        latest_checkpoint(folder / "checkpoints") for folder in (straight, resumed)
    )
    assert one.state.clusters == other.state.clusters
    assert {n: r.cluster for n, r in one.state.clients.items()} == {
        n: r.cluster for n, r in other.state.clients.items()
    }
    for cluster, model in one.state.models.items():
        np.testing.assert_allclose(model, other.state.models[cluster], atol=1e-6)
    np.testing.assert_array_equal(one.state.arrays["yardstick"], other.state.arrays["yardstick"])


def test_the_annealed_e_step_takes_over_where_nothing_is_established(monkeypatch) -> None:
    find = discovering.grouping.find

    def undecided(*given: Any) -> Any:
        return replace(find(*given), established=False, sentence="undecided: too thin")

    monkeypatch.setattr(discovering.grouping, "find", undecided)

    again = AGAIN * AFTER
    rounds, _, events = run(rounds=again + 2)

    # It has a second try with a better body before the E-step takes over.
    assert rounds.state.numbers[FALLBACK] == again
    assert len(rounds.state.clusters) == FALLBACK_MODELS
    assert [event["exponent"] for event in events][:again] == [1.0] * again
    assert 0 < events[again]["exponent"] < events[again + 1]["exponent"] < 1
    first, second = (events[number - 1]["discovery"] for number in (AFTER, again))
    assert first["established"] is second["established"] is False
    assert first["sentence"].endswith(f"the clients are measured again in round {again}")
    models = list(rounds.state.models.values())
    assert not np.allclose(models[0], models[1], atol=1e-4)


def test_the_second_try_waits_for_the_clients_as_the_first_does() -> None:
    rounds, _ = in_memory(discovering_config())
    again = AGAIN * AFTER
    names = [n for n, r in rounds.state.clients.items() if r.role == TRAIN]

    def groups(measured: int, round_number: int, gone: int = 0) -> bool:
        clients = dict(rounds.state.clients)
        for name in names[:measured]:
            clients[name] = replace(clients[name], fingerprint=np.ones((2, 10, 5)))
        for name in names[measured : measured + gone]:
            clients[name] = replace(clients[name], silent=2)
        numbers = {MEASURED: float(again), GROUPED: float(AFTER)}
        state = replace(rounds.state, clients=clients, numbers=numbers)
        return rounds.algorithm._groups(state, round_number)

    assert not groups(4, again)
    assert groups(10, again)
    assert groups(4, AGAIN * again)  # but not for ever
    assert not groups(0, AGAIN * again)
    assert groups(7, again, gone=4)  # nor for clients that no longer answer
    assert not groups(4, again, gone=7)  # unless most of them may only be away for a moment
    assert not groups(0, again, gone=12)


def test_clients_that_left_do_not_keep_the_others_from_being_measured_again() -> None:
    rounds, carrier = in_memory(discovering_config(rounds=AGAIN * AFTER + 1))
    everybody = carrier.online

    def online(role: str) -> list[str]:
        gone = 4 if role == TRAIN and rounds.state.round > AFTER else 0
        return everybody(role)[gone:]

    with patch.object(carrier, "online", online):
        rounds.run(carrier, AGAIN * AFTER + 1, 100, lambda state, metrics: None)

    left = everybody(TRAIN)[:4]
    assert rounds.state.numbers[GROUPED] == rounds.state.numbers[MEASURED] == AGAIN * AFTER
    assert all(rounds.state.clients[name].fingerprint is None for name in left)
    assert all(rounds.state.clients[name].cluster in rounds.state.clusters for name in left)


def test_a_noisy_fingerprint_counts_as_two_releases() -> None:
    rounds, _, _ = run(count_noise=1.0, rounds=AFTER)

    releases = {r.releases for r in rounds.state.clients.values() if r.role == TRAIN}
    assert releases == {AFTER + 2}  # the counts of each round, the fingerprint and the scatter


@pytest.mark.parametrize("keys", [{"shared_body": True}, {"transport": "float16"}])
def test_discovery_beside_other_options(keys: dict[str, Any]) -> None:
    rounds, _, _ = run(**keys)

    pairs = concepts_and_clusters(rounds)
    assert len(pairs) == len({c for c, _ in pairs}) == 3


def test_a_client_whose_place_is_not_known_listens_to_all_models() -> None:
    rounds, carrier, _ = run()
    name = carrier.online(TRAIN)[0]
    record = replace(rounds.state.clients[name], cluster=UNPLACED)
    rounds.state = replace(rounds.state, clients={**rounds.state.clients, name: record})

    (letter,) = rounds.letters(rounds.broadcast(6), [name])
    ((_, reply),) = carrier.deliver([letter])

    assert letter.broadcast.phase.listens
    assert len(letter.broadcast.models) == 3
    assert isinstance(reply, Reply)
    assert reply.deltas == {}
    assert reply.label_counts.shape == (3, 10)


def test_a_misplaced_client_moves_when_clients_are_measured_again() -> None:
    config = discovering_config(rounds=AGAIN * AFTER)
    rounds, carrier = in_memory(config)
    rounds.run(carrier, AFTER, 100, lambda state, metrics: None)
    right = rounds.state
    name = next(n for n, r in right.clients.items() if r.role == TRAIN and r.cluster == 0)
    record = replace(right.clients[name], cluster=1)
    rounds.state = replace(right, clients={**right.clients, name: record})
    events: list[dict[str, Any]] = []

    rounds.run(carrier, config.rounds, 100, lambda state, metrics: events.append(metrics))

    assert events[-1]["discovery"]["sentence"].endswith(f"measured again, {name} moved")
    assert rounds.state.clusters == right.clusters
    assert {n: r.cluster for n, r in rounds.state.clients.items()} == {
        n: r.cluster for n, r in right.clients.items()
    }


def test_nobody_who_adds_noise_is_measured_again() -> None:
    # So little noise that the concepts are found whatever it is.
    rounds, _, _ = run(count_noise=1e-6, rounds=AGAIN * AFTER + 1)

    releases = {r.releases for r in rounds.state.clients.values() if r.role == TRAIN}
    assert releases == {AGAIN * AFTER + 1 + 2}


def test_one_client_that_adds_noise_does_not_keep_the_others_from_being_measured_again() -> None:
    config = discovering_config(rounds=AGAIN * AFTER)
    rounds, carrier = in_memory(config)
    rounds.run(carrier, AGAIN * AFTER - 1, 100, lambda state, metrics: None)
    name, *others = sorted(n for n, r in rounds.state.clients.items() if r.role == TRAIN)
    place = rounds.state.clients[name].cluster
    # As if it had sent noise; the run is about to measure everybody again.
    before = replace(rounds.state, numbers={**rounds.state.numbers, MEASURED: float(AFTER)})
    first = {n: np.ones((2, 10, 65)) for n in (name, *others)}
    clients = {
        n: replace(r, fingerprint=first.get(n), noise=float(n == name))
        for n, r in before.clients.items()
    }
    before = replace(before, clients=clients)

    assert rounds.algorithm._measures_again(before, AGAIN * AFTER)
    rounds.state = discovering.with_yardstick(before, before.models[0], AGAIN * AFTER)
    letters = {
        letter.name: letter.broadcast.phase.measures
        for letter in rounds.letters(rounds.broadcast(AGAIN * AFTER), [name, *others])
    }
    rounds.run(carrier, AGAIN * AFTER, 100, lambda state, metrics: None)

    assert letters == {name: False, **dict.fromkeys(others, True)}
    assert rounds.state.numbers[GROUPED] == AGAIN * AFTER
    assert rounds.state.clients[name].cluster == place


def test_a_client_that_joins_after_the_discovery_is_put_where_it_belongs() -> None:
    config = discovering_config(rounds=AFTER + 1)
    rounds, carrier = in_memory(config)
    late = next(n for n in carrier.online(TRAIN))
    absent = carrier.participants.pop(late)
    rounds.run(carrier, AFTER, 100, lambda state, metrics: None)
    carrier.participants[late] = absent
    assert rounds.state.clients[late].cluster == UNPLACED
    events: list[dict[str, Any]] = []

    rounds.run(carrier, AFTER + 1, 100, lambda state, metrics: events.append(metrics))

    pairs = concepts_and_clusters(rounds)
    assert len(pairs) == 3
    assert f"{late} is in cluster" in events[0]["discovery"]["sentence"]


def test_a_client_with_two_concepts_holds_two_models() -> None:
    config = discovering_config(rounds=12, alpha=10.0)
    scenario = Scenario(config.data, config.seed)
    clients = [scenario.client(index) for index in range(len(scenario))]
    position = next(i for i, c in enumerate(clients) if c.role == TRAIN and c.truth.concept == 0)
    client = clients[position]
    swapped = np.arange(len(client.fit)) % 2 == 0
    labels = np.where(swapped, 9 - client.fit.labels, client.fit.labels)
    clients[position] = replace(client, fit=replace(client.fit, labels=labels))
    rounds, carrier = in_memory(config, clients)

    events: list[dict[str, Any]] = []
    rounds.run(carrier, config.rounds, 100, lambda state, metrics: events.append(metrics))

    others = {(r.concept, r.cluster) for n, r in rounds.state.clients.items()
              if r.role == TRAIN and n != client.name}  # fmt: skip
    assert len(others) == 3
    record = rounds.state.clients[client.name]
    weights = dict(zip(rounds.state.clusters, record.mixture_weights(), strict=True))
    assert record.cluster == SEVERAL
    for concept in (0, 1):
        assert weights[dict(others)[concept]] == pytest.approx(0.5, abs=0.15)
    assert f"{client.name} holds several concepts (" in events[AFTER - 1]["discovery"]["sentence"]
    # It receives the models of its two concepts and how many of its samples each has.
    (letter,) = rounds.letters(rounds.broadcast(13), [client.name])
    assert set(letter.broadcast.membership.clusters) == {dict(others)[0], dict(others)[1]}
    assert sum(letter.broadcast.phase.shares) == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", ["ifca", "fedem", "fedsoft"])
def test_other_algorithms_begin_with_the_same_groups(algorithm: str) -> None:
    rounds, _, events = run(algorithm=algorithm)

    assert events[AFTER - 1]["discovery"]["sentence"].startswith("3 concepts among 12 clients")
    assert len(rounds.state.clusters) == 3
    assert rounds.state.numbers[FOUND] == AFTER


def test_fedem_uses_its_own_e_step_after_it_began_with_the_groups() -> None:
    rounds, _, _ = run(algorithm="fedem", rounds=AFTER + discovering.LISTENING + 1)

    for record in rounds.state.clients.values():
        if record.role == TRAIN:
            weights = record.mixture_weights()
            assert weights is not None
            assert (weights > 0).all()
