"""The networks' side of a client: scoring samples, and responsibility-weighted local training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedrc_flwr.bank import ModelBank
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import FlatModule, Vector

EVALUATION_BATCH = 256  # more would fall out of a CPU's cache
#: Backward over a whole batch costs two passes, forward and backward over a part of it three.
WORTH_KEEPING = 2 / 3


#: What SGD remembers of each parameter; nothing before the first step.
Velocity = list[Tensor | None]


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains."""

    epochs: int
    batch_size: int
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    decorr_beta: float = 0.0
    skip_below: float = 0.0


@dataclass(frozen=True)
class Deltas:
    """What local training changed; a cluster that was not trained is absent."""

    clusters: dict[int, Vector]
    body: Vector | None


@dataclass(frozen=True)
class FirstPass:
    """The E-step's forward pass over what becomes the first batch of training, to be reused there.

    Parameters
    ----------
    order : the samples in the order of the first epoch
    outputs : features and logits of every cluster on the first batch, with their graphs
    """

    order: NDArray[np.int64]
    outputs: list[tuple[Tensor, Tensor]]


@torch.no_grad()
def log_probabilities(bank: ModelBank, inputs: Tensor, clusters: int) -> Tensor:
    """Log of every cluster's predicted probabilities, (N, K, C), in float32."""
    bank.train_mode(False)
    parts = []
    with bank.precision():
        for batch in torch.split(inputs, EVALUATION_BATCH):
            outputs = bank.features_and_logits(batch, list(range(clusters)))
            parts.append(torch.stack([logits.float() for _, logits in outputs], dim=1))
    return functional.log_softmax(torch.cat(parts), dim=-1)


def score(
    bank: ModelBank,
    inputs: Tensor,
    clusters: int,
    settings: LocalSettings,
    rng: np.random.Generator,
) -> tuple[Tensor, FirstPass | None]:
    """``log_probabilities``, with the pass over the first batch kept for ``train``.

    Only where the network computes the same in training as in evaluation; else nothing is kept,
    and nothing is drawn.
    """
    if not bank.modeless:
        return log_probabilities(bank, inputs, clusters), None
    order = rng.permutation(len(inputs))
    first, rest = np.split(order, [settings.batch_size])
    with bank.precision():
        rows = torch.from_numpy(first).to(bank.device)
        outputs = list(bank.features_and_logits(inputs[rows], list(range(clusters))))
    logits = torch.stack([logits.detach().float() for _, logits in outputs], dim=1)
    scores = functional.log_softmax(logits, dim=-1)
    if len(rest):
        others = log_probabilities(bank, inputs[torch.from_numpy(rest).to(bank.device)], clusters)
        scores = torch.cat([scores, others])
    in_place = torch.empty_like(scores)
    in_place[torch.from_numpy(order).to(bank.device)] = scores
    return in_place, FirstPass(order, outputs)


def losses_of(log_probs: Tensor, labels: Tensor) -> Floats:
    """Cross entropy of every cluster on every sample, (N, K)."""
    index = labels.view(-1, 1, 1).expand(-1, log_probs.shape[1], 1)
    return -log_probs.gather(2, index).squeeze(2).double().cpu().numpy()


def mix(log_probs: Tensor, mixture_weights: Floats, hard: bool = False) -> Tensor:
    """Predicted probabilities, (N, C): the weighted mean of the clusters', or the likeliest's."""
    if hard:
        return log_probs[:, int(mixture_weights.argmax())].exp()
    weights = torch.from_numpy(mixture_weights).to(log_probs.device, log_probs.dtype)
    return torch.einsum("nkc,k->nc", log_probs.exp(), weights)


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Share of samples whose likeliest class is their label."""
    return float((probabilities.argmax(dim=1) == labels).double().mean())


def train(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    responsibilities: Floats,
    active: list[int],
    settings: LocalSettings,
    rng: np.random.Generator,
    first_pass: FirstPass | None = None,
) -> Deltas:
    """Local SGD of the active clusters on ``mean_j responsibilities[j, k] * f(x_j, y_j, theta_k)``.

    It starts from what the bank has loaded and returns the differences from that.

    All clusters see the same batches in the same order. With a shared body, the body takes the sum
    over clusters of their gradients. Momentum starts from zero: the parameters have just been
    replaced by the broadcast.

    Parameters
    ----------
    responsibilities : (N, K)
    active : positions of the clusters to train
    first_pass : what ``score`` kept of the same samples, where the bank's networks are unchanged
    """
    if not active:
        return Deltas({}, None)
    bank.train_mode(True)
    order = None if first_pass is None else first_pass.order
    batches = list(_batches(len(labels), settings, rng, bank.batch_norm, order))
    weights = torch.from_numpy(responsibilities).to(bank.device, torch.float32)
    kept = _kept(bank, responsibilities, settings)
    clusters: dict[int, Vector] = {}
    body = None
    # A cluster after the other, so that a CPU's cache holds one network at a time; those that share
    # a body go together.
    for group in [[k] for k in active] if bank.body is None else [active]:
        trained = [bank.units[k] for k in group] + ([] if bank.body is None else [bank.body])
        # A cluster's penalties are weighed by the client's part in it, like its loss: a client with
        # no part in a cluster must not pull at it.
        parts = [float(responsibilities[:, k].mean()) for k in group]
        parts += [] if bank.body is None else [1.0]
        velocities: list[Velocity] = [[None] * len(module.parameters) for module in trained]
        for number, batch in enumerate(batches):
            if bank.batch_norm:
                bank.batch_statistics(len(batch) > 1)
            for module in trained:
                module.clear_gradient()
            outputs = first_pass.outputs if first_pass is not None and number == 0 else None
            rows = torch.from_numpy(batch).to(bank.device)
            if kept is None:
                _backward_together(
                    bank, inputs[rows], labels[rows], weights[rows], group, settings, outputs
                )
            else:
                mask = kept[batch, group[0]]
                _backward_some(bank, inputs, labels, weights, rows, mask, group[0], settings,
                               outputs)  # fmt: skip
            for module, velocity, part in zip(trained, velocities, parts, strict=True):
                _sgd_step(module, velocity, part, settings)
        changed = [module.vector.cpu().numpy() - module.loaded for module in trained]
        if bank.body is not None:
            body = changed.pop()
        clusters |= zip(group, changed, strict=True)
    return Deltas(clusters, body)


def batch_gradients(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    settings: LocalSettings,
    rng: np.random.Generator,
) -> Iterator[Callable[[], Tensor]]:
    """For each batch, a function that computes the gradient of the first network where it stands.

    For algorithms with steps of their own; the loss is the batch's mean, with weight decay and
    FedDecorr where configured.
    """
    bank.train_mode(True)
    network = bank.units[0]
    for batch in _batches(len(labels), settings, rng, bank.batch_norm):
        rows = torch.from_numpy(batch).to(bank.device)
        batch_inputs, batch_labels = inputs[rows], labels[rows]
        everything = torch.ones(len(rows), device=bank.device)

        def gradient(
            inputs: Tensor = batch_inputs, labels: Tensor = batch_labels, ones: Tensor = everything
        ) -> Tensor:
            if bank.batch_norm:
                bank.batch_statistics(len(labels) > 1)
            network.clear_gradient()
            _backward(bank, inputs, labels, ones, 0, settings)
            at = network.gradient()
            return at.add_(network.trainable, alpha=settings.weight_decay)

        yield gradient


def _kept(
    bank: ModelBank, responsibilities: Floats, settings: LocalSettings
) -> NDArray[np.bool_] | None:
    """Which samples each cluster is trained on, (N, K); None for all of every batch.

    A pair of sample and cluster below the threshold adds next to nothing to the gradient, and once
    the clusters have formed most pairs are such. Where samples of a batch bear on each other
    (BatchNorm, FedDecorr) or go through one shared body anyway, none is left out.
    """
    together = bank.batch_norm or bank.body is not None or settings.decorr_beta > 0
    if together or settings.skip_below == 0:
        return None
    return responsibilities >= settings.skip_below


def _backward(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor,
    k: int,
    settings: LocalSettings,
) -> None:
    """Add the gradient of one cluster's objective to its module's."""
    with bank.precision():
        for features, logits in bank.features_and_logits(inputs, [k]):
            objective = _objective(features, logits, labels, weights, settings)
    torch.autograd.backward(objective)


def _backward_some(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor,
    rows: Tensor,
    mask: NDArray[np.bool_],
    k: int,
    settings: LocalSettings,
    outputs: list[tuple[Tensor, Tensor]] | None,
) -> None:
    """Add the gradient of one cluster's objective on the samples of a batch that ``mask`` keeps."""
    if outputs is not None and mask.mean() >= WORTH_KEEPING:
        share = weights[rows, k] * torch.from_numpy(mask).to(bank.device)
        torch.autograd.backward(_objective(*outputs[k], labels[rows], share, settings))
    elif mask.any():
        some = rows[torch.from_numpy(mask).to(bank.device)]
        share = weights[some, k] * (len(some) / len(mask))
        _backward(bank, inputs[some], labels[some], share, k, settings)


def _backward_together(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor,
    active: list[int],
    settings: LocalSettings,
    outputs: list[tuple[Tensor, Tensor]] | None,
) -> None:
    """Add the gradients of all active clusters; a shared body takes part in one pass for all.

    ``outputs`` are those of all clusters on this batch, where there has been a pass already.
    """
    if bank.body is None and outputs is None:
        for k in active:
            _backward(bank, inputs, labels, weights[:, k], k, settings)
        return
    with bank.precision():
        if outputs is None:
            passed = list(bank.features_and_logits(inputs, active))
        else:
            passed = [outputs[k] for k in active]
        terms = [
            _objective(features, logits, labels, weights[:, k], settings)
            for k, (features, logits) in zip(active, passed, strict=True)
        ]
    torch.autograd.backward(torch.stack(terms).sum())


def _batches(
    samples: int,
    settings: LocalSettings,
    rng: np.random.Generator,
    batch_norm: bool,
    first_order: NDArray[np.int64] | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Every sample once an epoch, in batches of the configured size; the last may be smaller.

    ``first_order`` is that of the first epoch, where it has been drawn already.

    BatchNorm has no variance of one sample. Where the network has it, a last batch of one joins the
    batch before. A batch of one that is left (a client with one sample, or batches of one) is
    trained on with the running statistics: see ``ModelBank.batch_statistics``.
    """
    ends = list(range(settings.batch_size, samples, settings.batch_size))
    if batch_norm and settings.batch_size > 1 and ends and ends[-1] == samples - 1:
        ends.pop()
    for epoch in range(settings.epochs):
        drawn = first_order if epoch == 0 else None
        yield from np.split(rng.permutation(samples) if drawn is None else drawn, ends)


def _objective(
    features: Tensor, logits: Tensor, labels: Tensor, weights: Tensor, settings: LocalSettings
) -> Tensor:
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    objective = (weights * losses).mean()
    if settings.decorr_beta > 0 and len(labels) > 1:
        objective = objective + settings.decorr_beta * weights.mean() * decorrelation(
            features.float()
        )
    return objective


def decorrelation(features: Tensor) -> Tensor:
    """FedDecorr: the mean square of ``z'z`` off its diagonal, over the number of samples.

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
def _sgd_step(module: FlatModule, velocity: Velocity, part: float, settings: LocalSettings) -> None:
    """One step of SGD; what was the gradient becomes the velocity where it lies."""
    start = module.start() if settings.prox_mu > 0 else []
    for number, parameter in enumerate(module.parameters):
        values, gradient, before = parameter.data, parameter.grad, velocity[number]
        if gradient is None:
            # No sample of this batch is the cluster's; it rolls on.
            gradient = torch.zeros_like(values)
        if settings.weight_decay > 0:
            gradient.add_(values, alpha=settings.weight_decay * part)
        if settings.prox_mu > 0:
            gradient.add_(values - start[number], alpha=settings.prox_mu * part)
        if before is not None:
            gradient.add_(before, alpha=settings.momentum)
        values.sub_(gradient, alpha=settings.learning_rate)
        velocity[number] = gradient if settings.momentum > 0 else None
