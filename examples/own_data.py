"""Your own data and your own network, in one file.

Ten clinics measure eight values and note one of three findings. Four of them learned from another
school and swap two of the findings; nobody knows which. Replace ``data`` and ``network`` by yours.

    python examples/own_data.py outputs/clinics
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedrc_flwr.models.split import SplitModel

CLINICS, PATIENTS, VALUES, FINDINGS = 10, 80, 8, 3
OTHER_SCHOOL = (2, 5, 6, 9)
#: `fedrc config` lists the keys that people usually set. The recipe is the default one, which finds
#: the number of schools.
SETTINGS: dict[str, Any] = {
    "scenario": "none",
    "data.dataset": "own_data:data",
    "model.network": "own_data:network",
    "rounds": 40,
}


def data() -> dict[str, np.ndarray]:
    """All samples, and whose they are; ``concept`` is optional, known here since it is made up."""
    rng = np.random.default_rng(0)
    centres = rng.normal(0.0, 1.6, (FINDINGS, VALUES))
    parts: dict[str, list[np.ndarray]] = {"x": [], "y": [], "client": [], "concept": []}
    for clinic in range(CLINICS):
        finding = rng.choice(FINDINGS, PATIENTS, p=rng.dirichlet(np.full(FINDINGS, 5.0)))
        other = clinic in OTHER_SCHOOL
        values = centres[finding] + rng.normal(0.0, 1.0, (PATIENTS, VALUES))
        parts["x"].append(values.astype(np.float32))
        parts["y"].append(np.array([1, 0, 2])[finding] if other else finding)
        parts["client"].append(np.full(PATIENTS, clinic))
        parts["concept"].append(np.full(PATIENTS, int(other)))
    return {name: np.concatenate(values) for name, values in parts.items()}


def network(input_shape: tuple[int, ...], classes: int) -> SplitModel:
    """Any torch network in two parts; the head gives one number per class."""
    body = nn.Sequential(nn.Linear(input_shape[0], 24), nn.ReLU())
    return SplitModel(body, nn.Linear(24, classes))


def main(output: Path) -> int:
    """Simulate the federation, then make the page that shows what it found."""
    from fedrc_flwr.config import load_config
    from fedrc_flwr.report.page import write_page
    from fedrc_flwr.report.terminal import Terminal, summary_lines
    from fedrc_flwr.simulation import simulate

    # The clients are processes of their own and import this file by its name.
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    with Terminal(SETTINGS["rounds"]) as terminal:
        outcome = simulate(load_config(SETTINGS), output, terminal.show)
    print("\n".join(summary_lines(outcome.summary, output) if outcome.completed else []))
    print(outcome.reason or f"report in {write_page(output)}")
    return 0 if outcome.completed else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/clinics")))
