from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from pathlib import Path

# Networks and matrices this small lose more by sharing the work than by doing it. NumPy's libraries
# and the programs that tests start read this from the environment, so it comes before all imports.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import hypothesis
import pytest
import typer.testing

#: Modules whose tests mostly wait for processes that they start.
WAITING = ("test_simulation.py", "test_example_notebook.py", "test_serving.py")
# Importing a hundred test modules makes much that stays and hardly any garbage.
gc.disable()
# The library is imported where it is used: the process that only hands out tests does without it.
# How long an example takes is the machine's business.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _undrawn_and_unflushed() -> Iterator[None]:
    """Runs in this process draw no picture at their end and do not wait for the disk.

    Either takes longer than most runs. The fixture ``pictures`` is for tests that look at one.
    """
    import torch

    from fedrc_flwr.engine import outputs

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "draw_mixture_weights", lambda state, path: None)
        patch.setattr(os, "fsync", lambda handle: None)
        # Typer builds the whole command line anew for every call.
        once = functools.cache(typer.main.get_command)
        patch.setattr(typer.testing, "_get_command", once)
        yield


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process draw their picture, as they do for users."""
    from fedrc_flwr.engine import outputs
    from fedrc_flwr.report.figures import draw_mixture_weights

    monkeypatch.setattr(outputs, "draw_mixture_weights", draw_mixture_weights)


@pytest.fixture(scope="session")
def all_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a handful of samples of every named dataset."""
    import tiny_data

    folder = tmp_path_factory.mktemp("data")
    tiny_data.write_all(folder)
    return folder


@pytest.fixture
def data_dir(all_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, whatever datasets this machine has installed."""
    from fedrc_flwr.data import images

    monkeypatch.setattr(images, "DEBIAN", all_data / "not-installed")
    return all_data


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What mostly waits for other processes comes first, so that no worker is left with it last."""
    items.sort(key=lambda item: item.path.name not in WAITING)


def pytest_collection_finish() -> None:
    """What is loaded stays, so that collecting garbage need not look at it again and again."""
    gc.freeze()
    gc.enable()
