"""What the machine has."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that this process may use; all of them if the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
