"""The messages of the Open Inference Protocol (v2) for gRPC, built when this is imported.

They live in a pool of their own, so that another package in the same process may define the same
messages, and no generated code has to fit the installed protobuf.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
_PACKAGE = "inference"
#: Methods, by the protocol's names; the messages are NAME + Request and NAME + Response.
METHODS = (
    "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
)  # fmt: skip
#: One message an entry, in the notation of .proto files; nested ones come after a dot.
_MESSAGES = {
    "InferParameter": "oneof bool bool_param = 1; oneof int64 int64_param = 2; "
    "oneof string string_param = 3; oneof double double_param = 4; oneof uint64 uint64_param = 5",
    "InferTensorContents": "repeated bool bool_contents = 1; repeated int32 int_contents = 2; "
    "repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; "
    "repeated uint64 uint64_contents = 5; repeated float fp32_contents = 6; "
    "repeated double fp64_contents = 7; repeated bytes bytes_contents = 8",
    "ServerLiveRequest": "",
    "ServerLiveResponse": "bool live = 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "bool ready = 1",
    "ModelReadyRequest": "string name = 1; string version = 2",
    "ModelReadyResponse": "bool ready = 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name = 1; string version = 2; repeated string extensions = 3",
    "ModelMetadataRequest": "string name = 1; string version = 2",
    "ModelMetadataResponse": "string name = 1; repeated string versions = 2; string platform = 3; "
    "repeated .TensorMetadata inputs = 4; repeated .TensorMetadata outputs = 5",
    "ModelMetadataResponse.TensorMetadata": "string name = 1; string datatype = 2; "
    "repeated int64 shape = 3",
    "ModelInferRequest": "string model_name = 1; string model_version = 2; string id = 3; "
    "parameters = 4; repeated .InferInputTensor inputs = 5; "
    "repeated .InferRequestedOutputTensor outputs = 6; repeated bytes raw_input_contents = 7",
    "ModelInferRequest.InferInputTensor": "string name = 1; string datatype = 2; "
    "repeated int64 shape = 3; parameters = 4; InferTensorContents contents = 5",
    "ModelInferRequest.InferRequestedOutputTensor": "string name = 1; parameters = 2",
    "ModelInferResponse": "string model_name = 1; string model_version = 2; string id = 3; "
    "parameters = 4; repeated .InferOutputTensor outputs = 5; "
    "repeated bytes raw_output_contents = 6",
    "ModelInferResponse.InferOutputTensor": "string name = 1; string datatype = 2; "
    "repeated int64 shape = 3; parameters = 4; InferTensorContents contents = 5",
}
_FIELD = re.compile(r"(?:(repeated|oneof) )?(?:(\.?\w+) )?(\w+) = (\d+)")
_KINDS = descriptor_pb2.FieldDescriptorProto


def _add_field(message: Any, full_name: str, text: str) -> None:
    matched = _FIELD.fullmatch(text)
    if matched is None:
        raise ValueError(f"{full_name}: {text!r}")
    how, kind, name, number = matched.groups()
    field = message.field.add(name=name, number=int(number), label=_KINDS.LABEL_OPTIONAL)
    if how == "repeated":
        field.label = _KINDS.LABEL_REPEATED
    if how == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kind is None:
        # A map from names to parameters: on the wire a list of pairs.
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        _add_field(entry, full_name, "string key = 1")
        _add_field(entry, full_name, "InferParameter value = 2")
        field.label, kind = _KINDS.LABEL_REPEATED, ".ParametersEntry"
    scalar = getattr(_KINDS, f"TYPE_{kind.upper()}", None)
    if scalar is not None:
        field.type = scalar
    else:
        field.type = _KINDS.TYPE_MESSAGE
        nested = kind.startswith(".")
        field.type_name = f".{_PACKAGE}.{full_name}{kind}" if nested else f".{_PACKAGE}.{kind}"


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="fedrc/open_inference.proto", package=_PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    for full_name, text in _MESSAGES.items():
        outer, _, inner = full_name.partition(".")
        message = made[outer].nested_type.add(name=inner) if inner else file.message_type.add()
        message.name = inner or outer
        made[full_name] = message
        for field in filter(None, text.split("; ")):
            _add_field(message, full_name, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _MESSAGES
    }


MESSAGES = _build()
