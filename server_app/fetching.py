"""Flower's own steps of sending messages and receiving replies, one by one.

They are not part of Flower's public interface. Where another version does not have them, messages
are pushed and pulled as Flower does it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from logging import WARNING
from typing import Any, cast

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore import log
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedrc_flwr.arrays import joined, pieces_of
from server_app.shelf import LARGEST, Shelf

#: Seconds until a part that is missing is asked for again: at first, and at most.
FIRST_RETRY, LONGEST_RETRY = 0.05, 0.5


def is_possible(grid: Any) -> bool:
    """Whether these steps are for this grid."""
    return isinstance(grid, HttpGrid)


def shelf_of(grid: Any) -> Shelf | None:
    """Where the objects of this grid's run are handed over, if there is such a place."""
    return Shelf.of(grid.run.run_id)


def pushed(grid: HttpGrid, messages: list[Message], shelf: Shelf) -> list[str]:
    """Push messages whose objects are on the shelf; returns their names, empty if one failed."""
    protos, trees = [], []
    contents: dict[str, tuple[Any, ...]] = {}
    named: dict[str, Collection[str]] = {}
    with no_object_id_recompute():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            protos.append(message_to_proto(remove_content_from_message(message)))
            trees.append(get_object_tree(message))
            objects = get_all_nested_objects(message)
            named[message.object_id] = objects.keys()
            contents |= {
                name: pieces_of(each) for name, each in objects.items() if name not in contents
            }
    shelf.put(contents)
    request = PushAppMessagesRequest(messages_list=protos, message_object_trees=trees)
    answer = grid._runtime_client.PushMessages(request)
    shelf.posted({name: named[name] for name in answer.message_ids if name})
    return list(answer.message_ids)


def announced(grid: HttpGrid, identities: list[str]) -> list[tuple[str, Any]]:
    """Which of these messages have been answered, and what ``fetched`` needs for each."""
    request = PullAppMessagesRequest(message_ids=identities)
    answer = grid._runtime_client.PullMessages(request)
    protos, trees = answer.messages_list, answer.message_object_trees
    return [
        (proto.metadata.reply_to_message_id, (proto.metadata.message_id, tree))
        for proto, tree in zip(protos, trees, strict=True)
    ]


def fetched(
    grid: HttpGrid,
    message: str,
    about: Any,
    given_up: Callable[[], bool],
    shelf: Shelf | None = None,
) -> Message | None:
    """The reply to a message that was announced, once all parts of it have been uploaded.

    None if they never are, or if it is ``given_up``.
    """
    identity, tree = about
    of_flower = make_pull_object_fn_protobuf(
        grid._runtime_client.PullObject, grid.node, grid.run.run_id
    )

    def pull(name: str) -> bytes:
        if given_up():
            raise ObjectPullError(name, "nobody waits for it any more")
        content = shelf.object(message, name) if shelf is not None else None
        if content is not None:
            return content
        # Flower gives a reply up that it has not seen a part of for minutes.
        if shelf is not None and shelf.is_whole(message):
            raise ObjectUnavailableError(name)
        return of_flower(name)

    try:
        contents = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            pull,
            max_tries_per_object=None,
            initial_backoff=FIRST_RETRY,
            backoff_cap=LONGEST_RETRY,
        )
    except ObjectPullError:
        return None
    if shelf is not None:
        shelf.drop(message)
    try:
        arrays = joined(contents, float(os.environ.get(LARGEST, math.inf)))
        reply = cast(Message, inflate_object_from_contents(identity, contents, objects=arrays))
    except Exception as error:  # a node may send anything
        log(WARNING, "a reply cannot be read: %r", error)
        return None
    reply.metadata.__dict__["_message_id"] = identity
    return reply


def confirm(grid: HttpGrid, about: Any) -> None:
    """Flower may forget a reply."""
    request = ConfirmMessageReceivedRequest(
        node=grid.node, run_id=grid.run.run_id, message_object_id=about[0]
    )
    grid._runtime_client.ConfirmMessageReceived(request)
