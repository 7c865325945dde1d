from __future__ import annotations

import os
from pathlib import Path

# Networks and matrices this small lose more by sharing the work than by doing it. NumPy's libraries
# and the programs that tests start read this from the environment, so it comes before all imports.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import hypothesis
import pytest
import tiny_data
import torch

from fedrc_flwr.data import images

torch.set_num_threads(1)
# How long an example takes is the machine's business.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session")
def all_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a handful of samples of every named dataset."""
    folder = tmp_path_factory.mktemp("data")
    tiny_data.write_all(folder)
    return folder


@pytest.fixture
def data_dir(all_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, whatever datasets this machine has installed."""
    monkeypatch.setattr(images, "DEBIAN", all_data / "not-installed")
    return all_data
