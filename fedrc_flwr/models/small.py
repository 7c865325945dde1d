"""Small networks of our own: no normalisation layers, quick on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models.split import SplitModel


class OnCPU(nn.Module):
    """Puts images into a memory format that the next layer is quicker with, on a CPU."""

    def __init__(self, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.memory_format = memory_format

    def forward(self, images: Tensor) -> Tensor:
        """The same numbers."""
        if images.device.type != "cpu":
            return images
        return images.to(memory_format=self.memory_format)


class Standardise(nn.Module):
    """Each image less its mean, over its deviation.

    Networks need fewer rounds with it than with numbers between 0 and 1, and how bright or rich in
    contrast a client's images are hardly tells them anything any more.
    """

    FLAT = 0.01  # added to the deviation: a flat image stays one

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) as before, with mean 0 and deviation 1 each."""
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        centred = images - mean
        deviation = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()
        return centred / (deviation + self.FLAT)


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int) -> SplitModel:
    """Three layers: two hidden ones of ``hidden`` units."""
    size = int(torch.Size(input_shape).numel())
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
    )
    return SplitModel(body, nn.Linear(hidden, classes))


def cnn(input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """Two 5 x 5 convolutions of 32 and 64 channels with pooling, and a dense layer of 2048.

    It sees images that are standardised one by one.
    """
    channels, height, width = image_shape("cnn", input_shape)
    if min(height, width) < 4:
        raise ConfigError(
            f"model = 'cnn': images of {height} x {width} are too small, expected 4 x 4 or more"
        )
    # Pooling and rectifying may change places, and a quarter of the numbers is left to rectify. On
    # a CPU pooling is quickest channels-last, and so is a convolution of few channels; the second
    # one is quickest the other way.
    body = nn.Sequential(
        nn.Unflatten(1, (1, height)) if len(input_shape) == 2 else nn.Identity(),
        Standardise(),
        OnCPU(torch.channels_last),
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        OnCPU(torch.contiguous_format),
        nn.Conv2d(32, 64, 5, padding=2),
        OnCPU(torch.channels_last),
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 2048),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(2048, classes))


def image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of inputs (H, W) or (C, H, W)."""
    if len(input_shape) == 2:
        return (1, *input_shape)
    if len(input_shape) == 3:
        return input_shape
    raise ConfigError(
        f"model = {model!r}: expected images, (H, W) or (C, H, W), but the data's samples have the "
        f"shape {input_shape}: choose another model, such as mlp"
    )
