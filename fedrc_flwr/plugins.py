"""Loading on demand: the user's own functions, and torchvision."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from fedrc_flwr.errors import ConfigError

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Whether a text has the form of a function's name."""
    return _REFERENCE.fullmatch(text) is not None


def load_function(key: str, reference: str) -> Callable[..., Any]:
    """The function of that name; ``key`` is the configuration key that named it."""
    module_name, _, name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"{key} = {reference!r}: cannot import {module_name}: {type(error).__name__}: {error}. "
            "It must be installed where the app runs, or be on PYTHONPATH"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{key} = {reference!r}: {module_name} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def load_torchvision(module: str, needed_for: str) -> Any:
    """A module of torchvision, which small installations leave out."""
    try:
        return importlib.import_module(f"torchvision.{module}")
    except ImportError as error:
        raise ConfigError(
            f"{needed_for} needs torchvision, which cannot be imported here: {error}. Install the "
            "torchvision that fits this torch, in an image by building without WITHOUT=torchvision"
        ) from error
