"""The Flower ClientApp: enrolment, training and evaluation of one node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging import ERROR, INFO

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore import log

from client_app.node import is_deployed, name_of, participant, run_of, version_of
from fedrc_flwr import __version__, wire
from fedrc_flwr.data.own import known_columns
from fedrc_flwr.engine.admission import (
    COLUMN_CODES,
    HARMLESS,
    VERSION,
    Refusal,
    harmless,
    refusal,
    same_minor,
)
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.errors import FedRCError, RunError

app = ClientApp()


def _received(message: Message) -> float:
    """When the whole message was there: as the resident node tells, in seconds; elsewhere, now."""
    try:
        return float(message.metadata.delivered_at)
    except ValueError:
        return time.time()


@contextmanager
def _discreet(context: Context) -> Iterator[None]:
    """Keep what an error says about a node's files and data in the node's own log."""
    try:
        yield
    except Exception as error:
        if not is_deployed(context) or isinstance(error, HARMLESS):
            raise
        log(ERROR, "%s: %s", name_of(context), error, exc_info=error)
        raise RunError(harmless(error)) from None


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Introduce this client, or say why it cannot take part."""
    return Message(wire.encode_enrolment(_introduction(context)), reply_to=message)


def _introduction(context: Context) -> Enrolment | Refusal:
    if not is_deployed(context):
        return participant(context).enrolment()
    name, version = name_of(context), version_of(context)
    log(INFO, "%s: enrols with fedrc-flwr %s in a run of %s", name, version, __version__)
    if not same_minor(version):
        refused = Refusal(name, VERSION, version=version)
        log(ERROR, "%s cannot take part: %s", name, refused.reason())
        return refused
    try:
        enrolment = participant(context).enrolment()
    except Exception as error:
        log(ERROR, "%s cannot take part: %s", name, error, exc_info=_unexpected(error))
        return _without_own_columns(refusal(error, name), context)
    log(INFO, "%s: takes part with %s samples", name, enrolment.samples)
    return replace(enrolment, version=version)


def _without_own_columns(refused: Refusal, context: Context) -> Refusal:
    """The same without the name of a column that only this node's table has."""
    if refused.code not in COLUMN_CODES:
        return refused
    known = known_columns(run_of(context).data)
    return refused if refused.column in known else replace(refused, column="")


def _unexpected(error: Exception) -> Exception | None:
    """An error whose traceback is worth showing."""
    return None if isinstance(error, FedRCError) else error


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round on this client's samples."""
    received = _received(message)
    with _discreet(context):
        client = participant(context)
        broadcast = wire.decode_broadcast(message.content, client.bank.layout)
        reply, state = client.train(broadcast, received)
        precision = run_of(context).federation.exchange().transport
        answer = Message(wire.encode_reply(reply, broadcast, precision), reply_to=message)
        # Saved last, so that a failed round does not change the state.
        client.states.save(state)
        return answer


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """How well the broadcast models do on this client's test part."""
    with _discreet(context):
        client = participant(context)
        broadcast = wire.decode_broadcast(message.content, client.bank.layout)
        return Message(wire.encode_evaluation(client.evaluate(broadcast)), reply_to=message)
