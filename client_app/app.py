"""The Flower ClientApp: enrolment, training and evaluation of one node."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from logging import INFO

import psutil
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.supercore import log

from client_app.node import Node
from fedrc_flwr import wire
from fedrc_flwr.state import ClientState
from fedrc_flwr.wire import Enrolment

app = ClientApp()
_messages = itertools.count()


def _received() -> float:
    """When this message's work began.

    In a deployment every message starts a process: its start and its imports count. In simulation
    a process lives on, and only its first message has to pay for them.
    """
    return psutil.Process().create_time() if next(_messages) == 0 else time.time()


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Say who this client is."""
    data = Node(context).data
    enrolment = Enrolment(
        name=data.name,
        role=data.role,
        samples=len(data.fit),
        classes=data.classes,
        concept=data.truth.concept,
        style=data.truth.style,
    )
    return Message(wire.encode_enrolment(enrolment), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round on this client's samples."""
    received = _received()
    node = Node(context)
    broadcast = wire.decode_broadcast(message.content, node.layout)
    state = node.states.load(before_round=broadcast.round)
    fresh = state is None
    if state is None:
        log(INFO, "%s: no earlier state, starting from uniform weights", node.data.name)
        state = ClientState.start(broadcast.membership.clusters)
    # What was sent counts, even where the round is repeated or the state of it is of no use.
    state = replace(state, releases=max(state.releases, node.states.releases()))
    ready = time.time()
    reply, state = node.algorithm.train(broadcast, state, node.runtime(broadcast.round))
    reply.metrics["fresh"] = float(fresh and broadcast.round > 1)
    reply.metrics["ready_seconds"] = ready - received
    reply.metrics["seconds"] = time.time() - received
    content = wire.encode_reply(reply, broadcast, node.config.half())
    answer = Message(content, reply_to=message)
    # Last, so that a round that fails on this client leaves its state as it was.
    node.states.save(state)
    return answer


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Accuracy of the broadcast models on this client's test part."""
    node = Node(context)
    broadcast = wire.decode_broadcast(message.content, node.layout)
    state = node.states.load(before_round=broadcast.round + 1)
    metrics = node.algorithm.evaluate(broadcast, state, node.runtime(broadcast.round))
    return Message(wire.encode_metrics(metrics), reply_to=message)
