"""Small networks without normalisation layers, fast on a CPU."""

from __future__ import annotations

import platform

import torch
from torch import Tensor, nn

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models.split import SplitModel

ON_X86 = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class Blocked(nn.Sequential):
    """Layers that on an x86 CPU pass images on in the memory format of its kernels.

    Otherwise every convolution would convert its input to that format and its output back. With
    mixed precision that format has the channels last. Pooling in the other kernels loses NaN, so
    networks and samples are checked when they arrive.
    """

    def forward(self, images: Tensor) -> Tensor:
        """The output of the layers for images (N, C, H, W)."""
        values, blocks = images, False
        if on_x86(images):
            blocks = not torch.is_autocast_enabled("cpu")
            values = images.to_mkldnn() if blocks else images.to(memory_format=torch.channels_last)
        for layer in self:
            values = layer(values)
        return values.to_dense() if blocks else values


def on_x86(images: Tensor) -> bool:
    """Whether kernels of an x86 CPU will compute with these images."""
    if torch.compiler.is_compiling() or not ON_X86:  # also true while exporting
        return False
    return images.device.type == "cpu" and images.dtype == torch.float32 and len(images) > 0


class Standardise(nn.Module):
    """Subtract each image's mean and divide by its standard deviation.

    Training then needs fewer rounds than with numbers between 0 and 1, and the brightness and
    contrast of a client's images have little effect.
    """

    FLAT = 0.01  # added to the deviation, so that a constant image stays constant

    def forward(self, images: Tensor) -> Tensor:
        """Images of the same shape (N, ...), each with mean 0 and standard deviation 1."""
        values = tuple(range(1, images.dim()))
        centred = images - images.mean(dim=values, keepdim=True)
        deviation = centred.square().mean(dim=values, keepdim=True).sqrt()
        return centred / (deviation + self.FLAT)


def mlp(
    input_shape: tuple[int, ...], classes: int, hidden: int, standardise: bool = False
) -> SplitModel:
    """Three layers: two hidden ones of ``hidden`` units."""
    size = int(torch.Size(input_shape).numel())
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
    )
    if standardise:
        body.insert(0, Standardise())
    return SplitModel(body, nn.Linear(hidden, classes))


def cnn(input_shape: tuple[int, ...], classes: int, width: float = 1.0) -> SplitModel:
    """Two 5 x 5 convolutions of 32 and 64 channels with pooling, and a dense layer of 2048.

    Each image is standardised first. ``width`` multiplies the units of all three layers, rounded,
    at least one.
    """
    channels, rows, columns = image_shape("cnn", input_shape)
    if min(rows, columns) < 4:
        raise ConfigError(
            f"model.network = 'cnn': images of {rows} x {columns} are too small, expected 4 x 4 or "
            "more"
        )
    first, second, dense = (max(1, round(width * units)) for units in (32, 64, 2048))
    # Pooling before ReLU gives the same result, and leaves a quarter of the numbers for ReLU.
    convolutions = Blocked(
        nn.Conv2d(channels, first, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
    )
    body = nn.Sequential(
        nn.Unflatten(1, (1, rows)) if len(input_shape) == 2 else nn.Identity(),
        Standardise(),
        convolutions,
        nn.Flatten(),
        nn.Linear(second * (rows // 4) * (columns // 4), dense),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(dense, classes))


def image_shape(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of inputs (H, W) or (C, H, W)."""
    if len(input_shape) == 2:
        return (1, *input_shape)
    if len(input_shape) == 3:
        return input_shape
    raise ConfigError(
        f"model.network = {model!r}: expected images, (H, W) or (C, H, W), but the data's samples "
        f"have the shape {input_shape}: choose another network, such as mlp"
    )
