"""What a client's statistics can be, given how many samples it enrolled with.

Without noise, label counts are not negative and sum to the number of samples. With Gaussian noise
they are within ``DEVIATIONS`` standard deviations of that. An honest client exceeds that about once
in five hundred million numbers. Fingerprints and loss tables are bounded in the same way.
"""

from __future__ import annotations

import math

import numpy as np

from fedrc_flwr import adaptive
from fedrc_flwr.algorithms.messages import Reply
from fedrc_flwr.discovery.fingerprint import MOST_FEATURES, UNITS
from fedrc_flwr.em import Floats
from fedrc_flwr.metrics import Evaluation

#: How many standard deviations of its noise a number may be off.
DEVIATIONS = 6.0
#: Most noise, as a multiple of the number of samples: with more, counts say nothing at all, and
#: "within the noise" would allow anything.
MOST_NOISE = 10.0
#: Relative error of sums of floating-point numbers.
ROUNDING = 1e-6
#: Length of a sample's features: 1, or more after a random projection, which keeps it on average.
UNIT_LENGTH, PROJECTED_LENGTH = 1.0 + 1e-3, 2.0
#: Largest mean loss of a sample that any network that is still of use has.
MOST_LOSS = 1e4
#: Least noise, as a multiple of the number of samples: less protects nobody and is no noise.
LEAST_NOISE = 1e-9
#: Most releases of a client in its lifetime: one a second for thirty years.
MOST_RELEASES = 10**9
#: How far an accuracy may be from that of the counts: it was computed in single precision.
COUNTED = 1e-3
#: What a client may report of the models when it is evaluated, and the largest value of each.
JUDGED = {
    "samples": 1e12, "accuracy": 1.0, "loss": MOST_LOSS, "fit_accuracy": 1.0,
    "fine_tuned_accuracy": 1.0, "fine_tuned_loss": MOST_LOSS,
}  # fmt: skip


def problem(reply: Reply, samples: int) -> str | None:
    """Why a reply cannot be that of an honest client; None if it can.

    Parameters
    ----------
    reply : over all clusters
    samples : the number of samples that the client enrolled with
    """
    if reply.samples != samples:
        return f"it claims {reply.samples} samples, but enrolled with {samples}"
    if reply.noise > MOST_NOISE * samples:
        return (
            f"its noise of {reply.noise:.3g} is more than {MOST_NOISE:g} times its {samples} "
            "samples: its statistics would say nothing"
        )
    if 0 < reply.noise < LEAST_NOISE * samples or reply.releases > MOST_RELEASES:
        return (
            f"it claims {reply.releases} releases with a noise of {reply.noise:.3g} for "
            f"{samples} samples: no client makes them"
        )
    accuracy, loss = reply.metrics["accuracy"], reply.metrics["loss"]
    if not 0 <= accuracy <= 1 or not 0 <= loss <= MOST_LOSS:
        return f"its accuracy is {accuracy:.3g} and its loss {loss:.3g}: neither can be"
    return (
        _counts(reply.label_counts, samples, reply.noise)
        or _table(reply, samples)
        or _fingerprint(reply, samples)
    )


def evaluation_problem(
    evaluation: Evaluation, clusters: tuple[int, ...], samples: int | None
) -> str | None:
    """Why an evaluation cannot be that of an honest client; None if it can.

    Parameters
    ----------
    clusters : ids of the clusters
    samples : how many test samples it reported before, if it did
    """
    told = evaluation.metrics
    if unknown := sorted(set(told) - {*JUDGED, "cluster"}):
        return f"it reports {unknown[0]!r}, which nobody asked for"
    for name, most in JUDGED.items():
        if not 0 <= told.get(name, 0.0) <= most:
            return f"it reports {name} = {told[name]:.3g}, which cannot be"
    count = told.get("samples", 0.0)
    if count != int(count) or (samples is not None and count != samples):
        return f"it reports {count:g} test samples, and before {samples}"
    if told.get("cluster", clusters[0]) not in clusters:
        return f"it reports cluster {told['cluster']:g}, which does not exist"
    if evaluation.tally is None or "accuracy" not in told:
        return None
    right = float(np.trace(evaluation.tally.confusion)) / max(count, 1.0)
    if abs(right - told["accuracy"]) > COUNTED:
        return f"it reports an accuracy of {told['accuracy']:.3g}, and counts that give {right:.3g}"
    return None


def _counts(counts: Floats, samples: int, noise: float) -> str | None:
    slack = ROUNDING * samples + DEVIATIONS * noise
    if counts.min() < -slack or counts.max() > samples + slack:
        return (
            f"its label counts are from {counts.min():.3g} to {counts.max():.3g}, which "
            f"{samples} samples{_with(noise)} cannot give"
        )
    # The noise on a sum of independent numbers grows with the square root of how many there are.
    slack, total = ROUNDING * samples + DEVIATIONS * noise * math.sqrt(counts.size), counts.sum()
    # Clients clip what they add noise to, each as much as it likes: it may sum to less.
    if total > samples + slack or total < (samples if noise == 0 else 0.0) - slack:
        return f"its label counts sum to {total:.6g}, not to its {samples} samples{_with(noise)}"
    return None


def _table(reply: Reply, samples: int) -> str | None:
    table, noise = reply.cross_losses, reply.noise
    if table is None:
        return None
    low, most = 0.0, MOST_LOSS * samples
    if noise > 0:
        unit = adaptive.table_unit(*reply.label_counts.shape)
        most = unit * ((1 + ROUNDING) * samples + DEVIATIONS * noise)
        low = -most
    if table.min() < low - ROUNDING * samples or table.max() > most:
        return (
            f"its loss table is from {table.min():.3g} to {table.max():.3g}, which {samples} "
            f"samples{_with(noise)} cannot give"
        )
    return None


def _fingerprint(reply: Reply, samples: int) -> str | None:
    measured, scatter, noise = reply.fingerprint, reply.scatter, reply.noise
    if measured is None or scatter is None:
        return None
    length = UNIT_LENGTH if len(scatter) < MOST_FEATURES else PROJECTED_LENGTH
    counts, sums = measured[..., 0].ravel(), measured[..., 1:].reshape(-1, measured.shape[2] - 1)
    error, scatter_error = (DEVIATIONS * noise * unit for unit in UNITS)
    slack = ROUNDING * samples + error
    if counts.min() < -slack or counts.sum() > samples + slack * math.sqrt(len(counts)):
        return f"its fingerprint counts {counts.sum():.6g} samples, it enrolled with {samples}"
    if noise == 0 and counts.sum() < samples - slack:
        return (
            f"its fingerprint counts {counts.sum():.6g} of its {samples} samples: all are counted"
        )
    if noise == 0 and 2.0 * (agreeing := float(measured[0, :, 0].sum())) <= samples:
        return f"only {agreeing:.6g} of its {samples} samples agree: all are then said to agree"
    most = length * np.maximum(counts, 0.0) + slack + error * math.sqrt(sums.shape[1])
    if (np.linalg.norm(sums, axis=1) > most).any():
        return "its fingerprint holds sums of features that its samples cannot give"
    most_scatter = length**2 * samples + ROUNDING * samples + scatter_error
    if np.abs(scatter).max() > most_scatter:
        return "the scatter of its features is larger than its samples can give"
    if noise == 0 and not _is_scatter(scatter, length**2 * samples):
        return "the scatter of its features is not that of any samples"
    return None


def _is_scatter(scatter: Floats, most: float) -> bool:
    """Whether a matrix is a sum of outer products of vectors whose squares sum to ``most``."""
    slack = ROUNDING * most
    symmetric = np.abs(scatter - scatter.T).max() <= slack
    fits = symmetric and np.trace(scatter) <= most + slack
    return bool(fits and np.linalg.eigvalsh(scatter).min() >= -slack)


def _with(noise: float) -> str:
    return f" with a noise of {noise:.3g}" if noise > 0 else ""
