"""FedRC, robust clustered federated learning, on Flower.

``Federation`` and ``Run`` are imported on first use, because importing them takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrc_flwr.federation import Federation
    from fedrc_flwr.run import Run

__version__ = "0.1.0"
__all__ = ["Federation", "Run", "__version__"]

_MODULES = {"Federation": "federation", "Run": "run"}


def __getattr__(name: str) -> Any:
    """A name of this package, from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
