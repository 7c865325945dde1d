"""The evidence written out as loops: what the fast code must agree with."""

from __future__ import annotations

import math

import numpy as np


def ratio(first, second, noise, distances):
    """The likelihood ratio of two points."""
    distance = math.sqrt(max(math.dist(first, second) ** 2, 1e-6))
    relative = math.log(distance / math.sqrt(distances.directions * (distances.spread + noise)))
    near = max(relative - distances.same_mean, 0.0) / distances.same_scale
    far = min(math.log(distance) - distances.different_mean, 0.0) / distances.different_scale
    same = 3 / 8 * (1 + near**2 / 4) ** -2.5 / distances.same_scale
    log_different = -(far**2) / 2 - math.log(math.sqrt(2 * math.pi) * distances.different_scale)
    log_ratio = math.log(same) - log_different
    return 0.1 + 0.9 * math.exp(min(max(log_ratio, -30.0), 30.0))


def against(mine, theirs, classes, distances, error, agreement):
    """The evidence of ``mine`` against ``theirs``, both {label: (point, sampling variance)}.

    Different concepts agree on the share ``agreement`` of the labels.
    """
    if not theirs:
        return 0.0
    total = 0.0
    for label, (point, noise) in mine.items():
        ratios = {x: ratio(point, p, noise + v, distances) for x, (p, v) in theirs.items()}
        average = (sum(ratios.values()) + classes - len(theirs)) / classes
        wrong = error(noise)
        quotient = (1 - wrong) * ratios.get(label, 1.0) / average + wrong
        total += math.log(quotient) - math.log(agreement * quotient + 1 - agreement)
    return total


def of_client(noise):
    """The probability that a client's mean is wrong."""
    return min(max(0.05, 0.3 * noise), 1.0)


def labels_of(means, client):
    """A client's means as a dictionary."""
    return {
        label: (means.points[client, label], 1.0 / means.counts[client, label])
        for label in range(means.counts.shape[1])
        if means.counts[client, label] > 0
    }


def prototypes(means, clients, distances):
    """The means of several clients, weighted by their precision."""
    found = {}
    for label in range(means.counts.shape[1]):
        weights, points = [], []
        for client in clients:
            if means.counts[client, label] > 0:
                weights.append(1.0 / (distances.spread + 1.0 / means.counts[client, label]))
                points.append(means.points[client, label])
        if weights:
            found[label] = (np.average(points, axis=0, weights=weights), 1.0 / sum(weights))
    return found


def between_clients(means, distances, agreement):
    """The evidence between all clients, (n, n)."""
    count, classes = means.counts.shape
    found = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            if i != j:
                for a, b in ((i, j), (j, i)):
                    mine, theirs = labels_of(means, a), labels_of(means, b)
                    evidence = against(mine, theirs, classes, distances, of_client, agreement)
                    found[i, j] += evidence / 2
    return found


def between_groups(means, groups, distances, agreement):
    """The evidence between all groups, (K, K)."""
    count, classes = max(groups) + 1, means.counts.shape[1]
    members = [[i for i, k in enumerate(groups) if k == group] for group in range(count)]
    all_prototypes = [prototypes(means, clients, distances) for clients in members]
    found = np.zeros((count, count))
    for a in range(count):
        for b in range(count):
            if a != b:
                for c, d in ((a, b), (b, a)):
                    wrong = max(0.02, 0.05 / len(members[c]))
                    found[a, b] += 0.5 * against(
                        all_prototypes[c], all_prototypes[d], classes, distances,
                        lambda _, wrong=wrong: wrong, agreement,
                    )  # fmt: skip
    return found


def for_group(means, member, distances, agreement):
    """The evidence of each client for a group without itself, (n,)."""
    count, classes = means.counts.shape
    found = []
    for i in range(count):
        others = [j for j in range(count) if member[j] and j != i]
        theirs = prototypes(means, others, distances)
        mine = labels_of(means, i)
        found.append(against(mine, theirs, classes, distances, of_client, agreement))
    return np.array(found)
