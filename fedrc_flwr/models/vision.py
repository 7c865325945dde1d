"""torchvision's backbones, adapted to small images and to federations."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models.small import image_shape, on_x86
from fedrc_flwr.models.split import SplitModel
from fedrc_flwr.plugins import load_torchvision

GROUPS = 8
BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class ImageNetInput(nn.Module):
    """Images in [0, 1], grey or colour, as ImageNet networks expect them: (N, 3, H, W), scaled.

    With ``last`` an x86 CPU gets them with the channels last in memory, where MobileNetV2 trains
    twice as fast. GroupNorm is slower then.
    """

    MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, last: bool) -> None:
        super().__init__()
        self._last = last

    def forward(self, images: Tensor) -> Tensor:
        """Scaled images of three channels."""
        if images.dim() == 3:
            images = images.unsqueeze(1)
        # Not kept as buffers, because buffers are sent with the parameters.
        mean = images.new_tensor(self.MEAN).view(3, 1, 1)
        deviation = images.new_tensor(self.DEVIATION).view(3, 1, 1)
        scaled: Tensor = (images.expand(-1, 3, -1, -1) - mean) / deviation
        last = self._last and on_x86(images)
        return scaled.contiguous(memory_format=torch.channels_last) if last else scaled


def mobilenet_v2(
    input_shape: tuple[int, ...], classes: int, norm: str, small_stem: bool, weights: str
) -> SplitModel:
    """MobileNetV2. The small stem leaves out the first two of its five halvings of the image."""
    build = load_torchvision("models", "model.network = 'mobilenet-v2'").mobilenet_v2

    _check_channels("mobilenet-v2", input_shape)
    features = build(num_classes=classes).features
    if small_stem:
        features[0][0].stride = (1, 1)
        features[2].conv[1][0].stride = (1, 1)
    layers = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    body = _finish(layers, features, norm, weights, prefix="features.")
    return SplitModel(body, nn.Linear(1280, classes))


def resnet18(
    input_shape: tuple[int, ...], classes: int, norm: str, small_stem: bool, weights: str
) -> SplitModel:
    """ResNet18. The small stem is a 3 x 3 convolution without stride and no pooling after it."""
    build = load_torchvision("models", "model.network = 'resnet18'").resnet18

    _check_channels("resnet18", input_shape)
    network = build(num_classes=classes)
    network.fc = nn.Identity()
    if small_stem:
        network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    body = _finish(network, network, norm, weights, prefix="")
    return SplitModel(body, nn.Linear(512, classes))


def _check_channels(model: str, input_shape: tuple[int, ...]) -> None:
    channels = image_shape(model, input_shape)[0]
    if channels not in (1, 3):
        raise ConfigError(
            f"model.network = {model!r}: expected images of 1 or 3 channels, not {channels}"
        )


def _finish(
    layers: nn.Module, backbone: nn.Module, norm: str, weights: str, prefix: str
) -> nn.Sequential:
    if norm == "group":
        _replace_batch_norm(layers)
    if weights:
        load_backbone(backbone, weights, prefix)
    return nn.Sequential(ImageNetInput(last=norm == "batch"), layers)


def _replace_batch_norm(module: nn.Module) -> None:
    """Replace BatchNorm by GroupNorm, which does not depend on the other samples of a batch."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(GROUPS, child.num_features))
        else:
            _replace_batch_norm(child)


def load_backbone(backbone: nn.Module, path: str, prefix: str) -> None:
    """Fill a backbone from a file of tensors; a classifier in the file is left out.

    Tensors are found by name, with or without ``prefix``; if names do not match, by order, provided
    that number and shapes agree. Only tensors are read from the file.
    """
    found, wanted = _read_tensors(path), backbone.state_dict()
    by_name = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    unfit = _unfit(wanted, by_name)
    if unfit:
        kept = [t for n, t in found.items() if not _is_statistic(n) or _has_statistics(wanted)]
        by_order = dict(zip(wanted, kept, strict=False))
        if len(kept) == len(wanted) and not _unfit(wanted, by_order):
            by_name, unfit = by_order, []
    if unfit:
        raise ConfigError(
            f"model.weights = {path!r}: {len(unfit)} of the backbone's {len(wanted)} tensors are "
            f"not in the file, the first one is {unfit[0]}: expected the weights of this "
            "network with the same model.small-stem"
        )
    backbone.load_state_dict({name: by_name[name] for name in wanted})


def _unfit(wanted: dict[str, Tensor], given: dict[str, Tensor]) -> list[str]:
    """The tensors that are missing or have another shape."""
    return [
        f"{name} {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name not in given or given[name].shape != tensor.shape
    ]


def _is_statistic(name: str) -> bool:
    return name.endswith(BATCH_STATISTICS)


def _has_statistics(tensors: dict[str, Tensor]) -> bool:
    return any(_is_statistic(name) for name in tensors)


def _read_tensors(path: str) -> dict[str, Tensor]:
    try:
        content = torch.load(Path(path).expanduser(), map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ConfigError(f"model.weights = {path!r}: {error}") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise ConfigError(f"model.weights = {path!r}: expected a saved state_dict, tensors by name")
    return content
