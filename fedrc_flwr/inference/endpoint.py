"""The part of the server that both transports share: checks, limits, batches, metrics."""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fedrc_flwr import __version__
from fedrc_flwr.data.base import as_floats
from fedrc_flwr.errors import DataError, FedRCError
from fedrc_flwr.inference.batching import Batcher
from fedrc_flwr.inference.personalised import Personal
from fedrc_flwr.inference.raw import samples_of

SERVER, VERSION = "fedrc-flwr", "1"
INPUT, PROBABILITIES, LABEL = "input", "probabilities", "label"
#: Supported data types by the protocol's names, with their NumPy types.
INPUT_TYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}
OUTPUT_TYPES = {PROBABILITIES: "FP32", LABEL: "INT64"}
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Reason(enum.Enum):
    """Why a request is refused; each transport has a code for it."""

    INVALID = "invalid"
    UNKNOWN = "unknown"
    BUSY = "busy"


class Refused(FedRCError):
    """A request that is not answered, and why."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Tensor:
    """A tensor as a request holds it: bytes, or numbers in one list."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: bytes | Sequence[float]


class Endpoint:
    """One model with a name, behind a batcher."""

    def __init__(
        self, name: str, model: Personal, max_batch: int, delay: float, max_requests: int
    ) -> None:
        self.name = name
        self.ready = True
        self.registry = CollectorRegistry()
        self._model = model
        self._max_requests = max_requests
        self._under_way = 0
        self._requests = Counter(
            "fedrc_requests", "Inference requests answered.", ["transport", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "fedrc_request_seconds", "From a request to its answer.", ["transport"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        batches = Histogram(
            "fedrc_batch_samples", "Samples that the model got at once.",
            buckets=_SIZES, registry=self.registry,
        )  # fmt: skip
        gauge = Gauge("fedrc_requests_under_way", "Now.", registry=self.registry)
        gauge.set_function(lambda: self._under_way)
        self._batcher = Batcher(model.probabilities, max_batch, delay, batches.observe)

    @property
    def able(self) -> bool:
        """Whether the next request would be answered."""
        return self.ready and self._under_way < self._max_requests

    def metrics(self) -> bytes:
        """All counters, in Prometheus' text form."""
        return generate_latest(self.registry)

    def server_metadata(self) -> dict[str, Any]:
        """Who serves."""
        return {"name": SERVER, "version": __version__, "extensions": []}

    def model_metadata(self, name: str, version: str) -> dict[str, Any]:
        """What the model takes and gives."""
        self.check_name(name, version)
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": self._model.platform,
            "inputs": [
                {"name": INPUT, "datatype": "FP32", "shape": [-1, *self._model.input_shape]}
            ],
            "outputs": [
                {"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, self._model.classes]},
                {"name": LABEL, "datatype": "INT64", "shape": [-1]},
            ],
        }

    def check_name(self, name: str, version: str) -> None:
        """Refuse requests for another model."""
        if name != self.name or version not in ("", VERSION):
            asked = f"{name!r} version {version!r}" if version else repr(name)
            raise Refused(
                Reason.UNKNOWN, f"model {asked}: expected {self.name!r}, version {VERSION}"
            )

    async def counted(self, transport: str, answer: Callable[[], Awaitable[Any]]) -> Any:
        """Answer an inference request, or refuse it if too many are in progress."""
        started = time.perf_counter()
        outcome = "failed"
        try:
            if self._under_way >= self._max_requests:
                raise Refused(
                    Reason.BUSY, f"{self._under_way} requests are in progress: try again later"
                )
            self._under_way += 1
            try:
                answered = await answer()
            finally:
                self._under_way -= 1
            outcome = "ok"
            return answered
        except Refused as refused:
            outcome = refused.reason.value
            raise
        finally:
            self._requests.labels(transport, outcome).inc()
            self._seconds.labels(transport).observe(time.perf_counter() - started)

    async def infer(
        self, tensors: list[Tensor], wanted: list[str]
    ) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
        """The outputs that are asked for, or all of them, by name."""
        unknown = [name for name in wanted if name not in OUTPUT_TYPES]
        if unknown:
            raise Refused(
                Reason.INVALID, f"output {unknown[0]!r}: expected {' or '.join(OUTPUT_TYPES)}"
            )
        probabilities = await self._batcher.submit(self._inputs(tensors))
        outputs = {PROBABILITIES: probabilities, LABEL: probabilities.argmax(axis=1)}
        return {name: outputs[name] for name in wanted or outputs}

    async def predict(self, instances: list[Any]) -> list[dict[str, Any]]:
        """For each raw sample, a row by column or nested lists, its label and the probabilities."""
        schema = self._model.schema
        try:
            if not instances:
                raise DataError("no instances: expected one sample or more")
            inputs = samples_of(schema, instances if schema.is_table else _array(instances))
        except DataError as error:
            raise Refused(Reason.INVALID, str(error)) from None
        probabilities = await self._batcher.submit(inputs)
        labels = schema.names(probabilities.argmax(axis=1))
        return [
            {"label": label, "probabilities": dict(zip(schema.classes, row, strict=True))}
            for label, row in zip(labels, probabilities.tolist(), strict=True)
        ]

    def _inputs(self, tensors: list[Tensor]) -> NDArray[np.float32]:
        if len(tensors) != 1 or tensors[0].name != INPUT:
            found = [tensor.name for tensor in tensors]
            raise Refused(Reason.INVALID, f"inputs {found}: expected one, {INPUT!r}")
        tensor = tensors[0]
        dtype = INPUT_TYPES.get(tensor.datatype)
        if dtype is None:
            raise Refused(
                Reason.INVALID,
                f"datatype {tensor.datatype!r}: expected {' or '.join(INPUT_TYPES)}",
            )
        expected = self._model.input_shape
        if tensor.shape[1:] != expected or not tensor.shape or tensor.shape[0] < 1:
            raise Refused(
                Reason.INVALID,
                f"shape {list(tensor.shape)}: expected {[-1, *expected]} with one sample or more",
            )
        size = int(np.prod(tensor.shape))
        if isinstance(tensor.content, bytes):
            size *= dtype.itemsize
        if len(tensor.content) != size:
            unit = "bytes" if isinstance(tensor.content, bytes) else "numbers"
            raise Refused(
                Reason.INVALID,
                f"{len(tensor.content)} {unit} of data: shape {list(tensor.shape)} of "
                f"{tensor.datatype} takes {size}",
            )
        values = _values(tensor.content, dtype).reshape(tensor.shape)
        floats = as_floats(values)
        if not np.isfinite(floats).all():
            raise Refused(Reason.INVALID, "the data holds NaN or infinity")
        return floats

    async def close(self) -> None:
        """End the batcher; all requests have been answered by then."""
        await self._batcher.close()


def _array(instances: list[Any]) -> NDArray[np.float64]:
    try:
        return np.asarray(instances, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise DataError("the instances are not lists of numbers of one shape") from None


def _values(content: bytes | Sequence[float], dtype: np.dtype[Any]) -> NDArray[Any]:
    if isinstance(content, bytes):
        return np.frombuffer(content, dtype)
    try:
        numbers = np.asarray(content, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Refused(Reason.INVALID, "the data is not a list of numbers") from None
    if dtype.kind == "u" and not ((numbers >= 0) & (numbers <= 255) & (numbers % 1 == 0)).all():
        raise Refused(Reason.INVALID, "UINT8 data: expected whole numbers from 0 to 255")
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinity and are refused
        return numbers.astype(dtype)
