"""Replies of a node, in the form in which Flower's protocol takes them."""

from __future__ import annotations

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)

from deploy.node.frames import Broken, Outcome
from fedrc_flwr.engine.admission import harmless, refusal
from fedrc_flwr.errors import PolicyError
from fedrc_flwr.records import ENROL, SCHEMA

#: What must be the same in a reply as in the message, whatever the app does with its reply.
_KEPT = (
    ("run_id", "run_id"), ("message_type", "message_type"), ("group_id", "group_id"),
    ("src_node_id", "dst_node_id"), ("dst_node_id", "src_node_id"),
    ("reply_to_message_id", "message_id"),
)  # fmt: skip


def packed(reply: Message, context: bytes = b"", failed: str = "", refused: str = "") -> Outcome:
    """A reply as it is sent."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    head = message_to_proto(remove_content_from_message(reply)).SerializeToString()
    with no_object_id_recompute():
        tree = get_object_tree(reply).SerializeToString()
        objects = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
    return Outcome(head, tree, objects, context, failed, refused)


def checked(outcome: Outcome, message: Message) -> tuple[MessageProto, ObjectTree]:
    """The reply and its tree, if they answer this message and no other."""
    try:
        reply = MessageProto.FromString(outcome.reply)
        tree = ObjectTree.FromString(outcome.tree)
    except ValueError as error:  # protobuf's own errors are kinds of it
        raise Broken(f"a reply that cannot be read: {error}") from None
    for theirs, ours in _KEPT:
        if getattr(reply.metadata, theirs) != getattr(message.metadata, ours):
            raise Broken(f"a reply with another {theirs} than its message")
    if tree.object_id not in outcome.objects:
        raise Broken("a reply without its content")
    return reply, tree


def refused(name: str, message: Message, error: PolicyError) -> Message:
    """The answer that an enrolment understands, or an error in words."""
    if message.metadata.message_type != ENROL:
        return failure(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, harmless(error))
    told = ConfigRecord({"schema": SCHEMA, **vars(refusal(error, name))})
    return Message(RecordDict({"refusal": told}), reply_to=message)


def failure(message: Message, code: int, said: str) -> Message:
    """An error reply."""
    return Message(Error(code, said), reply_to=message)
