"""What the machine has."""

from __future__ import annotations

import ctypes
import os

#: Bytes up to which glibc takes a block from what it holds already, and how many it holds on to.
#: Otherwise a network's memory is given back after every use, and is zeroed for the next one.
#: Before version 2.35 glibc refuses a larger block than this one.
LARGEST_BLOCK, HELD = 32 * 2**20, 256 * 2**20
#: The same for a program that is started.
HOLDING = {"MALLOC_MMAP_THRESHOLD_": str(LARGEST_BLOCK), "MALLOC_TRIM_THRESHOLD_": str(HELD)}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # numbers of glibc's malloc.h


def usable_cores() -> int:
    """The cores that this process may use; all of them if the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hold_memory() -> None:
    """Let this process hold on to memory that it will soon need again, where the C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or not HOLDING.keys().isdisjoint(os.environ):
        return
    # The second alone would make things worse: glibc then no longer learns what is used again.
    if mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK):
        mallopt(M_TRIM_THRESHOLD, HELD)
