"""The one frozen run configuration: every key with its default, its range and its meaning.

Keys are written with dashes outside (``local-epochs``) and with underscores here.
``configuration.py`` fills it from what users write.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from fedrc_flwr.errors import ConfigError

Scalar = bool | int | float | str


def key(
    default: Scalar,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    group: str = "",
) -> Any:
    """A configuration key: its default, its documentation and what is allowed."""
    metadata = {
        "doc": doc,
        "low": low,
        "high": high,
        "above": above,
        "choices": choices,
        "group": group,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RunConfig:
    """All keys of a run. ``describe_keys`` turns this class into the reference table."""

    # --- what is run -----------------------------------------------------------------------------
    scenario: str = key(
        "digits", "Name of a ready-made scenario, or path of a scenario file.", group="Run"
    )
    algorithm: str = key("fedrc", "The algorithm.", choices=("fedrc", "fedem", "ifca", "fedavg"))
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
    resume: bool = key(False, "Go on from the last checkpoint in the run's directory.")
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
    dataset: str = key("digits", "The data.", choices=("digits",), group="Scenario")
    clients: int = key(12, "Training clients.", low=1, high=100_000)
    samples_per_client: int = key(
        0, "Samples of each training client; 0: the dataset in equal parts.", low=0
    )
    alpha: float = key(
        1.0,
        "Label skew: each client's class mix is drawn from Dirichlet(alpha * "
        "p), p the class proportions of what is left (they sum to 1); `inf`: no "
        "skew.",
        above=0.0,
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
    observers_per_concept: int = key(
        1,
        "Observers (never trained on) per concept, each with the balanced test set.",
        low=0,
        high=100,
    )
    model: str = key("mlp", "The network.", choices=("mlp",))
    hidden: int = key(64, "Hidden units of the `mlp`.", low=1, high=65_536)

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
        "to the local objective of any algorithm.",
        low=0.0,
    )
    decorr_beta: float = key(
        0.0,
        "FedDecorr: adds beta times the squared Frobenius norm of the "
        "features' correlation matrix over its squared size.",
        low=0.0,
    )
    skip_below: float = key(
        1e-6,
        "A cluster whose responsibilities on a client are all below this "
        "is neither trained nor sent there; 0: never skipped.",
        low=0.0,
        high=0.1,
    )

    # --- clustering ------------------------------------------------------------------------------
    clusters: int = key(
        3, "Number of clusters K at the start.", low=1, high=1000, group="Clustering"
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
    annealing_rounds: int = key(
        0,
        "Rounds over which the E-step's exponent grows to 1; 0: plain E-step from the first round.",
        low=0,
    )
    annealing_start: float = key(0.05, "The exponent in round 1.", above=0.0, high=1.0)
    adaptive: bool = key(False, "Remove clusters with a small share once the weights have settled.")
    remove_below: float = key(
        0.05,
        "Share of all samples under which a cluster is removed (the paper's delta).",
        low=0.0,
        high=0.5,
    )
    merge: bool = key(False, "Merge clusters that mean the same once the weights have settled.")
    merge_tolerance: float = key(
        0.5,
        "Two clusters mean the same where each one's samples lose at "
        "most this many nats by using the other's model.",
        low=0.0,
    )
    settle_tolerance: float = key(
        0.02,
        "The weights have settled when they move less than this a "
        "round (total variation, mean over clients) ...",
        above=0.0,
        high=1.0,
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
        "Report FedRC-FT too: each client's mixture after one local epoch, beside the global one.",
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
        "Messages under way at once, which bounds the server's memory; 0: 32 in simulation, all in "
        "a deployment.",
        low=0,
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
        50.0,
        "L2 norm to which a client's count matrix is clipped before the "
        "noise (only where there is noise).",
        above=0.0,
    )
    privacy_delta: float = key(
        1e-5, "The delta for which epsilon is reported.", above=0.0, high=0.5
    )

    def shares(self) -> tuple[float, ...]:
        """The concepts' shares of the training clients, summing to one."""
        return _parse_shares("concept-shares", self.concept_shares, total=1.0)

    def corrupted(self) -> tuple[float, ...]:
        """Per concept, the share of its clients whose images are corrupted."""
        return _parse_shares("corrupted-shares", self.corrupted_shares, total=None)

    def changed(self) -> dict[str, Scalar]:
        """The keys, with dashes, whose values differ from the defaults."""
        defaults = RunConfig()
        return {
            dashed(f.name): getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(defaults, f.name)
        }

    def to_dict(self) -> dict[str, Scalar]:
        """Every key, with dashes, and its value; infinity, which JSON lacks, is text."""
        values = {dashed(f.name): getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: "inf" if v == math.inf else v for k, v in values.items()}


def dashed(name: str) -> str:
    """The outside spelling of a field."""
    return name.replace("_", "-")


def _parse_shares(name: str, text: str, total: float | None) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise ConfigError(f"{name} = {text!r}: expected numbers from 0 to 1, separated by commas")
    if total is not None and abs(sum(shares) - total) > 1e-6:
        raise ConfigError(f"{name} = {text!r}: expected numbers that sum to {total:g}")
    return shares
