"""The paper's formulas as plain loops over samples and clusters, to compare the library with.

Nothing here calls the library: scalars, lists, and torch's own modules and optimizers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Rows = list[list[float]]


def responsibilities(
    losses: Sequence[Sequence[float]],
    weights: Sequence[float],
    prior: Sequence[Sequence[float]] | None,
    labels: Sequence[int],
    exponent: float = 1.0,
) -> Rows:
    """Eq. "update gamma": w_k exp(-f_jk) / C_{y_j,k}, normalised over k."""
    result = []
    for j, y in enumerate(labels):
        row = []
        for k, weight in enumerate(weights):
            likelihood = math.exp(-losses[j][k])
            if prior is not None:
                likelihood /= prior[k][y]
            row.append((weight * likelihood) ** exponent)
        result.append([value / sum(row) for value in row])
    return result


def pooled_responsibilities(
    losses: Sequence[Sequence[float]],
    prior: Sequence[Sequence[float]] | None,
    labels: Sequence[int],
    exponent: float,
) -> Rows:
    """All samples as one: the product over j of (exp(-f_jk) / C_{y_j,k}) ** (exponent / N)."""
    row = []
    for k in range(len(losses[0])):
        product = 1.0
        for j, y in enumerate(labels):
            likelihood = math.exp(-losses[j][k]) / (1.0 if prior is None else prior[k][y])
            product *= likelihood ** (exponent / len(labels))
        row.append(product)
    return [[value / sum(row) for value in row] for _ in labels]


def column_means(rows: Sequence[Sequence[float]]) -> list[float]:
    """omega_k, the mean over samples of gamma_jk."""
    return [sum(row[k] for row in rows) / len(rows) for k in range(len(rows[0]))]


def label_counts(rows: Sequence[Sequence[float]], labels: Sequence[int], classes: int) -> Rows:
    """The sum over samples of 1{y_j = y} gamma_jk, (K, C)."""
    counts = [[0.0] * classes for _ in rows[0]]
    for row, y in zip(rows, labels, strict=True):
        for k, value in enumerate(row):
            counts[k][y] += value
    return counts


def label_prior(reports: Sequence[Sequence[Sequence[float]]], floor: float) -> Rows:
    """C_{y,k} from the counts of several clients, each (K, C)."""
    clusters, classes = len(reports[0]), len(reports[0][0])
    prior = []
    for k in range(clusters):
        mass = [max(sum(report[k][y] for report in reports), floor) for y in range(classes)]
        prior.append([value / sum(mass) for value in mass])
    return prior


@dataclass
class Adam:
    """FedRC-Adam of one client: gamma, nu and a of every sample and cluster."""

    gamma: Rows
    nu: Rows
    a: Rows
    alpha: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    @classmethod
    def start(cls, samples: int, clusters: int) -> Adam:
        zeros = [[0.0] * clusters for _ in range(samples)]
        return cls([[1.0 / clusters] * clusters for _ in range(samples)], zeros, zeros)

    def step(self, proposal: Rows) -> Adam:
        gamma, nu, a = [], [], []
        for j, row in enumerate(proposal):
            raw, nu_row, a_row = [], [], []
            for k, proposed in enumerate(row):
                g = self.gamma[j][k] - proposed
                nu_row.append((1 - self.beta1) * g + self.beta1 * self.nu[j][k])
                a_row.append((1 - self.beta2) * g**2 + self.beta2 * self.a[j][k])
                numerator = nu_row[k] / (1 - self.beta1)
                denominator = math.sqrt(a_row[k] / (1 - self.beta2)) + self.epsilon
                raw.append(max(self.gamma[j][k] - self.alpha * numerator / denominator, 0.0))
            gamma.append([value / sum(raw) for value in raw])
            nu.append(nu_row)
            a.append(a_row)
        return Adam(gamma, nu, a, self.alpha, self.beta1, self.beta2, self.epsilon)


def sample_losses(models: Sequence[nn.Module], inputs: Tensor, labels: Tensor) -> Rows:
    """Cross entropy, one sample and one model at a time, (N, K)."""
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        with torch.no_grad():
            rows.append([float(functional.cross_entropy(m(x[None]), y[None])) for m in models])
    return rows


def batches(samples: int, size: int, epochs: int, rng: np.random.Generator) -> list[Tensor]:
    """Each epoch a fresh permutation, cut into batches; the last one may be smaller."""
    result = []
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(samples))
        result += [order[first : first + size] for first in range(0, samples, size)]
    return result


def correlation_penalty(features: Tensor) -> Tensor:
    """FedDecorr's mean square of z'z off its diagonal, over n, one pair of features at a time."""
    samples, size = features.shape
    deviations = features - features.mean(dim=0)
    spreads = [((deviations[:, p] ** 2).sum() / (samples - 1) + 1e-8) ** 0.5 for p in range(size)]
    total = torch.zeros((), dtype=features.dtype)
    for p in range(size):
        for q in range(size):
            if p != q:
                product = (deviations[:, p] * deviations[:, q]).sum()
                total = total + (product / (spreads[p] * spreads[q])) ** 2
    return total / (size * (size - 1)) / samples


def local_sgd(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    weights: Tensor,
    steps: Sequence[Tensor],
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    prox_mu: float = 0.0,
    decorr_beta: float = 0.0,
) -> nn.Module:
    """A copy of ``model`` after torch's SGD on mean_j weights_j f(x_j, y_j) over the batches.

    The penalties count by the mean weight: of all samples for the weight decay and for FedProx's
    mu/2 |theta - theta_start|^2, of the batch for the features' correlations.
    """
    trained = copy.deepcopy(model).train()
    start = [p.detach().clone() for p in trained.parameters()]
    optimizer = torch.optim.SGD(
        trained.parameters(),
        lr=learning_rate,
        momentum=momentum,
        weight_decay=weight_decay * float(weights.mean()),
    )
    for rows in steps:
        features = trained.body(inputs[rows])
        losses = functional.cross_entropy(trained.head(features), labels[rows], reduction="none")
        objective = (weights[rows] * losses).mean()
        if decorr_beta > 0 and len(rows) > 1:
            penalty = correlation_penalty(features)
            objective = objective + decorr_beta * weights[rows].mean() * penalty
        for parameter, old in zip(trained.parameters(), start, strict=True):
            pull = ((parameter - old) ** 2).sum()
            objective = objective + 0.5 * prox_mu * float(weights.mean()) * pull
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
    return trained


def flatten(model: nn.Module) -> np.ndarray:
    """All parameters of a module in one vector."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
