"""The Open Inference Protocol over HTTP with JSON, raw samples, and the server's metrics."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedrc_flwr.inference.endpoint import (
    OUTPUT_TYPES,
    VERSION,
    Endpoint,
    Reason,
    Refused,
    Tensor,
)

_CODES = {Reason.INVALID: 400, Reason.UNKNOWN: 404, Reason.BUSY: 429}
#: Bodies of the largest size that may be held at once while they arrive.
HELD = 8
_log = logging.getLogger(__name__)


class _TooLarge(Exception):
    pass


class _TooSlow(Exception):
    pass


class Bodies:
    """Reads the bodies of requests, within limits of size, time, and memory of all together."""

    def __init__(self, max_bytes: int, seconds: float) -> None:
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._held = 0

    async def read(self, request: Request) -> bytes:
        """The whole body."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    self._held += len(chunk)
                    if size > self._max_bytes:
                        raise _TooLarge(f"the request is larger than {self._max_bytes} bytes")
                    if self._held > HELD * self._max_bytes:
                        raise Refused(Reason.BUSY, "too many requests are being received")
                    parts.append(chunk)
        except TimeoutError:
            raise _TooSlow(f"the request did not arrive within {self._seconds:g} s") from None
        finally:
            self._held -= size
        return b"".join(parts)


def application(
    endpoint: Endpoint, max_bytes: int, seconds: float, full: Callable[[], bool]
) -> Starlette:
    """The HTTP side of an endpoint.

    Parameters
    ----------
    max_bytes, seconds : how large a request may be, and how long it may take to arrive
    full : whether no further connection is accepted
    """
    bodies = Bodies(max_bytes, seconds)

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        able = endpoint.able and not full()
        return JSONResponse({"ready": able}, 200 if able else 503)

    async def server(request: Request) -> Response:
        return JSONResponse(endpoint.server_metadata())

    async def model(request: Request) -> Response:
        return JSONResponse(endpoint.model_metadata(*_asked(request)))

    async def model_ready(request: Request) -> Response:
        name, version = _asked(request)
        endpoint.check_name(name, version)
        return JSONResponse({"name": name, "ready": endpoint.ready})

    async def infer(request: Request) -> Response:
        endpoint.check_name(*_asked(request))
        body = await bodies.read(request)  # one that never ends must not count as in progress

        async def answer() -> Response:
            content = _parse(body)
            wanted = [_text(output, "name") for output in _list(content, "outputs", [])]
            tensors = [_tensor(entry) for entry in _list(content, "inputs", None)]
            outputs = await endpoint.infer(tensors, wanted)
            answered = {
                "model_name": endpoint.name,
                "model_version": VERSION,
                "outputs": [
                    {
                        "name": name,
                        "datatype": OUTPUT_TYPES[name],
                        "shape": list(values.shape),
                        "data": values.ravel().tolist(),
                    }
                    for name, values in outputs.items()
                ],
            }
            if "id" in content:
                answered["id"] = content["id"]
            return JSONResponse(answered)

        response: Response = await endpoint.counted("http", answer)
        return response

    async def predict(request: Request) -> Response:
        endpoint.check_name(*_asked(request))
        body = await bodies.read(request)

        async def answer() -> Response:
            instances = _parse(body).get("instances")
            if not isinstance(instances, list):
                raise Refused(Reason.INVALID, "instances: expected a list of samples")
            return JSONResponse({"predictions": await endpoint.predict(instances)})

        response: Response = await endpoint.counted("http", answer)
        return response

    async def metrics(request: Request) -> Response:
        return Response(endpoint.metrics(), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/metrics", metrics),
        Route("/v2", _guarded(server)),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v1/models/{name}:predict", _guarded(predict), methods=["POST"]),
    ]
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [
            Route(prefix, _guarded(model)),
            Route(f"{prefix}/ready", _guarded(model_ready)),
            Route(f"{prefix}/infer", _guarded(infer), methods=["POST"]),
        ]
    return Starlette(routes=routes)


def _guarded(
    handle: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Errors as the protocol has them: a code, and an object with the reason."""

    async def answer(request: Request) -> Response:
        try:
            return await handle(request)
        except Refused as refused:
            return JSONResponse({"error": str(refused)}, _CODES[refused.reason])
        except _TooLarge as error:
            return JSONResponse({"error": str(error)}, 413)
        except _TooSlow as error:
            return JSONResponse({"error": str(error)}, 408, {"connection": "close"})
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except Exception as error:  # a failing model must not stop the server
            _log.exception("%s failed", request.url.path)
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

    return answer


def _asked(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("version", "")


def _parse(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise Refused(Reason.INVALID, "the request is not a JSON object")
    return content


def _list(content: dict[str, Any], key: str, default: list[Any] | None) -> list[Any]:
    found = content.get(key, default)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise Refused(Reason.INVALID, f"{key}: expected a list of objects")
    return found


def _text(entry: dict[str, Any], key: str) -> str:
    found = entry.get(key)
    if not isinstance(found, str):
        raise Refused(Reason.INVALID, f"{key} = {found!r}: expected a text")
    return found


def _tensor(entry: dict[str, Any]) -> Tensor:
    shape, data = entry.get("shape"), entry.get("data")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise Refused(Reason.INVALID, f"shape = {shape!r}: expected a list of whole numbers")
    if not isinstance(data, list):
        raise Refused(Reason.INVALID, "data: expected a list of numbers")
    return Tensor(_text(entry, "name"), _text(entry, "datatype"), tuple(shape), _flat(data))


def _flat(data: list[Any]) -> list[float]:
    """Nested lists, which the protocol allows, as one."""
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise Refused(Reason.INVALID, "data: rows of different depth")
        data = [value for row in data for value in row]
    return data
