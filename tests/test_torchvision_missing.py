"""An installation without torchvision: what needs it says so, everything else works."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from fedrc_flwr.config import load_config
from fedrc_flwr.data.corruptions import corrupt
from fedrc_flwr.data.scenario import Scenario
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models import ModelSettings, build_model


@pytest.fixture(autouse=True)
def _no_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
    for name in {"torchvision", *loaded}:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("model", ["mobilenet-v2", "resnet18"])
def test_a_network_of_torchvisions_says_what_is_missing(model: str) -> None:
    with pytest.raises(ConfigError, match=f"{model}.*needs torchvision"):
        build_model(ModelSettings(network=model), (3, 32, 32), 10, 0)


@pytest.mark.parametrize("style", ["gaussian_blur", "zoom_blur", "snow"])
def test_a_corruption_through_torchvision_says_what_is_missing(style: str) -> None:
    images = np.full((2, 3, 16, 16), 0.5, dtype=np.float32)

    with pytest.raises(ConfigError, match="needs torchvision"):
        corrupt(images, style, 1, np.random.default_rng(0))


@pytest.mark.parametrize("settings", [{}, {"scenario": "digits-edge"}])
def test_digits_need_none_of_it(settings: dict[str, Any]) -> None:
    config = load_config({"data.corrupted-shares": "1,1,1", **settings})
    scenario = Scenario(config.data, config.seed)

    clients = [scenario.client(index) for index in range(len(scenario))]

    assert len(clients) == scenario.clients + scenario.observers
    build_model(config.model, scenario.input_shape, scenario.classes, 0)
