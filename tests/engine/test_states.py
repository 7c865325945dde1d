"""Where a client keeps its states: in memory and on disk it is the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from settings_of import configured

from fedrc_flwr.em import AdamMoments
from fedrc_flwr.engine.client import DiskStates, MemoryStates, Participant, States, state_folder
from fedrc_flwr.engine.in_process import UnchangedStates, in_memory, participants
from fedrc_flwr.state import ClientState


def made(kind: str, folder: Path, keep: int = 4) -> States:
    if kind == "memory":
        return MemoryStates(keep)
    if kind == "unchanged":
        return UnchangedStates(folder / "states", keep)
    return DiskStates(folder / "states", keep, durable=kind == "durable")


KINDS = ("memory", "disk", "durable", "unchanged")


@pytest.fixture(params=KINDS)
def states(request: pytest.FixtureRequest, tmp_path: Path) -> States:
    return made(request.param, tmp_path)


def client_state(round_number: int, moments: bool = False, releases: int = 0) -> ClientState:
    rng = np.random.default_rng(round_number)
    memory = AdamMoments(*rng.random((3, 5, 2))) if moments else None
    return ClientState(round_number, (0, 4), rng.random(2), memory, releases=releases)


def assert_same(one: ClientState | None, other: ClientState) -> None:
    assert one is not None
    assert (one.round, one.clusters, one.releases) == (other.round, other.clusters, other.releases)
    np.testing.assert_array_equal(one.mixture_weights, other.mixture_weights)
    assert (one.moments is None) == (other.moments is None)
    if one.moments is not None and other.moments is not None:
        for name in ("responsibilities", "first", "second"):
            np.testing.assert_array_equal(getattr(one.moments, name), getattr(other.moments, name))


@pytest.mark.parametrize("moments", [True, False])
def test_a_state_comes_back_as_it_was(states: States, moments: bool) -> None:
    states.save(client_state(3, moments, releases=7))

    assert_same(states.load(before_round=4), client_state(3, moments, releases=7))


def test_there_is_nothing_before_the_first_state(states: States) -> None:
    assert states.load(before_round=1) is None
    assert states.releases() == 0

    states.save(client_state(1))

    assert states.load(before_round=1) is None


def test_a_repeated_round_finds_the_state_from_before_it(states: States) -> None:
    states.save(client_state(1))
    for _ in range(3):
        assert_same(states.load(before_round=2), client_state(1))
        states.save(client_state(2))

    assert_same(states.load(before_round=3), client_state(2))


def test_rounds_done_anew_replace_the_states_of_later_ones(states: States) -> None:
    for number in (1, 2, 3, 4, 2):
        states.save(client_state(number))

    assert_same(states.load(before_round=99), client_state(2))
    assert_same(states.load(before_round=2), client_state(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [1, 3])
def test_as_many_states_are_kept_as_told(tmp_path: Path, kind: str, keep: int) -> None:
    states = made(kind, tmp_path, keep)

    for number in range(1, 7):
        states.save(client_state(number))

    assert_same(states.load(before_round=8 - keep), client_state(7 - keep))
    assert states.load(before_round=7 - keep) is None


def test_what_was_sent_is_what_the_state_that_knows_of_the_most_says(states: States) -> None:
    for number, releases in ((1, 2), (2, 6), (3, 6)):
        states.save(client_state(number, releases=releases))

    assert states.releases() == 6


@pytest.mark.parametrize("kind", KINDS)
def test_releases_never_go_down_whatever_is_repeated(tmp_path: Path, kind: str) -> None:
    # Prepare
    config = configured(
        clients=2, samples_per_client=20, hidden=4, clusters=2, concept_shares="1",
        corrupted_shares="0", count_noise=5.0,
    )  # fmt: skip
    rounds, _ = in_memory(config)
    store = made(kind, tmp_path)
    client: Participant = next(iter(participants(config, lambda name: store)))

    # Execute: a round repeated, and then a return to an earlier one
    counted = []
    for number in (1, 2, 2, 3, 4, 2, 3):
        reply, state = client.train(rounds.broadcast(number), received=0.0)
        store.save(state)
        counted.append((reply.releases, store.releases()))

    # Assert: one release each time, of the label counts
    assert counted == [(n, n) for n in range(1, 8)]


def test_a_state_that_stays_the_same_is_written_once(tmp_path: Path) -> None:
    # Prepare: rounds 1 to 3 alike, another state in 4, alike in 5; then back to round 3
    states, same = UnchangedStates(tmp_path, keep=4), client_state(1)
    for number in (1, 2, 3):
        states.save(replace(same, round=number))
    states.save(client_state(4))
    states.save(replace(client_state(4), round=5))

    # Execute, assert: two files, and whoever reads them finds every round's state
    assert len(list(tmp_path.iterdir())) == 2
    for reader in (states, UnchangedStates(tmp_path, keep=4), DiskStates(tmp_path)):
        for before, number in ((2, 1), (3, 1), (4, 1), (5, 4), (6, 4)):
            found = reader.load(before)
            assert found is not None
            np.testing.assert_array_equal(
                found.mixture_weights, client_state(number).mixture_weights
            )
        assert reader.load(1) is None

    states.save(replace(same, round=3))
    found = UnchangedStates(tmp_path, keep=4).load(before_round=9)
    assert found is not None
    np.testing.assert_array_equal(found.mixture_weights, same.mixture_weights)


NAMES = [
    "client-0", ".", "..", "...", "a/b", "../..", "/etc/ward", "a\\b", "%2E%2E", "a%2Fb", "ü ?",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_states_stay_inside_their_folder_whatever_the_names(tmp_path: Path, name: str) -> None:
    parent = tmp_path / "a" / "b"

    for folder in (state_folder(parent, "run", name), state_folder(parent, name, "client")):
        DiskStates(folder).save(client_state(1))
        assert folder.resolve().parent.parent == parent.resolve()

    files = [path.resolve() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert all(len(path.relative_to(parent.resolve()).parts) == 3 for path in files)


def test_different_names_have_different_folders(tmp_path: Path) -> None:
    folders = sorted(state_folder(tmp_path, "run", name) for name in NAMES)

    assert all(one != other for one, other in pairwise(folders))
