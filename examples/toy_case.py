"""The core without Flower: the paper's centralised RobustCluster on a toy case after its appendix.

Three datasets of equal size; a sample has a place and a side (up or down). Dataset 2 is in another
place than dataset 1 and holds other labels more often, but gives them by the same rule. Dataset 3
is where dataset 1 is, and gives its labels the other way round. Two clusters are to be found. A
mixture by likelihood (EM) puts together what *looks* alike, 1 and 3, and can then label neither;
RobustCluster puts together what *means* the same, 1 and 2.

    python examples/toy_case.py toy_case.png

That is the paper's figure 9. A second picture, toy_case_objective.png, is its figure 8: data that
differ from a cluster's by more and more of one kind of shift are put into the cluster. What
RobustCluster maximises falls if they contradict it, and hardly if they only look different or have
other labels more often; the likelihood falls most if they look different.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrc_flwr import em

SAMPLES, CLUSTERS, STEPS = 60, 2, 40
#: Of the second picture, which has no points to draw.
MANY = 2_000
#: Of each dataset: the middle of its places, the part of its samples that is up, whether up is 1.
DATASETS = ((0.0, 0.6, True), (6.0, 0.35, True), (0.5, 0.6, False))


@dataclass(frozen=True)
class Data:
    """The samples of one dataset: places, sides (0 down, 1 up) and labels, all (N,)."""

    place: np.ndarray
    side: np.ndarray
    label: np.ndarray


@dataclass(frozen=True)
class Model:
    """What a cluster has seen: where its samples are, and how often a side has a label (2, 2)."""

    middle: float
    width: float
    table: np.ndarray

    def log_label(self, data: Data) -> np.ndarray:
        """Log P(y | x) of each sample."""
        conditional = self.table / self.table.sum(axis=1, keepdims=True)
        return np.asarray(np.log(conditional[data.side, data.label]))

    def log_input(self, data: Data) -> np.ndarray:
        """Log P(x) of each sample."""
        sides = self.table.sum(axis=1) / self.table.sum()
        distance = (data.place - self.middle) / self.width
        return np.asarray(np.log(sides[data.side]) - np.log(self.width) - 0.5 * distance**2)


@dataclass(frozen=True)
class Clustering:
    """Mixture weights by step, dataset and cluster (T, 3, K), and the last models."""

    weights: np.ndarray
    models: list[Model]

    def accuracy(self, number: int, data: Data) -> float:
        """How often the mixture of the models, by the dataset's weights, gives the right label."""
        tables = [model.table / model.table.sum(axis=1, keepdims=True) for model in self.models]
        mixture = np.tensordot(self.weights[-1, number], tables, axes=1)
        return float((mixture[data.side].argmax(axis=1) == data.label).mean())


def datasets(rng: np.random.Generator) -> list[Data]:
    """The three of them."""
    made = []
    for middle, up, straight in DATASETS:
        side = (np.arange(SAMPLES) < up * SAMPLES).astype(np.int64)
        made.append(Data(rng.normal(middle, 1.0, SAMPLES), side, side if straight else 1 - side))
    return made


def fit(everything: list[Data], parts: list[np.ndarray], cluster: int) -> Model:
    """M-step: the model of the samples that a cluster is responsible for."""
    weight = np.concatenate([part[:, cluster] for part in parts])
    place = np.concatenate([data.place for data in everything])
    table = np.full((2, 2), 0.1)
    for data, part in zip(everything, parts, strict=True):
        np.add.at(table, (data.side, data.label), part[:, cluster])
    middle = float(np.average(place, weights=weight))
    return Model(middle, float(np.sqrt(np.average((place - middle) ** 2, weights=weight))), table)


def cluster(everything: list[Data], robust: bool, seed: int = 0) -> Clustering:
    """Alternate the library's E-step with ``fit``.

    ``robust``: losses are -log P(y | x), and the E-step divides by the label prior. Otherwise they
    are -log P(x, y), as in a mixture by likelihood.
    """
    rng = np.random.default_rng(seed)
    parts = [em.renormalise(rng.uniform(0.9, 1.1, (SAMPLES, CLUSTERS)), axis=1) for _ in everything]
    weights = np.full((len(everything), CLUSTERS), 1.0 / CLUSTERS)
    history, models = [weights], []
    for _ in range(STEPS):
        models = [fit(everything, parts, k) for k in range(CLUSTERS)]
        counts = np.array([model.table.sum(axis=0) for model in models])
        prior = em.normalise_label_prior(counts, floor=0.1) if robust else None
        weights = weights.copy()
        for number, data in enumerate(everything):
            scores = [m.log_label(data) + (0.0 if robust else m.log_input(data)) for m in models]
            losses = -np.array(scores).T
            parts[number] = em.e_step(losses, weights[number], prior, data.label)
            weights[number] = em.update_mixture_weights(parts[number])
        history.append(weights)
    return Clustering(np.array(history), models)


def shifted(kind: str, strength: float) -> Data:
    """Samples like those of ``shifted(kind, 0)``, but for one kind of shift, from none to full."""
    rng = np.random.default_rng(2)
    up = 0.5 + (0.45 * strength if kind == "label" else 0.0)
    side = (np.arange(MANY) < round(up * MANY)).astype(np.int64)
    place = rng.normal(6.0 * strength if kind == "feature" else 0.0, 1.0, MANY)
    swapped = rng.permutation(MANY) < round(strength * MANY * (kind == "concept"))
    return Data(place, side, np.where(swapped, 1 - side, side))


def objective(everything: list[Data], robust: bool) -> float:
    """What one cluster with all the data reaches: the mean over its samples, in nats.

    ``robust``: log P(x, y) / (P(x) P(y)), as in equation 1 of the paper. Otherwise log P(x, y).
    """
    model = fit(everything, [np.ones((len(data.label), 1)) for data in everything], 0)
    values = []
    for data in everything:
        labels = model.table.sum(axis=0) / model.table.sum()
        other = -np.log(labels[data.label]) if robust else model.log_input(data)
        values.append(model.log_label(data) + other)
    return float(np.mean(np.concatenate(values)))


def draw_objective(path: Path) -> None:
    """How both objectives change with the data that join a cluster, by kind of shift."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    strengths = np.linspace(0.0, 1.0, 21)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, robust, title in (
        (panels[0], True, "RobustCluster: P(x, y) / (P(x) P(y))"),
        (panels[1], False, "EM: P(x, y)"),
    ):
        for kind, colour, line in (("concept", "#ee6677", "-"), ("label", "#228833", "--"),
                                   ("feature", "#4477aa", ":")):  # fmt: skip
            start = shifted(kind, 0.0)
            values = [objective([start, shifted(kind, s)], robust) for s in strengths]
            change = np.array(values) - values[0]
            axes.plot(strengths, change, line, color=colour, linewidth=2, label=f"{kind} shift")
        axes.set(xlabel="strength of the shift", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("change of the objective (nats)")
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path, dpi=130)


def draw(everything: list[Data], path: Path) -> None:
    """The datasets, and the way that each method's weights go."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = ("#4477aa", "#228833", "#ee6677")
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left, middle, right = figure.subplots(1, 3)
    jitter = np.random.default_rng(1).uniform(-0.2, 0.2, SAMPLES)
    for number, (data, colour) in enumerate(zip(everything, colours, strict=True)):
        for label, marker in ((0, "o"), (1, "^")):
            chosen = data.label == label
            left.scatter(data.place[chosen], (data.side + jitter)[chosen], s=22, color=colour,
                         marker=marker, alpha=0.8, linewidths=0,
                         label=f"dataset {number + 1}" if label else None)  # fmt: skip
    left.set(yticks=[0, 1], yticklabels=["down", "up"], ylim=(-0.4, 1.75), xlabel="place",
             title="What they hold (circle: 0, triangle: 1)")  # fmt: skip
    left.legend(frameon=False, ncols=3, fontsize=7, loc="upper center")
    for axes, robust, name in (
        (middle, False, "EM: alike in looks"),
        (right, True, "RobustCluster: alike in meaning"),
    ):
        found = cluster(everything, robust)
        for number, (data, colour) in enumerate(zip(everything, colours, strict=True)):
            rate = found.accuracy(number, data)
            axes.plot(found.weights[:, number, 0], color=colour, linewidth=2,
                      linestyle=("-", (0, (4, 3)), (0, (1, 1)))[number],
                      label=f"dataset {number + 1}: accuracy {rate:.2f}")  # fmt: skip
        axes.set(ylim=(-0.05, 1.05), xlabel="step", title=name)
        axes.legend(frameon=False, fontsize=8, loc="center right")
    middle.set_ylabel("weight of cluster 0")
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(target: Path) -> None:
    """Print what both methods find, and draw it."""
    everything = datasets(np.random.default_rng(0))
    for name, robust in (("EM", False), ("RobustCluster", True)):
        found = cluster(everything, robust)
        rates = [found.accuracy(number, data) for number, data in enumerate(everything)]
        print(f"{name}: weights of cluster 0 {np.round(found.weights[-1, :, 0], 2)}, "
              f"accuracy {np.round(rates, 2)}")  # fmt: skip
    draw(everything, target)
    beside = target.with_stem(f"{target.stem}_objective")
    draw_objective(beside)
    print(f"pictures in {target} and {beside}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "toy_case.png"))
