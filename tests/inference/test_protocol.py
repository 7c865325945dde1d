"""The protocol's messages: the same on the wire as those of a client that we did not write."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from fedrc_flwr.inference.protocol import MESSAGES, METHODS, SERVICE


def fields(message: Any) -> dict[str, tuple[Any, ...]]:
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.message_type.full_name if field.message_type else None,
            field.containing_oneof.name if field.containing_oneof else None,
        )
        for field in message.fields
    }


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_has_the_number_and_type_that_tritonclient_expects(name: str) -> None:
    outer, _, inner = name.partition(".")
    theirs = service_pb2.DESCRIPTOR.message_types_by_name[outer]
    if inner:
        theirs = theirs.nested_types_by_name[inner]

    assert fields(MESSAGES[name].DESCRIPTOR) == fields(theirs)


def test_the_service_and_its_methods_are_the_protocols() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]

    assert theirs.full_name == SERVICE
    for name in METHODS:
        method = theirs.methods_by_name[name]
        assert method.input_type.name == f"{name}Request"
        assert method.output_type.name == f"{name}Response"
