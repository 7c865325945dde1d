"""From a trained federation to predictions: assign, predict, export, serve.

Everything is imported on first use, because importing takes seconds. No module may have the name of
a function in it: after the import, the package's attribute would be the module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrc_flwr.inference.assignment import Assignment, assign
    from fedrc_flwr.inference.export import export_model, load_exported
    from fedrc_flwr.inference.personalised import Personal, personal
    from fedrc_flwr.inference.prediction import Prediction, predict, write_predictions
    from fedrc_flwr.inference.samples import (
        Batch,
        in_batches,
        read_batches,
        read_labelled,
        scenario_client,
    )
    from fedrc_flwr.inference.serving import ServeOptions, serve
    from fedrc_flwr.inference.trained import Trained, load_trained
    from fedrc_flwr.inference.weights import Weights, read_weights, state_weights, write_weights

_MODULES = {
    "Assignment": "assignment",
    "Batch": "samples",
    "Personal": "personalised",
    "Prediction": "prediction",
    "ServeOptions": "serving",
    "Trained": "trained",
    "Weights": "weights",
    "assign": "assignment",
    "export_model": "export",
    "in_batches": "samples",
    "load_exported": "export",
    "load_trained": "trained",
    "personal": "personalised",
    "predict": "prediction",
    "read_batches": "samples",
    "read_labelled": "samples",
    "read_weights": "weights",
    "scenario_client": "samples",
    "serve": "serving",
    "state_weights": "weights",
    "write_predictions": "prediction",
    "write_weights": "weights",
}
__all__ = [
    "Assignment",
    "Batch",
    "Personal",
    "Prediction",
    "ServeOptions",
    "Trained",
    "Weights",
    "assign",
    "export_model",
    "in_batches",
    "load_exported",
    "load_trained",
    "personal",
    "predict",
    "read_batches",
    "read_labelled",
    "read_weights",
    "scenario_client",
    "serve",
    "state_weights",
    "write_predictions",
    "write_weights",
]


def __getattr__(name: str) -> Any:
    """A name of this package, from the module that has it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
