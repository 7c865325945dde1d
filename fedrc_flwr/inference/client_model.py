"""One client's model as an object: arrays, tensors or tables in, labels out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.data.scenario import Split
from fedrc_flwr.data.schema import class_array
from fedrc_flwr.errors import ConfigError, DataError
from fedrc_flwr.inference.assignment import Assignment, assign
from fedrc_flwr.inference.export import export_model
from fedrc_flwr.inference.personalised import Personal, personal
from fedrc_flwr.inference.prediction import runs_hard
from fedrc_flwr.inference.raw import inputs_of, labels_of, samples_of, table_of
from fedrc_flwr.inference.samples import BATCH
from fedrc_flwr.inference.trained import Trained
from fedrc_flwr.inference.weights import Weights, write_weights


@dataclass(frozen=True)
class ClientModel:
    """The run's models, mixed by one client's weights.

    Parameters
    ----------
    client : whose model it is
    assignment : how certain the weights are, if they were found from labelled samples
    """

    client: str
    trained: Trained
    mixture: Weights
    assignment: Assignment | None = None

    @property
    def weights(self) -> dict[int, float]:
        """The client's weight for each cluster; they sum to one."""
        return by_cluster(self.mixture)

    @property
    def cluster(self) -> int:
        """The cluster with the largest weight."""
        return self.mixture.best

    @property
    def classes(self) -> NDArray[Any]:
        """What ``predict`` can answer, in the order of ``predict_proba``'s columns, (C,)."""
        return class_array(self.trained.schema.classes)

    def predict(self, x: Any) -> NDArray[Any]:
        """The likeliest label of each sample, (N,).

        Parameters
        ----------
        x : (N, ...), an array or a tensor of samples as the clients hold them; or a table, or a
            list of rows by column, if they hold tables
        """
        labels: NDArray[Any] = self.classes[self.predict_proba(x).argmax(axis=1)]
        return labels

    def predict_proba(self, x: Any) -> NDArray[np.float32]:
        """The probability of each label for each sample, (N, C)."""
        inputs = samples_of(self.trained.schema, x)
        parts = [
            self._personal.probabilities(inputs[start : start + BATCH])
            for start in range(0, len(inputs), BATCH)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.trained.classes), np.float32)

    def save(self, path: str | Path) -> Path:
        """Write the client's weights as JSON, for ``--weights`` of ``fedrc predict`` and ``serve``.

        The file is small and needs the run beside it. ``export`` writes the whole model.
        """
        path = Path(path)
        about = {} if self.assignment is None else self.assignment.to_dict()
        try:
            write_weights(path, self.trained, self.mixture, about)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error}") from None
        return path

    def export(self, path: str | Path) -> Path:
        """Write the whole model as one file that runs without this package.

        Parameters
        ----------
        path : ends in ``.pt2`` (torch.export) or ``.onnx``
        """
        path = Path(path)
        export_model(path, self.trained, self.mixture, runs_hard(self.trained))
        return path

    def __repr__(self) -> str:
        certain = ""
        if self.assignment is not None:
            certain = (
                f", right with a probability of at least {self.assignment.sureness:.2f}, from "
                f"{self.assignment.samples} labelled samples"
            )
            if self.assignment.unseen_concept:
                certain += "; no cluster has this client's concept: do not rely on its predictions"
        weight = self.weights[self.cluster]
        return (
            f"<model of {self.client}: cluster {self.cluster} with a weight of "
            f"{weight:.2f}{certain}>"
        )

    @cached_property
    def _personal(self) -> Personal:
        return personal(self.trained, self.mixture, runs_hard(self.trained))


def newcomer(trained: Trained, x: Any, y: Any, client: str) -> ClientModel:
    """The model of a client that took no part in the run, from some of its labelled samples."""
    schema, inputs = trained.schema, inputs_of(trained.schema, x)
    if y is None:
        if not schema.is_table or schema.label not in table_of(x).columns:
            raise DataError("y is missing: give the labels, or a table that has them")
        y = table_of(x)[schema.label]
    found = assign(trained, Split(inputs, labels_of(schema, y, len(inputs))))
    return ClientModel(client, trained, found.weights, found)


def by_cluster(weights: Weights) -> dict[int, float]:
    """Weights by the cluster's id."""
    return dict(zip(weights.clusters, weights.values.tolist(), strict=True))
