"""Which clusters a client belongs to, from its labelled samples, and how certain that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrc_flwr.data.scenario import Split
from fedrc_flwr.em import Floats
from fedrc_flwr.errors import DataError
from fedrc_flwr.inference.trained import Trained
from fedrc_flwr.inference.weights import Weights
from fedrc_flwr.training import losses_of

HALVES = 100  # random halves on which the weights are found again
#: From this fraction of unfamiliar samples on, the client's concept counts as unseen.
UNSEEN = 0.25


@dataclass(frozen=True)
class Assignment:
    """A client's mixture weights and how reliable they are.

    Parameters
    ----------
    samples : labelled samples that were used
    entropy : of the weights, in nats; 0 is one cluster alone
    margin : between the largest weight and the next
    agreement : share of the random halves whose likeliest cluster is the same
    movement : mean total variation between the weights of a half and those of the whole
    sureness : lower estimate of the probability that the likeliest cluster is the right one
    unfamiliar : positions of the samples to whose label no cluster gives more than chance
    """

    weights: Weights
    samples: int
    entropy: float
    margin: float
    agreement: float
    movement: float
    sureness: float
    unfamiliar: NDArray[np.int64]

    @property
    def unfamiliar_share(self) -> float:
        """Fraction of the samples that disagree with every cluster."""
        return len(self.unfamiliar) / self.samples

    @property
    def unseen_concept(self) -> bool:
        """Whether so many samples disagree that no cluster has this client's concept."""
        return self.unfamiliar_share >= UNSEEN

    def to_dict(self) -> dict[str, Any]:
        """Everything but the weights, for their file."""
        return {
            "samples": self.samples,
            "entropy": self.entropy,
            "margin": self.margin,
            "half_agreement": self.agreement,
            "half_movement": self.movement,
            "sureness": self.sureness,
            "unfamiliar_share": self.unfamiliar_share,
            "unfamiliar": self.unfamiliar.tolist(),
            "unseen_concept": self.unseen_concept,
        }


def assign(trained: Trained, samples: Split, seed: int = 0) -> Assignment:
    """The weights that an observer of the run would have found on these samples.

    Sureness is ``(F * agreement + 1) / (N + K)``, with F of the N samples familiar to a cluster:
    the share of random halves that come to the same answer, pulled down as if each of K clusters
    had one vote more and unfamiliar samples had voted for none. Halves are wrong more often than
    the whole, so this is a lower estimate.
    """
    if not len(samples):
        raise DataError("no labelled samples: expected at least one")
    log_probs = trained.log_probabilities(samples.inputs)
    labels = torch.from_numpy(samples.labels).to(log_probs.device)
    losses = losses_of(log_probs, labels)
    whole = _weights(trained, losses, samples.labels)
    clusters = len(whole)
    agreement, movement = _on_halves(trained, losses, samples.labels, whole, seed)
    unfamiliar = np.flatnonzero(np.exp(-losses).max(axis=1) <= 1 / trained.classes)
    familiar = len(samples) - len(unfamiliar)
    ordered = np.sort(whole)[::-1]
    positive = whole[whole > 0]
    return Assignment(
        weights=Weights(trained.clusters, whole),
        samples=len(samples),
        entropy=float(-(positive * np.log(positive)).sum()),
        margin=float(ordered[0] - (ordered[1] if clusters > 1 else 0.0)),
        agreement=agreement,
        movement=movement,
        sureness=(familiar * agreement + 1) / (len(samples) + clusters),
        unfamiliar=unfamiliar,
    )


def _weights(trained: Trained, losses: Floats, labels: NDArray[np.int64]) -> Floats:
    return trained.algorithm.assigned_weights(losses, labels, trained.broadcast)


def _on_halves(
    trained: Trained, losses: Floats, labels: NDArray[np.int64], whole: Floats, seed: int
) -> tuple[float, float]:
    """How many random halves agree with the whole, and how far their weights are from it."""
    clusters, samples = len(whole), len(labels)
    if clusters == 1:
        return 1.0, 0.0
    if samples == 1:
        return 1 / clusters, 1.0  # one sample cannot be halved
    rng = np.random.default_rng([seed, samples, 0xA551])
    found = []
    for _ in range(HALVES):
        rows = rng.choice(samples, (samples + 1) // 2, replace=False)
        found.append(_weights(trained, losses[rows], labels[rows]))
    halves = np.array(found)
    agreement = float((halves.argmax(axis=1) == whole.argmax()).mean())
    movement = float(0.5 * np.abs(halves - whole).sum(axis=1).mean())
    return agreement, movement
