"""What configuration keys are made of: their shape, and the names that they may take."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedrc_flwr.errors import ConfigError

Scalar = bool | int | float | str
ALGORITHMS = (
    "fedrc", "fedem", "ifca", "fesem", "cfl", "fedsoft",
    "fedavg", "fedprox", "feddecorr", "local", "pfedme", "apfl",
)  # fmt: skip
#: Those with one model on the server.
SINGLE = ("fedavg", "fedprox", "feddecorr", "local", "pfedme", "apfl")
#: Those whose client trains a network of its own rather than the broadcast ones.
PERSONAL = ("fedsoft", "local", "pfedme", "apfl")
LOGGERS = ("tensorboard", "mlflow", "wandb")
MODELS = ("mlp", "cnn", "mobilenet-v2", "resnet18")
#: Named mixes: shares of the concepts, and of each concept's clients that are corrupted.
MIXES = {
    "paper": ((0.5, 0.25, 0.25), (0.4, 0.2, 0.2)),
    "authors": ((0.4, 0.3, 0.3), (1 / 2, 1 / 3, 1 / 3)),
}


def key(
    default: Scalar,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    group: str = "",
) -> Any:
    """A configuration key: its default, its documentation and what is allowed."""
    metadata = {
        "doc": doc,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
        "group": group,
    }
    return dataclasses.field(default=default, metadata=metadata)


def parse_shares(name: str, text: str, total: float | None) -> tuple[float, ...]:
    """Numbers from 0 to 1, separated by commas, of a given sum where there is one."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise ConfigError(f"{name} = {text!r}: expected numbers from 0 to 1, separated by commas")
    if total is not None and abs(sum(shares) - total) > 1e-6:
        raise ConfigError(f"{name} = {text!r}: expected numbers that sum to {total:g}")
    return shares
