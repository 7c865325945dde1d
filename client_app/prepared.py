"""A node's samples, prepared once and then memory-mapped.

A node's worker is a new process after a restart, for another app, and for every message where tasks
are isolated. Building the node's part of the scenario each time would cost more than a small round.
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

from fedrc_flwr.data.own import own_facts
from fedrc_flwr.data.scenario import ClientData, GroundTruth, Split
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.settings import flat

ARRAYS = ("fit_inputs", "fit_labels", "test_inputs", "test_labels")


def prepared(
    directory: Path,
    settings: DataSettings,
    seed: int,
    index: int,
    build: Callable[[], ClientData],
) -> ClientData:
    """The data of one client from ``directory``; the first time, ``build`` makes it."""
    facts = {**flat(settings), "seed": seed, "index": index, "file": own_facts(settings)}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    folder = directory / f"prepared-{digest}"
    if not (folder / "about.json").exists():
        _write(folder, build())
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    # Copy on write: pages are shared, because nobody writes to them.
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
    """Fill a temporary directory and rename it: another process may be doing the same."""
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
        shutil.rmtree(beside)  # another process was faster
