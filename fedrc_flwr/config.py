"""The one frozen run configuration: every key with its default, its range and its meaning.

Keys are written with dashes outside (``local-epochs``) and with underscores here.
``configuration.py`` fills it from what users write.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from fedrc_flwr.errors import ConfigError
from fedrc_flwr.keys import ALGORITHMS, LOGGERS, MIXES, Scalar, key, parse_shares


@dataclass(frozen=True)
class RunConfig:
    """All keys of a run. ``describe_keys`` turns this class into the reference table."""

    # --- what is run -----------------------------------------------------------------------------
    scenario: str = key(
        "digits", "Name of a ready-made scenario, or path of a scenario file.", group="Run"
    )
    algorithm: str = key("fedrc", "The algorithm.", choices=ALGORITHMS)
    rounds: int = key(200, "Communication rounds.", low=1, high=100_000)
    seed: int = key(
        0,
        "Seed of the split, the initial models, the sampling and the batches.",
        low=0,
        high=2**31 - 1,
    )
    output_dir: str = key(
        "outputs",
        "Directory that gets this run's directory, relative to where the server app runs.",
    )
    run_name: str = key(
        "",
        "Name of the run's directory and of the clients' state; empty: made "
        "from scenario, algorithm, seed and time. Under the name of an earlier run "
        "with `resume` it goes on where that one was.",
    )
    loggers: str = key(
        "",
        "Where else the metrics go, besides `metrics.jsonl`: any of `tensorboard`, `mlflow`, "
        "`wandb`, separated by commas; each is an extra of the package.",
    )
    resume: bool = key(False, "Go on from the last checkpoint in the run's directory.")
    resume_round: int = key(
        0,
        "With `resume`: go on after this round instead, which must still have its checkpoint, and "
        "do the later rounds anew; 0: after the last one.",
        low=0,
    )
    state_dir: str = key(
        "",
        "Directory for the state of clients whose node configuration names "
        "none; empty: Flower's in-memory state only.",
    )
    device: str = key(
        "auto",
        "Device of the clients' models: `cuda`, `cuda:1`, `cpu`, or `auto` for `cuda` where there "
        "is one. A node's own configuration wins.",
    )
    mixed_precision: bool = key(False, "Run the networks in bfloat16 (meant for CUDA devices).")

    # --- scenario --------------------------------------------------------------------------------
    dataset: str = key(
        "digits",
        "The data: `digits`, `fashion-mnist`, `cifar10`, `cifar100`, `tiny-imagenet`, "
        "`electricity`, `airline`; or your own: a `.npz` or `.csv` file, a folder of images, or "
        "`package.module:function`.",
        group="Scenario",
    )
    data_dir: str = key(
        "",
        "Directory in which the named datasets and relative paths are looked for; empty: the "
        "working directory.",
    )
    classes: int = key(
        0, "Number of classes of your own data, where the server has none of it; 0: found out.",
        low=0, high=1_000_000,
    )  # fmt: skip
    input_shape: str = key(
        "",
        "Shape of one sample of your own data, such as `28,28` or `3,32,32`, where the server has "
        "none of it; empty: found out.",
    )
    clients: int = key(
        12, "Training clients; your own data with `client` says so itself.", low=1, high=100_000
    )
    samples_per_client: int = key(
        0,
        "Samples of each training client; 0: the dataset in equal parts (`split = lda`, `iid`).",
        low=0,
    )
    split: str = key(
        "lda",
        "`lda`: equal sizes, each client's class mix from Dirichlet(alpha * p); "
        "`dirichlet-by-class`: each class dealt out by Dirichlet(alpha) over the clients, sizes "
        "differ; `iid`: equal sizes at random.",
        choices=("lda", "dirichlet-by-class", "iid"),
    )
    alpha: float = key(
        1.0,
        "Label skew. In `lda`, p are the class proportions of what is left (they sum to 1); "
        "`inf`: no skew.",
        above=0.0,
    )
    min_samples: int = key(
        10, "Fewest samples of a client under `dirichlet-by-class`.", low=1, high=1_000_000
    )
    copies: int = key(
        1, "Copies of the training set that are made before it is split.", low=1, high=100
    )
    mix: str = key(
        "shares",
        "`shares`: the two keys below; `paper`: as in the paper (30 % of the clients untouched, "
        "20 % corrupted, 25 + 25 % relabelled, a fifth of them corrupted too); `authors`: as in "
        "the authors' scripts (20 % untouched, 20 % corrupted, 20 + 20 % relabelled, 10 + 10 % "
        "relabelled and corrupted).",
        choices=("shares", *MIXES),
    )
    concept_shares: str = key(
        "0.5,0.25,0.25",
        "Shares of the training clients per concept: labels "
        "as they are, C-1-y, (y+1) mod C, then seeded permutations.",
    )
    corrupted_shares: str = key(
        "0.4,0.2,0.2",
        "Share of each concept's clients whose images are "
        "corrupted, with one style and severity per client.",
    )
    test_fraction: float = key(
        0.1, "Part of a training client's samples kept for its local accuracy.", low=0.0, high=0.9
    )
    label_noise: str = key(
        "none",
        "Wrong labels on training clients: `pair` flips to the next class (which the FedRC paper "
        "calls symflip), `symmetric` to any other (its pairflip); local test parts are flipped "
        "too.",
        choices=("none", "pair", "symmetric"),
    )
    label_noise_rate: float = key(
        0.2, "Probability of each label to be flipped by `label-noise`.", low=0.0, high=1.0
    )
    observers_per_concept: int = key(
        1,
        "Observers (never trained on) per concept and test set, each with the balanced test set.",
        low=0,
        high=100,
    )
    observer_data: str = key(
        "split",
        "`split`: observers find their weights on one half of their data and are judged on the "
        "other; `same`: both on all of it, as in the paper.",
        choices=("split", "same"),
    )
    model: str = key(
        "mlp",
        "The network: `mlp`, `cnn`, `mobilenet-v2`, `resnet18`, or your own "
        "`package.module:function`, called with `input_shape` and `classes`.",
    )
    hidden: int = key(64, "Hidden units of the `mlp`.", low=1, high=65_536)
    standardise: bool = key(
        False,
        "The `mlp` sees each sample less its mean, over its deviation, as the `cnn` always does: "
        "for images.",
    )
    width: float = key(
        1.0,
        "Size of the layers of the `cnn`: 1 is the paper's, 0.25 has a quarter of its channels and "
        "dense units, for a fourteenth of the arithmetic.",
        above=0.0,
        high=8.0,
    )
    model_weights: str = key(
        "",
        "File with the initial weights of the backbone of `mobilenet-v2` or `resnet18`, read by "
        "the server; empty: random.",
    )
    small_stem: bool = key(
        False, "`mobilenet-v2` and `resnet18` halve the image less often: for about 32 x 32 pixels."
    )
    norm: str = key(
        "batch", "Normalisation of `mobilenet-v2` and `resnet18`.", choices=("batch", "group")
    )

    # --- local training --------------------------------------------------------------------------
    local_epochs: int = key(
        1, "Passes over a client's samples a round.", low=1, high=1000, group="Local training"
    )
    batch_size: int = key(128, "Samples a step.", low=1, high=1_000_000)
    learning_rate: float = key(0.06, "Local learning rate, eta_l.", above=0.0)
    momentum: float = key(
        0.9, "Momentum of local SGD; starts from zero each round.", low=0.0, high=0.999
    )
    weight_decay: float = key(
        0.0, "L2 penalty, weighed by the client's share in each cluster.", low=0.0
    )
    prox_mu: float = key(
        0.0,
        "FedProx: adds mu/2 times the squared distance to the broadcast model "
        "to the local objective of any algorithm, weighed by the client's share in each cluster.",
        low=0.0,
    )
    decorr_beta: float = key(
        0.0,
        "FedDecorr: adds beta times the mean square of the entries of z'z off its diagonal, over "
        "the batch size, where z are the batch's standardised features.",
        low=0.0,
    )
    skip_below: float = key(
        1e-3,
        "Samples whose responsibility for a cluster is below this are left out "
        "of its training, and a cluster without any is not sent; 0: none.",
        low=0.0,
        high=0.1,
    )
    skip_cluster_below: float = key(
        0.1,
        "A client neither trains nor sends a cluster whose mixture weight is below this share of "
        "an even one; 0: none.",
        low=0.0,
        high=0.5,
    )

    # --- other algorithms ------------------------------------------------------------------------
    share_local_models: bool = key(
        False,
        "`local`: send the clients' own networks, so that observers are judged with their average.",
        group="Other algorithms",
    )
    fedsoft_every: int = key(2, "`fedsoft`: rounds between two looks at the importances.", low=1)
    fedsoft_floor: float = key(1e-4, "`fedsoft`: least importance of a cluster.", low=0.0, high=0.1)
    fedsoft_lambda: float = key(
        0.1, "`fedsoft`: strength of the pull towards the clusters' models.", low=0.0
    )
    pfedme_lambda: float = key(
        15.0, "`pfedme`: how near the personal model stays to the global one.", above=0.0
    )
    pfedme_steps: int = key(5, "`pfedme`: steps of the inner solve.", low=1)
    pfedme_rate: float = key(0.03, "`pfedme`: learning rate of the inner solve.", above=0.0)
    apfl_alpha: float = key(
        0.5, "`apfl`: the personal model's share at the start.", low=0.0, high=1.0
    )
    apfl_adaptive: bool = key(True, "`apfl`: let the share follow the loss.")
    cfl_eps1: float = key(
        0.4,
        "`cfl`: a cluster is split when the norm of its mean update is below this, as a share of "
        "the mean norm of the updates in the first round ...",
        above=0.0,
    )
    cfl_eps2: float = key(
        0.6, "... while the norm of one member's update is above this share of it ...", above=0.0
    )
    cfl_warmup: int = key(10, "... and this many rounds have passed.", low=0)

    # --- clustering ------------------------------------------------------------------------------
    clusters: int = key(
        3,
        "Number of clusters K at the start; `cfl`: how many there may be at most.",
        low=1,
        high=500,
        group="Clustering",
    )
    initial_spread: float = key(
        1.0,
        "How far apart the clusters' models start: 1 draws each by itself; with less, all start "
        "at the first one's values, moved by this share towards their own draw.",
        above=0.0,
        high=1.0,
    )
    clustering: str = key(
        "soft",
        "`soft`; `hard-test` (TeHC): predict with the likeliest cluster "
        "alone; `hard-train` (TrHC): each client also trains that cluster alone.",
        choices=("soft", "hard-test", "hard-train"),
    )
    e_step: str = key("plain", "`plain`, or `adam` (FedRC-Adam).", choices=("plain", "adam"))
    adam_step: float = key(1.0, "FedRC-Adam: alpha.", above=0.0)
    adam_beta1: float = key(0.9, "FedRC-Adam: beta 1.", low=0.0, high=0.9999)
    adam_beta2: float = key(0.99, "FedRC-Adam: beta 2.", low=0.0, high=0.9999)
    adam_epsilon: float = key(1e-8, "FedRC-Adam: epsilon.", above=0.0)
    prior_floor: float = key(
        0.1, "Smallest mass, in samples, of a label in a cluster's prior.", above=0.0
    )
    prior_rounds: int = key(
        0,
        "The E-step divides by the label prior in this many rounds, and goes by the likelihood "
        "alone after them. 0: it always does.",
        low=0,
    )
    annealing_rounds: int = key(
        0,
        "Rounds over which the E-step's exponent grows; the E-step is plain after them. "
        "0: from the first round on.",
        low=0,
    )
    annealing_start: float = key(0.05, "The exponent in round 1.", above=0.0, high=1.0)
    annealing_by: str = key(
        "sample",
        "`sample`: each sample is weighed by itself, the exponent grows to 1. `client`: while it "
        "lasts, a client's samples are weighed as one, by the mean of what each says; the "
        "exponent grows to `annealing-end`.",
        choices=("sample", "client"),
    )
    annealing_end: float = key(
        6.0, "What the exponent grows to with `annealing-by = client`.", low=1.0
    )
    adaptive: bool = key(
        False, "Remove clusters with a small share once the federation has settled."
    )
    remove_below: float = key(
        0.05,
        "Share of all samples under which a cluster is removed (the paper's delta).",
        low=0.0,
        high=0.5,
    )
    merge: bool = key(False, "Merge clusters that mean the same once the federation has settled.")
    merge_tolerance: float = key(
        0.5,
        "Two clusters mean the same where each one's samples lose at "
        "most this many nats by using the other's model.",
        low=0.0,
    )
    settle_tolerance: float = key(
        0.02,
        "The federation has settled when the weights move less than this a "
        "round (total variation, mean over clients), ...",
        above=0.0,
        high=1.0,
    )
    settle_loss: float = key(
        0.02, "... and the clients' mean loss changes by less than this, ...", above=0.0
    )
    settle_rounds: int = key(3, "... for this many rounds in a row, after any annealing.", low=1)
    shared_body: bool = key(False, "Share the feature extractor: one body, K heads.")
    assign_steps: int = key(
        100,
        "Most E-steps by which a client that never trained finds its "
        "weights; it stops when they settle.",
        low=1,
    )
    fine_tune: bool = key(
        False,
        "Report FedRC-FT too: each training client's accuracy after one local epoch of its "
        "mixture. Observers are not fine-tuned.",
    )

    # --- server ----------------------------------------------------------------------------------
    fraction: float = key(
        1.0,
        "Fraction of the training clients sampled each round.",
        above=0.0,
        high=1.0,
        group="Server",
    )
    global_learning_rate: float = key(1.0, "Global learning rate, eta_g.", above=0.0)
    server_optimizer: str = key(
        "sgd", "What is done with the averaged update.", choices=("sgd", "momentum", "adam")
    )
    server_momentum: float = key(
        0.9, "Momentum of the server's optimizer (beta 1 of `adam`).", low=0.0, high=0.999
    )
    server_beta2: float = key(0.99, "Beta 2 of the server's `adam`.", low=0.0, high=0.9999)
    server_epsilon: float = key(1e-3, "Epsilon of the server's `adam`.", above=0.0)
    evaluate_every: int = key(5, "Evaluate every so many rounds, and after the last.", low=1)
    min_clients: int = key(
        0, "Training clients that must be enrolled before round 1; 0: all of the scenario's.", low=0
    )
    enrolment_timeout: float = key(120.0, "Seconds to wait for them.", above=0.0)
    min_replies: float = key(
        0.5, "Share of the sampled clients whose good replies make a round.", low=0.0, high=1.0
    )
    round_deadline: float = key(
        600.0, "Seconds after which a round goes on without those that have not replied.", above=0.0
    )
    failed_rounds: int = key(
        3, "Tries of one round with too few good replies before the run stops.", low=1
    )
    window: int = key(
        0,
        "Messages under way at once, which bounds the server's memory; 0: as many as keep the "
        "workers of a simulation busy, all in a deployment.",
        low=0,
    )
    transport: str = key(
        "float32",
        "How networks and updates travel; `float16` halves the bytes each way. Running statistics "
        "always travel as float32.",
        choices=("float32", "float16"),
    )
    keep_checkpoints: int = key(3, "Checkpoints kept.", low=1)

    # --- privacy of the statistics ---------------------------------------------------------------
    count_noise: float = key(
        0.0,
        "Standard deviation xi of the Gaussian noise on label counts, for "
        "clients whose node configuration names none; 0: no noise.",
        low=0.0,
        group="Privacy of the statistics",
    )
    count_clip: float = key(
        1.0,
        "L2 norm to which a client's statistics are clipped before noise is added, as a share of "
        "its number of samples. Counts never exceed 1, so that nothing is clipped there; less "
        "costs accuracy and spends less epsilon. 0: no clipping, and no epsilon is claimed.",
        low=0.0,
        high=1.0,
    )
    privacy_delta: float = key(
        1e-5, "The delta for which epsilon is reported.", above=0.0, high=0.5
    )

    def shares(self) -> tuple[float, ...]:
        """The concepts' shares of the training clients, summing to one."""
        if self.mix in MIXES:
            return MIXES[self.mix][0]
        return parse_shares("concept-shares", self.concept_shares, total=1.0)

    def half(self) -> bool:
        """Whether networks and updates travel in half precision."""
        return self.transport == "float16"

    def corrupted(self) -> tuple[float, ...]:
        """Per concept, the share of its clients whose images are corrupted."""
        if self.mix in MIXES:
            return MIXES[self.mix][1]
        return parse_shares("corrupted-shares", self.corrupted_shares, total=None)

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
                f"input-shape = {self.input_shape!r}: expected whole numbers separated by commas, "
                "such as 28,28 or 3,32,32"
            )
        return shape

    def logger_names(self) -> list[str]:
        """The loggers that ``loggers`` names."""
        names = [name.strip() for name in self.loggers.split(",") if name.strip()]
        if not set(names) <= set(LOGGERS):
            raise ConfigError(
                f"loggers = {self.loggers!r}: expected any of {', '.join(LOGGERS)}, separated by "
                "commas"
            )
        return names

    def to_dict(self) -> dict[str, Scalar]:
        """Every key, with dashes, and its value; infinity, which JSON lacks, is text."""
        values = {dashed(f.name): getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: "inf" if v == math.inf else v for k, v in values.items()}


def dashed(name: str) -> str:
    """The outside spelling of a field."""
    return name.replace("_", "-")
