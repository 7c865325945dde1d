"""Batches of concurrent requests: nobody's answer is lost, late for ever, or somebody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from fedrc_flwr.inference.batching import Batcher, Floats32


class Model:
    """Answers each sample with its double; may be held, and fails on negative samples."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, inputs: Floats32) -> Floats32:
        self.go.wait(30)
        if (inputs < 0).any():
            raise RuntimeError("negative")
        return 2 * inputs


def batched(
    test: Callable[[Batcher, Model], Coroutine[Any, Any, None]], max_batch: int = 8, **options: Any
) -> Model:
    """Run a test within an event loop that has a batcher."""
    model = Model()

    async def main() -> None:
        batcher = Batcher(model, max_batch, options.get("delay", 0.0), model.sizes.append)
        try:
            await asyncio.wait_for(test(batcher, model), 60)
        finally:
            model.go.set()
            await batcher.close()

    asyncio.run(main())
    return model


def samples(*values: float) -> Floats32:
    return np.array(values, dtype=np.float32)[:, None]


def test_everybody_gets_the_answer_to_what_they_asked() -> None:
    rng = np.random.default_rng(0)
    asked = [rng.integers(0, 10**6, rng.integers(1, 6)) for _ in range(2000)]

    async def test(batcher: Batcher, model: Model) -> None:
        answers = await asyncio.gather(*(batcher.submit(samples(*a)) for a in asked))
        for question, answer in zip(asked, answers, strict=True):
            np.testing.assert_array_equal(answer[:, 0], 2 * question.astype(np.float32))

    model = batched(test, max_batch=64)

    assert sum(model.sizes) == sum(len(a) for a in asked)
    assert max(model.sizes) <= 64
    assert len(model.sizes) < 300, "2000 requests of about 3 samples fit into about 100 batches"


def test_what_waits_while_the_model_is_busy_goes_together() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.go.clear()
        first = asyncio.create_task(batcher.submit(samples(1)))
        while not model.sizes:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(batcher.submit(samples(i, i))) for i in range(5)]
        await asyncio.sleep(0.01)
        model.go.set()
        await asyncio.gather(first, *rest)

    assert batched(test, max_batch=8).sizes == [1, 8, 2]


def test_with_a_delay_requests_that_come_apart_go_together() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        first = asyncio.create_task(batcher.submit(samples(1)))
        await asyncio.sleep(0.02)
        await asyncio.gather(first, batcher.submit(samples(2)))

    assert batched(test, delay=1.0).sizes == [2]


def test_a_request_larger_than_a_batch_is_answered_in_parts() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        answer = await batcher.submit(samples(*range(20)))
        np.testing.assert_array_equal(answer[:, 0], 2 * np.arange(20))

    assert batched(test, max_batch=8).sizes == [8, 8, 4]


def test_a_failing_batch_is_told_and_the_next_one_is_answered() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        with pytest.raises(RuntimeError, match="negative"):
            await batcher.submit(samples(-1))
        assert (await batcher.submit(samples(4)))[0, 0] == 8

    batched(test)


def test_whoever_has_gone_is_not_computed_for() -> None:
    async def test(batcher: Batcher, model: Model) -> None:
        model.go.clear()
        first = asyncio.create_task(batcher.submit(samples(1)))
        while not model.sizes:
            await asyncio.sleep(0.001)
        gone = asyncio.create_task(batcher.submit(samples(2, 2, 2)))
        stays = asyncio.create_task(batcher.submit(samples(3)))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.01)
        model.go.set()
        assert (await first)[0, 0] == 2
        assert (await stays)[0, 0] == 6

    assert batched(test).sizes == [1, 1]
