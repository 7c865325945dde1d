"""A run that has ended, as an object: who is in which cluster, how it went, and its models."""

from __future__ import annotations

import html
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.client import state_folder
from fedrc_flwr.engine.directory import client_states
from fedrc_flwr.errors import CheckpointError, DataError
from fedrc_flwr.inference.assignment import assign
from fedrc_flwr.inference.client_model import ClientModel, by_cluster, newcomer
from fedrc_flwr.inference.samples import scenario_client
from fedrc_flwr.inference.trained import Trained, load_trained
from fedrc_flwr.inference.weights import Weights, state_weights
from fedrc_flwr.report import notebook
from fedrc_flwr.report.contents import gather
from fedrc_flwr.report.history import history
from fedrc_flwr.report.log import METRICS, SUMMARY, Event, read_events, read_json
from fedrc_flwr.report.page import write_page

if TYPE_CHECKING:
    import pandas


class Run:
    """The results in a run's directory.

    Parameters
    ----------
    directory : as ``fedrc simulate --output`` and ``Federation.fit`` write it
    keep : anything that must live as long as this object, such as a temporary directory
    trusted : functions that the run may name as its network or data, and that may be executed
    """

    def __init__(
        self, directory: str | Path, keep: object = None, trusted: Collection[str] = ()
    ) -> None:
        self.directory = Path(directory).resolve()
        self._keep = keep
        self._trusted = trusted
        if not self.directory.is_dir():
            raise DataError(f"{self.directory}: no such directory; name the directory of a run")

    @classmethod
    def load(cls, directory: str | Path, trusted: Collection[str] = ()) -> Run:
        """Open a run of this machine again, or one that a deployment's server has written.

        A run that names a function, as its network or data, is refused unless you trust it.
        """
        run = cls(directory, trusted=trusted)
        run.trained  # noqa: B018, a directory without a checkpoint is refused here
        return run

    # --- what came out ---------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """What the run has established, in a few sentences."""
        return gather(self.directory).headline

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The final numbers, as in ``summary.json``."""
        return read_json(self.directory / SUMMARY)

    @property
    def accuracy(self) -> float | None:
        """Mean accuracy of the training clients on their held-out samples."""
        value = self.summary.get("local_accuracy")
        return None if value is None else float(value)

    @cached_property
    def clusters(self) -> dict[int, list[str]]:
        """For each cluster, the training clients of which it is the likeliest."""
        members: dict[int, list[str]] = {cluster: [] for cluster in self.trained.clusters}
        for name, weights in sorted(self.weights.items()):
            members[max(weights, key=weights.__getitem__)].append(name)
        return members

    @cached_property
    def weights(self) -> dict[str, dict[int, float]]:
        """For each training client that has taken part, its weight for each cluster."""
        names = sorted(self.trained.state.reported())
        return {name: by_cluster(self._weights(name)) for name in names}

    @cached_property
    def clients(self) -> pandas.DataFrame:
        """A row for each client: role, samples, cluster, its weight, and accuracy."""
        import pandas

        latest, rows = history(self._rounds).judged, []
        for name, record in sorted(self.trained.state.clients.items()):
            judged, weights = latest.get(name, {}), self.weights.get(name, {})
            cluster = max(weights, key=weights.__getitem__) if weights else judged.get("cluster")
            rows.append(
                {
                    "client": name,
                    "role": record.role,
                    "samples": record.samples,
                    "cluster": cluster,
                    "weight": max(weights.values(), default=None),
                    "accuracy": judged.get("accuracy"),
                }
            )
        return pandas.DataFrame(rows).set_index("client").astype({"cluster": "Int64"})

    @cached_property
    def history(self) -> pandas.DataFrame:
        """A row for each round. Accuracies are missing in rounds without an evaluation."""
        import pandas

        rows = []
        for event in self._rounds:
            numbers = {k: v for k, v in event.items() if isinstance(v, int | float | None)}
            rows.append(numbers | {"clusters": len(event["clusters"])})
        if not rows:
            raise CheckpointError(f"{self.directory}: no round has finished yet")
        return pandas.DataFrame(rows).set_index("round")

    # --- its models ------------------------------------------------------------------------------

    @cached_property
    def trained(self) -> Trained:
        """The models after the last round."""
        return load_trained(self.directory, trusted=self._trusted)

    def model(self, client: str) -> ClientModel:
        """The model of a client that took part: the clusters' models, mixed by its weights."""
        algorithm = self.trained.algorithm
        if algorithm.is_personal:
            raise CheckpointError(
                f"client {client!r}: a client of {algorithm.title} predicts with a network of its "
                "own, which is not among the run's models; model_for(x, y) gives the shared models"
            )
        return ClientModel(client, self.trained, self._weights(client))

    def model_for(self, x: Any, y: Any = None, client: str = "newcomer") -> ClientModel:
        """The model of a client that took no part, from some of its labelled samples.

        ``assignment`` of the result says how certain the weights are.

        Parameters
        ----------
        x : (N, ...), an array, a tensor or a frame
        y : (N,); None: in the frame
        """
        return newcomer(self.trained, x, y, client)

    def _weights(self, client: str) -> Weights:
        """From the client's own state where there is one, as in the run's own evaluation."""
        trained, record = self.trained, self.trained.state.clients.get(client)
        if record is None:
            names = sorted(trained.state.clients)
            raise DataError(f"client {client!r}: the run has {names[0]} to {names[-1]}")
        if record.role != TRAIN:
            return assign(trained, scenario_client(trained.config, client).fit).weights
        name = trained.config.run.known_as(self.directory.name)
        folder = state_folder(client_states(self.directory), name, client)
        if folder.is_dir() and not trained.algorithm.is_personal:
            return state_weights(folder, trained)
        weights = record.mixture_weights()
        if weights is None:
            raise CheckpointError(f"client {client!r}: has not taken part in any round yet")
        return Weights(trained.clusters, weights)

    # --- to look at ------------------------------------------------------------------------------

    def show(self, height: int = 900) -> None:
        """Show the report in the notebook; elsewhere, write it and say where it is.

        Parameters
        ----------
        height : of the frame in the notebook, in pixels
        """
        page = write_page(self.directory)
        if notebook.is_running():
            notebook.show_page(page, height)
        else:
            print(f"report in {page}")

    def __repr__(self) -> str:
        return f"<run {self.directory.name}: {self.headline}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{cluster}</td><td>{len(names)}</td>"
            f'<td style="text-align: left">{html.escape(", ".join(names))}</td></tr>'
            for cluster, names in self.clusters.items()
        )
        return (
            f"<p>{html.escape(self.headline)}</p>"
            f"<table><tr><th>cluster</th><th>clients</th><th>names</th></tr>{rows}</table>"
        )

    @cached_property
    def _rounds(self) -> list[Event]:
        events = read_events(self.directory / METRICS)
        return [event for event in events if event.get("event") == "round"]
