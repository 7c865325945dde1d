"""Attacks, as a part of a scenario: what some training clients send instead of the truth.

They are for simulations, to see what a federation withstands. A deployment refuses them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np

from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.data.scenario import ClientData
from fedrc_flwr.em import Floats
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.layout import Vector
from fedrc_flwr.settings import key

KINDS = ("none", "sign-flip", "scale", "huge", "gaussian", "collude", "label-flip", "counts")
#: What ``scale`` multiplies an update with, and every number of a ``huge`` one.
SCALE, HUGE = -10.0, 1e30
#: How many times as long as its honest update a colluding client's is: short enough to be used.
COLLUDING = 2.0


@dataclass(frozen=True)
class AttackSettings:
    """What some training clients of a simulation do to the others."""

    kind: str = key(
        "none",
        "What attackers do. Updates: `sign-flip`, turned round; `scale`, turned round and ten "
        "times as long; `huge`, 1e30 everywhere; `gaussian`, random and as long as an honest one; "
        "`collude`, random, twice as long and the same for all attackers. `label-flip`: wrong "
        "labels, always the same for a class. `counts`: all samples claimed to have label 0. A "
        "deployment refuses them.",
        choices=KINDS,
    )
    share: float = key(
        0.2, "Share of the training clients that attack, drawn by the seed.", above=0.0, high=0.9
    )

    def attackers(self, clients: int, seed: int) -> set[int]:
        """Which training clients attack, by number."""
        if self.kind == "none":
            return set()
        rng = np.random.default_rng([seed, 0xA77A])
        return {int(i) for i in rng.choice(clients, round(self.share * clients), replace=False)}

    def refuse_in_deployment(self) -> None:
        """Raise if anybody would attack."""
        if self.kind != "none":
            raise ConfigError(f"attack.kind = {self.kind!r}: for simulations only; leave it out")

    def changed_data(self, data: ClientData) -> ClientData:
        """What an attacker trains on; what it is judged by stays true."""
        if self.kind != "label-flip":
            return data
        # Not in reverse order: that is a concept of the ready-made scenarios.
        labels = (data.fit.labels + data.classes // 2) % data.classes
        return replace(data, fit=replace(data.fit, labels=labels))

    def changed_reply(self, reply: Reply, seeds: tuple[int, int], name: str) -> Reply:
        """What an attacker sends in place of an honest reply.

        Parameters
        ----------
        seeds : the run's seed and the round
        """
        if self.kind == "label-flip":
            return reply
        if self.kind == "counts":
            return _with_one_label(reply)
        own = 0 if self.kind == "collude" else zlib.crc32(name.encode())
        deltas = {
            position: self._changed_update(update, (*seeds, position + 1, own))
            for position, update in reply.deltas.items()
        }
        return replace(reply, deltas=deltas)

    def _changed_update(self, update: Vector, seeds: tuple[int, ...]) -> Vector:
        if self.kind == "sign-flip":
            return -update
        if self.kind == "scale":
            return np.float32(SCALE) * update
        if self.kind == "huge":
            return np.full_like(update, HUGE)
        direction = np.random.default_rng([*seeds, 0xA77A]).normal(size=len(update))
        times = COLLUDING if self.kind == "collude" else 1.0
        length = times * np.linalg.norm(update) / np.linalg.norm(direction)
        return (direction * length).astype(np.float32)


def _with_one_label(reply: Reply) -> Reply:
    """The reply of a client that claims label 0 for all its samples: nothing that is impossible."""
    measured = reply.fingerprint
    return replace(
        reply,
        label_counts=_in_first_column(reply.label_counts),
        fingerprint=None if measured is None else _in_first_label(measured),
    )


def _in_first_label(fingerprint: Floats) -> Floats:
    moved = np.zeros_like(fingerprint)
    moved[0, 0] = fingerprint.sum(axis=(0, 1))
    return moved


def _in_first_column(table: Floats) -> Floats:
    moved = np.zeros_like(table)
    moved[:, 0] = table.sum(axis=1)
    return moved
