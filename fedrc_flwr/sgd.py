"""Local SGD: its settings, which samples are in a batch, the objective, and a step.

Whatever depends on a setting of local training is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedrc_flwr.bank import ModelBank
from fedrc_flwr.em import Floats
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.layout import FlatModule
from fedrc_flwr.settings import key
from fedrc_flwr.words import counted

V = TypeVar("V", float, Tensor)
#: What SGD remembers of each parameter; empty before the first step.
Velocity = list[Tensor]
#: Batches of an epoch, and samples of a round, from which batch size and epochs are chosen if they
#: are 0.
USUAL_BATCHES, USUAL_SAMPLES = 6, 200
MOST_EMPHASIS = 50.0  # of a sample of a rare label
SMALLEST_BATCH, LARGEST_BATCH, MOST_EPOCHS = 16, 128, 5


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains."""

    epochs: int = key(
        0,
        "Passes over a client's samples in a round. 0: as many as make about 200 samples, 1 to 5.",
        low=0,
        high=1000,
        common=True,
    )
    batch_size: int = key(
        0,
        "Samples per step. 0: by the client's size, a power of two from 16 to 128.",
        low=0,
        high=1_000_000,
        common=True,
    )
    learning_rate: float = key(0.1, "Local learning rate, eta_l.", above=0.0, common=True)
    momentum: float = key(
        0.9, "Momentum of local SGD; it starts from zero in each round.", low=0.0, high=0.999
    )
    weight_decay: float = key(
        0.0, "L2 penalty, weighted by the client's share in each cluster.", low=0.0, common=True
    )
    clip: float = key(
        0.0,
        "Largest norm of a batch's gradient; a longer one is shortened to it, so that a learning "
        "rate that is too high for a network slows training down instead of ending it. 0: no "
        "limit.",
        low=0.0,
    )
    prox_mu: float = key(
        0.0,
        "FedProx: adds mu/2 times the squared distance to the broadcast model to the local "
        "objective of any algorithm.",
        low=0.0,
    )
    decorr_beta: float = key(
        0.0,
        "FedDecorr: adds beta times the mean squared correlation between different features to the "
        "local objective of any algorithm.",
        low=0.0,
    )
    class_weights: str = key(
        "none",
        "`balanced`: in a cluster's training, all labels together count the same, however rare "
        "they are in the cluster over the whole federation; a sample counts at most 50 times.",
        choices=("none", "balanced"),
        common=True,
    )
    skip_below: float = key(
        1e-3,
        "Samples whose responsibility for a cluster is below this are left out of its training. "
        "0: none.",
        low=0.0,
        high=0.1,
    )
    skip_cluster_below: float = key(
        0.1,
        "A client neither trains nor sends a cluster whose mixture weight is below this multiple "
        "of 1/K. 0: it trains all.",
        low=0.0,
        high=0.5,
    )

    def for_samples(self, samples: int) -> LocalSettings:
        """The same, with epochs and batch size chosen for a client of this size if they are 0."""
        batch = self.batch_size
        if not batch:
            power = 2 ** round(math.log2(max(samples / USUAL_BATCHES, 1.0)))
            batch = min(max(power, SMALLEST_BATCH), LARGEST_BATCH)
        epochs = self.epochs or min(max(round(USUAL_SAMPLES / max(samples, 1)), 1), MOST_EPOCHS)
        return replace(self, batch_size=batch, epochs=epochs)

    def repeated(self, times: int) -> LocalSettings:
        """The same with so many times as many epochs."""
        return replace(self, epochs=self.epochs * times)

    def chooses_epochs(self) -> bool:
        """Whether the number of epochs follows from a client's size."""
        return self.epochs == 0

    def emphasis(self, label_prior: Floats) -> Floats:
        """How much a sample of each label counts in each cluster's training, (K, C).

        The weights follow from the cluster's label prior over the federation and not from the
        client's own labels. Then every sample of a label counts the same wherever it is, and the
        clients' updates add up to those of a balanced data set. By its own labels, a client with
        one sample of a label would count it as much as others count hundreds.
        """
        if self.class_weights == "none":
            return np.ones_like(label_prior)
        weights = np.minimum(1.0 / (label_prior.shape[1] * label_prior), MOST_EMPHASIS)
        return np.asarray(weights / (label_prior * weights).sum(axis=1, keepdims=True))

    def trained_prior(self, label_prior: Floats) -> Floats:
        """The label prior under which models are trained with these weights, (K, C)."""
        return label_prior * self.emphasis(label_prior)

    def described(self) -> str:
        """How a client trains, in words."""
        epochs = counted(self.epochs, "local epoch")
        return f"{epochs} in batches of {self.batch_size}, learning rate {self.learning_rate:g}"

    def without_prox(self, algorithm: str) -> LocalSettings:
        """The same, for an algorithm with a proximal term of its own."""
        if self.prox_mu > 0:
            raise ConfigError(
                f"local.prox-mu = {self.prox_mu}: algorithm = {algorithm!r} has a proximal term of "
                "its own"
            )
        return self

    def without_decorrelation(self, algorithm: str) -> LocalSettings:
        """The same, for an algorithm with a decorrelation term of its own."""
        if self.decorr_beta > 0:
            raise ConfigError(
                f"local.decorr-beta = {self.decorr_beta}: algorithm = {algorithm!r} has a "
                "decorrelation term of its own"
            )
        return self

    def check_clusters(self, clusters: int) -> None:
        """Refuse a threshold that would skip all samples of a client with equal weights."""
        if self.skip_below * clusters >= 1:
            raise ConfigError(
                f"local.skip-below = {self.skip_below}: expected less than 1 / clusters = "
                f"{1 / clusters:g}, or nobody would train"
            )


def active_clusters(weights: Floats, settings: LocalSettings) -> list[int]:
    """The clusters to train with these responsibilities, (N, K)."""
    most, part = weights.max(axis=0), weights.mean(axis=0)
    least = settings.skip_cluster_below / len(part)
    worth = (most >= settings.skip_below) & (part >= least)
    return [int(k) for k in np.flatnonzero(worth & (most > 0))]


def kept_samples(
    bank: ModelBank, responsibilities: Floats, settings: LocalSettings
) -> NDArray[np.bool_] | None:
    """Which samples each cluster is trained on, (N, K); None if all clusters train on all samples.

    Pairs of sample and cluster below the threshold contribute almost nothing to the gradient, and
    once the clusters have formed, most pairs are below it. No sample is skipped if the samples of a
    batch affect each other (BatchNorm, FedDecorr) or the body is shared.
    """
    together = bank.batch_norm or bank.body is not None or settings.decorr_beta > 0
    if together or settings.skip_below == 0:
        return None
    kept = responsibilities >= settings.skip_below
    return None if kept.all() else kept


def shuffled_batches(
    samples: int,
    settings: LocalSettings,
    rng: np.random.Generator,
    batch_norm: bool,
    first_order: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Every sample once an epoch, in batches of the configured size; the last may be smaller.

    ``first_order`` is the order of the first epoch, if it was drawn already.

    BatchNorm cannot compute a variance from one sample. If the network has it, a last batch of one
    is joined to the batch before. Any other batch of one (a client with one sample, or batches of
    one) uses the running statistics: see ``ModelBank.batch_statistics``.
    """
    ends = list(range(settings.batch_size, samples, settings.batch_size))
    if batch_norm and settings.batch_size > 1 and ends and ends[-1] == samples - 1:
        ends.pop()
    for epoch in range(settings.epochs):
        drawn = first_order if epoch == 0 else None
        yield from np.split(rng.permutation(samples) if drawn is None else drawn, ends)


def first_batch(
    order: NDArray[np.int64], settings: LocalSettings
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples of an epoch's first batch, and the others."""
    first, rest = np.split(order, [settings.batch_size])
    return first, rest


def weighted_objective(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    settings: LocalSettings,
) -> Tensor:
    """The mean loss of a batch, each sample times its weight, with FedDecorr's term if it is on.

    Without weights all samples have a weight of one.
    """
    if weights is None:
        total = functional.cross_entropy(logits.float(), labels)
    else:
        losses = functional.cross_entropy(logits.float(), labels, reduction="none")
        total = (weights * losses).mean()
    if settings.decorr_beta > 0 and len(labels) > 1:
        share = 1.0 if weights is None else weights.mean()
        total = total + settings.decorr_beta * share * decorrelation(features.float())
    return total


def decorrelation(features: Tensor) -> Tensor:
    """FedDecorr: the mean square of the off-diagonal entries of ``z'z``, divided by the batch size.

    z are the features, (N, D), standardised one by one over at least two samples. This is what the
    authors' code computes: about N times their printed formula.
    """
    flat = features.flatten(1)
    samples, size = flat.shape
    if size == 1:
        return flat.new_zeros(())
    centred = flat - flat.mean(dim=0)
    standardised = centred / (centred.var(dim=0) + 1e-8).sqrt()
    squares = (standardised.T @ standardised).square()
    return (squares.sum() - squares.trace()) / (size * (size - 1) * samples)


@torch.no_grad()
def sgd_step(module: FlatModule, velocity: Velocity, part: float, settings: LocalSettings) -> None:
    """One step of SGD; the gradient's memory is reused for the velocity."""
    if settings.clip > 0:
        shorten([p.grad for p in module.parameters if p.grad is not None], settings.clip)
    values = module.values
    if not values:
        return
    # No gradient: no sample of this batch belongs to the cluster, and only momentum moves it.
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters]
    if settings.weight_decay > 0:
        torch._foreach_add_(gradients, values, alpha=settings.weight_decay * part)
    if settings.prox_mu > 0:
        pull = torch._foreach_sub(values, module.start())
        torch._foreach_add_(gradients, pull, alpha=settings.prox_mu * part)
    if velocity:
        torch._foreach_add_(gradients, velocity, alpha=settings.momentum)
    torch._foreach_sub_(values, gradients, alpha=settings.learning_rate)
    velocity[:] = gradients if settings.momentum > 0 else []


def shorten(gradients: list[Tensor], most: float) -> None:
    """Scale gradients so that their norm is at most ``most``, in place; NaN stays NaN."""
    if not gradients:
        return
    norms = torch._foreach_norm(gradients)
    scale = most / torch.linalg.vector_norm(torch.stack(norms)).clamp_min(most)
    torch._foreach_mul_(gradients, scale)


def decay(gradient: Tensor, parameters: Tensor, settings: LocalSettings) -> Tensor:
    """Add the gradient of the L2 penalty, in place."""
    return gradient.add_(parameters, alpha=settings.weight_decay)


def momentum_step(
    parameters: Tensor, velocity: Tensor, gradient: Tensor, settings: LocalSettings
) -> None:
    """One step of SGD on a vector, in place."""
    velocity.mul_(settings.momentum).add_(gradient)
    parameters.sub_(velocity, alpha=settings.learning_rate)


def proximal_pull(distance: Tensor, settings: LocalSettings) -> Tensor:
    """The gradient of FedProx's term at a distance from the broadcast model."""
    return settings.prox_mu * distance


def descend(value: V, slope: V, settings: LocalSettings) -> V:
    """One plain step of gradient descent: of a number, or of a vector."""
    return value - settings.learning_rate * slope
