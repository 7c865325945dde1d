"""The small form of the paper's comparisons."""

from __future__ import annotations

import pytest

from fedrc_flwr.compare.plan import Comparison, comparison_names, read_comparison, with_changes
from fedrc_flwr.compare.small import NAME, SMALL, small
from fedrc_flwr.config import load_config
from fedrc_flwr.errors import ConfigError

ON_IMAGES = [name for name in comparison_names() if name not in
             ("drift", "adaptive-digits", "digits-noise")]  # fmt: skip


@pytest.mark.parametrize("name", ON_IMAGES)
def test_every_run_of_a_small_form_is_small(name: str) -> None:
    planned = small(read_comparison(name))

    for cell in planned.cells():
        config = load_config(cell.settings)
        assert config.data.dataset == "fashion-mnist"
        assert config.data.clients <= 100
        assert config.rounds == SMALL["rounds"]


def test_columns_that_are_the_same_when_small_become_one_with_the_first_ones_figures() -> None:
    planned = Comparison(
        "t",
        {"A": {"algorithm": "fedavg"}},
        {
            "CIFAR-10": {"scenario": "cifar10", "data.clients": 100},
            "Tiny-ImageNet": {"scenario": "tiny-imagenet"},
            "CIFAR-10, skewed": {"scenario": "cifar10", "data.alpha": 0.1},
        },
        paper={"CIFAR-10": {"A": (0.5, 0.4)}, "Tiny-ImageNet": {"A": (0.3, 0.2)}},
    )

    found = small(planned)

    assert list(found.columns) == [NAME, "FashionMNIST, skewed"]
    assert found.paper[NAME] == {"A": (0.5, 0.4)}
    assert "small form" in found.differs[0]


def test_the_command_line_changes_a_small_form() -> None:
    planned = with_changes(small(read_comparison("few-clusters")), (5,), (), {"rounds": 3}, None)

    [cell, *_] = planned.cells()
    assert (load_config(cell.settings).rounds, cell.seed) == (3, 5)
    assert any("rounds = 3" in sentence for sentence in planned.differs)


def test_a_small_form_tells_what_it_really_is() -> None:
    [told, *_] = small(read_comparison("few-clusters"), {"data.samples-per-client": 77}).differs

    assert "30 clients of FashionMNIST with 77 images each" in told


def test_other_data_has_no_small_form() -> None:
    with pytest.raises(ConfigError, match=r"Airline.*--scale"):
        small(read_comparison("drift"))
