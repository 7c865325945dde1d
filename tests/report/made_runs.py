"""Runs' directories made through the classes that a server app uses, without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from settings_of import dotted

from fedrc_flwr.checkpoint import CHECKPOINTS, Checkpoint, save_checkpoint
from fedrc_flwr.config import build_algorithm, load_config
from fedrc_flwr.engine.judging import judge
from fedrc_flwr.errors import LATE
from fedrc_flwr.metrics import Evaluation, Tally
from fedrc_flwr.report.log import CONFIG, EVALUATION, SUMMARY, MetricsLog, write_json
from fedrc_flwr.report.summary import summarise
from fedrc_flwr.report.tallies import recorded_tallies
from fedrc_flwr.state import ClientRecord, Membership, ServerState

CLASSES = 4
SCRIPT = "<script>alert(1)</script>"


class MadeRun:
    """A federation of which clients 0, 3, 6 ... follow concept 0, 1, 4, 7 ... concept 1, and so on.

    It starts with four clusters 0 to 3; cluster 1 is merged into 0 in round 3 and cluster 3 removed
    in round 4. Clusters 0 and 2 are left: concept 0 is in cluster 0, the others in cluster 2.

    With ``tallies``, each client also sends counts of its ten predictions: all labels are its main
    one; it is right on five or nine, as its accuracy says, and answers the next label otherwise.
    """

    def __init__(
        self,
        directory: Path,
        clients: int = 6,
        noise: float = 40.0,
        tallies: bool = False,
        **settings: Any,
    ) -> None:
        self.tallies = tallies
        self.directory = directory
        self.noise = noise
        own = {
            "start": "paper",
            "clusters": 4,
            "adaptive": True,
            "merge": True,
            "annealing_rounds": 0,
        }
        self.config = load_config(dotted({**own, **settings}))
        self.names = [f"ward-{i:03d}" for i in range(clients)]
        self.observers = ["observer-0"]
        self.log = MetricsLog(directory)
        self.rng = np.random.default_rng(0)
        self.round = 0
        self._judged: dict[tuple[int, ...], dict[str, Any]] = {}
        write_json(directory / CONFIG, self.config.to_dict())

    def clusters(self) -> tuple[int, ...]:
        if self.round < 3:
            return (0, 1, 2, 3)
        return (0, 2, 3) if self.round < 4 else (0, 2)

    def counts(self, index: int) -> np.ndarray:
        """(K, C): nine tenths of 20 samples in the client's own cluster."""
        living = self.clusters()
        own = living.index(0 if index % 3 == 0 else 2)
        counts = np.full((len(living), CLASSES), 2.0 / ((len(living) - 1) * CLASSES))
        counts[own] = 18.0 * np.eye(CLASSES)[index % CLASSES]
        return counts

    def weights(self, index: int) -> list[float]:
        return [round(float(v), 3) for v in self.counts(index).sum(axis=1) / 20]

    def state(self) -> ServerState:
        clients = {
            name: ClientRecord(
                "train", 20, label_counts=self.counts(i), concept=i % 3, noise=self.noise,
                releases=2 * self.round, style="none" if i % 2 else "fog-3",
            )
            for i, name in enumerate(self.names)
        }  # fmt: skip
        clients |= {name: ClientRecord("observe", 30, concept=0) for name in self.observers}
        membership = Membership(self.clusters(), {1: 0} if self.round >= 3 else {})
        models = {c: np.zeros(8, dtype=np.float32) for c in self.clusters()}
        return ServerState(self.round, membership, models, None, clients, parameters=8)

    def metrics(self) -> dict[str, Any]:
        shares = self.state().shares()
        failed = {self.names[1]: LATE} if self.round == 2 else {}
        if self.round == 5:
            failed = {self.names[1]: LATE, self.names[0]: "error 2: the app raised"}
        metrics: dict[str, Any] = {
            "event": "round", "round": self.round, "clusters": list(self.clusters()),
            "shares": shares.tolist(), "loss": 2.0 / self.round, "train_accuracy": 0.5,
            "removed": [3] if self.round == 4 else [],
            "merged": [[1, 0]] if self.round == 3 else [],
            "seconds": 1.5, "client_seconds": 0.5, "bytes_down": 4000, "bytes_up": 3000,
            "weights": {name: self.weights(i) for i, name in enumerate(self.names)},
            "failed": failed, "epsilon": 0.1 * self.round, "elapsed": 1.5 * self.round,
        }  # fmt: skip
        if self.round == 1 and len(self.names) <= 100:
            metrics["discovery"] = self.discovery()
        if self.round % 2 == 0:
            everybody = [*self.names, *self.observers]
            metrics |= {
                "local_accuracy": 0.75, "local_loss": 1.0, "global_accuracy": 0.5,
                "global_loss": 1.5,
                "clients": {
                    name: {"samples": 10.0, "accuracy": 0.5 if i % 3 == 0 else 0.9, "cluster": 0.0}
                    for i, name in enumerate(everybody)
                },
            }  # fmt: skip
            if self.tallies:
                metrics |= self.judged()
        return metrics

    def discovery(self) -> dict[str, Any]:
        """Two groups: clients 0, 3, 6 ... and the others, which contradict them by four nats."""
        groups = {name: 0 if i % 3 == 0 else 2 for i, name in enumerate(self.names)}
        same = [[5.0 if groups[a] == groups[b] else -4.0 for b in groups] for a in groups]
        return {
            "sentence": f"2 concepts among {len(groups)} clients", "established": True,
            "groups": groups, "clients": self.names, "evidence": same,
        }  # fmt: skip

    def judged(self) -> dict[str, Any]:
        """What is evaluated depends on the clusters alone."""
        living = self.clusters()
        if living not in self._judged:
            self._judged[living] = judge(self.evaluations(), self.state().clients, living)
        return self._judged[living]

    def evaluations(self) -> dict[str, Evaluation]:
        found = {}
        for i, name in enumerate([*self.names, *self.observers]):
            right, label = (5 if i % 3 == 0 else 9), i % CLASSES
            confusion = np.zeros((CLASSES, CLASSES), dtype=np.int64)
            confusion[label, [label, (label + 1) % CLASSES]] = right, 10 - right
            living = self.clusters()
            own = 0 if i % 3 == 0 else 2
            counts = np.array([right if c == own else 1 for c in living])
            metrics = {"samples": 10.0, "accuracy": right / 10, "cluster": float(own)}
            found[name] = Evaluation(metrics, Tally(confusion, counts))
        return found

    def play(self, rounds: int, checkpoint: bool = True) -> MadeRun:
        """Do rounds: a line of metrics, then a checkpoint, as the server app does."""
        for _ in range(rounds):
            self.round += 1
            metrics = self.metrics()
            if (tallies := metrics.pop("tallies", None)) and checkpoint:
                write_json(self.directory / EVALUATION, recorded_tallies(self.state(), tallies))
            self.log.append(metrics)
            if checkpoint:
                saved = Checkpoint(self.state(), self.config.to_dict(), (2,), CLASSES, "layout")
                save_checkpoint(self.directory / CHECKPOINTS, saved, keep=2)
        return self

    def end(self, status: str = "completed", reason: str = "") -> MadeRun:
        summary = summarise(
            self.state(), self.config.to_dict(), status, 1.5 * self.round, self.metrics(),
            build_algorithm(self.config).epsilon(self.state()), reason,
        )  # fmt: skip
        write_json(self.directory / SUMMARY, summary)
        self.log.append({"event": "end", **summary})
        return self
