"""Loading on demand: the user's own functions, and torchvision."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedrc_flwr.errors import ConfigError

#: The settings that may name a function, which is executed.
CODE = ("data.dataset", "model.network")
_REFERENCE = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Whether a text has the form of a function's name: in a module, or in a file."""
    return _REFERENCE.fullmatch(text) is not None


def refuse_code(
    where: object, settings: Mapping[str, Any], trusted: Container[Any], how: str
) -> None:
    """Refuse settings of a file that name a function, unless the user trusts it by name.

    Parameters
    ----------
    where : the file or directory that the settings come from
    trusted : the functions that the user has named
    how : how to name one, with ``{key}`` and ``{value}`` in it
    """
    for key in CODE:
        value = settings.get(key)
        if isinstance(value, str) and is_reference(value) and value not in trusted:
            raise ConfigError(
                f"{where} names code that would be executed: {key} = {value!r}. If you trust it, "
                f"{how.format(key=key, value=value)}"
            )


def located_reference(text: str) -> str:
    """The same with the absolute path of a file: the app runs in another directory."""
    file, _, name = text.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}" if file.endswith(".py") else text


def load_function(key: str, reference: str) -> Callable[..., Any]:
    """The function of that name; ``key`` is the configuration key that named it."""
    module_name, _, name = reference.rpartition(":")
    in_file = module_name.endswith(".py")
    try:
        module = _from_file(module_name) if in_file else importlib.import_module(module_name)
    except Exception as error:
        where = "" if in_file else ". It must be installed where the app runs, or be on PYTHONPATH"
        raise ConfigError(
            f"{key} = {reference!r}: cannot import {module_name}: {type(error).__name__}: {error}"
            f"{where}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{key} = {reference!r}: {module_name} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _from_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(path).expanduser())
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_torchvision(module: str, needed_for: str) -> Any:
    """A module of torchvision, which small installations leave out."""
    try:
        return importlib.import_module(f"torchvision.{module}")
    except ImportError as error:
        raise ConfigError(
            f"{needed_for} needs torchvision, which cannot be imported here: {error}. Install the "
            "torchvision that fits this torch, in an image by building without WITHOUT=torchvision"
        ) from error
