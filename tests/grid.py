"""A Grid whose nodes run the real ClientApp in this process, and can be told to misbehave."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app as client_app
from fedrc_flwr.records import Parcel, closed, opened

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

#: What a node does with a message: returns the reply, or None for no answer at all.
Behaviour = Callable[[Message, Callable[[], Message]], Message | None]


class InMemoryGrid:
    """As many nodes as asked for; node ids start at 100."""

    def __init__(self, nodes: int, run_config: dict[str, Any]) -> None:
        self.run_config = run_config
        self.contexts: dict[int, Context] = {}
        self.behaviours: dict[int, Behaviour] = {}
        self.offline: set[int] = set()
        self.sent: list[tuple[int, str]] = []
        self.most_under_way = 0
        self._replies: dict[str, Message | None] = {}
        for partition in range(nodes):
            self.add_node(100 + partition, partition)

    def add_node(self, node: int, partition: int, **node_config: Any) -> None:
        self.contexts[node] = Context(
            run_id=1,
            node_id=node,
            node_config={"partition-id": partition, **node_config},
            state=RecordDict(),
            run_config=self.run_config,
        )

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            identity = str(uuid.uuid4())
            message.metadata.__dict__["_message_id"] = identity
            node = message.metadata.dst_node_id
            self.sent.append((node, message.metadata.message_type))
            self._replies[identity] = self._answer(message, node)
            identities.append(identity)
        self.most_under_way = max(self.most_under_way, len(self._replies))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [i for i in message_ids if self._replies.get(i) is not None]
        return [self._replies.pop(i) for i in ready]  # type: ignore[misc]

    def _answer(self, message: Message, node: int) -> Message | None:
        def honest() -> Message:
            try:
                return client_app(message, self.contexts[node])
            except Exception as error:
                return Message(Error(code=2, reason=repr(error)), reply_to=message)

        reply = self.behaviours.get(node, lambda _, answer: answer())(message, honest)
        if reply is not None:
            reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return reply


def broken_config(reply: Message, record: str, **values: Any) -> Message:
    """The same reply with some of a config record's values replaced."""
    config = reply.content.config_records[record]
    reply.content[record] = ConfigRecord({**config, **values})
    return reply


def repacked(reply: Message, change: Callable[[Parcel], None]) -> Message:
    """The same reply with its values, arrays or metrics changed."""
    parcel = opened(reply.content, "reply")
    change(parcel)
    reply.content.clear()
    reply.content.update(closed("reply", parcel))
    return reply


def deltas_of(parcel: Parcel) -> list[str]:
    """The names of a reply's updates."""
    return [name for name in parcel.arrays if name.startswith(("cluster-", "body"))]
