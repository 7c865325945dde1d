"""The Open Inference Protocol over gRPC: messages to calls of the endpoint, and back."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fedrc_flwr.inference.endpoint import (
    OUTPUT_TYPES,
    VERSION,
    Endpoint,
    Reason,
    Refused,
    Tensor,
)
from fedrc_flwr.inference.protocol import MESSAGES, METHODS, SERVICE

_CODES = {
    Reason.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Reason.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_CONTENTS = {"FP32": "fp32_contents", "UINT8": "uint_contents", "INT64": "int64_contents"}
_log = logging.getLogger(__name__)


def handlers(endpoint: Endpoint) -> Any:
    """What a gRPC server needs to serve the endpoint."""
    service = _Service(endpoint)
    # Requests arrive as bytes: what cannot be parsed is then refused in the protocol's own way.
    methods = {
        name: grpc.unary_unary_rpc_method_handler(_answering(name, getattr(service, name)))
        for name in METHODS
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _answering(
    name: str, method: Callable[[Any], Awaitable[Any]]
) -> Callable[[bytes, Any], Awaitable[bytes]]:
    parse = MESSAGES[f"{name}Request"].FromString

    async def answer(content: bytes, context: Any) -> bytes:
        try:
            try:
                request = parse(content)
            except DecodeError:
                raise Refused(Reason.INVALID, f"not a {name}Request") from None
            response: bytes = (await method(request)).SerializeToString()
            return response
        except Refused as refused:
            code, reason = _CODES[refused.reason], str(refused)
        except Exception as error:  # a failing model must not stop the server
            _log.exception("%s failed", name)
            code, reason = grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
        return await context.abort(code, reason)  # type: ignore[no-any-return]

    return answer


class _Service:
    """The methods, by the protocol's names."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def ServerLive(self, request: Any) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ServerReady(self, request: Any) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=self._endpoint.able)

    async def ModelReady(self, request: Any) -> Any:
        self._endpoint.check_name(request.name, request.version)
        return MESSAGES["ModelReadyResponse"](ready=self._endpoint.ready)

    async def ServerMetadata(self, request: Any) -> Any:
        return MESSAGES["ServerMetadataResponse"](**self._endpoint.server_metadata())

    async def ModelMetadata(self, request: Any) -> Any:
        about = self._endpoint.model_metadata(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](**about)

    async def ModelInfer(self, request: Any) -> Any:
        return await self._endpoint.counted("grpc", lambda: self._infer(request))

    async def _infer(self, request: Any) -> Any:
        self._endpoint.check_name(request.model_name, request.model_version)
        raw = bool(request.raw_input_contents)
        wanted = [output.name for output in request.outputs]
        outputs = await self._endpoint.infer(_tensors(request), wanted)
        response = MESSAGES["ModelInferResponse"](
            model_name=request.model_name, model_version=VERSION, id=request.id
        )
        for name, values in outputs.items():
            tensor = response.outputs.add(
                name=name, datatype=OUTPUT_TYPES[name], shape=list(values.shape)
            )
            if raw:
                little = values.astype(values.dtype.newbyteorder("<"), copy=False)
                response.raw_output_contents.append(little.tobytes())
            else:
                field = getattr(tensor.contents, _CONTENTS[tensor.datatype])
                field.extend(values.ravel().tolist())
        return response


def _tensors(request: Any) -> list[Tensor]:
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise Refused(
            Reason.INVALID,
            f"{len(raw)} raw_input_contents for {len(request.inputs)} inputs: expected one each",
        )
    tensors = []
    for place, tensor in enumerate(request.inputs):
        if raw and tensor.HasField("contents"):
            raise Refused(
                Reason.INVALID, f"input {tensor.name!r}: both contents and raw_input_contents"
            )
        field = _CONTENTS.get(tensor.datatype, "fp32_contents")
        content = raw[place] if raw else getattr(tensor.contents, field)
        tensors.append(Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), content))
    return tensors
