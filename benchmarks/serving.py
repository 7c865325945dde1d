"""`fedrc serve` under load from this process, against the bare model in a loop.

fedrc assign RUN --client observer-0 --out weights.json
python benchmarks/serving.py RUN --weights weights.json
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from fedrc_flwr.inference import load_trained, personal, read_weights
from fedrc_flwr.inference.protocol import MESSAGES, SERVICE

TOLERANCE = 1e-5
BARE_SECONDS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--batch-delay-ms", default="0")
    arguments = parser.parse_args()
    trained = load_trained(arguments.run)
    model = personal(trained, read_weights(arguments.weights, trained), hard=False)
    rng = np.random.default_rng(0)
    inputs = rng.random((arguments.requests, *model.input_shape), dtype=np.float32)
    expected = model.probabilities(inputs)
    command = [
        str(Path(sys.executable).parent / "fedrc"), "serve", str(arguments.run), "--weights",
        str(arguments.weights), "--port", "0", "--max-requests", str(2 * arguments.requests),
        "--batch-delay-ms", arguments.batch_delay_ms,
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split("gRPC on ")[1].strip()
        process = psutil.Process(server.pid)
        print("Ratios to the bare model in a loop: requests a second, and a second of CPU.\n")
        print(
            "| samples a request | under way | requests/s | ratio | CPU ratio | p50, p90, p99 ms |"
        )
        print("|---|---|---|---|---|---|")
        for size, under_way, requests in (
            (1, 1, 500), (1, 32, 3000), (1, 256, 5000), (64, 16, 500),
        ):  # fmt: skip
            bare, bare_cpu = bare_rates(model.probabilities, inputs, size)
            load = Load(address, inputs, expected, size)
            before = cpu_seconds(process)
            rate, latencies = asyncio.run(load.run(min(requests, arguments.requests), under_way))
            cpu = len(latencies) / (cpu_seconds(process) - before)
            told = ", ".join(f"{value:.1f}" for value in np.percentile(latencies, [50, 90, 99]))
            print(
                f"| {size} | {under_way} | {rate:.0f} | {rate / bare:.2f} | {cpu / bare_cpu:.2f} "
                f"| {told} |",
                flush=True,
            )
        load = Load(address, inputs, expected, 1)
        rate, latencies = asyncio.run(load.run(arguments.requests, arguments.requests))
        print(
            f"\n{arguments.requests} requests at once: {len(latencies)} answered, {load.wrong} "
            f"wrong, {load.failed} failed; {rate:.0f} a second, the last after "
            f"{latencies.max() / 1000:.1f} s"
        )
    finally:
        server.terminate()
        print(f"server's exit code {server.wait(60)}")


def bare_rates(run: Any, inputs: np.ndarray, size: int) -> tuple[float, float]:
    """Requests of ``size`` samples that the model alone answers, one by one: a second, a CPU's."""
    calls, ends, before = 0, time.perf_counter() + BARE_SECONDS, time.process_time()
    while time.perf_counter() < ends:
        start = calls * size % (len(inputs) - size + 1)
        run(inputs[start : start + size])
        calls += 1
    return calls / BARE_SECONDS, calls / (time.process_time() - before)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Load:
    """Requests whose answers are known."""

    def __init__(self, address: str, inputs: np.ndarray, expected: np.ndarray, size: int) -> None:
        self._address, self._inputs, self._expected = address, inputs, expected
        self._size = size
        self.wrong = self.failed = 0

    async def run(self, requests: int, under_way: int) -> tuple[float, np.ndarray]:
        """Answered requests a second, and their latencies in milliseconds."""
        latencies: list[float] = []
        queue = iter(range(requests))
        async with grpc.aio.insecure_channel(self._address) as channel:
            ask = channel.unary_unary(
                f"/{SERVICE}/ModelInfer",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=MESSAGES["ModelInferResponse"].FromString,
            )

            async def worker() -> None:
                for number in queue:
                    started = time.perf_counter()
                    if await self._one(ask, number):
                        latencies.append(1000 * (time.perf_counter() - started))

            started = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(under_way)))
            seconds = time.perf_counter() - started
        return len(latencies) / seconds, np.array(latencies)

    async def _one(self, ask: Any, number: int) -> bool:
        start = number * self._size % (len(self._inputs) - self._size + 1)
        rows = slice(start, start + self._size)
        part = self._inputs[rows]
        request = MESSAGES["ModelInferRequest"](
            model_name="fedrc", id=str(number), raw_input_contents=[part.tobytes()]
        )
        request.inputs.add(name="input", datatype="FP32", shape=part.shape)
        request.outputs.add(name="probabilities")
        try:
            answer = await ask(request, timeout=300)
        except grpc.aio.AioRpcError:
            self.failed += 1
            return False
        found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(self._size, -1)
        right = np.abs(found - self._expected[rows]).max() < TOLERANCE
        if answer.id != str(number) or not right:
            self.wrong += 1
        return True


if __name__ == "__main__":
    main()
