"""A node's samples, prepared once and memory-mapped from then on.

In a deployment every message starts a fresh process: building the node's part of the scenario anew
each time would cost more than a small round itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedrc_flwr.config import RunConfig
from fedrc_flwr.data.datasets import DATASETS
from fedrc_flwr.data.own import own_facts
from fedrc_flwr.data.scenario import SCENARIO_KEYS, ClientData, GroundTruth, Split

ARRAYS = ("fit_inputs", "fit_labels", "test_inputs", "test_labels")


def prepared(
    directory: Path, config: RunConfig, index: int, build: Callable[[], ClientData]
) -> ClientData:
    """The data of one client from ``directory``, put there by ``build`` the first time."""
    facts = {name: getattr(config, name) for name in SCENARIO_KEYS} | {"index": index}
    if config.dataset not in DATASETS:
        facts["file"] = own_facts(config)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = directory / f"prepared-{digest}"
    if not (folder / "about.json").exists():
        _write(folder, build())
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    # Copy on write: pages are shared until somebody writes, which nobody does.
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in ARRAYS}
    return ClientData(
        name=about["name"],
        role=about["role"],
        fit=Split(arrays["fit_inputs"], arrays["fit_labels"]),
        test=Split(arrays["test_inputs"], arrays["test_labels"]),
        classes=about["classes"],
        truth=GroundTruth(about["concept"], about["style"]),
    )


def _write(folder: Path, data: ClientData) -> None:
    """Fill a directory beside and rename it: another process may be doing the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".preparing-", dir=folder.parent))
    for part, split in (("fit", data.fit), ("test", data.test)):
        np.save(beside / f"{part}_inputs.npy", split.inputs)
        np.save(beside / f"{part}_labels.npy", split.labels)
    about = {
        "name": data.name,
        "role": data.role,
        "classes": data.classes,
        "concept": data.truth.concept,
        "style": data.truth.style,
    }
    (beside / "about.json").write_text(json.dumps(about), encoding="utf-8")
    try:
        os.replace(beside, folder)
    except OSError:
        shutil.rmtree(beside)  # somebody was faster
