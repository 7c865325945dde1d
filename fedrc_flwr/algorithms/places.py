"""Where clients belong according to a grouping: their clusters, weights and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.discovery import grouping
from fedrc_flwr.discovery.grouping import Grouping
from fedrc_flwr.discovery.mixture import without_crumbs
from fedrc_flwr.discovery.succession import succession
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientRecord, Membership, ServerState

#: A client's place is clear if its group has at least this weight.
CLEAR = 0.45
#: Numbers of the state: the round in which the concepts were first found, in which the annealed
#: E-step took over, from which clients are measured with the present yardstick, and in which they
#: were last grouped; the next cluster's id; the share of labels on which concepts agree.
FOUND, FALLBACK, MEASURED, GROUPED = "found", "fallback", "measured", "grouped"
NEXT, AGREEMENT = "next-cluster", "agreement"
#: In place of a cluster's id: not known yet, and several of them.
UNPLACED, SEVERAL = -1, -2
MOST_SHOWN = 100  # clients whose evidence is in the metrics, which would otherwise be too large


def is_found(state: ServerState) -> bool:
    """Whether the concepts have been found."""
    return FOUND in state.numbers


def listens(record: ClientRecord) -> bool:
    """Whether a client's place is still open, so that it listens to all models."""
    return record.role == TRAIN and record.cluster == UNPLACED


def measured_clients(state: ServerState) -> list[str]:
    """The clients whose fingerprints have arrived, sorted."""
    return sorted(n for n, r in state.clients.items() if is_measured(r))


def is_measured(record: ClientRecord) -> bool:
    """Whether a client's fingerprint with the present yardstick has arrived."""
    return record.fingerprint is not None and bool(record.fingerprint.any())


def fingerprints_of(state: ServerState, names: list[str]) -> Floats:
    """(n, 2, C, 1 + D); without what noise leaves of the samples that are counted apart."""
    fingerprints = np.stack([np.asarray(state.clients[name].fingerprint) for name in names])
    noisy = np.array([state.clients[name].noise > 0 for name in names])
    fingerprints[noisy, 1] = 0.0
    return fingerprints


def largest_model(state: ServerState) -> Vector:
    """The model of the cluster with the most clients."""
    members = [r.cluster for r in state.clients.values() if r.role == TRAIN]
    return state.models[max(state.clusters, key=members.count)]


def regrouped(
    state: ServerState, found: Grouping, names: list[str], round_number: int
) -> tuple[ServerState, dict[str, Any] | None]:
    """The state with a cluster for each group, and what to tell; None if nobody moved."""
    first = not is_found(state)
    one = state.clusters[0]
    before = np.array([one if first else state.clients[name].cluster for name in names])
    new = int(state.numbers.get(NEXT, max(state.clusters) + 1))
    waiting = _waiting_clusters(state, names, before)
    follow = succession(
        found.groups, before, tuple(c for c in state.clusters if c not in waiting), new
    )
    origin = dict(zip(follow.clusters, follow.origins, strict=True)) | {c: c for c in waiting}
    order = np.argsort((*follow.clusters, *waiting))  # clusters in the order of their ids
    clusters = tuple(sorted(origin))
    rank = np.argsort(order)
    groups = np.where(found.groups >= 0, rank[found.groups], -1)
    weights = np.pad(found.weights, ((0, 0), (0, len(waiting))))[:, order]
    membership = Membership(clusters, {**state.membership.merged, **follow.heirs})
    clients, moved_names, holding = dict(state.clients), [], []
    for row, name in enumerate(names):
        record, several = clients[name], bool(found.several[row])
        if _holds_one_of(record, waiting, state.clusters):
            # Nobody was there to compare it with.
            clients[name] = _carried(record, state.clusters, membership)
            continue
        clients[name] = _placed(record, weights[row], int(groups[row]), clusters, several)
        if several and record.cluster != SEVERAL:
            holding.append(_holding(name, weights[row], clusters))
        elif not first and clients[name].cluster != record.cluster != UNPLACED:
            moved_names.append(name)
    for name in set(clients) - set(names):
        clients[name] = _carried(clients[name], state.clusters, membership)
    state = replace(
        state,
        membership=membership,
        models={c: state.models[origin[c]] for c in clusters},
        optimizer={
            slot: {c: v for c in clusters if (v := vectors.get(origin[c])) is not None}
            | {c: v for c, v in vectors.items() if c < 0}
            for slot, vectors in state.optimizer.items()
        },
        clients=clients,
        numbers={
            **state.numbers,
            FOUND: state.numbers.get(FOUND, float(round_number)),
            GROUPED: float(round_number),
            NEXT: float(max(new, *(c + 1 for c in clusters))),
            AGREEMENT: found.agreement,
        },
    )
    about = described(replace(found, groups=groups, weights=weights), names, clusters)
    if not first and not moved_names and not holding:
        return state, None
    if moved_names:
        about["sentence"] += f"; measured again, {_listed(moved_names)}"
    if holding:
        several_hold = f"; {len(holding)} clients hold several concepts"
        about["sentence"] += (
            several_hold if len(holding) > 3 else "".join(f"; {h}" for h in holding)
        )
    if waiting:
        about["sentence"] += f"; nobody in {_numbered(waiting)} was measured"
    return state, about


def _waiting_clusters(state: ServerState, names: list[str], before: Labels) -> tuple[int, ...]:
    """The clusters of which nobody was measured, but that clients belong to: they stay.

    Parameters
    ----------
    names, before : the clients that were measured, and their clusters
    """
    absent = {r.cluster for n, r in state.clients.items() if n not in set(names)}
    waiting = tuple(c for c in state.clusters if c in absent and c not in before)
    return waiting if len(waiting) < len(state.clusters) else ()


def _holds_one_of(record: ClientRecord, some: tuple[int, ...], clusters: tuple[int, ...]) -> bool:
    """Whether a client that holds several concepts has a share in one of these clusters."""
    return record.shares is not None and any(record.shares[clusters.index(c)] > 0 for c in some)


def for_newcomers(state: ServerState, names: list[str]) -> dict[str, tuple[Floats, bool]]:
    """The weights, (K,), of clients that were measured after the others were grouped.

    Beside them is whether they are the shares of a client that holds several concepts.
    """
    everybody = measured_clients(state)
    places = [state.clients[n].cluster for n in everybody]
    groups = np.array([state.clusters.index(c) if c in state.clusters else -1 for c in places])
    weights, several = grouping.place(
        fingerprints_of(state, everybody), state.arrays["scatter"], groups, state.numbers[AGREEMENT]
    )
    missing = len(state.clusters) - weights.shape[1]
    weights = np.pad(weights, ((0, 0), (0, missing)))
    rows = {name: everybody.index(name) for name in names}
    return {name: (weights[row], bool(several[row])) for name, row in rows.items()}


def settled(
    state: ServerState, name: str, weights: Floats, several: bool
) -> tuple[ClientRecord, str]:
    """A newcomer with its place, and what to tell; it listens if it fits none or several."""
    record = state.clients[name]
    if not weights.any():
        return record, f"{name} fits none of the concepts and listens to all of them"
    group = int(weights.argmax())
    record = _placed(record, weights, group, state.clusters, several)
    if several:
        return record, _holding(name, weights, state.clusters)
    if listens(record):
        return record, f"{name} fits several concepts and listens to all of them"
    return record, f"{name} is in cluster {record.cluster}"


def heard(state: ServerState, name: str, most: float) -> tuple[ClientRecord, str]:
    """A client with the place that listening gives it, and what to tell.

    It has several concepts if no cluster has at least the weight ``most``, unless all others have
    next to none.
    """
    record = state.clients[name]
    weights = record.mixture_weights()
    if weights is None:
        return record, ""
    best = int(weights.argmax())
    cluster, shares = state.clusters[best], without_crumbs(weights[None])[0]
    if weights[best] < most and np.count_nonzero(shares) > 1:
        record = _placed(record, shares, best, state.clusters, True)
        return record, _holding(name, shares, state.clusters)
    return replace(record, cluster=cluster, certainty=float(weights[best])), (
        f"{name} is in cluster {cluster}, by the models that fit it"
    )


def _holding(name: str, shares: Floats, clusters: tuple[int, ...]) -> str:
    """What is told of a client that holds several concepts."""
    parts = zip(shares, clusters, strict=True)
    listed = ", ".join(f"{w:.0%} in cluster {c}" for w, c in parts if w > 0)
    return f"{name} holds several concepts ({listed})"


def _placed(
    record: ClientRecord, weights: Floats, group: int, clusters: tuple[int, ...], several: bool
) -> ClientRecord:
    """The record with the place that its fingerprint gives it."""
    cluster = UNPLACED
    if several:
        cluster = SEVERAL
    elif group >= 0 and weights[group] >= CLEAR:
        cluster = clusters[group]
    return replace(
        moved(record, weights),
        cluster=cluster,
        certainty=float(weights[group]) if group >= 0 else 0.0,
        shares=weights if several else None,
    )


def _carried(record: ClientRecord, before: tuple[int, ...], membership: Membership) -> ClientRecord:
    """The record of a client that was not measured: where it was, if that cluster goes on."""
    clusters = membership.clusters
    if (position := membership.successor(record.cluster)) >= 0:
        weights = np.eye(len(clusters))[position]
        return replace(moved(record, weights), cluster=clusters[position])
    if record.role != TRAIN:
        return record
    if record.cluster == SEVERAL and record.shares is not None:
        weights = em.regroup(record.shares, membership.mapping_from(before), len(clusters), 0)
        shares = em.renormalise(weights, axis=0)
        record = moved(record, shares)
        if np.count_nonzero(shares) > 1:
            return replace(record, shares=shares)
        return replace(record, cluster=clusters[int(shares.argmax())], shares=None)
    return replace(moved(record, np.full(len(clusters), 1.0 / len(clusters))), cluster=UNPLACED)


def moved(record: ClientRecord, weights: Floats) -> ClientRecord:
    """The record with its samples shared out by these weights, (K,)."""
    if record.label_counts is None:
        return record
    counts = weights[:, None] * record.label_counts.sum(axis=0, keepdims=True)
    return replace(record, label_counts=counts, cross_losses=None)


def widened(record: ClientRecord, clusters: int) -> ClientRecord:
    """The record over so many clusters, evenly where nothing is known."""
    if record.label_counts is None or len(record.label_counts) == clusters:
        return record
    return moved(record, np.full(clusters, 1.0 / clusters))


def described(found: Grouping, names: list[str], clusters: tuple[int, ...]) -> dict[str, Any]:
    """What the metrics tell about a discovery."""
    about: dict[str, Any] = {"sentence": found.sentence, "established": found.established}
    if clusters:
        about["groups"] = {
            name: clusters[group] for name, group in zip(names, found.groups, strict=True)
            if group >= 0
        }  # fmt: skip
        about["weights"] = {
            name: [round(float(w), 3) for w in row]
            for name, row in zip(names, found.weights, strict=True)
        }
    if len(names) <= MOST_SHOWN:
        about["evidence"] = [[round(float(v), 1) for v in row] for row in found.evidence]
        about["clients"] = names
    return about


def _listed(names: list[str]) -> str:
    """Who moved, in a few words."""
    if len(names) > 3:
        return f"{len(names)} clients moved"
    return f"{', '.join(names)} moved"


def _numbered(clusters: tuple[int, ...]) -> str:
    """Clusters in a few words."""
    return f"cluster{'s' * (len(clusters) > 1)} {', '.join(map(str, clusters))}"
