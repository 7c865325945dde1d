"""Which updates are too long to be used as they are, by the median length in their cluster.

Replies are added up as they arrive and are then dropped, so the round's median is known only when
they are gone. Updates up to a multiple of the last round's median are added at once, and somewhat
longer ones once they are scaled down to it. Those that are much longer go into separate sums, one
for each level of length. When all replies are there, each level is added, added scaled down, or
dropped. Memory is that of a few more models, however many clients there are.

Half of a cluster's members would have to send false updates to move its median beyond the lengths
that honest members send.

One or two members are too few to tell whose length is usual. Where one of two was away for long,
the other's model has settled without it, and an honest update is many times as long. It is scaled
down to what is accepted anyway, and only what no training gives is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedrc_flwr.combining import BODY

#: Updates beyond so many times the multiple that is accepted are refused.
REFUSED = 4.0
#: Levels of length from there on: each is twice as long as the one before, the last one open.
LEVELS = 8
#: A level is scaled down to so many times the multiple: it holds short updates, too.
LEVEL_MULTIPLE = 2.0
#: In a cluster's first round there is nothing to compare with: levels by length alone.
FIRST_BASE, FIRST = 4.0, 1000
#: With fewer members than this, their median may be that of attackers alone; it may then not be
#: more than ``GROWTH`` times that of the round before or, in the first round, of all clusters.
FEW, GROWTH = 3, 4.0
#: A cluster's median counts as at least this share of the one before. Once a cluster has learnt,
#: most updates become short, and an honest member whose samples are harder is no attacker.
SHRINKAGE = 0.95


@dataclass(frozen=True)
class Verdict:
    """What is done with a round's updates.

    Parameters
    ----------
    refused : clients whose updates are far too long, and why
    clipped : clients whose updates are scaled down, with how many times the median they were long
    factors : by level, what its updates are multiplied with; 0: they are dropped
    usual : the median length of each cluster's updates, see ``SHRINKAGE`` and ``GROWTH``
    """

    refused: dict[str, str]
    clipped: dict[str, float]
    factors: dict[int, float]
    usual: dict[int, float]


@dataclass
class Screening:
    """The lengths of a round's updates.

    Parameters
    ----------
    usual : each cluster's median length in the round before, if it had one
    multiple : of the median, up to which updates are used as they are
    """

    usual: Mapping[int, float]
    multiple: float
    _lengths: dict[str, dict[int, float]] = field(default_factory=dict)
    _homes: dict[str, int | None] = field(default_factory=dict)
    _levels: dict[int, list[str]] = field(default_factory=dict)

    def take(
        self, name: str, lengths: dict[int, float], home: int | None
    ) -> tuple[int, dict[int, float]]:
        """Note a client's updates by cluster.

        Parameters
        ----------
        home : the cluster that the client is a member of

        Returns
        -------
        The level of the sums to add them to, and by cluster what to multiply them with first.
        """
        self._lengths[name] = lengths
        self._homes[name] = home
        level, factors = self._placed(lengths)
        self._levels.setdefault(level, []).append(name)
        return level, factors

    def _placed(self, lengths: dict[int, float]) -> tuple[int, dict[int, float]]:
        longest = max(lengths.values(), default=0.0)
        if longest == 0.0 or math.isinf(self.multiple):
            return 0, {}
        if not self.usual:
            return FIRST + math.ceil(math.log(longest, FIRST_BASE)), {}
        # A cluster that is new has the lengths of the others.
        otherwise = _lower_median(list(self.usual.values()))
        ratios = {c: n / self.usual.get(c, otherwise) for c, n in lengths.items()}
        excess = max(ratios.values()) / (REFUSED * self.multiple)
        if excess > 1.0:
            return min(1 + math.floor(math.log2(excess)), LEVELS), {}
        return 0, {c: self.multiple / r for c, r in ratios.items() if r > self.multiple}

    def verdict(self) -> Verdict:
        """What to do with each level, now that all replies have arrived."""
        usual = self._medians()
        ratios = {
            name: max((n / usual[c] for c, n in lengths.items() if c in usual), default=0.0)
            for name, lengths in self._lengths.items()
        }
        refused: dict[str, str] = {}
        clipped: dict[str, float] = {}
        factors: dict[int, float] = {}
        for level, names in self._levels.items():
            factors[level] = 1.0
            clipped |= {name: ratios[name] for name in names if ratios[name] > self.multiple}
            if level == 0:
                continue
            longest = max(ratios[name] for name in names)
            too_long = [name for name in names if ratios[name] > REFUSED * self.multiple]
            spared = [n for n in too_long if level < LEVELS and self._among_few(n, usual)]
            far = [name for name in too_long if name not in spared]
            for name in far:
                refused[name] = self._reason(name, ratios[name], usual)
                del clipped[name]
            if len(far) == len(names):
                factors[level] = 0.0
            elif longest > LEVEL_MULTIPLE * self.multiple:
                # Whatever else is on the level is scaled down with the longest update on it.
                factors[level] = (1.0 if spared else LEVEL_MULTIPLE) * self.multiple / longest
        return Verdict(refused, clipped, factors, usual)

    def _among_few(self, name: str, usual: Mapping[int, float]) -> bool:
        """Whether the median by which a client's update is too long is that of one or two."""
        return len(self._compared(self._worst(name, usual))) < FEW

    def _compared(self, cluster: int) -> list[float]:
        """The lengths whose median counts: of a cluster's members, or of everybody's updates."""
        sent = {n: v[cluster] for n, v in self._lengths.items() if v.get(cluster)}
        members = [v for n, v in sent.items() if cluster in (self._homes[n], BODY)]
        return members or list(sent.values())

    def _worst(self, name: str, usual: Mapping[int, float]) -> int:
        """The cluster of which a client's update is longest, measured by its median."""
        lengths = self._lengths[name]
        return max((c for c in lengths if c in usual), key=lambda c: lengths[c] / usual[c])

    def _reason(self, name: str, ratio: float, usual: Mapping[int, float]) -> str:
        lengths, worst = self._lengths[name], self._worst(name, usual)
        where = "the shared body" if worst == BODY else f"cluster {worst}"
        return (
            f"its update of {where} has a norm of {lengths[worst]:.3g}, {ratio:.3g} times the "
            f"median of {usual[worst]:.3g} (server.max-norm = {self.multiple:g} allows "
            f"{REFUSED * self.multiple:g})"
        )

    def _medians(self) -> dict[int, float]:
        """The median length by cluster: of its members, or of everybody if it has none."""
        homes = [v[h] for n, v in self._lengths.items() if (h := self._homes[n]) in v and v[h]]
        everywhere = _lower_median(homes) if homes else math.inf
        found = {}
        for cluster in sorted({c for lengths in self._lengths.values() for c in lengths}):
            given = self._compared(cluster)
            if not given:
                continue
            before = self.usual.get(cluster)
            least = 0.0 if before is None else SHRINKAGE * before
            most = GROWTH * (everywhere if before is None else before)
            median = max(_lower_median(given), least)
            found[cluster] = median if len(given) >= FEW else min(median, most)
        return found


def _lower_median(values: list[float]) -> float:
    """The median; of an even number of values the lower of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]
