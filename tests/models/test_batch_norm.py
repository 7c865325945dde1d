"""Networks with BatchNorm train on whatever number of samples a client has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedrc_flwr.bank import ModelBank
from fedrc_flwr.layout import to_vector
from fedrc_flwr.models import SplitModel
from fedrc_flwr.sgd import LocalSettings
from fedrc_flwr.training import Deltas, train

CPU = torch.device("cpu")


class Counting(nn.Module):
    """Notes the sizes of the batches that it sees, and whether BatchNorm was told to learn."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.sizes: list[int] = []
        self.learning: list[bool] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(inputs))
        self.learning.append(self.norm.training)
        out: torch.Tensor = self.norm(inputs)
        return out


def trained(samples: int, batch: int, norm: bool = True, shared: bool = False) -> tuple[
    Counting, Deltas
]:  # fmt: skip
    torch.manual_seed(0)
    counting = Counting(nn.BatchNorm1d(3) if norm else nn.Identity())
    body = nn.Sequential(nn.Linear(2, 3), counting)
    bank = ModelBank([SplitModel(body, nn.Linear(3, 2))], CPU, shared_body=shared)
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(samples, 2)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 2, samples))
    settings = LocalSettings(epochs=2, batch_size=batch, learning_rate=0.1)
    deltas = train(bank, inputs, labels, np.ones((samples, 1)), [0], settings, rng)
    return counting, deltas


@pytest.mark.parametrize("shared", [False, True])
def test_last_batch_of_one_joins_the_batch_before(shared: bool) -> None:
    counting, deltas = trained(samples=9, batch=4, shared=shared)

    assert counting.sizes == [4, 5, 4, 5]
    assert all(counting.learning)
    assert np.isfinite(deltas.clusters[0]).all()


@pytest.mark.parametrize(("samples", "sizes"), [(8, [4, 4]), (10, [4, 4, 2]), (3, [3])])
def test_other_batches_stay_as_they_are(samples: int, sizes: list[int]) -> None:
    counting, _ = trained(samples=samples, batch=4)

    assert counting.sizes == sizes * 2


def test_network_without_batch_norm_trains_on_a_last_batch_of_one() -> None:
    counting, _ = trained(samples=9, batch=4, norm=False)

    assert counting.sizes == [4, 4, 1] * 2


@pytest.mark.parametrize(("samples", "batch"), [(1, 4), (3, 1)])
def test_batch_of_one_that_is_left_is_normalised_by_the_running_statistics(
    samples: int, batch: int
) -> None:
    counting, deltas = trained(samples, batch)

    assert counting.sizes == [1] * samples * 2
    assert not any(counting.learning)
    assert np.isfinite(deltas.clusters[0]).all()
    assert (deltas.clusters[0] != 0).any()


def test_running_statistics_are_learned_again_after_a_batch_of_one() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(2)
    bank = ModelBank([SplitModel(norm, nn.Linear(2, 2))], CPU)
    before = to_vector(bank.units[0].module)
    settings = LocalSettings(epochs=1, batch_size=4, learning_rate=0.1)

    for samples in (1, 4):
        train(
            bank, torch.randn(samples, 2) + 5, torch.zeros(samples, dtype=torch.int64),
            np.ones((samples, 1)), [0], settings, np.random.default_rng(0),
        )  # fmt: skip

    assert norm.training
    assert (to_vector(bank.units[0].module)[-4:] != before[-4:]).all()
