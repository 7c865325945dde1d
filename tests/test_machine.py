"""What the machine is asked for."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from fedrc_flwr import machine


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the C library is asked for; it refuses blocks above 32 MiB, as older ones do."""
    calls: list[tuple[int, int]] = []

    def mallopt(what: int, value: int) -> int:
        calls.append((what, value))
        return int(what != machine.M_MMAP_THRESHOLD or value <= 32 * 2**20)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=mallopt))
    for name in machine.HOLDING:
        monkeypatch.delenv(name, raising=False)
    return calls


@pytest.mark.parametrize(
    ("library", "megabytes"),
    [(("glibc", "2.35"), 64), (("glibc", "3.0"), 64), (("glibc", "2.31"), 32), (("", ""), 32)],
)
def test_the_largest_block_is_one_that_the_c_library_accepts(
    library: tuple[str, str], megabytes: int
) -> None:
    assert machine.largest_block(library) == megabytes * 2**20


def test_memory_is_held(asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LARGEST_BLOCK", 32 * 2**20)

    machine.hold_memory()

    assert asked == [(-3, 32 * 2**20), (-1, 256 * 2**20)]


def test_a_refused_block_size_leaves_everything_as_it_was(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "LARGEST_BLOCK", 64 * 2**20)

    machine.hold_memory()

    assert asked == [(-3, 64 * 2**20)]


def test_what_the_user_has_set_stays(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")

    machine.hold_memory()

    assert asked == []


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())

    machine.hold_memory()
