"""What the machine has."""

from __future__ import annotations

import ctypes
import os
import platform

#: From this version on, glibc takes blocks of any size from what it holds.
ANY_BLOCK = (2, 35)


def largest_block(library: tuple[str, str]) -> int:
    """Bytes up to which the C library may take a block from what it holds, by name and version."""
    name, version = library
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return (64 if name == "glibc" and numbers >= ANY_BLOCK else 32) * 2**20


#: Bytes up to which glibc takes a block from what it holds already, and how many it holds on to.
#: Otherwise a network's memory is given back after every use, and is zeroed for the next one.
LARGEST_BLOCK, HELD = largest_block(platform.libc_ver()), 256 * 2**20
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
