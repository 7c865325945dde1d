"""The Flower ClientApp: enrolment, training and evaluation of one node."""

from __future__ import annotations

import itertools
import time

import psutil
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.node import participant, run_of
from fedrc_flwr import wire

app = ClientApp()
_messages = itertools.count()


def _received() -> float:
    """When this message's work began.

    In a deployment every message starts a process, so start-up and imports count. In a simulation
    this holds only for a process's first message.
    """
    return psutil.Process().create_time() if next(_messages) == 0 else time.time()


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Introduce this client."""
    return Message(wire.encode_enrolment(participant(context).enrolment()), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round on this client's samples."""
    received = _received()
    client = participant(context)
    broadcast = wire.decode_broadcast(message.content, client.bank.layout)
    reply, state = client.train(broadcast, received)
    half = run_of(context).federation.exchange().half
    answer = Message(wire.encode_reply(reply, broadcast, half), reply_to=message)
    # Saved last, so that a failed round does not change the state.
    client.states.save(state)
    return answer


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the broadcast models on this client's test part."""
    client = participant(context)
    broadcast = wire.decode_broadcast(message.content, client.bank.layout)
    return Message(wire.encode_metrics(client.evaluate(broadcast)), reply_to=message)
