"""What a node lets a run do, checked before any code of the run is executed.

The node's own processes read the raw settings of a run here. Nothing of the run is imported, and a
path that the run names is neither opened nor looked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrc_flwr.data.settings import READY_MADE
from fedrc_flwr.errors import ConfigError, PolicyError

#: The app whose files are those of the release that is installed on the node, and every app.
INSTALLED, ANY = "installed", "any"
#: What a run calls the data that only its nodes have.
ON_NODES = "own"
_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FUNCTION = re.compile(r".+:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Policy:
    """The section ``policy`` of node.yaml.

    Parameters
    ----------
    apps : SHA-256 hashes of app bundles, ``installed`` or ``any``
    datasets : ready-made datasets that a run may name
    files : paths that a run may name as its data, its directory or its schema, as it spells them
    functions : ``package.module:function`` or ``file.py:function`` that a run may name
    least_noise : refuse a run in which this node adds less noise to its statistics
    largest_clip : refuse a run that clips less, where this node adds noise
    most_epsilon : what this node spends on noisy statistics in its lifetime, over all runs
    delta : the delta for which that epsilon is computed
    smallest_cohort : refuse a round in which fewer clients take part
    least_samples : refuse a run that leaves this node fewer samples to train on
    """

    apps: tuple[str, ...] = (INSTALLED,)
    datasets: tuple[str, ...] = READY_MADE
    files: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    least_noise: float = 0.0
    largest_clip: float = 1.0
    most_epsilon: float | None = None
    delta: float = 1e-5
    smallest_cohort: int = 1
    least_samples: int = 1

    def __post_init__(self) -> None:
        for app in self.apps:
            if app not in (INSTALLED, ANY) and not _HASH.fullmatch(app):
                raise ConfigError(
                    f"apps: {app!r}: expected {INSTALLED}, {ANY}, or a hash as `fedrc node allow` "
                    "adds it"
                )
        for name in self.datasets:
            if name not in READY_MADE:
                raise ConfigError(
                    f"datasets: {name!r}: expected any of {', '.join(READY_MADE)}; paths go into "
                    "files"
                )
        for function in self.functions:
            if not _FUNCTION.fullmatch(function):
                raise ConfigError(f"functions: {function!r}: expected package.module:function")
        ranges = {
            "least-noise": 0 <= self.least_noise < math.inf,
            "largest-clip": 0 < self.largest_clip <= 1,
            "most-epsilon": self.most_epsilon is None or 0 < self.most_epsilon < math.inf,
            "delta": 0 < self.delta < 0.5,
            "smallest-cohort": self.smallest_cohort >= 1,
            "least-samples": self.least_samples >= 1,
        }
        for name, fine in ranges.items():
            if not fine:
                raise ConfigError(f"{name}: out of range")


def check_run(
    policy: Policy, settings: Mapping[str, Any], own_data: bool, own_noise: float | None
) -> None:
    """Refuse a run that asks for more than the node allows.

    Parameters
    ----------
    settings : the run's settings under dotted names, as they reach the node
    own_data : whether the node has data of its own
    own_noise : the noise of the node's own configuration, if it names one
    """
    for key in ("scenario", "recipe"):
        if not _NAME.fullmatch(str(settings.get(key) or "none")) or _is_path(settings.get(key)):
            raise PolicyError("not-allowed", key)
    _check_data(policy, settings, own_data)
    network = str(settings.get("model.network") or "")
    if ":" in network and network not in policy.functions:
        raise PolicyError("not-allowed", "model.network")
    noise = _number(settings, "privacy.count-noise", 0.0) if own_noise is None else own_noise
    if not noise >= policy.least_noise or (policy.most_epsilon is not None and noise <= 0):
        raise PolicyError("too-little-noise", "privacy.count-noise")
    clip = _number(settings, "privacy.count-clip", 1.0)
    if noise > 0 and policy.largest_clip < 1 and not 0 < clip <= policy.largest_clip:
        raise PolicyError("too-large-clip", "privacy.count-clip")


def _check_data(policy: Policy, settings: Mapping[str, Any], own_data: bool) -> None:
    schema = str(settings.get("data.schema") or "")
    if schema and not schema.lstrip().startswith("{") and schema not in policy.files:
        raise PolicyError("not-allowed", "data.schema")
    dataset = str(settings.get("data.dataset") or "digits")
    if ":" in dataset and dataset not in policy.functions:
        raise PolicyError("not-allowed", "data.dataset")
    # A node with data of its own does not open what the run names, if it is told the shapes.
    told = schema or (settings.get("data.classes") and settings.get("data.input-shape"))
    if own_data and told and ":" not in dataset:
        return
    directory = str(settings.get("data.directory") or "")
    if directory and directory not in policy.files:
        raise PolicyError("not-allowed", "data.directory")
    if dataset == ON_NODES or ":" in dataset:
        return
    if set(policy.datasets) != set(READY_MADE) and settings.get("resolved") is not True:
        # The scenario may still set the dataset; `fedrc run` submits everything resolved.
        raise PolicyError("not-allowed", "scenario")
    if dataset not in (policy.datasets if dataset in READY_MADE else policy.files):
        raise PolicyError("not-allowed", "data.dataset")


def _is_path(name: Any) -> bool:
    return str(name).endswith((".yaml", ".yml"))


def _number(settings: Mapping[str, Any], key: str, default: float) -> float:
    """A setting as a number; what is none counts as not a number, which every check refuses."""
    value = settings.get(key, default)
    return float(value) if isinstance(value, (int, float)) else math.nan
