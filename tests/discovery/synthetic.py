"""Federations with known concepts: contents as normal clouds, labels as each concept names them."""

from __future__ import annotations

import numpy as np

from fedrc_flwr.discovery.fingerprint import take


def federation(concepts, held, samples=20, features=6, distance=6.0, seed=0):
    """Fingerprints (n, C, 1 + D) and the pooled scatter (D, D).

    Parameters
    ----------
    concepts : for each client a list of C contents: what its labels stand for
    held : for each client the labels that it holds
    """
    random = np.random.default_rng(seed)
    classes = len(concepts[0])
    contents = distance * random.normal(size=(classes, features))
    taken = []
    for contents_of, labels in zip(concepts, held, strict=True):
        y = np.repeat(np.array(labels, dtype=np.int64), samples)
        noise = random.normal(size=(len(y), features))
        taken.append(take(contents[np.array(contents_of)[y]] + noise, y, classes))
    return np.stack([f for f, _ in taken]), np.sum([s for _, s in taken], axis=0)


def shifted(classes, by):
    """The concept that names every content ``by`` further on."""
    return [(label + by) % classes for label in range(classes)]
