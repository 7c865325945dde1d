"""The algorithms by name: every class with a ``name`` in a module of this package."""

from __future__ import annotations

import importlib
import pkgutil

from fedrc_flwr.algorithms.base import ClusteredAlgorithm

#: Listed first in tables and help texts.
FIRST = ("fedrc", "fedem", "ifca", "fesem", "cfl", "fedsoft", "fedavg")


def _found() -> dict[str, type[ClusteredAlgorithm]]:
    classes: dict[str, type[ClusteredAlgorithm]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, ClusteredAlgorithm):
                own = value.__module__ == module.__name__ and "name" in vars(value)
                classes |= {value.name: value} if own else {}
    order = [*(name for name in FIRST if name in classes), *sorted(classes)]
    return {name: classes[name] for name in dict.fromkeys(order)}


ALGORITHMS: dict[str, type[ClusteredAlgorithm]] = _found()
