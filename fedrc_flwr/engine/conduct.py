"""How clients behave: strikes for replies that no honest client sends, and pauses for silent ones.

After three strikes a client is in quarantine: it is no longer asked, and what it reported no longer
counts. ``fedrc forgive`` lets it back in. A struck reply is never used, so ten replies in a row
without a strike take one away: a client that is only unusual now and then stays. A client that
keeps silent is asked less and less often.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fedrc_flwr.data.scenario import TRAIN
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.state import ClientRecord, ServerState

log = logging.getLogger("flwr")  # Flower's logger, so that everything is in one log

#: Replies in a row without a strike that take one away.
CLEAN = 10
#: Most rounds in a row in which a silent client is not asked.
LONGEST_REST = 15


def enrolled(
    state: ServerState, newcomers: Iterable[Enrolment], samples: dict[str, int]
) -> ServerState:
    """The state with newly enrolled clients; what is known of a returning one stays.

    ``samples`` is how many each has in this run; newcomers are entered.
    """
    clients = dict(state.clients)
    for newcomer in newcomers:
        name, told = newcomer.name, newcomer.samples
        record = clients.get(name, ClientRecord(newcomer.role, told))
        clients[name] = replace(
            record, role=newcomer.role, concept=newcomer.concept, style=newcomer.style
        )
        if samples.setdefault(name, told) != told:
            # Otherwise a client could take as much weight as it likes in mid-run.
            log.warning(
                "%s enrolled again with %s samples; in this run it has %s",
                name, told, samples[name],
            )  # fmt: skip
        log.info(
            "%s enrolled: %s, %s samples, fedrc-flwr %s",
            name, newcomer.role, told, newcomer.version,
        )  # fmt: skip
    return replace(state, clients=clients)


def released(state: ServerState, records: Mapping[str, ClientRecord]) -> ServerState:
    """The state with what clients released in replies that are not used."""
    clients = dict(state.clients)
    for name, record in records.items():
        clients[name] = replace(clients[name], releases=record.releases, spent=record.spent)
    return replace(state, clients=clients)


def quarantined(state: ServerState) -> list[str]:
    """The clients that are no longer asked, sorted."""
    return sorted(name for name, record in state.clients.items() if record.quarantined)


def struck(state: ServerState, struck: Iterable[str], answered: Iterable[str]) -> ServerState:
    """The state after a round in which some clients were struck and others only answered."""
    clients, bad = dict(state.clients), set(struck)
    for name in bad & set(clients):
        record = replace(clients[name], strikes=clients[name].strikes + 1, clean=0)
        clients[name] = without_reports(record) if record.quarantined else record
    for name in set(answered) - bad:
        record = clients[name]
        if record.strikes:
            over = record.clean + 1 == CLEAN
            clients[name] = replace(
                record, strikes=record.strikes - over, clean=0 if over else record.clean + 1
            )
    return replace(state, clients=clients)


def without_reports(record: ClientRecord) -> ClientRecord:
    """The record of a client whose statistics no longer count anywhere."""
    return replace(record, label_counts=None, cross_losses=None, fingerprint=None, loss=None)


def forgiven(state: ServerState, name: str) -> ServerState:
    """The state in which a client has neither strikes nor pauses."""
    record = replace(
        state.clients[name], strikes=0, clean=0, silent=0, rests=0, opposed=0.0, compared=0.0
    )
    return replace(state, clients={**state.clients, name: record})


def forgotten(state: ServerState, name: str) -> ServerState:
    """The state without anything that the client left in it, but for its part in the models."""
    clients = {other: record for other, record in state.clients.items() if other != name}
    return replace(state, clients=clients)


def noticed(
    state: ServerState,
    answered: Iterable[str],
    silent: Iterable[str],
    at_hand: Iterable[str],
    round_number: int,
) -> ServerState:
    """The state after a round in which some clients answered and others did not.

    A client that is silent for the n-th time in a row is not asked for ``2^(n-1) - 1`` rounds. One
    that is not ``at_hand`` could not be asked. It counts as silent, but does not have to rest.
    """
    clients, reached = dict(state.clients), set(at_hand)
    for name in answered:
        if clients[name].silent:
            clients[name] = replace(clients[name], silent=0, rests=0)
    for name in silent:
        times = clients[name].silent + 1
        rest = min(2 ** (times - 1) - 1, LONGEST_REST)
        clients[name] = replace(clients[name], silent=times, rests=round_number + rest)
    for name, record in clients.items():
        if record.role == TRAIN and not record.silent and name not in reached:
            clients[name] = replace(record, silent=1)
    return replace(state, clients=clients)


def resting(state: ServerState, round_number: int) -> dict[str, int]:
    """The clients that are not asked because they kept silent, and the round in which they are."""
    return {
        name: record.rests + 1
        for name, record in sorted(state.clients.items())
        if record.rests >= round_number and not record.quarantined
    }


def to_be_asked(state: ServerState, names: list[str], round_number: int, needed: int) -> list[str]:
    """Who of these clients is asked in a round.

    Those in quarantine never are. Those that rest are if the others are fewer than ``needed``.
    """
    trusted = [n for n in names if n not in state.clients or not state.clients[n].quarantined]
    awake = [n for n in trusted if n not in resting(state, round_number)]
    return awake if len(awake) >= needed else trusted
