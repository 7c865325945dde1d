"""Checkpoints and client states on disk: exact, atomic, and honest about what is broken."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from functools import partialmethod
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from fedrc_flwr import checkpoint as module
from fedrc_flwr import files, tensor_file
from fedrc_flwr.checkpoint import (
    Checkpoint,
    latest_checkpoint,
    load_checkpoint,
    load_client_state,
    pack_client,
    save_checkpoint,
    save_client_state,
    unpack_client,
)
from fedrc_flwr.em import AdamMoments
from fedrc_flwr.errors import CheckpointError, DivergedError
from fedrc_flwr.state import ClientRecord, ClientState, Membership, ServerState


def full_state(round_number: int = 4, seed: int = 0) -> ServerState:
    """Two of five clusters left, a body, both optimizer slots, clients of every kind."""
    rng = np.random.default_rng([seed, round_number])
    vectors = {c: rng.normal(size=6).astype(np.float32) for c in (1, 4)}
    return ServerState(
        round=round_number,
        membership=Membership((1, 4), {0: 1, 2: 0}),
        models=vectors,
        body=rng.normal(size=9).astype(np.float32),
        clients={
            "ward/ü": ClientRecord(
                role="train",
                samples=20,
                label_counts=rng.normal(size=(2, 3)),
                cross_losses=rng.normal(size=(2, 2)),
                noise=0.1 + 0.2,
                releases=8,
                concept=2,
                style="blur-3",
            ),
            "a": ClientRecord("train", 7, label_counts=rng.normal(size=(2, 3)), loss=0.75),
            "newcomer": ClientRecord("observe", 3, concept=0, style="none"),
        },
        parameters=4,
        body_parameters=7,
        optimizer={
            "first": {c: rng.normal(size=4) for c in (1, 4)} | {-1: rng.normal(size=7)},
            "second": {1: rng.normal(size=4)},
        },
        optimizer_steps=4,
        quiet_rounds=2,
    )


def bare_state(round_number: int = 0) -> ServerState:
    return ServerState(
        round=round_number,
        membership=Membership((0,)),
        models={0: np.zeros(4, dtype=np.float32)},
        body=None,
        clients={},
        parameters=4,
    )


def checkpoint_of(state: ServerState) -> Checkpoint:
    return Checkpoint(state, {"rounds": 60, "alpha": 0.1}, (8, 8), 10, "layout-1")


def client_state(round_number: int, moments: bool = False) -> ClientState:
    rng = np.random.default_rng(round_number)
    memory = AdamMoments(*rng.normal(size=(3, 5, 2))) if moments else None
    return ClientState(round_number, (0, 3), rng.random(2), memory, releases=round_number)


def bits(value: Any) -> Any:
    """Everything that a value holds, in a form that compares bit for bit."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: bits(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: bits(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value), value


# --- exact --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [full_state(), bare_state()], ids=["full", "bare"])
def test_checkpoint_comes_back_bit_for_bit(tmp_path: Path, state: ServerState) -> None:
    saved = checkpoint_of(state)

    path = save_checkpoint(tmp_path / "new" / "folder", saved, keep=3)

    assert bits(load_checkpoint(path)) == bits(saved)
    found, problems = latest_checkpoint(tmp_path / "new" / "folder")
    assert bits(found) == bits(saved)
    assert problems == []


@settings(max_examples=40)
@given(
    vector=arrays.arrays(
        np.float32, st.integers(0, 9), elements=st.floats(-(2.0**60), 2.0**60, width=32)
    ),
    counts=arrays.arrays(np.float64, (1, 3), elements=st.floats(-(2.0**60), 2.0**60)),
    noise=st.floats(min_value=0, allow_infinity=False),
    name=st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable()),
)
def test_any_number_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    vector: np.ndarray,
    counts: np.ndarray,
    noise: float,
    name: str,
) -> None:
    record = ClientRecord("train", 1, label_counts=counts, noise=noise)
    state = dataclasses.replace(bare_state(), models={0: vector}, clients={name: record})

    path = save_checkpoint(tmp_path_factory.mktemp("any"), checkpoint_of(state), keep=1)

    assert bits(load_checkpoint(path).state) == bits(state)


def test_array_that_is_a_view_is_saved_by_its_values(tmp_path: Path) -> None:
    transposed = np.arange(6.0).reshape(3, 2).T
    record = ClientRecord("train", 1, label_counts=transposed)
    state = dataclasses.replace(bare_state(), clients={"a": record})

    path = save_checkpoint(tmp_path, checkpoint_of(state), keep=1)

    loaded = load_checkpoint(path).state.clients["a"].label_counts
    np.testing.assert_array_equal(loaded, [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]])


# --- refused ------------------------------------------------------------------------------------


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        load_checkpoint(path)
    for word in (str(path), *words):
        assert word in str(refusal.value)


def test_checkpoint_torn_at_any_length_is_refused(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, checkpoint_of(full_state()), keep=1)
    whole = path.read_bytes()
    lengths = {*range(0, 64), *range(64, len(whole), 37), len(whole) - 1}

    for length in sorted(lengths):
        path.write_bytes(whole[:length])
        assert_refused(path, "torn")


@settings(max_examples=60)
@given(content=st.binary(max_size=200))
def test_any_other_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("bytes") / "round-000001.safetensors"
    path.write_bytes(content)

    assert_refused(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "round-000001.safetensors", "no such file")


def test_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "round-000001.safetensors"
    path.mkdir()

    assert_refused(path)


def test_another_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"weight": np.zeros(3)}, path)

    assert_refused(path, "not one of fedrc-flwr")


def test_another_safetensors_file_with_types_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_torch_file({"weight": torch.zeros(3, dtype=torch.bfloat16)}, path)

    assert_refused(path, "not one of fedrc-flwr")


@pytest.mark.parametrize("content", ["not json", "[]", "3", "null"])
def test_metadata_that_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "round-000001.safetensors"
    save_file({"weight": np.zeros(3)}, path, metadata={"fedrc": content})

    assert_refused(path)


@pytest.mark.parametrize("schema", [0, 1, 3, "2", None])
def test_another_schema_version_is_refused(tmp_path: Path, schema: Any) -> None:
    path = tmp_path / "round-000001.safetensors"
    save_file({"model/0": np.zeros(3)}, path, metadata={"fedrc": json.dumps({"schema": schema})})

    assert_refused(path, f"schema {schema}", f"reads schema {tensor_file.SCHEMA}")


def test_client_state_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    save_client_state(tmp_path, client_state(1))

    assert_refused(tmp_path / "round-000001.safetensors", "another kind")


def test_checkpoint_is_not_taken_for_a_client_state(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, checkpoint_of(full_state(1)), keep=1)

    with pytest.raises(CheckpointError, match="another kind") as refusal:
        load_client_state(tmp_path, before_round=2)

    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("missing", ["clusters", "clients", "merged", "config", "optimizer_steps"])
def test_checkpoint_without_one_of_its_parts_is_refused(tmp_path: Path, missing: str) -> None:
    path = save_checkpoint(tmp_path, checkpoint_of(full_state()), keep=1)
    tensors, about = tensor_file.read_file(path)
    del about[missing]
    tensor_file.write_atomically(path, tensors, about)

    assert_refused(path, missing)


def test_checkpoint_without_one_of_its_models_is_refused(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, checkpoint_of(full_state()), keep=1)
    tensors, about = tensor_file.read_file(path)
    del tensors["model/4"]
    tensor_file.write_atomically(path, tensors, about)

    assert_refused(path, "model/4")


# --- damaged ------------------------------------------------------------------------------------


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def test_one_flipped_byte_in_the_middle_of_a_tensor_is_noticed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, checkpoint_of(full_state()), keep=1)
    model = full_state().models[4].tobytes()
    place = path.read_bytes().index(model) + len(model) // 2
    # The lowest bits of a fraction: nothing but a checksum can notice.
    flipped(path, place - place % 4)

    assert_refused(path, "damaged: its checksum does not match")


@pytest.mark.parametrize("kind", ["server", "client"])
def test_one_flipped_byte_anywhere_is_noticed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "round-000004.safetensors"
    if kind == "server":
        save_checkpoint(tmp_path, checkpoint_of(full_state()), keep=1)
    else:
        save_client_state(tmp_path, client_state(4, moments=True))
    whole = path.read_bytes()

    for place in range(len(whole)):
        flipped(path, place)
        with pytest.raises(CheckpointError, match=r"damaged|torn|not one of|schema"):
            load_checkpoint(path) if kind == "server" else load_client_state(tmp_path, 5)
        path.write_bytes(whole)


def test_without_models_only_what_is_read_is_verified(tmp_path: Path) -> None:
    state = full_state()
    path = save_checkpoint(tmp_path, checkpoint_of(state), keep=1)
    whole = path.read_bytes()
    counts = state.clients["a"].label_counts
    assert counts is not None

    flipped(path, whole.index(state.models[1].tobytes()))
    read = load_checkpoint(path, models=False)
    path.write_bytes(whole)
    flipped(path, whole.index(counts.tobytes()))

    np.testing.assert_array_equal(read.state.clients["a"].label_counts, counts)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path, models=False)


# --- not finite ---------------------------------------------------------------------------------

WORST = [np.nan, np.inf, -np.inf, 1e30]


def spoilt(state: ServerState, part: str, value: float) -> ServerState:
    record = state.clients["a"]
    assert record.label_counts is not None
    changes: dict[str, Any] = {
        "model": {"models": {**state.models, 4: np.full(6, value, dtype=np.float32)}},
        "body": {"body": np.array([1.0, value], dtype=np.float32)},
        "slot": {"optimizer": {"second": {1: np.array([0.0, value])}}},
        "counts": {
            "clients": {"a": dataclasses.replace(record, label_counts=np.full((2, 3), value))}
        },
        "losses": {
            "clients": {"a": dataclasses.replace(record, cross_losses=np.full((2, 2), value))}
        },
    }
    return dataclasses.replace(state, **changes[part])


@pytest.mark.parametrize("value", WORST)
@pytest.mark.parametrize("part", ["model", "body", "slot", "counts", "losses"])
def test_server_state_that_is_not_finite_is_neither_saved_nor_loaded(
    tmp_path: Path, part: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = save_checkpoint(tmp_path, checkpoint_of(full_state(3)), keep=3)
    bad = checkpoint_of(spoilt(full_state(), part, value))

    with pytest.raises(CheckpointError, match="after round 4 holds numbers that are not finite"):
        save_checkpoint(tmp_path, bad, keep=3)
    assert list(tmp_path.iterdir()) == [before]
    with monkeypatch.context() as patch:
        patch.setattr(ServerState, "is_finite", lambda state: True)
        path = save_checkpoint(tmp_path, bad, keep=3)

    assert_refused(path, "not finite")
    assert latest_checkpoint(tmp_path)[0].state.round == 3


def test_finite_numbers_of_any_usual_size_are_finite() -> None:
    assert full_state().is_finite()
    assert client_state(3, moments=True).is_finite()
    assert dataclasses.replace(bare_state(), models={0: np.full(4, 1e18, np.float32)}).is_finite()


def spoilt_client(round_number: int, part: str, value: float) -> ClientState:
    state = client_state(round_number, moments=True)
    assert state.moments is not None
    if part == "moments":
        return dataclasses.replace(
            state, moments=dataclasses.replace(state.moments, second=np.full((5, 2), value))
        )
    if part == "vectors":
        return dataclasses.replace(state, vectors={"own": np.array([0.0, value], np.float32)})
    if part == "numbers":
        return dataclasses.replace(state, numbers={"alpha": value})
    return dataclasses.replace(state, mixture_weights=np.array([0.5, value]))


@pytest.mark.parametrize("part", ["weights", "moments", "vectors", "numbers"])
def test_client_state_that_is_not_finite_is_not_saved(tmp_path: Path, part: str) -> None:
    save_client_state(tmp_path, client_state(1))

    with pytest.raises(DivergedError, match="after round 2 holds numbers that are not finite"):
        save_client_state(tmp_path, spoilt_client(2, part, np.nan))

    assert [path.name for path in tmp_path.iterdir()] == ["round-000001.safetensors"]


@pytest.mark.parametrize("part", ["weights", "moments", "vectors", "numbers"])
def test_client_state_that_is_not_finite_is_passed_over(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(ClientState, "is_finite", lambda state: True)
        save_client_state(tmp_path, client_state(1))
        save_client_state(tmp_path, spoilt_client(2, part, np.nan))

    found = load_client_state(tmp_path, 3, told.append)
    (tmp_path / "round-000001.safetensors").unlink()
    afresh = load_client_state(tmp_path, 3, told.append)

    assert bits(found) == bits(client_state(1))
    assert afresh is None
    assert len(told) == 2
    assert all("round-000002" in text and "not finite" in text for text in told)
    # What it sent counts, though the state is of no use.
    assert module.count_releases(tmp_path) == 2


# --- one of several rounds ----------------------------------------------------------------------


def test_checkpoint_of_a_round_is_found_and_else_the_rounds_are_named(tmp_path: Path) -> None:
    paths = [save_checkpoint(tmp_path, checkpoint_of(bare_state(r)), keep=3) for r in (5, 6, 7)]

    assert module.find_checkpoint(tmp_path, 6) == paths[1]
    with pytest.raises(CheckpointError, match=r"no checkpoint of round 4; .* rounds: 5, 6, 7$"):
        module.find_checkpoint(tmp_path, 4)
    with pytest.raises(CheckpointError, match="rounds: none"):
        module.find_checkpoint(tmp_path / "gone", 4)


def test_checkpoints_of_later_rounds_go_once_an_earlier_one_is_done_anew(tmp_path: Path) -> None:
    for round_number in (5, 6, 7):
        save_checkpoint(tmp_path, checkpoint_of(bare_state(round_number)), keep=3)

    save_checkpoint(tmp_path, checkpoint_of(full_state(6)), keep=3)

    assert sorted(path.stem for path in tmp_path.iterdir()) == ["round-000005", "round-000006"]
    assert bits(latest_checkpoint(tmp_path)[0].state) == bits(full_state(6))


# --- the newest that is readable ----------------------------------------------------------------


def test_broken_newest_checkpoint_is_skipped_and_named(tmp_path: Path) -> None:
    for round_number in (1, 2, 3):
        newest = save_checkpoint(tmp_path, checkpoint_of(full_state(round_number)), keep=3)
    newest.write_bytes(newest.read_bytes()[:-5])

    found, problems = latest_checkpoint(tmp_path)

    assert bits(found.state) == bits(full_state(2))
    assert len(problems) == 1
    assert str(newest) in problems[0]


def test_no_readable_checkpoint_is_an_error_that_names_all(tmp_path: Path) -> None:
    for round_number in (1, 2):
        save_checkpoint(tmp_path, checkpoint_of(full_state(round_number)), keep=3).write_bytes(b"")

    with pytest.raises(CheckpointError) as refusal:
        latest_checkpoint(tmp_path)

    for word in (str(tmp_path), "round-000001", "round-000002"):
        assert word in str(refusal.value)


@pytest.mark.parametrize("folder", [".", "gone"])
def test_directory_without_checkpoints_is_an_error_that_names_it(
    tmp_path: Path, folder: str
) -> None:
    with pytest.raises(CheckpointError, match="no readable checkpoint") as refusal:
        latest_checkpoint(tmp_path / folder)

    assert str(tmp_path / folder) in str(refusal.value)


def test_newest_goes_by_number_not_by_spelling(tmp_path: Path) -> None:
    for round_number in (999_999, 1_000_000):
        save_checkpoint(tmp_path, checkpoint_of(bare_state(round_number)), keep=3)

    found, _ = latest_checkpoint(tmp_path)

    assert found.state.round == 1_000_000


def test_files_that_somebody_else_put_there_are_left_alone(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint_of(bare_state(1)), keep=1)
    strangers = [tmp_path / name for name in ("round-000009 copy.safetensors", "notes.txt")]
    for stranger in strangers:
        stranger.write_bytes(b"mine")

    save_checkpoint(tmp_path, checkpoint_of(bare_state(2)), keep=1)

    found, _ = latest_checkpoint(tmp_path)
    assert found.state.round == 2
    assert all(stranger.read_bytes() == b"mine" for stranger in strangers)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    for round_number in range(1, 6):
        save_checkpoint(tmp_path, checkpoint_of(bare_state(round_number)), keep=keep)

    names = sorted(path.name for path in tmp_path.iterdir())

    assert names == [f"round-{r:06d}.safetensors" for r in range(6 - keep, 6)]


def test_what_a_killed_process_was_writing_is_deleted(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "round-000001.safetensors") as beside:
        beside.rename(left := beside.with_name(beside.name.replace(str(os.getpid()), "1")))
        beside.touch()

    save_checkpoint(tmp_path, checkpoint_of(bare_state(2)), keep=1)

    assert not left.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["round-000002.safetensors"]


# --- power loss ---------------------------------------------------------------------------------


class PowerLossError(Exception):
    """The machine is off."""


class Disk:
    """A disk that may lose power before or after each of its operations.

    The worst that a file system may do: of a file that was not flushed only ``survives`` of its
    bytes are left, a rename counts only once its directory was flushed, a deletion counts at once.
    """

    def __init__(self, fails_at: int, survives: float) -> None:
        self.steps = 0
        self._fails_at = fails_at
        self._survives = survives
        self._paths: dict[int, Path] = {}
        self._unflushed: set[Path] = set()
        self._renames: list[tuple[Path, bytes | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def tick(self) -> None:
        self.steps += 1
        if self.steps >= self._fails_at:  # a machine that is off stays off
            raise PowerLossError

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._paths[descriptor] = path
        return descriptor

    def write_pieces(self, path: Path, pieces: list[Any]) -> None:
        self.tick()
        content = b"".join(map(bytes, pieces))
        self._unflushed.add(path)
        cuts = [0, 1, 8, 100, len(content) // 2, len(content) - 1, len(content)]
        with open(path, "wb", buffering=0) as file:
            for start, end in pairwise(cuts):
                self.tick()
                file.write(content[start:end])
        self.tick()

    def fsync(self, descriptor: int) -> None:
        self.tick()
        path = self._paths[descriptor]
        self._unflushed.discard(path)
        self._renames = [(target, old) for target, old in self._renames if target.parent != path]
        self.tick()

    def replace(self, source: Path, target: Path) -> None:
        self.tick()
        self._renames.append((target, target.read_bytes() if target.exists() else None))
        os.replace(source, target)
        if source in self._unflushed:
            self._unflushed = self._unflushed - {source} | {target}
        self.tick()

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        if missing_ok and not path.exists():
            return
        self.tick()
        os.remove(path)  # noqa: PTH107
        self._unflushed.discard(path)
        self.tick()

    def come_back(self) -> None:
        """What is found when the machine is on again."""
        for path in self._unflushed:
            content = path.read_bytes()
            path.write_bytes(content[: int(len(content) * self._survives)])
        for target, old in reversed(self._renames):
            if old is None:
                target.unlink(missing_ok=True)
            else:
                target.write_bytes(old)


def _on(path: Path, operation: Any, *arguments: Any, **options: Any) -> None:
    """A method of Path that is done by a disk."""
    operation(path, *arguments, **options)


def on_failing_disk(
    action: Any, survives: float, monkeypatch: pytest.MonkeyPatch, prepare: Any
) -> Iterator[tuple[int, bool]]:
    """Run ``action`` with the power lost at each step in turn, and last without.

    Yields the step and whether the action came to its end, with the disk as it is found afterwards.
    """
    finished = False
    step = 0
    while not finished:
        step += 1
        prepare()
        disk = Disk(step, survives)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", disk)
            patch.setattr(tensor_file, "write_pieces", disk.write_pieces)
            patch.setattr(Path, "unlink", partialmethod(_on, disk.unlink))
            try:
                action()
                finished = True
            except PowerLossError:
                pass
        disk.come_back()
        yield step, finished


@pytest.mark.parametrize("survives", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("round_number", [2, 3], ids=["same-round-again", "next-round"])
def test_power_loss_at_any_moment_leaves_the_previous_or_the_new_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    round_number: int,
    keep: int,
    survives: float,
) -> None:
    earlier, previous = full_state(1), full_state(2)
    new = full_state(round_number, seed=1)

    def prepare() -> None:
        for path in tmp_path.iterdir():
            path.unlink()
        for state in (earlier, previous):
            save_checkpoint(tmp_path, checkpoint_of(state), keep)

    def save() -> None:
        save_checkpoint(tmp_path, checkpoint_of(new), keep)

    outcomes = []
    for _, finished in on_failing_disk(save, survives, monkeypatch, prepare):
        found, problems = latest_checkpoint(tmp_path)
        outcomes.append((finished, bits(found.state) == bits(new)))
        assert bits(found.state) in (bits(previous), bits(new))
        assert problems == []
        save_checkpoint(tmp_path, checkpoint_of(full_state(4)), keep)
        assert latest_checkpoint(tmp_path)[0].state.round == 4

    assert len(outcomes) > 10
    assert outcomes[0] == (False, False)
    assert outcomes[-1] == (True, True)


@pytest.mark.parametrize("survives", [0.0, 0.5, 1.0])
def test_power_loss_at_any_moment_leaves_a_client_the_state_from_before_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: float
) -> None:
    def prepare() -> None:
        for path in tmp_path.iterdir():
            path.unlink()
        for round_number in (1, 2):
            save_client_state(tmp_path, client_state(round_number))

    steps = 0
    for step, _ in on_failing_disk(
        lambda: save_client_state(tmp_path, client_state(3)), survives, monkeypatch, prepare
    ):
        found = load_client_state(tmp_path, before_round=3)
        assert bits(found) == bits(client_state(2))
        steps = step

    assert steps > 10


# --- client states ------------------------------------------------------------------------------


@pytest.mark.parametrize("moments", [True, False])
def test_client_state_comes_back_bit_for_bit(tmp_path: Path, moments: bool) -> None:
    state = client_state(5, moments)

    save_client_state(tmp_path, state)

    assert bits(load_client_state(tmp_path, before_round=6)) == bits(state)
    assert bits(unpack_client(*pack_client(state))) == bits(state)


def test_client_without_a_state_has_none(tmp_path: Path) -> None:
    assert load_client_state(tmp_path, before_round=9) is None
    assert load_client_state(tmp_path / "gone", before_round=9) is None


def test_last_four_client_states_are_kept(tmp_path: Path) -> None:
    for round_number in (1, 2, 3, 4, 5, 9):
        save_client_state(tmp_path, client_state(round_number))

    kept = [f"round-{number:06d}" for number in (3, 4, 5, 9)]
    assert sorted(path.stem for path in tmp_path.iterdir()) == kept


def test_repeated_round_finds_the_state_from_before_it(tmp_path: Path) -> None:
    for round_number in (1, 2, 3):
        save_client_state(tmp_path, client_state(round_number))

    first_repetition = load_client_state(tmp_path, before_round=3)
    save_client_state(tmp_path, client_state(3))
    second_repetition = load_client_state(tmp_path, before_round=3)

    assert bits(first_repetition) == bits(second_repetition) == bits(client_state(2))
    assert bits(load_client_state(tmp_path, before_round=4)) == bits(client_state(3))


def test_first_round_starts_from_nothing_whatever_an_earlier_run_left(tmp_path: Path) -> None:
    save_client_state(tmp_path, client_state(8))

    assert load_client_state(tmp_path, before_round=1) is None


def test_rounds_done_anew_replace_the_states_of_later_rounds(tmp_path: Path) -> None:
    for round_number in (8, 9):
        save_client_state(tmp_path, client_state(round_number))

    for round_number in (3, 4):
        save_client_state(tmp_path, client_state(round_number))

    assert bits(load_client_state(tmp_path, before_round=4)) == bits(client_state(3))
    assert bits(load_client_state(tmp_path, before_round=20)) == bits(client_state(4))


def test_damaged_client_state_is_passed_over_and_named(tmp_path: Path) -> None:
    told: list[str] = []
    for round_number in (1, 2):
        save_client_state(tmp_path, client_state(round_number))
    newest = tmp_path / "round-000002.safetensors"
    flipped(newest, len(newest.read_bytes()) - 3)

    found = load_client_state(tmp_path, 3, told.append)

    assert bits(found) == bits(client_state(1))
    assert told == [f"{newest}: damaged: its checksum does not match"]
    # The damage is in an array; how much was sent can still be read.
    assert module.count_releases(tmp_path) == 2


def test_torn_client_state_is_refused_by_path(tmp_path: Path) -> None:
    save_client_state(tmp_path, client_state(1))
    path = tmp_path / "round-000001.safetensors"
    path.write_bytes(path.read_bytes()[:40])

    with pytest.raises(CheckpointError) as refusal:
        load_client_state(tmp_path, before_round=2)

    assert str(path) in str(refusal.value)
