"""From a trained federation to predictions: assign, predict, export, serve."""

from fedrc_flwr.inference.assign import Assignment, assign
from fedrc_flwr.inference.export import export_model, load_exported
from fedrc_flwr.inference.personal import Personal, personal
from fedrc_flwr.inference.predict import Prediction, predict, write_predictions
from fedrc_flwr.inference.samples import (
    Batch,
    in_batches,
    read_batches,
    read_labelled,
    scenario_client,
)
from fedrc_flwr.inference.serve import ServeOptions, serve
from fedrc_flwr.inference.trained import Trained, load_trained
from fedrc_flwr.inference.weights import Weights, read_weights, state_weights, write_weights

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
