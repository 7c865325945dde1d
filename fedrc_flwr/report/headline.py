"""The result of a run in a few sentences that claim only what is established.

The terminal, the summary and the page all show these sentences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.discovery.mixture import LEAST_SHARE
from fedrc_flwr.metrics import SURE
from fedrc_flwr.report.history import History
from fedrc_flwr.report.population import Client, Population
from fedrc_flwr.words import counted

#: A client belongs to its likeliest cluster if the weight is at least this far from 1/K towards 1.
BELONGS = 0.5
#: Share of the clients that may belong nowhere in a federation that has settled.
STRAY = 1 / 3
#: Mean movement of the weights in a round (total variation) above which they have not settled.
MOVES = 0.05
#: Clusters whose models are right equally often, to within this, mean the same.
ALIKE = 0.05
#: Share of the samples below which a label hardly affects the loss by which clusters separate.
RARE = 0.05
#: Accuracy of a constant answer above which class weights are suggested.
LOPSIDED = 0.8
#: Certainty below which the least certain client is named.
UNSURE = 0.9
#: How often the loss of the first round makes a run diverged.
DIVERGED = 2.0
LISTED_CLUSTERS, LISTED_NAMES = 6, 6
#: What the page shows as a banner.
WARNINGS = ("diverged", "undecided", "not-learning")


@dataclass(frozen=True)
class Headline:
    """Sentences by kind, in the order of reading.

    The kinds in ``WARNINGS`` say that something is not established.
    """

    sentences: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(sentence for _, sentence in self.sentences)

    @property
    def kinds(self) -> list[str]:
        """What kinds of sentences there are."""
        return [kind for kind, _ in self.sentences]


def headline(
    config: dict[str, Any], told: History, people: Population, status: str = "", reason: str = ""
) -> Headline:
    """What a run has established so far.

    Parameters
    ----------
    status, reason : how it ended, and why, if it has
    """
    if diverged := _diverged(told, status, reason):
        return Headline((("diverged", diverged),))
    if not told.last_round:
        return Headline((("waiting", "No round has finished yet."),))
    name = str(config.get("algorithm") or "The run")
    title = ALGORITHMS[name].title if name in ALGORITHMS else name
    rounds = counted(told.last_round, "round")
    if not people.clusters:
        text = f"{title} finished {rounds}; there is no checkpoint to read its clusters from."
        return Headline((("progress", text),))
    learning = _learning(told, config.get("local.class-weights") != "balanced")
    adapts = bool(config.get(f"{name}.adaptive") or config.get(f"{name}.merge"))
    adapts = adapts or config.get(f"{name}.start") == "discover"
    if len(people.clusters) == 1 and not adapts:
        each = name in ALGORITHMS and ALGORITHMS[name].is_personal
        what = "a model for each of" if each else "one model for"
        text = f"{title} trained {what} {counted(people.training, 'client')} in {rounds}."
        return Headline((("model", text), *learning))
    groups = _Groups(told, people)
    now = f"{title} has {counted(len(people.clusters), 'cluster')} for "
    now += f"{counted(people.training, 'client')} after {rounds}."
    discovers = config.get(f"{name}.start") == "discover"
    if doubts := [*(_unfound(config, name, told) if discovers else []), *groups.doubts()]:
        text = f"Undecided: {'; '.join(doubts)}."
        return Headline((("undecided", text), *learning, ("progress", now)))
    if learning[0][0] == "not-learning":
        return Headline((*learning, ("progress", now)))
    if len(groups.concepts) == 1:
        text = (
            f"One meaning: nothing separates the labels of {counted(people.training, 'client')} "
            f"after {rounds}."
        )
        return Headline((("one-meaning", text + _hidden(people)), *learning))
    kind, start = ("concepts", "found") if adapts else ("clusters", "trained")
    return Headline(((kind, groups.membership(f"{title} {start}", rounds, adapts)), *learning))


def _unfound(config: dict[str, Any], name: str, told: History) -> list[str]:
    """Why a run that begins with discovery has not found concepts yet, if it has not."""
    found = told.discovery
    if found.established is None:
        after = config.get(f"{name}.discover-after")
        return [f"the concepts are looked for from round {after} on"]
    if not found.established:
        return [found.said[-1][1].removeprefix("undecided: ")]
    return []


def _diverged(told: History, status: str, reason: str) -> str:
    """Whether training went wrong, as a sentence."""
    advice = "lower local.learning-rate"
    if status == "failed" and ("diverged" in reason or "no longer finite" in reason):
        return f"Diverged after {counted(told.last_round, 'round')}: {advice}."
    losses = next((s.points for s in told.loss if s.name == "while training"), [])
    if len(losses) > 1 and losses[-1][1] > DIVERGED * losses[0][1]:
        return (
            f"Diverged: the training loss is {losses[-1][1]:.3g} after round {losses[-1][0]} and "
            f"was {losses[0][1]:.3g} in round {losses[0][0]}; {advice}."
        )
    return ""


def _hidden(people: Population) -> str:
    """Which disagreements are too small to separate clusters, as a sentence."""
    held = {label: sum(row) for label, row in zip(people.classes.rows, people.classes.values,
                                                  strict=True)}  # fmt: skip
    total = sum(held.values())
    rare = [label for label, samples in held.items() if 0 < samples < RARE * total]
    if not rare:
        return ""
    if len(rare) == 1:
        what = f"label {rare[0]} alone ({held[rare[0]] / total:.1%} of the samples)"
    else:
        what = f"one of the {len(rare)} labels with less than {RARE:.0%} of the samples"
    return f" A disagreement about {what} would not show."


def _learning(told: History, advise: bool) -> tuple[tuple[str, str], ...]:
    """How good the models are, beside a constant answer.

    ``advise`` : whether to suggest class weights where a label is rare
    """
    scope = "local" if "local" in told.scores else "global"
    found = told.scores.get(scope)
    if found is None:
        last = {series.name: series.points[-1][1] for series in told.accuracy}
        if "training clients" not in last:
            return (("unknown", "Nothing has been evaluated yet."),)
        return (
            (
                "accuracy",
                f"Accuracy is {last['training clients']:.1%}; what a constant answer scores is not "
                "known, because no client sends counts of its predictions.",
            ),
        )
    balanced, constant = found["balanced_accuracy"], found["constant_balanced_accuracy"]
    samples, twice = counted(found["samples"], "test sample"), SURE * found["error"]
    if not found["better"]:
        same = (
            f"balanced accuracy is {balanced:.1%} on {samples}, and a constant answer scores "
            f"{constant:.1%}; two standard errors are {twice:.1%}"
        )
        if found["ranks"]:
            text = f"No better than a constant answer: {same}. The scores do tell the classes "
            text += f"apart (AUC {found['auc']:.3f})."
        else:
            text = f"Not learning: {same}."
        if advise and found["constant_accuracy"] > LOPSIDED:
            text += " Labels are rare: try local.class-weights = balanced."
        return (("not-learning", text),)
    text = (
        f"Balanced accuracy is {balanced:.1%} on {samples} (a constant answer: {constant:.1%}), "
        f"accuracy {found['accuracy']:.1%} ({found['constant_accuracy']:.1%})"
    )
    if found.get("auc") is not None:
        text += f", AUC {found['auc']:.3f} (0.5)"
    return (("accuracy", f"{text}."),)


class _Groups:
    """Which clients belong together, and what speaks against saying so."""

    def __init__(self, told: History, people: Population) -> None:
        self._told = told
        self._people = people
        self._ids = [cluster.id for cluster in people.clusters]
        weighed = [c for c in people.clients if c.weights is not None]
        self._placed = {c.name: c for c in weighed if _belongs(c) and not c.several}
        # Nobody can hold several concepts unless others show what these are.
        self._several = [c for c in weighed if c.several and self._placed]
        known = {*self._placed, *(c.name for c in self._several)}
        self._stray = [c for c in weighed if c.name not in known]
        self._occupied = [
            k for k in self._ids if any(c.cluster == k for c in self._placed.values())
        ]
        self._unsure: list[tuple[int, int]] = []
        self.concepts = self._joined()

    def _joined(self) -> list[list[int]]:
        """The occupied clusters; those that predict alike are together."""
        joined = {k: [k] for k in self._occupied}
        for i, a in enumerate(self._occupied):
            for b in self._occupied[i + 1 :]:
                verdict = parted(self._told.scores.get("clusters", {}), a, b)
                if verdict is None:
                    self._unsure.append((a, b))
                elif not verdict and joined[a] is not joined[b]:
                    together = joined[a] + joined[b]
                    joined |= dict.fromkeys(together, together)
        return list({id(group): sorted(group) for group in joined.values()}.values())

    def doubts(self) -> list[str]:
        """Why nothing can be said about concepts yet."""
        told, found = self._told, []
        if told.annealing:
            found.append("the annealing has not ended")
        if told.movement and max(told.movement) > MOVES:
            found.append(
                f"the clients' weights still move (by {max(told.movement):.2f} in one of the last "
                f"{counted(len(told.movement), 'round')})"
            )
        everyone = len(self._placed) + len(self._several) + len(self._stray)
        if len(self._stray) > STRAY * everyone:
            largest = sum(max(c.weights or [0.0]) for c in self._stray) / len(self._stray)
            found.append(
                f"{len(self._stray)} of {counted(everyone, 'client')} belong to no cluster (the "
                f"largest weight is {largest:.2f} on average)"
            )
        if told.undecided:
            found.append(f"noise on the statistics hides {told.undecided}")
        if self._unsure and not found:
            pairs = ", ".join(f"{a} and {b}" for a, b in self._unsure[:3])
            found.append(f"too few test samples to tell clusters {pairs} apart")
        return found

    def membership(self, start: str, rounds: str, concepts: bool = False) -> str:
        """Who is in which cluster, and how sure that is."""
        people = self._people
        noun = "concept" if concepts else "cluster"
        number = len(self.concepts) if concepts else len(self._ids)
        clients = counted(people.training, "client")
        text = f"{start} {counted(number, noun)} among {clients} in {rounds}"
        if len(self.concepts) > LISTED_CLUSTERS:
            return f"{text}."
        parts = []
        for group in self.concepts:
            named = f"cluster{'s' * (len(group) > 1)} {' and '.join(map(str, group))}"
            names = [c.name for c in self._placed.values() if c.cluster in group]
            more = len(names) - LISTED_NAMES
            listed = ", ".join(names[:LISTED_NAMES]) + f" and {more} more" * (more > 0)
            parts.append(f"{named} ({counted(len(names), 'client')}: {listed})")
        text += f": {', '.join(parts[:-1])}{' and ' * (len(parts) > 1)}{parts[-1]}."
        text += self._sureness()
        if self._stray:
            strays = ", ".join(
                f"{c.name}: {max(c.weights or [0.0]):.2f}" for c in self._stray[:LISTED_NAMES]
            )
            strays += ", ..." * (len(self._stray) > LISTED_NAMES)
            text += f", except {counted(len(self._stray), 'client')} between clusters ({strays})"
        return f"{text}.{self._holding()}"

    def _holding(self) -> str:
        """Who holds several concepts, and how much of each."""
        if not self._several:
            return ""
        held = [f"{c.name}: {self._shares(c)}" for c in self._several[:LISTED_NAMES]]
        listed = "; ".join(held) + "; ..." * (len(self._several) > LISTED_NAMES)
        verb = "holds" if len(self._several) == 1 else "hold"
        return f" {counted(len(self._several), 'client')} {verb} several concepts ({listed})."

    def _shares(self, client: Client) -> str:
        pairs = zip(client.weights or [], self._ids, strict=True)
        return ", ".join(f"{w:.0%} in cluster {k}" for w, k in pairs if w >= LEAST_SHARE)

    def _sureness(self) -> str:
        """How sure the places are: by discovery, which sends one model, or by the weights."""
        placed = self._placed.values()
        certain = [(c.certainty, c.name) for c in placed if c.certainty is not None]
        if not certain:
            least = min(max(c.weights or [0.0]) for c in placed)
            return f" Each has a weight of at least {least:.2f} in its cluster"
        least, name = min(certain)
        bound = "more than 99%" if least > 0.99 else f"at least {int(least * 100)}%"
        return f" Each client's cluster is {bound} certain" + f" ({name})" * (least < UNSURE)


def parted(clusters: dict[str, Any], a: int, b: int) -> bool | None:
    """Whether two clusters' models serve their own clients better than each other's do.

    None if there are too few test samples to say. Without counts of predictions, clusters that are
    left by the algorithm are taken to be different.

    Parameters
    ----------
    clusters : by cluster id, ``samples`` of its clients and how many of them each cluster's model
        predicts ``right``
    """
    first, second = clusters.get(str(a)), clusters.get(str(b))
    if first is None or second is None:
        return True
    if str(b) not in first["right"] or str(a) not in second["right"]:
        return True
    samples = first["samples"] + second["samples"]
    own = (first["right"][str(a)] + second["right"][str(b)] + 1) / (samples + 2)
    other = (first["right"][str(b)] + second["right"][str(a)] + 1) / (samples + 2)
    error = SURE * math.sqrt((own * (1 - own) + other * (1 - other)) / (samples + 2))
    if own - other > error:
        return True
    return False if own - other + error < ALIKE else None


def _belongs(client: Client) -> bool:
    """Whether a client's largest weight is far from uniform."""
    weights = client.weights or []
    even = 1 / max(len(weights), 1)
    return len(weights) == 1 or max(weights, default=0.0) >= even + BELONGS * (1 - even)
