"""The protocol over HTTP: answers, refusals and metrics of one endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import numpy as np
import pytest

from fedrc_flwr.data.encoding import Column
from fedrc_flwr.data.schema import Schema, plain_schema
from fedrc_flwr.inference import Personal
from fedrc_flwr.inference.endpoint import Endpoint
from fedrc_flwr.inference.web import application

INFER = "/v2/models/ward/infer"
GOOD = {"name": "input", "shape": [2, 3], "datatype": "FP32", "data": [0, 0, 1, 2, 0, 0]}


def shares(inputs: np.ndarray) -> np.ndarray:
    """A model whose probabilities are each sample's numbers over their sum."""
    if inputs.max() == 13:
        raise RuntimeError("out of luck")
    return inputs / inputs.sum(axis=1, keepdims=True)


Ask = Callable[..., Coroutine[Any, Any, httpx.Response]]


def served(test: Callable[[Ask, Endpoint], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        schema = options.get("schema", plain_schema((3,), 3))
        model = Personal(schema, shares, "arithmetic")
        limit = options.get("max_requests", 8)
        endpoint = Endpoint("ward", model, 8, options.get("delay", 0.0), limit)
        transport = httpx.ASGITransport(application(endpoint, 1000, 5.0, lambda: False))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def ask(path: str, body: Any = None, **more: Any) -> httpx.Response:
                if body is None:
                    return await client.get(path)
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                return await client.post(path, content=content, **more)

            await test(ask, endpoint)
        await endpoint.close()

    asyncio.run(main())


def test_health_and_metadata() -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        assert (await ask("/v2/health/live")).json() == {"live": True}
        assert (await ask("/v2/health/ready")).status_code == 200
        assert (await ask("/v2")).json()["name"] == "fedrc-flwr"
        assert (await ask("/v2/models/ward/ready")).json() == {"name": "ward", "ready": True}
        about = (await ask("/v2/models/ward/versions/1")).json()
        assert about["platform"] == "arithmetic"
        assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 3]}]
        assert about["outputs"][0] == {
            "name": "probabilities", "datatype": "FP32", "shape": [-1, 3]
        }  # fmt: skip
        endpoint.ready = False
        assert (await ask("/v2/health/ready")).status_code == 503
        assert (await ask("/v2/health/live")).status_code == 200

    served(test)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (GOOD, [[0, 0, 1], [1, 0, 0]]),
        ({**GOOD, "data": [[0, 0, 1], [2, 0, 0]]}, [[0, 0, 1], [1, 0, 0]]),
        (
            {**GOOD, "datatype": "UINT8", "data": [0, 0, 255, 51, 0, 204]},
            [[0, 0, 1], [0.2, 0, 0.8]],
        ),
    ],
)
def test_inference_answers_with_probabilities_and_labels(
    tensor: dict[str, Any], expected: list[list[float]]
) -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        answer = (await ask(INFER, {"id": "q7", "inputs": [tensor]})).json()
        assert answer["id"] == "q7"
        assert (answer["model_name"], answer["model_version"]) == ("ward", "1")
        probabilities, label = answer["outputs"]
        np.testing.assert_allclose(np.reshape(probabilities["data"], (2, 3)), expected, rtol=1e-6)
        assert probabilities["shape"] == [2, 3]
        assert label["data"] == np.argmax(expected, axis=1).tolist()
        only = await ask(INFER, {"inputs": [tensor], "outputs": [{"name": "label"}]})
        assert [output["name"] for output in only.json()["outputs"]] == ["label"]

    served(test)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{torn", 400, "not a JSON object"),
        (b"\xff" * 10, 400, "not a JSON object"),
        (b"[" * 900, 400, "not a JSON object"),
        ([1], 400, "not a JSON object"),
        ({}, 400, "inputs"),
        ({"inputs": []}, 400, "expected one, 'input'"),
        ({"inputs": [GOOD, GOOD]}, 400, "expected one, 'input'"),
        ({"inputs": [{**GOOD, "name": "x"}]}, 400, "expected one, 'input'"),
        ({"inputs": [{**GOOD, "name": 7}]}, 400, "expected a text"),
        ({"inputs": [{**GOOD, "datatype": "BF16"}]}, 400, "expected FP32 or UINT8"),
        ({"inputs": [{**GOOD, "shape": [2, 4]}]}, 400, "shape [2, 4]: expected [-1, 3]"),
        ({"inputs": [{**GOOD, "shape": [0, 3]}]}, 400, "one sample or more"),
        ({"inputs": [{**GOOD, "shape": [-2, 3]}]}, 400, "one sample or more"),
        ({"inputs": [{**GOOD, "shape": []}]}, 400, "expected [-1, 3]"),
        ({"inputs": [{**GOOD, "shape": "2,3"}]}, 400, "list of whole numbers"),
        ({"inputs": [{**GOOD, "data": [1, 2]}]}, 400, "2 numbers of data"),
        ({"inputs": [{**GOOD, "data": ["a"] * 6}]}, 400, "not a list of numbers"),
        ({"inputs": [{**GOOD, "data": [[1, 2, 3], 4]}]}, 400, "different depth"),
        ({"inputs": [{**GOOD, "data": [1e60] * 6}]}, 400, "NaN or infinity"),
        ({"inputs": [{**GOOD, "datatype": "UINT8", "data": [256] * 6}]}, 400, "0 to 255"),
        ({"inputs": [GOOD], "outputs": [{"name": "logits"}]}, 400, "'logits'"),
        ({"inputs": [GOOD], "padding": "x" * 2000}, 413, "larger than 1000 bytes"),
        ({"inputs": [{**GOOD, "data": [13] * 6}]}, 500, "out of luck"),
    ],
)  # fmt: skip
def test_bad_request_is_refused_and_the_next_one_is_answered(
    body: Any, status: int, word: str
) -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        answer = await ask(INFER, body)
        assert answer.status_code == status
        assert word in answer.json()["error"]
        assert (await ask(INFER, {"inputs": [GOOD]})).status_code == 200

    served(test)


def test_other_model_or_version_is_not_found() -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        for path in ("/v2/models/other", "/v2/models/ward/versions/2", "/v2/models/other/ready"):
            answer = await ask(path)
            assert answer.status_code == 404
            assert "expected 'ward', version 1" in answer.json()["error"]
        assert (await ask("/v2/models/other/infer", {"inputs": [GOOD]})).status_code == 404

    served(test)


def test_more_requests_than_allowed_are_told_to_come_later() -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        answers = await asyncio.gather(*(ask(INFER, {"inputs": [GOOD]}) for _ in range(5)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, 200, 200, 429, 429]
        assert (await ask(INFER, {"inputs": [GOOD]})).status_code == 200

    served(test, max_requests=3, delay=0.3)


def test_metrics_count_what_happened() -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        for _ in range(3):
            await ask(INFER, {"inputs": [GOOD]})
        await ask(INFER, {"inputs": []})
        text = (await ask("/metrics")).text
        assert 'fedrc_requests_total{outcome="ok",transport="http"} 3.0' in text
        assert 'fedrc_requests_total{outcome="invalid",transport="http"} 1.0' in text
        assert "fedrc_batch_samples_sum 6.0" in text
        assert 'fedrc_request_seconds_count{transport="http"} 4.0' in text
        assert "fedrc_requests_under_way 0.0" in text

    served(test)


# --- raw samples ---------------------------------------------------------------------------------

PREDICT = "/v1/models/ward:predict"
TABLE = Schema(
    classes=("cold", "flu", "other"),
    columns=(
        Column("crp", "number", centre=10, scale=10),
        Column("sex", "category", categories=("f", "m")),
    ),
    label="finding",
)


def test_raw_rows_are_answered_with_the_names_of_labels() -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        rows = [{"sex": "m", "crp": 40}, {"crp": "20,0", "sex": "f", "note": "not used"}]

        reply = await ask(PREDICT, {"instances": rows})

        # Encoded as 3, 0, 1 and 1, 1, 0.
        assert reply.status_code == 200, reply.text
        assert [p["label"] for p in reply.json()["predictions"]] == ["cold", "cold"]
        assert [list(p["probabilities"].values()) for p in reply.json()["predictions"]] == [
            [0.75, 0.0, 0.25], [0.5, 0.5, 0.0],
        ]  # fmt: skip

    served(test, schema=TABLE)


def test_raw_arrays_are_answered_too() -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        reply = await ask(PREDICT, {"instances": [[0, 3, 1]]})

        assert reply.json()["predictions"][0]["label"] == "1"

    served(test)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "expected a list of samples"),
        ({"instances": []}, "one sample or more"),
        ({"instances": [[1, 2, 3]]}, "trained on a table"),
        ({"instances": [{"sex": "m"}]}, "lacks columns that the schema has: 'crp'"),
        ({"instances": [{"sex": "m", "crp": "high"}]}, "holds 'high' in row 1"),
    ],
)
def test_raw_rows_that_do_not_fit_are_refused(content: dict[str, Any], words: str) -> None:
    async def test(ask: Ask, endpoint: Endpoint) -> None:
        reply = await ask(PREDICT, content)

        assert reply.status_code == 400
        assert words in reply.json()["error"]

    served(test, schema=TABLE)
