"""Batching: requests that wait at the same time are answered by one call of the model."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class _Waiting:
    inputs: Floats32
    answer: asyncio.Future[Floats32]


class Batcher:
    """Gathers samples while the model is busy, and runs it in a thread of its own.

    Parameters
    ----------
    run : the model: (N, ...) to (N, C)
    max_batch : largest number of samples per call
    delay : seconds to wait for more samples; 0: do not wait
    observe : called with the number of samples of each call
    """

    def __init__(
        self,
        run: Callable[[Floats32], Floats32],
        max_batch: int,
        delay: float,
        observe: Callable[[int], None],
    ) -> None:
        self._run = run
        self._max_batch = max_batch
        self._delay = delay
        self._observe = observe
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._worker = asyncio.create_task(self._work())

    async def submit(self, inputs: Floats32) -> Floats32:
        """The model's answer to these samples."""
        answer: asyncio.Future[Floats32] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(inputs, answer))
        self._arrived.set()
        return await answer

    async def close(self) -> None:
        """End the worker. Whoever calls this has let all requests finish before."""
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        self._thread.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self._delay and sum(len(w.inputs) for w in self._waiting) < self._max_batch:
                await asyncio.sleep(self._delay)
            taken = self._take()
            if not taken:
                self._arrived.clear()
                continue
            try:
                joined = [w.inputs for w in taken]
                answers = await loop.run_in_executor(self._thread, self._answers, joined)
            except Exception as error:  # an error of the model concerns only these requests
                for waiting in taken:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
                continue
            for waiting, answer in zip(taken, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)

    def _take(self) -> list[_Waiting]:
        """The next requests that fit together; one that is too large goes alone."""
        taken: list[_Waiting] = []
        size = 0
        while self._waiting:
            if self._waiting[0].answer.done():  # the client is gone
                self._waiting.popleft()
                continue
            size += len(self._waiting[0].inputs)
            if taken and size > self._max_batch:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _answers(self, joined: list[Floats32]) -> list[Floats32]:
        inputs = joined[0] if len(joined) == 1 else np.concatenate(joined)
        parts = []
        for start in range(0, len(inputs), self._max_batch):
            part = inputs[start : start + self._max_batch]
            self._observe(len(part))
            parts.append(self._run(part))
        ends = np.cumsum([len(part) for part in joined])[:-1]
        return np.split(np.concatenate(parts), ends)
