"""The settings of the data: which dataset, who holds which part of it, and what is shifted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.settings import key

#: The scenario of one's own data.
NO_SCENARIO = "none"
#: Clients of a ready-made dataset, where nothing says how many.
USUAL_CLIENTS = 12
#: The datasets that have a name.
READY_MADE = (
    "digits", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "electricity", "airline",
)  # fmt: skip
#: Named mixes: shares of the concepts, and of each concept's clients that are corrupted.
USUAL_MIX = ((0.5, 0.25, 0.25), (0.4, 0.2, 0.2))
MIXES = {
    "paper": ((0.5, 0.25, 0.25), (0.4, 0.2, 0.2)),
    "authors": ((0.4, 0.3, 0.3), (1 / 2, 1 / 3, 1 / 3)),
    "random": ((1 / 3, 1 / 3, 1 / 3), (1.0, 1.0, 1.0)),
}


@dataclass(frozen=True)
class DataSettings:
    """Who holds what."""

    dataset: str = key(
        "digits",
        "The data: `digits`, `fashion-mnist`, `cifar10`, `cifar100`, `tiny-imagenet`, "
        "`electricity`, `airline`; or your own: a `.csv`, `.parquet` or `.npz` file, a folder of "
        "images, or `package.module:function`.",
        common=True,
    )
    directory: str = key(
        "",
        "Directory in which datasets and relative paths are looked for. Empty: the working "
        "directory.",
        common=True,
    )
    label_column: str = key(
        "",
        "Column with the labels of your own table. Empty: one with a usual name, such as `label`, "
        "or else the last.",
    )
    client_column: str = key(
        "",
        "Column that says which client each row of your own table belongs to; for a folder of "
        "images, `outer` or `inner`, the folders that are clients. Empty: the column `client`.",
    )
    ignore: str = key("", "Columns of your own table to leave out, separated by commas.")
    columns: str = key(
        "",
        "The only columns of your own table to use, separated by commas, each as `name` or "
        "`name:kind` with the kind `number`, `category`, `text` or `date`. Empty: all.",
    )
    schema: str = key(
        "",
        "Schema of your own data: a file that `fedrc check` wrote. A run records the "
        "content here. Empty: made from the data.",
    )
    classes: int = key(
        0,
        "Number of classes of your own data, for a server that has none of it. 0: read from the "
        "data.",
        low=0,
        high=1_000_000,
    )
    input_shape: str = key(
        "",
        "Shape of one sample of your own data, such as `28,28` or `3,32,32`, for a server that has "
        "none of it. Empty: read from the data.",
        numbers=True,
    )
    clients: int = key(
        0,
        "Number of training clients that the samples are dealt out to. 0: those that your own data "
        "names, or 12 for a ready-made dataset.",
        low=0,
        high=100_000,
        common=True,
    )
    samples_per_client: int = key(
        0,
        "Samples of each training client (`split = lda` or `iid`). 0: the dataset in equal parts.",
        low=0,
    )
    split: str = key(
        "lda",
        "How samples are dealt out. `lda`: equal sizes, each client's class mix drawn from "
        "Dirichlet(alpha * p); `dirichlet-by-class`: each class dealt out by Dirichlet(alpha) over "
        "the clients, so that sizes differ; `iid`: equal sizes at random.",
        choices=("lda", "dirichlet-by-class", "iid"),
    )
    alpha: float = key(
        1.0,
        "Label skew: the smaller, the fewer classes a client has. In `lda`, p are the class "
        "proportions of the samples that are left. `inf`: no skew.",
        above=0.0,
        infinite=True,
        common=True,
    )
    min_samples: int = key(
        10, "Fewest samples of a client under `dirichlet-by-class`.", low=1, high=1_000_000
    )
    copies: int = key(
        1, "How often the training set is repeated before it is split.", low=1, high=100
    )
    mix: str = key(
        "shares",
        "`shares`: as the next two keys say; `paper`: as in the paper (30 % of the clients "
        "untouched, 20 % corrupted, 25 + 25 % relabelled, a fifth of them corrupted too); "
        "`authors`: as in the authors' scripts (20 % untouched, 20 % corrupted, 20 + 20 % "
        "relabelled, 10 + 10 % relabelled and corrupted); `random`: as in the paper's section 3 "
        "(each client draws one of three concepts, and one of the dataset's styles or none).",
        choices=("shares", *MIXES),
    )
    concept_shares: str = key(
        "",
        "Share of the training clients that have each concept: labels as they are, C-1-y, "
        "(y+1) mod C, then random permutations. Empty: `0.5,0.25,0.25` for a ready-made dataset, "
        "and your own data as it is.",
        numbers=True,
    )
    corrupted_shares: str = key(
        "",
        "Share of each concept's clients whose images are corrupted, with one style and severity "
        "per client. Empty: `0.4,0.2,0.2` for a ready-made dataset with the usual concepts, else "
        "none.",
        numbers=True,
    )
    test_fraction: float = key(
        0.1,
        "Fraction of a training client's samples that is held out for its local accuracy.",
        low=0.0,
        high=0.9,
    )
    label_noise: str = key(
        "none",
        "Wrong labels on training clients: `pair` flips to the next class, `symmetric` to any "
        "other class. Local test parts are flipped too. The paper uses the two names the other "
        "way round.",
        choices=("none", "pair", "symmetric"),
    )
    label_noise_rate: float = key(
        0.2, "Probability that `label-noise` flips a label.", low=0.0, high=1.0
    )
    observers_per_concept: int = key(
        1,
        "Observers per concept and test set. An observer has the balanced test set and is never "
        "trained on.",
        low=0,
        high=100,
    )
    observer_data: str = key(
        "split",
        "`split`: observers find their weights on one half of their data and are evaluated on the "
        "other; `same`: both on all of it, as in the paper.",
        choices=("split", "same"),
    )

    def __post_init__(self) -> None:
        if not self.dataset.strip() or "\0" in self.dataset:
            raise ConfigError(
                f"data.dataset = {self.dataset!r}: expected a dataset's name, a path, or "
                "package.module:function"
            )
        self.shape()
        for name in ("concept_shares", "corrupted_shares"):
            value = getattr(self, name)
            if self.mix in MIXES and value != getattr(DataSettings, name):
                raise ConfigError(
                    f"data.{name.replace('_', '-')} = {value!r}: data.mix = {self.mix!r} sets the "
                    "shares already; set data.mix = shares to choose them yourself"
                )
        concepts = len(self.shares())
        if len(self.corrupted()) != concepts:
            raise ConfigError(
                f"data.corrupted-shares = {self.corrupted_shares!r}: expected {concepts} numbers, "
                f"one for each of data.concept-shares = {self.concept_shares!r}"
            )

    def listed(self) -> str:
        """The federation in columns of a list."""
        return f"{self.clients or USUAL_CLIENTS:>4} clients  {self.dataset:<15}"

    def at_random(self) -> bool:
        """Whether each client draws its concept and its style, instead of exact shares."""
        return self.mix == "random"

    def shares(self) -> tuple[float, ...]:
        """The concepts' shares of the training clients, summing to one."""
        if self.mix in MIXES:
            return MIXES[self.mix][0]
        if not self.concept_shares:
            return USUAL_MIX[0] if self.dataset in READY_MADE else (1.0,)
        return _parse_shares("data.concept-shares", self.concept_shares, total=1.0)

    def corrupted(self) -> tuple[float, ...]:
        """Per concept, the share of its clients whose images are corrupted."""
        if self.mix in MIXES:
            return MIXES[self.mix][1]
        if not self.corrupted_shares:
            shares = self.shares()
            usual = shares == USUAL_MIX[0] and self.dataset in READY_MADE
            return USUAL_MIX[1] if usual else (0.0,) * len(shares)
        return _parse_shares("data.corrupted-shares", self.corrupted_shares, total=None)

    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample, where ``input-shape`` gives it."""
        if not self.input_shape:
            return None
        sizes = self.input_shape.split(",")
        if not all(size.strip().isascii() and size.strip().isdecimal() for size in sizes):
            sizes = []
        shape = tuple(int(size) for size in sizes)
        if not shape or not all(0 < size < 2**20 for size in shape):
            raise ConfigError(
                f"data.input-shape = {self.input_shape!r}: expected whole numbers separated by "
                "commas, such as 28,28 or 3,32,32"
            )
        return shape


def title(scenario: str, dataset: str) -> str:
    """What a run is called: after its scenario, or after the user's own file or function."""
    if scenario != NO_SCENARIO:
        return Path(scenario).stem
    return Path(dataset.rpartition(":")[2]).name.partition(".")[0] or scenario


def _parse_shares(name: str, text: str, total: float | None) -> tuple[float, ...]:
    """Numbers from 0 to 1, separated by commas; ``total`` is the required sum, if any."""
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise ConfigError(f"{name} = {text!r}: expected numbers from 0 to 1, separated by commas")
    if total is not None and not math.isclose(sum(shares), total, abs_tol=1e-6):
        raise ConfigError(f"{name} = {text!r}: expected numbers that sum to {total:g}")
    return shares
