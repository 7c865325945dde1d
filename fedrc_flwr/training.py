"""Scoring samples, and responsibility-weighted local training."""

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
from fedrc_flwr.layout import Vector
from fedrc_flwr.sgd import (
    LocalSettings,
    Velocity,
    decay,
    first_batch,
    kept_samples,
    sgd_step,
    shuffled_batches,
    weighted_objective,
)

EVALUATION_BATCH = 256  # larger batches would not fit a CPU's cache
#: Backward over a whole batch costs two passes, forward and backward over a part of it three.
WORTH_KEEPING = 2 / 3


@dataclass(frozen=True)
class Deltas:
    """What local training changed; a cluster that was not trained is absent.

    ``logits``, (N, C), are those of every sample when it was first trained on, if they were asked
    for.
    """

    clusters: dict[int, Vector]
    body: Vector | None
    logits: Tensor | None = None


@dataclass(frozen=True)
class FirstPass:
    """The E-step's forward pass over the first batch of training, to be reused there.

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


@torch.no_grad()
def features(bank: ModelBank, inputs: Tensor) -> Floats:
    """The first cluster's penultimate features, (N, D), each sample's scaled to unit length."""
    bank.train_mode(False)
    parts = []
    with bank.precision():
        for batch in torch.split(inputs, EVALUATION_BATCH):
            values, _ = next(iter(bank.features_and_logits(batch, [0])))
            parts.append(functional.normalize(values.flatten(1).float(), dim=1))
    return torch.cat(parts).double().cpu().numpy()


def score(
    bank: ModelBank,
    inputs: Tensor,
    clusters: int,
    settings: LocalSettings,
    rng: np.random.Generator,
) -> tuple[Tensor, FirstPass | None]:
    """``log_probabilities``, with the pass over the first batch kept for ``train``.

    This is possible only if the network computes the same in training as in evaluation; otherwise
    nothing is kept, and no random number is drawn.
    """
    if not bank.modeless:
        return log_probabilities(bank, inputs, clusters), None
    order = rng.permutation(len(inputs))
    first, rest = first_batch(order, settings)
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
    keep_logits: bool = False,
) -> Deltas:
    """Local SGD of the active clusters on ``mean_j responsibilities[j, k] * f(x_j, y_j, theta_k)``.

    It starts from the values in the bank and returns the differences.

    All clusters see the same batches in the same order. With a shared body, the body takes the sum
    over clusters of their gradients. Momentum starts from zero: the parameters have just been
    replaced by the broadcast.

    Parameters
    ----------
    responsibilities : (N, K)
    active : positions of the clusters to train
    first_pass : what ``score`` kept for the same samples and networks
    keep_logits : whether to return the logits of the only cluster, which then trains on all samples
    """
    if not active:
        return Deltas({}, None)
    bank.train_mode(True)
    order = None if first_pass is None else first_pass.order
    batches = list(shuffled_batches(len(labels), settings, rng, bank.batch_norm, order))
    weights = torch.from_numpy(responsibilities).to(bank.device, torch.float32)
    kept = None if keep_logits else kept_samples(bank, responsibilities, settings)
    equal = kept is None and bool((responsibilities == 1.0).all())
    seen: list[Tensor] = []
    clusters: dict[int, Vector] = {}
    body = None
    # One cluster after another, so that a CPU's cache holds one network at a time; clusters that
    # share a body are trained together.
    for group in [[k] for k in active] if bank.body is None else [active]:
        trained = [bank.units[k] for k in group] + ([] if bank.body is None else [bank.body])
        # A cluster's penalties are weighted by the client's share in it, like its loss: a client
        # without a share in a cluster must not affect it.
        parts = [float(responsibilities[:, k].mean()) for k in group]
        parts += [] if bank.body is None else [1.0]
        velocities: list[Velocity] = [[] for _ in trained]
        for number, batch in enumerate(batches):
            if bank.batch_norm:
                bank.batch_statistics(len(batch) > 1)
            for module in trained:
                module.clear_gradient()
            outputs = first_pass.outputs if first_pass is not None and number == 0 else None
            rows = torch.from_numpy(batch).to(bank.device)
            if kept is None:
                own = None if equal else weights[rows]
                logits = _backward_together(
                    bank, inputs.index_select(0, rows), labels[rows], own, group, settings, outputs
                )
                if keep_logits and sum(map(len, seen)) < len(labels):  # the first epoch
                    seen.append(logits[0].detach())
            else:
                mask = kept[batch, group[0]]
                _backward_some(bank, inputs, labels, weights, rows, mask, group[0], settings,
                               outputs)  # fmt: skip
            for module, velocity, part in zip(trained, velocities, parts, strict=True):
                sgd_step(module, velocity, part, settings)
        changed = [module.vector.cpu().numpy() - module.loaded for module in trained]
        if bank.body is not None:
            body = changed.pop()
        clusters |= zip(group, changed, strict=True)
    return Deltas(clusters, body, _in_order(seen, batches) if keep_logits else None)


def _in_order(logits: list[Tensor], batches: list[NDArray[np.int64]]) -> Tensor:
    """The logits of an epoch's batches, as the samples are ordered."""
    order = torch.from_numpy(np.concatenate(batches[: len(logits)])).to(logits[0].device)
    first = torch.cat(logits).float()
    return torch.empty_like(first).index_copy_(0, order, first)


def batch_gradients(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    weights: Floats,
    settings: LocalSettings,
    rng: np.random.Generator,
) -> Iterator[Callable[[], Tensor]]:
    """For each batch, a function that computes the gradient at the first network's current values.

    This is for algorithms with their own steps. The loss is the mean over a batch of each sample's
    loss times its weight, with weight decay and FedDecorr if configured. ``weights`` : (N,)
    """
    counts = torch.from_numpy(weights).to(bank.device, torch.float32)
    bank.train_mode(True)
    network = bank.units[0]
    for batch in shuffled_batches(len(labels), settings, rng, bank.batch_norm):
        rows = torch.from_numpy(batch).to(bank.device)
        batch_inputs, batch_labels = inputs[rows], labels[rows]
        batch_weights = counts[rows]

        def gradient(
            inputs: Tensor = batch_inputs,
            labels: Tensor = batch_labels,
            weights: Tensor = batch_weights,
        ) -> Tensor:
            if bank.batch_norm:
                bank.batch_statistics(len(labels) > 1)
            network.clear_gradient()
            _backward(bank, inputs, labels, weights, 0, settings)
            return decay(network.gradient(), network.trainable, settings)

        yield gradient


def _backward(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    k: int,
    settings: LocalSettings,
) -> Tensor:
    """Add the gradient of one cluster's objective to its module's, and return the logits."""
    with bank.precision():
        for features, logits in bank.features_and_logits(inputs, [k]):
            objective = weighted_objective(features, logits, labels, weights, settings)
    torch.autograd.backward(objective)
    return logits


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
        torch.autograd.backward(weighted_objective(*outputs[k], labels[rows], share, settings))
    elif mask.any():
        some = rows[torch.from_numpy(mask).to(bank.device)]
        share = weights[some, k] * (len(some) / len(mask))
        _backward(bank, inputs[some], labels[some], share, k, settings)


def _backward_together(
    bank: ModelBank,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor | None,
    active: list[int],
    settings: LocalSettings,
    outputs: list[tuple[Tensor, Tensor]] | None,
) -> list[Tensor]:
    """Add the gradients of all active clusters, and return their logits.

    A shared body needs one pass for all. ``outputs`` are those of all clusters on this batch, if
    they were computed already. Without ``weights`` all samples have a weight of one everywhere.
    """
    own = {k: None if weights is None else weights[:, k] for k in active}
    if bank.body is None and outputs is None:
        return [_backward(bank, inputs, labels, own[k], k, settings) for k in active]
    with bank.precision():
        if outputs is None:
            passed = list(bank.features_and_logits(inputs, active))
        else:
            passed = [outputs[k] for k in active]
        terms = [
            weighted_objective(features, logits, labels, own[k], settings)
            for k, (features, logits) in zip(active, passed, strict=True)
        ]
    torch.autograd.backward(torch.stack(terms).sum())
    return [logits for _, logits in passed]
