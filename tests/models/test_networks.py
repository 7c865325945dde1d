"""Networks by name: their shapes, their two parts, their initial weights, and the user's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedrc_flwr.config import load_config
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.layout import to_vector
from fedrc_flwr.models import ModelSettings, SplitModel, build_model, check_model
from fedrc_flwr.models.small import ON_X86, Blocked, Standardise

VISION = ("mobilenet-v2", "resnet18")


def build(
    model: str, shape: tuple[int, ...] = (3, 32, 32), seed: int = 0, **keys: Any
) -> SplitModel:
    return build_model(ModelSettings(model, **keys), shape, 5, seed)


def norms(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(part, kind) for part in model.modules())


# --- shapes and parts ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 8), (1, 9, 12), (3, 32, 32)])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_small_network_takes_grey_and_colour_images(model: str, shape: tuple[int, ...]) -> None:
    network, inputs = build(model, shape), torch.rand(2, *shape)

    features = network.body(inputs)

    assert features.shape == (2, 64 if model == "mlp" else 2048)
    torch.testing.assert_close(network(inputs), network.head(features))
    assert network(inputs).shape == (2, 5)


@pytest.mark.parametrize(
    ("shape", "name"),
    [((7,), "mlp"), ((8, 8), "mlp"), ((3, 15, 40), "mlp"), ((16, 16), "cnn"), ((3, 32, 32), "cnn")],
)
def test_network_follows_from_the_shape_where_none_is_named(
    shape: tuple[int, ...], name: str
) -> None:
    chosen, named = build("", shape), build(name, shape)

    assert ModelSettings().network == ""
    np.testing.assert_array_equal(to_vector(chosen), to_vector(named))


def test_cnn_of_fashion_mnist_has_the_papers_size() -> None:
    network = build("cnn", (28, 28))

    # 5 * 5 * 32 + 32, 5 * 5 * 32 * 64 + 64, 7 * 7 * 64 * 2048 + 2048, 2048 * 5 + 5
    assert len(to_vector(network)) == 832 + 51_264 + 6_424_576 + 10_245


def test_width_scales_all_layers_of_the_cnn() -> None:
    narrow = build("cnn", (28, 28), width=0.25)
    least = build("cnn", (28, 28), width=0.001)

    # 8 and 16 channels of 5 x 5, 512 units on 7 x 7 places, 5 classes
    assert len(to_vector(narrow)) == (8 * 26) + 16 * (200 + 1) + 512 * (784 + 1) + 5 * 513
    # one, one, and 2.048 rounded
    assert len(to_vector(least)) == 26 + 26 + 2 * 50 + 5 * 3
    assert narrow(torch.rand(3, 28, 28)).shape == (3, 5)


def plain_cnn(images: Tensor, parameters: list[Tensor]) -> Tensor:
    """The network as its description reads, on images (N, C, H, W)."""
    first, first_bias, second, second_bias, dense, dense_bias, head, head_bias = parameters
    centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
    values = centred / (images.std(dim=(1, 2, 3), correction=0, keepdim=True) + 0.01)
    for weight, bias in ((first, first_bias), (second, second_bias)):
        values = functional.conv2d(values, weight, bias, padding=2).relu()
        values = functional.max_pool2d(values, 2)
    return functional.linear((values.flatten(1) @ dense.T + dense_bias).relu(), head, head_bias)


@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 29, 15)])
def test_cnn_computes_what_its_description_says(shape: tuple[int, ...], samples: int) -> None:
    network, images = build("cnn", shape), torch.rand(samples, *shape)
    alone = [p.detach().clone().requires_grad_() for p in network.parameters()]
    labels = torch.arange(samples) % 5

    logits, expected = network(images), plain_cnn(images, alone)
    for each in (logits, expected):
        functional.cross_entropy(each, labels).backward()

    torch.testing.assert_close(logits, expected)
    for trained, parameter in zip(network.parameters(), alone, strict=True):
        torch.testing.assert_close(trained.grad, parameter.grad)


def test_cnn_computes_the_same_where_its_kernels_have_no_blocks() -> None:
    network, images = build("cnn", (28, 28)), torch.rand(3, 28, 28)
    expected = network(images)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = network(images)

    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected, rtol=0.0, atol=0.02)
    torch.testing.assert_close(network.double()(images.double()).float(), expected)
    assert network.float()(images[:0]).shape == (0, 5)
    traced = torch.export.export(network, (images,)).module()
    torch.testing.assert_close(traced(images), expected)


def test_cnn_in_mixed_precision_has_its_channels_last_and_nearly_the_same_gradients() -> None:
    network, images, labels = build("cnn", (28, 28)), torch.rand(64, 28, 28), torch.arange(64) % 5
    formats: list[bool] = []
    for part in network.modules():
        if isinstance(part, nn.Conv2d):
            part.register_forward_hook(
                lambda part, given, found: formats.append(
                    found.is_contiguous(memory_format=torch.channels_last)
                )
            )

    gradients = []
    for mixed in (False, True):
        network.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = functional.cross_entropy(network(images).float(), labels)
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))  # type: ignore[union-attr]

    assert formats[2:] == [True, True] or not ON_X86
    exact, near = gradients
    assert float((near - exact).norm()) < 0.1 * float(exact.norm())


def test_gradients_flow_through_blocks_to_the_images() -> None:
    network, images = build("cnn", (12, 12)), torch.rand(2, 12, 12, requires_grad=True)
    network(images).sum().backward()
    plain = images.detach().double().requires_grad_()
    network.double()(plain).sum().backward()

    assert any(isinstance(part, Blocked) for part in network.modules())
    assert images.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(images.grad, plain.grad.float())


@torch.no_grad()
@pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32)])
def test_cnn_is_not_told_by_brightness_and_contrast(shape: tuple[int, ...]) -> None:
    network, images = build("cnn", shape).eval(), torch.rand(4, *shape)

    seen = network(images)

    # A hundredth is added to a deviation of 0.29 here and of 0.23 there.
    tolerance = 0.05 * float(seen.std())
    torch.testing.assert_close(network(0.8 * images + 0.1), seen, rtol=0.0, atol=tolerance)
    flat = network(torch.full((2, *shape), 0.5))
    assert torch.isfinite(flat).all()


def test_an_mlp_may_standardise_its_images() -> None:
    images = torch.rand(3, 28, 28)
    plain = build("mlp", (28, 28), hidden=5)
    standardising = build("mlp", (28, 28), hidden=5, standardise=True)

    assert (to_vector(plain) == to_vector(standardising)).all()
    torch.testing.assert_close(standardising(images), plain(Standardise()(images)))


def test_images_are_standardised_one_by_one() -> None:
    images = torch.tensor([[[[0.0, 1.0]]], [[[3.0, 3.0]]]])

    standardised = Standardise()(images)

    # A mean of a half and a deviation of a half, with a hundredth added; a flat image.
    expected = [[[[-0.5 / 0.51, 0.5 / 0.51]]], [[[0.0, 0.0]]]]
    torch.testing.assert_close(standardised, torch.tensor(expected))


@pytest.mark.parametrize("small_stem", [True, False])
@pytest.mark.parametrize("shape", [(28, 28), (3, 32, 32)])
@pytest.mark.parametrize("model", VISION)
def test_torchvision_network_takes_grey_and_colour_images(
    model: str, shape: tuple[int, ...], small_stem: bool
) -> None:
    network = build(model, shape, small_stem=small_stem).eval()
    inputs = torch.rand(2, *shape)

    features = network.body(inputs)

    assert features.shape == (2, 1280 if model == "mobilenet-v2" else 512)
    torch.testing.assert_close(network(inputs), network.head(features))


def last_map(model: str, small_stem: bool) -> tuple[int, ...]:
    """Height and width before the pooling."""
    network = build(model, small_stem=small_stem).eval()
    seen: list[tuple[int, ...]] = []
    pooling = next(p for p in network.modules() if isinstance(p, nn.AdaptiveAvgPool2d))
    pooling.register_forward_hook(lambda _, given, __: seen.append(tuple(given[0].shape[-2:])))
    network(torch.rand(1, 3, 32, 32))
    return seen[0]


@pytest.mark.parametrize("model", VISION)
def test_small_stem_halves_the_image_less_often(model: str) -> None:
    assert last_map(model, small_stem=False) == (1, 1)
    assert last_map(model, small_stem=True) == (4, 4)


@pytest.mark.parametrize("model", VISION)
def test_group_norm_replaces_every_batch_norm(model: str) -> None:
    batch, group = build(model), build(model, norm="group")

    assert norms(batch, nn.BatchNorm2d) == norms(group, nn.GroupNorm) > 10
    assert norms(batch, nn.GroupNorm) == norms(group, nn.BatchNorm2d) == 0
    assert not [name for name, _ in group.named_buffers()]


@pytest.mark.parametrize("model", ["cnn", *VISION])
def test_initial_parameters_of_every_network_follow_from_the_seed_alone(model: str) -> None:
    one, again, other = (to_vector(build(model, seed=seed)) for seed in (3, 3, 4))

    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        ("cnn", (8,), "expected images"),
        ("cnn", (3, 8), "too small"),
        ("resnet18", (8,), "expected images"),
        ("mobilenet-v2", (4, 32, 32), "1 or 3 channels, not 4"),
    ],
)
def test_network_that_does_not_fit_the_data_is_refused(
    model: str, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"model.network = '{model}'.*{words}"):
        build(model, shape)


@pytest.mark.parametrize("name", ["vgg", "os.path", "a:", ":b", "a.b:c:d", "a/b:c", "a b:c"])
def test_text_that_names_no_network_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.network = .*mlp, cnn, mobilenet-v2, resnet18"):
        load_config({"model.network": name})


# --- weights from a file ------------------------------------------------------------------------


def saved(path: Path, tensors: dict[str, Tensor]) -> str:
    torch.save(tensors, path)
    return str(path)


def torchvision_weights(model: str) -> dict[str, Tensor]:
    """As torchvision hands them out: a classifier of 1000 classes among them."""
    import torchvision

    torch.manual_seed(9)
    return dict(getattr(torchvision.models, model.replace("-", "_"))().state_dict())


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("model", VISION)
def test_backbone_is_filled_from_a_file_and_the_head_follows_the_seed(
    tmp_path: Path, model: str, norm: str
) -> None:
    tensors = torchvision_weights(model)
    path = saved(tmp_path / "weights.pt", tensors)

    one, other = (build(model, seed=seed, norm=norm, weights=path) for seed in (1, 2))

    first = next(p for p in one.body.modules() if isinstance(p, nn.Conv2d)).weight
    torch.testing.assert_close(first, next(iter(tensors.values())))
    torch.testing.assert_close(to_vector(one.body), to_vector(other.body))
    assert (to_vector(one.head) != to_vector(other.head)).any()


def test_tensors_under_other_names_are_taken_by_order(tmp_path: Path) -> None:
    features = {n: t for n, t in torchvision_weights("mobilenet-v2").items() if "features" in n}
    # The first few names fit, as in files of older versions of torchvision.
    renamed = {
        n if place < 6 else f"layer{place}.{n[-12:]}": t
        for place, (n, t) in enumerate(features.items())
    }
    plain = build("mobilenet-v2", weights=saved(tmp_path / "a.pt", features))

    by_order = build("mobilenet-v2", weights=saved(tmp_path / "b.pt", renamed))

    torch.testing.assert_close(to_vector(by_order), to_vector(plain))


def test_client_needs_no_file_of_weights(tmp_path: Path) -> None:
    settings = ModelSettings("resnet18", weights=str(tmp_path / "gone.pt"))

    network = build_model(settings, (3, 32, 32), 5, seed=0, weights=False)

    assert len(to_vector(network)) > 1_000_000


class Program:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"conv1.weight": torch.zeros(2, 2)}, "of the backbone's .* tensors are not in the file"),
        ({"other": torch.zeros(1)}, "of the backbone's .* tensors are not in the file"),
        ([1, 2], "expected a saved state_dict"),
        ({"a": 1}, "expected a saved state_dict"),
        ({"a": Program()}, "weights.pt"),
    ],
    ids=["another-shape", "other-names", "a-list", "no-tensors", "a-program"],
)
def test_file_without_the_weights_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "weights.pt", content)

    with pytest.raises(ConfigError, match=words):
        build("resnet18", weights=path)

    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize("content", [None, b"", b"no weights"])
def test_file_that_is_missing_or_broken_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights.pt"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"model\.weights = .*weights.pt"):
        build("resnet18", weights=str(path))


def test_weights_for_a_network_without_a_backbone_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"only for model\.network = mobilenet-v2 or resnet18"):
        load_config({"model.network": "cnn", "model.weights": "weights.pt"})


# --- the user's own -----------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_networks.py").write_text(
        "from torch import nn\n"
        "from fedrc_flwr.models import SplitModel\n"
        "def split(input_shape, classes):\n"
        "    return SplitModel(nn.Flatten(), nn.Linear(input_shape[0], classes))\n"
        "class Own(nn.Module):\n"
        "    def __init__(self, input_shape, classes):\n"
        "        super().__init__()\n"
        "        self.body, self.head = nn.Flatten(), nn.Linear(input_shape[0], classes)\n"
        "def whole(input_shape, classes): return nn.Linear(input_shape[0], classes)\n"
        "def sequence(input_shape, classes):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], 3), nn.ReLU(), nn.Linear(3, classes))\n"
        "class Deep(nn.Module):\n"
        "    def __init__(self, input_shape, classes):\n"
        "        super().__init__()\n"
        "        self.first = nn.Linear(input_shape[0], 3)\n"
        "        self.top = nn.ModuleDict({'out': nn.Linear(3, classes)})\n"
        "    def forward(self, x): return self.top['out'](self.first(x).relu())\n"
        "class Softmax(Deep):\n"
        "    def forward(self, x): return super().forward(x).softmax(-1)\n"
        "def activated(input_shape, classes):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], classes), nn.Softmax(-1))\n"
        "def unfit(input_shape, classes):\n"
        "    return SplitModel(nn.Linear(99, 3), nn.Linear(3, classes))\n"
        "def wide(input_shape, classes):\n"
        "    return SplitModel(nn.Flatten(), nn.Linear(input_shape[0], classes + 1))\n"
        "def fixed(input_shape, classes):\n"
        "    return SplitModel(nn.Linear(7, 3), nn.Linear(3, classes)).requires_grad_(False)\n"
        "def text(input_shape, classes): return 'mlp'\n"
        "def narrow(): return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)
    return "own_networks"


@pytest.mark.parametrize("name", ["split", "Own"])
def test_own_network_is_called_with_shape_and_classes(module: str, name: str) -> None:
    one, again = (build(f"{module}:{name}", (7,), seed=2) for _ in range(2))

    assert isinstance(one, SplitModel)
    assert one(torch.rand(2, 7)).shape == (2, 5)
    np.testing.assert_array_equal(to_vector(one), to_vector(again))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("whole", r"last module of Linear is Linear.*SplitModel\(body, head\)"),
        ("activated", r"is Softmax, not Linear.*SplitModel\(body, head\)"),
        ("Softmax", r"does something after its last layer, top\.out.*SplitModel\(body, head\)"),
        ("text", r"returned str, expected a torch\.nn\.Module"),
        ("narrow", "failed with TypeError"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_own_function_that_gives_no_network_is_refused(module: str, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(f"{module}:{name}", (7,))


@pytest.mark.parametrize("name", ["sequence", "Deep"])
def test_last_linear_layer_of_any_network_becomes_its_head(module: str, name: str) -> None:
    model = build(f"{module}:{name}", (7,), seed=2)
    whole = getattr(sys.modules[module], name)(input_shape=(7,), classes=5)
    tensors = [p.detach().clone() for p in model.parameters()]
    for parameter, tensor in zip(whole.parameters(), tensors, strict=True):
        parameter.data = tensor
    sample = torch.rand(3, 7)

    assert isinstance(model.head, torch.nn.Linear)
    assert model.body(sample).shape == (3, 3)
    torch.testing.assert_close(model(sample), whole(sample))
    check_model(ModelSettings(network=f"{module}:{name}"), (7,), 5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unfit", r"failed on a batch of 4 samples of shape \(7,\) with RuntimeError"),
        ("wide", r"answered a batch of 4 samples with \(4, 6\), expected \(4, 5\)"),
        ("fixed", "failed on a batch .* does not require grad"),
    ],
)
def test_own_network_that_does_not_work_is_refused_in_one_line(
    module: str, name: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        check_model(ModelSettings(network=f"{module}:{name}"), (7,), 5)

    assert "\n" not in str(refusal.value)


def test_own_network_may_be_in_a_file(module: str, tmp_path: Path) -> None:
    settings = ModelSettings(network=f"{tmp_path}/{module}.py:sequence")

    assert build_model(settings, (7,), 5, seed=0)(torch.rand(2, 7)).shape == (2, 5)
    with pytest.raises(ConfigError, match=r"cannot import .*gone\.py"):
        build_model(ModelSettings(network="gone.py:sequence"), (7,), 5, seed=0)


def test_file_of_a_network_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert ModelSettings(network="nets.py:a").located().network == f"{tmp_path}/nets.py:a"
    assert ModelSettings(network="nets:a").located().network == "nets:a"
