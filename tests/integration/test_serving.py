"""`fedrc serve`, asked by a client that we did not write; and the way from a run."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from grpc_health.v1 import health_pb2, health_pb2_grpc
from processes import FEDRC, fedrc
from trained_run import concept_checkpoint, write_run
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from deploy.certificates import create_authority, issue_server_certificate
from fedrc_flwr import inference
from fedrc_flwr.cli import app
from fedrc_flwr.inference import (
    Trained,
    Weights,
    load_trained,
    personal,
    read_weights,
    write_weights,
)
from fedrc_flwr.inference.protocol import MESSAGES, SERVICE
from fedrc_flwr.inference.serving import serve_until
from fedrc_flwr.report.log import read_events

INPUTS = np.random.default_rng(4).random((40, 8, 8), dtype=np.float32)


@dataclass
class Served:
    """A running server, and what it ought to answer."""

    address: str
    http: str
    trained: Trained
    weights: Weights

    def expected(self, inputs: np.ndarray) -> np.ndarray:
        return personal(self.trained, self.weights, hard=False).probabilities(inputs)

    def client(self, **options: Any) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(self.address, **options)


def to_serve(folder: Path, *options: str) -> tuple[list[str], Trained, Weights]:
    """The arguments of a command that serves a run on free ports, and what it serves."""
    run = write_run(folder / "run", concept_checkpoint())
    trained = load_trained(run)
    weights = Weights(trained.clusters, np.array([0.1, 0.6, 0.3]))
    write_weights(folder / "weights.json", trained, weights, {})
    what = ["serve", str(run), "--weights", str(folder / "weights.json")]
    return [*what, "--port", "0", "--http-port", "0", *options], trained, weights


def served_at(line: str, trained: Trained, weights: Weights) -> Served:
    """The server that says that it is ready."""
    found = re.search(r"gRPC on (\S+:\d+), HTTP on (\S+:\d+)", line)
    assert found, line
    return Served(found[1], found[2], trained, weights)


@contextmanager
def serving_process(folder: Path, *options: str) -> Iterator[tuple[Served, subprocess.Popen[str]]]:
    """The command as a process."""
    arguments, trained, weights = to_serve(folder, *options)
    process = subprocess.Popen(
        [FEDRC, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield served_at(process.stdout.readline(), trained, weights), process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    """What the command would serve, in a thread of this process, which has loaded everything."""
    arguments, trained, weights = to_serve(folder, "--grace-seconds", "0", *options)
    given: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "serve", lambda *what: given.extend(what))
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    loop, stop, said = asyncio.new_event_loop(), asyncio.Event(), queue.SimpleQueue[str]()
    until_stopped = serve_until(stop, given[0], given[1], said.put)
    thread = threading.Thread(target=lambda: loop.run_until_complete(until_stopped))
    thread.start()
    try:
        yield served_at(said.get(timeout=60), trained, weights)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    limits = ("--max-requests", "20000", "--max-message-mb", "1")
    with serving_process(folder, *limits) as (served, _):
        yield served


def asked(inputs: np.ndarray, datatype: str = "FP32") -> list[triton.InferInput]:
    tensor = triton.InferInput("input", list(inputs.shape), datatype)
    tensor.set_data_from_numpy(inputs)
    return [tensor]


def works(served: Served) -> None:
    """The server still answers, and rightly."""
    answer = served.client().infer("fedrc", asked(INPUTS[:3]))
    np.testing.assert_allclose(
        answer.as_numpy("probabilities"), served.expected(INPUTS[:3]), atol=1e-6
    )


# --- a public client ----------------------------------------------------------------------------


def test_tritonclient_asks_for_health_metadata_and_inference(
    served: Served, tmp_path: Path
) -> None:
    client = served.client()
    run, weights = served.trained.where, tmp_path / "w.json"
    write_weights(weights, served.trained, served.weights, {})
    np.savez(tmp_path / "x.npz", x=INPUTS)
    done = CliRunner().invoke(
        app, ["predict", str(run), "--data", str(tmp_path / "x.npz"), "--weights", str(weights),
              "--out", str(tmp_path / "p.npz")],
    )  # fmt: skip
    assert done.exit_code == 0, done.output

    answer = client.infer("fedrc", asked(INPUTS), request_id="42")

    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("fedrc")
    assert client.get_server_metadata().name == "fedrc-flwr"
    about = client.get_model_metadata("fedrc", "1")
    assert [(i.name, i.datatype, list(i.shape)) for i in about.inputs] == [
        ("input", "FP32", [-1, 8, 8])
    ]
    with np.load(tmp_path / "p.npz") as predicted:
        np.testing.assert_allclose(
            answer.as_numpy("probabilities"), predicted["probabilities"], atol=1e-6
        )
        np.testing.assert_array_equal(answer.as_numpy("label"), predicted["label"])
    assert answer.get_response().id == "42"


def test_bytes_are_scaled_as_in_training(served: Served) -> None:
    pixels = (255 * INPUTS).astype(np.uint8)

    answer = served.client().infer("fedrc", asked(pixels, "UINT8"))

    expected = served.expected(pixels.astype(np.float32) / 255)
    np.testing.assert_allclose(answer.as_numpy("probabilities"), expected, atol=1e-6)


def test_typed_contents_are_answered_in_kind(served: Served) -> None:
    request = MESSAGES["ModelInferRequest"](model_name="fedrc")
    tensor = request.inputs.add(name="input", datatype="FP32", shape=[2, 8, 8])
    tensor.contents.fp32_contents.extend(INPUTS[:2].ravel().tolist())

    answer = call(served, request.SerializeToString())

    assert not answer.raw_output_contents
    found = np.reshape(answer.outputs[0].contents.fp32_contents, (2, 10))
    np.testing.assert_allclose(found, served.expected(INPUTS[:2]), atol=1e-6)
    assert list(answer.outputs[1].contents.int64_contents) == found.argmax(axis=1).tolist()


def call(served: Served, content: bytes, method: str = "ModelInfer") -> Any:
    with grpc.insecure_channel(served.address) as channel:
        ask = channel.unary_unary(
            f"/{SERVICE}/{method}",
            response_deserializer=MESSAGES[f"{method}Response"].FromString,
        )
        return ask(content, timeout=60)


def test_health_service_speaks_for_the_server(served: Served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_http_gives_the_same_probabilities_and_the_metrics(served: Served) -> None:
    tensor = {"name": "input", "shape": [3, 8, 8], "datatype": "FP32", "data": INPUTS[:3].tolist()}
    request = urllib.request.Request(
        f"http://{served.http}/v2/models/fedrc/infer", json.dumps({"inputs": [tensor]}).encode()
    )

    with urllib.request.urlopen(request, timeout=60) as reply:
        outputs = json.load(reply)["outputs"]
    with urllib.request.urlopen(f"http://{served.http}/metrics", timeout=60) as reply:
        metrics = reply.read().decode()

    found = np.reshape(outputs[0]["data"], (3, 10))
    np.testing.assert_allclose(found, served.expected(INPUTS[:3]), atol=1e-6)
    assert 'fedrc_requests_total{outcome="ok",transport="http"}' in metrics


# --- bad requests -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "datatype", "model", "code", "word"),
    [
        (INPUTS[:, :7], "FP32", "fedrc", "INVALID_ARGUMENT", "expected [-1, 8, 8]"),
        (INPUTS[0], "FP32", "fedrc", "INVALID_ARGUMENT", "expected [-1, 8, 8]"),
        (INPUTS.astype(np.float64), "FP64", "fedrc", "INVALID_ARGUMENT", "FP32 or UINT8"),
        (INPUTS * np.nan, "FP32", "fedrc", "INVALID_ARGUMENT", "NaN"),
        (INPUTS, "FP32", "other", "NOT_FOUND", "expected 'fedrc'"),
        (np.zeros((5000, 8, 8), np.float32), "FP32", "fedrc", "RESOURCE_EXHAUSTED", "larger"),
    ],
)
def test_bad_request_gets_the_protocols_error_and_the_server_goes_on(
    served: Served, inputs: np.ndarray, datatype: str, model: str, code: str, word: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        served.client().infer(model, asked(inputs, datatype))

    assert code in str(caught.value.status())
    assert word in str(caught.value.message())
    works(served)


def cut_short(request: Any) -> None:
    request.raw_input_contents[0] = request.raw_input_contents[0][:-1]


def two_for_one(request: Any) -> None:
    request.raw_input_contents.append(b"1234")


def both_kinds(request: Any) -> None:
    request.inputs[0].contents.fp32_contents.append(1.0)


@pytest.mark.parametrize("spoil", [cut_short, two_for_one, both_kinds])
def test_malformed_tensor_is_an_invalid_argument(served: Served, spoil: Any) -> None:
    request = MESSAGES["ModelInferRequest"](
        model_name="fedrc", raw_input_contents=[INPUTS[:1].tobytes()]
    )
    request.inputs.add(name="input", datatype="FP32", shape=[1, 8, 8])
    call(served, request.SerializeToString())
    spoil(request)

    with pytest.raises(grpc.RpcError) as caught:
        call(served, request.SerializeToString())

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    works(served)


def test_bytes_that_are_no_message_are_an_invalid_argument(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(served, b"\xff\xff\xff\xff")

    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "not a ModelInferRequest" in caught.value.details()
    works(served)


def test_method_that_is_not_served_is_unimplemented(served: Served) -> None:
    with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
        served.client().get_model_config("fedrc")


# --- load ---------------------------------------------------------------------------------------


def test_three_thousand_requests_at_once_are_all_answered_and_none_is_mixed_up(
    served: Served,
) -> None:
    count = 3_000
    inputs = np.random.default_rng(9).random((count, 8, 8), dtype=np.float32)
    expected = served.expected(inputs)

    async def ask_all() -> list[Any]:
        async with grpc.aio.insecure_channel(served.address) as channel:
            ask = channel.unary_unary(
                f"/{SERVICE}/ModelInfer",
                response_deserializer=MESSAGES["ModelInferResponse"].FromString,
            )

            async def one(number: int) -> Any:
                request = MESSAGES["ModelInferRequest"](
                    model_name="fedrc", id=str(number),
                    raw_input_contents=[inputs[number].tobytes()],
                )  # fmt: skip
                request.inputs.add(name="input", datatype="FP32", shape=[1, 8, 8])
                return await ask(request.SerializeToString(), timeout=400)

            return await asyncio.gather(*(one(number) for number in range(count)))

    answers = asyncio.run(ask_all())

    assert [answer.id for answer in answers] == [str(number) for number in range(count)]
    found = np.stack([np.frombuffer(a.raw_output_contents[0], np.float32) for a in answers])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # A neighbour's answer would have been noticed.
    assert np.abs(expected[1:] - expected[:-1]).max(axis=1).min() > 1e-5


def test_more_than_the_limit_are_told_so_and_told_apart(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-requests", "4", "--batch-delay-ms", "1000") as served:
        client = served.client()
        done = threading.Barrier(9)

        def one(_: int) -> str:
            done.wait(60)
            try:
                client.infer("fedrc", asked(INPUTS[:1]))
            except InferenceServerException as error:
                return str(error.status())
            return "ok"

        with ThreadPoolExecutor(9) as pool:
            outcomes = sorted(pool.map(one, range(9)))

        assert outcomes == ["StatusCode.RESOURCE_EXHAUSTED"] * 5 + ["ok"] * 4
        works(served)


# --- the end ------------------------------------------------------------------------------------


def test_sigterm_finishes_what_is_under_way(tmp_path: Path) -> None:
    with serving_process(tmp_path, "--batch-delay-ms", "3000") as (served, process):
        client = served.client()
        client.is_server_live()
        with ThreadPoolExecutor(12) as pool:
            asking = [
                pool.submit(client.infer, "fedrc", asked(INPUTS[n : n + 1])) for n in range(12)
            ]
            wait_for_requests(served, 12)

            process.send_signal(signal.SIGTERM)
            answers = [future.result(60).as_numpy("probabilities") for future in asking]

        np.testing.assert_allclose(np.concatenate(answers), served.expected(INPUTS[:12]), atol=1e-6)
        assert process.wait(60) == 0
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            served.client().infer("fedrc", asked(INPUTS[:1]))


def wait_for_requests(served: Served, count: int) -> None:
    for _ in range(200):
        with urllib.request.urlopen(f"http://{served.http}/metrics", timeout=60) as reply:
            if f"fedrc_requests_under_way {count}.0" in reply.read().decode():
                return
    raise AssertionError(f"{count} requests were never under way together")


# --- TLS ----------------------------------------------------------------------------------------


def test_with_tls_only_those_who_trust_the_authority_get_through(tmp_path: Path) -> None:
    create_authority(tmp_path / "tls")
    issue_server_certificate(tmp_path / "tls", ["127.0.0.1", "localhost"])
    cert, key = tmp_path / "tls" / "server.crt", tmp_path / "tls" / "server.key"
    with serving(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as served:
        client = served.client(ssl=True, root_certificates=str(tmp_path / "tls" / "ca.crt"))
        answer = client.infer("fedrc", asked(INPUTS))
        np.testing.assert_allclose(
            answer.as_numpy("probabilities"), served.expected(INPUTS), atol=1e-6
        )
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            served.client().infer("fedrc", asked(INPUTS))
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://{served.http}/v2/health/live", timeout=60)


# --- from a run ---------------------------------------------------------------------------------


@pytest.mark.deployment  # with the other long trials of `make test-deployment`
def test_from_a_run_to_the_accuracy_that_it_reported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = fedrc(
        "simulate", "--output", run, *(
            part for setting in ("recipe=paper", "data.clients=6", "model.hidden=16", "rounds=4",
                                 "run.evaluate-every=4")
            for part in ("--set", setting)
        ), timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (event,) = [e for e in read_events(run / "metrics.jsonl") if "clients" in e]

    for name in ("observer-0", "observer-2", "client-4"):
        weights = ["--weights", tmp_path / "w.json"]
        if name == "client-4":
            weights = ["--state", run / "clients" / "run" / "client-4"]
        else:
            done = fedrc("assign", run, "--client", name, "--out", tmp_path / "w.json", timeout=400)
            assert done.returncode == 0, done.stderr
        out = tmp_path / "p.csv"
        done = fedrc("predict", run, "--client", name, *weights, "--out", out, timeout=400)

        assert done.returncode == 0, done.stderr
        accuracy = float(done.stdout.split(": ")[-1])
        assert accuracy == pytest.approx(event["clients"][name]["accuracy"], abs=1e-6)
    trained = load_trained(run)
    assert (
        event["clients"]["observer-2"]["cluster"] == read_weights(tmp_path / "w.json", trained).best
    )
