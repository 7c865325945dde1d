"""Whose updates point against those of the others.

An update that is turned round is as long as an honest one. Its direction alone does not give it
away either: clients with few labels pull a model towards these, away from what clients with other
labels want. But how two honest updates point to each other follows from their labels:

    cosine(i, j) = a + b * similarity(i, j)

where the similarity is the cosine between the two clients' label shares, each less the mean share.
a and b are fitted in every round among the members of a cluster, together with a sign for each
client that says whether its update is turned round: then its cosines are the opposite. Most clients
are taken to be honest. A client's score is how much of what its labels let expect is in its cosines
with these, from 1 to -1 for the opposite. A client is opposed if the average of its scores over
rounds is far below zero.

Clients with different concepts oppose each other once a model has learnt something. So scores are
taken in the first round, where all start from random values, and later where the members of a
cluster are known to have the same concept.

Updates are added up as they arrive and are then dropped, so sketches of them are compared: random
sums of their numbers, whose cosines are those of the updates to within 1 / sqrt(WIDTH). Whoever
knew the signs could send an update whose sketch points elsewhere, so they are drawn from a seed
that a deployment keeps to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.combining import BODY
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientRecord, ServerState

#: Numbers of a sketch.
WIDTH = 2048
#: Fewer members than this are not compared.
FEWEST = 5
#: Most passes of the search for the signs, and the least gain by one that counts.
PASSES, LEAST_GAIN = 20, 1e-12
#: Signs are believed if they leave at most this share of the variance without them.
EXPLAINED = 0.8
#: How much of what is expected a score must explain beyond chance: so many times the variance of
#: what the labels leave unexplained.
UNEXPLAINED = 4.0
#: A score counts as half of one if a client was compared with so many others.
HALF = 10.0
#: How many scores the average is made of at most, and how much a score of zero counts before the
#: first.
MEMORY, NEUTRAL = 5.0, 0.25
#: Numbers that are multiplied with their signs at once; a multiple of ``WIDTH``.
PIECE = 1 << 18


@dataclass(frozen=True)
class Sent:
    """What is kept of one client's reply.

    Parameters
    ----------
    cluster : whose update is compared: the client's longest
    sketch : (WIDTH,), of that update and of the shared body's
    shares : (C,), of each label in its samples; None if they cannot be known
    """

    cluster: int
    sketch: Floats
    shares: Floats | None


@dataclass
class Directions:
    """The directions of a round's updates.

    Parameters
    ----------
    seed : of the signs; the same for all replies of a round
    most : how far a client may be opposed
    compares : whether anything is compared in this round
    """

    seed: int
    most: float
    compares: bool = True
    _sent: dict[str, Sent] = field(default_factory=dict)

    def take(self, name: str, reply: Reply, state: ServerState) -> str | None:
        """Note one client's reply; returns why its updates are not used, if they are not."""
        updates = reply.by_cluster(state.clusters)
        with np.errstate(over="ignore"):
            own = {c: float(np.dot(u, u)) for c, u in updates.items() if c != BODY}
        if self.compares and any(own.values()):
            home = max(own, key=lambda cluster: own[cluster])
            parts = [(home, updates[home]), *((c, u) for c, u in updates.items() if c == BODY)]
            sketch = np.sum([self._sketch(u, int(c == BODY)) for c, u in parts], axis=0)
            labels = np.maximum(reply.label_counts.sum(axis=0), 0.0)
            known = reply.noise == 0 and labels.sum() > 0
            self._sent[name] = Sent(home, sketch, labels / labels.sum() if known else None)
        record = state.clients[name]
        return self._reason(record) if record.opposed > self.most else None

    def _sketch(self, update: Vector, part: int) -> Floats:
        """Random sums of an update's numbers, (WIDTH,)."""
        signs = np.random.default_rng([self.seed, part])
        sketch = np.zeros(WIDTH)
        for start in range(0, len(update), PIECE):
            piece = update[start : start + PIECE]
            bits = np.unpackbits(signs.integers(0, 256, PIECE // 8, dtype=np.uint8))[: len(piece)]
            signed = np.zeros(-(-len(piece) // WIDTH) * WIDTH, dtype=np.float32)
            np.multiply(piece, bits.astype(np.float32) * 2 - 1, out=signed[: len(piece)])
            sketch += signed.reshape(-1, WIDTH).sum(axis=0, dtype=np.float64)
        return sketch

    def scores(self, doubted: Iterable[str]) -> dict[str, tuple[float, float]]:
        """By client, its score and how much that counts.

        Parameters
        ----------
        doubted : clients with which nobody is compared
        """
        doubted = set(doubted)
        found: dict[str, tuple[float, float]] = {}
        for cluster in sorted({sent.cluster for sent in self._sent.values()}):
            names = sorted(n for n, sent in self._sent.items() if sent.cluster == cluster)
            trusted = np.array([name not in doubted for name in names])
            if trusted.sum() < FEWEST:
                continue
            sketches = np.stack([self._sent[name].sketch for name in names])
            shares = [self._sent[name].shares for name in names]
            scored = score(_cosines(sketches), similarities(shares), trusted)
            others = trusted.sum() - 1.0
            weight = others / (others + HALF)
            found |= {n: (float(s), weight) for n, s in zip(names, scored, strict=True)}
        return found

    def judged(
        self, clients: Mapping[str, ClientRecord]
    ) -> tuple[dict[str, ClientRecord], dict[str, str]]:
        """The records after the round's scores, and who of those compared is opposed, and why.

        Good scores are not saved up: an average above zero counts as zero.
        """
        doubted = [name for name in self._sent if clients[name].opposed > self.most]
        judged, opposed = dict(clients), {}
        for name, (scored, weight) in self.scores(doubted).items():
            record = clients[name]
            change = weight / (record.compared + weight + NEUTRAL) * (-scored - record.opposed)
            judged[name] = replace(
                record,
                opposed=max(record.opposed + change, 0.0),
                compared=min(record.compared + weight, MEMORY),
            )
            if judged[name].opposed > self.most:
                opposed[name] = self._reason(judged[name])
        return judged, opposed

    def _reason(self, record: ClientRecord) -> str:
        return (
            "its updates point against those of clients with labels like its own (by "
            f"{record.opposed:.2f}, where 1 is the opposite; server.max-opposition = {self.most:g})"
        )


def similarities(shares: list[Floats | None]) -> Floats:
    """How alike the clients' labels are, (n, n), from -1 to 1.

    It is 0 for a client whose shares cannot be known.
    """
    known = [each for each in shares if each is not None]
    if not known:
        return np.zeros((len(shares), len(shares)))
    usual = np.mean(known, axis=0)
    return _cosines(np.stack([np.zeros(len(usual)) if s is None else s - usual for s in shares]))


def score(cosines: Floats, similar: Floats, trusted: NDArray[np.bool_]) -> Floats:
    """How much of what its labels let expect is in each client's cosines, (n,), from -1 to 1.

    Parameters
    ----------
    cosines : (n, n), between the clients' updates
    similar : (n, n), see ``similarities``
    trusted : (n,), the clients that the others are compared with, unless they turn out to be
        turned round themselves
    """
    everybody = np.ones(len(trusted))
    # Of all clients: those with another sign may well have a concept of their own.
    chance = UNEXPLAINED * _expected(cosines, similar, everybody, trusted)[1]
    right = trusted & (signs(cosines, similar, trusted) > 0)
    expected = _expected(cosines, similar, everybody, right)[0]
    wanted = np.where(right[None, :] & ~np.eye(len(right), dtype=bool), expected, 0.0)
    size = np.square(wanted).sum(axis=1) + chance
    found = (wanted * cosines).sum(axis=1) / np.where(size > 0, size, 1.0)
    return np.asarray(np.clip(found, -1.0, 1.0), dtype=np.float64)


def signs(cosines: Floats, similar: Floats, trusted: NDArray[np.bool_]) -> Floats:
    """1 for each client whose update is right, -1 for one that is turned round, (n,).

    They are those with which ``sign(i) * sign(j) * cosine(i, j)`` is closest to what is expected,
    as far as a search finds them that starts from all right and from the principal axis of the
    agreement. Most of the trusted clients are right, and all of them unless that explains much.
    """
    everybody = np.ones(len(trusted))
    axis = np.linalg.eigh(_agreement(cosines, similar, everybody, trusted))[1][:, -1]

    def misfit(turned: Floats) -> float:
        return _expected(cosines, similar, turned, trusted)[1]

    starts = (everybody, np.where(axis < 0, -1.0, 1.0))
    best = min((_search(cosines, similar, start, trusted) for start in starts), key=misfit)
    if misfit(best) > EXPLAINED * misfit(everybody):
        return everybody
    return best if best[trusted].sum() >= 0 else -best


def _search(cosines: Floats, similar: Floats, start: Floats, trusted: NDArray[np.bool_]) -> Floats:
    """Turn one client at a time round, as long as that brings the cosines closer."""
    found = start.copy()
    for _ in range(PASSES):
        before, agreement = found.copy(), _agreement(cosines, similar, found, trusted)
        support = agreement @ found
        for _ in range(2 * len(found)):
            worst = int((found * support).argmin())
            if found[worst] * support[worst] >= -LEAST_GAIN:
                break
            found[worst] *= -1.0
            support += 2.0 * found[worst] * agreement[:, worst]
        if (found == before).all():
            break
    return found


def _agreement(
    cosines: Floats, similar: Floats, turned: Floats, trusted: NDArray[np.bool_]
) -> Floats:
    """How much the cosines of the trusted clients are those expected, pair by pair, (n, n)."""
    pairs = np.outer(trusted, trusted) & ~np.eye(len(trusted), dtype=bool)
    expected = _expected(cosines, similar, turned, trusted)[0]
    return np.where(pairs, cosines * expected, 0.0)


def _expected(
    cosines: Floats, similar: Floats, turned: Floats, trusted: NDArray[np.bool_]
) -> tuple[Floats, float]:
    """The cosines that the similarities let expect, (n, n), and the variance around them.

    They are fitted to the trusted clients, with the signs in ``turned``. Neither coefficient is
    negative: updates that oppose each other by nature say nothing.
    """
    pairs = np.triu(np.outer(trusted, trusted), 1)
    seen, alike = (np.outer(turned, turned) * cosines)[pairs], similar[pairs]
    apart = alike - alike.mean()
    spread = float(apart @ apart)
    slope = float(apart @ seen) / spread if spread > 0 else 0.0
    start = max(float(seen.mean()) - slope * float(alike.mean()), 0.0)
    slope = max(slope, 0.0)
    expected = start + slope * similar
    return expected, float(np.square(seen - expected[pairs]).mean())


def _cosines(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1)
    unit = vectors / np.where(lengths > 0, lengths, 1.0)[:, None]
    return np.asarray(unit @ unit.T, dtype=np.float64)
