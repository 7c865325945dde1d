"""Small networks of our own: no normalisation layers, quick on a CPU."""

from __future__ import annotations

import platform

import torch
from torch import Tensor, nn

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models.split import SplitModel

ON_X86 = platform.machine() in ("x86_64", "AMD64") and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class Blocked(nn.Sequential):
    """Layers that on an x86 CPU hand images on in the memory format of its kernels.

    Else every convolution would bring its input into that format and its output back. These
    kernels' pooling loses NaN: networks and samples are checked when they arrive.
    """

    def forward(self, images: Tensor) -> Tensor:
        """What the layers make of images (N, C, H, W)."""
        blocks = _kernels_have_blocks(images)
        values = images.to_mkldnn() if blocks else images
        for layer in self:
            values = layer(values)
        return values.to_dense() if blocks else values


def _kernels_have_blocks(images: Tensor) -> bool:
    if torch.compiler.is_compiling() or not ON_X86:  # compiling is exporting, too
        return False
    plain = images.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return images.device.type == "cpu" and plain and len(images) > 0


class Standardise(nn.Module):
    """Each image less its mean, over its deviation.

    Networks need fewer rounds with it than with numbers between 0 and 1, and how bright or rich in
    contrast a client's images are hardly tells them anything any more.
    """

    FLAT = 0.01  # added to the deviation: a flat image stays one

    def forward(self, images: Tensor) -> Tensor:
        """(N, ...) as before, with mean 0 and deviation 1 each."""
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

    It sees images that are standardised one by one. With another ``width`` than 1 all three layers
    have that many times the units, rounded, and at least one.
    """
    channels, rows, columns = image_shape("cnn", input_shape)
    if min(rows, columns) < 4:
        raise ConfigError(
            f"model = 'cnn': images of {rows} x {columns} are too small, expected 4 x 4 or more"
        )
    first, second, dense = (max(1, round(width * units)) for units in (32, 64, 2048))
    # Pooling and rectifying may change places, and a quarter of the numbers is left to rectify.
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
        f"model = {model!r}: expected images, (H, W) or (C, H, W), but the data's samples have the "
        f"shape {input_shape}: choose another model, such as mlp"
    )
