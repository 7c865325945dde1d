"""Contact sheets of every corruption at every severity: colour.png and grey.png.

python benchmarks/corruptions.py --output /tmp/corruptions
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits, load_sample_images

from fedrc_flwr.data.corruptions import COLOUR_STYLES, GREY_STYLES, SEVERITIES, Images, corrupt

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def photographs() -> Images:
    """Two of scikit-learn's sample images at 32 x 32: (2, 3, 32, 32)."""
    temple, flower = load_sample_images().images
    crops = [temple[60:380, 130:450], flower[40:360, 130:450]]
    small = [crop.reshape(32, 10, 32, 10, 3).mean(axis=(1, 3)) / 255 for crop in crops]
    return np.stack(small).transpose(0, 3, 1, 2).astype(np.float32)


def digits(side: int) -> Images:
    """Two digits, as they are or enlarged: (2, side, side)."""
    images = load_digits().images[[2, 9]] / 16
    return np.clip(ndimage.zoom(images, (1, side / 8, side / 8), order=1), 0, 1, dtype=np.float32)


def sheet(batches: list[Images], styles: list[str], path: Path) -> None:
    """One row a style; per image, the original and five severities."""
    images = [(batch, index) for batch in batches for index in range(len(batch))]
    columns = len(images) * (1 + len(SEVERITIES))
    figure, axes = plt.subplots(
        len(styles), columns, figsize=(0.75 * columns, 0.75 * len(styles)), squeeze=False
    )
    for row, style in zip(axes, styles, strict=True):
        shown = []
        for batch in batches:
            stages = [
                batch,
                *(corrupt(batch, style, s, np.random.default_rng(1)) for s in SEVERITIES),
            ]
            shown += [stage[index] for index in range(len(batch)) for stage in stages]
        for axis, image in zip(row, shown, strict=True):
            picture = image.transpose(1, 2, 0) if image.ndim == 3 else image
            axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(style, rotation=0, ha="right", va="center")
    for number, axis in enumerate(axes[0]):
        severity = number % (1 + len(SEVERITIES))
        axis.set_title(f"{severity}" if severity else "original", fontsize=8)
    figure.subplots_adjust(wspace=0.05, hspace=0.05)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the two pictures")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    sheet([photographs()], list(COLOUR_STYLES), output / "colour.png")
    sheet([digits(28), digits(8)], list(GREY_STYLES), output / "grey.png")


if __name__ == "__main__":
    main()
