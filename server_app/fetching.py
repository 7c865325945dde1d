"""Flower's own steps of receiving a reply, one by one.

They are not part of Flower's public interface. Where another version does not have them, replies
are pulled as Flower does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

#: Seconds until a part that is missing is asked for again: at first, and at most.
FIRST_RETRY, LONGEST_RETRY = 0.05, 0.5


def is_possible(grid: Any) -> bool:
    """Whether these steps are for this grid."""
    return isinstance(grid, HttpGrid)


def announced(grid: HttpGrid, identities: list[str]) -> list[tuple[str, Any]]:
    """Which of these messages have been answered, and what ``fetched`` needs for each."""
    request = PullAppMessagesRequest(message_ids=identities)
    answer = grid._runtime_client.PullMessages(request)
    protos, trees = answer.messages_list, answer.message_object_trees
    return [
        (proto.metadata.reply_to_message_id, (proto.metadata.message_id, tree))
        for proto, tree in zip(protos, trees, strict=True)
    ]


def fetched(grid: HttpGrid, about: Any, given_up: Callable[[], bool]) -> Message | None:
    """A reply that was announced, once all parts of it have been uploaded.

    None if they never are, or if it is ``given_up``.
    """
    identity, tree = about
    client, run = grid._runtime_client, grid.run.run_id
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)

    def unless_given_up(object_id: str) -> bytes:
        if given_up():
            raise ObjectPullError(object_id, "nobody waits for it any more")
        return pull(object_id)

    try:
        contents = pull_objects(
            [part.object_id for part in iterate_object_tree(tree)],
            unless_given_up,
            max_tries_per_object=None,
            initial_backoff=FIRST_RETRY,
            backoff_cap=LONGEST_RETRY,
        )
    except ObjectPullError:
        return None
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=identity)
    )
    message = cast(Message, inflate_object_from_contents(identity, contents))
    message.metadata.__dict__["_message_id"] = identity
    return message
