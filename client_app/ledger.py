"""What a node has released in its lifetime, in its state directory, over all runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from fedrc_flwr.errors import ConfigError, PolicyError
from fedrc_flwr.privacy import PrivacySettings, epsilon_spent

LEDGER = "released.json"


class Ledger:
    """Counts a node's releases before they are sent, and refuses one too many.

    Parameters
    ----------
    directory : the node's state directory
    most_epsilon : the most that noisy releases may cost in the node's lifetime; None: no limit
    delta : the delta of that epsilon
    """

    def __init__(self, directory: Path, most_epsilon: float | None, delta: float) -> None:
        self._path = directory / LEDGER
        self._most = math.inf if most_epsilon is None else most_epsilon
        self._delta = delta

    def releases(self) -> int:
        """How many noisy statistics the node has sent, in whatever run."""
        return int(self._read()["releases"])

    def epsilon(self) -> float:
        """What they have cost."""
        return epsilon_spent(math.sqrt(self._read()["spent"]), self._delta)

    def charge(self, settings: PrivacySettings, samples: int, noise: float, releases: int) -> None:
        """Enter releases that are about to be made; refused where they would cost too much.

        Statistics without noise are counted apart, because no epsilon bounds them.
        """
        entry = self._read()
        if noise <= 0:
            entry["without_noise"] += releases
        else:
            entry["releases"] += releases
            entry["spent"] += settings.cost(samples, noise, releases)
        if math.isfinite(self._most):
            over = epsilon_spent(math.sqrt(entry["spent"]), self._delta) > self._most
            if noise <= 0 or over:
                raise PolicyError("epsilon-spent")
        self._write(entry)

    def _read(self) -> dict[str, float]:
        empty = {"releases": 0, "spent": 0.0, "without_noise": 0}
        try:
            entry = json.loads(self._path.read_text("utf-8"))
            return {name: type(start)(entry[name]) for name, start in empty.items()}
        except FileNotFoundError:
            return dict(empty)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}): restore it; without it nobody knows what "
                "this node has released"
            ) from None

    def _write(self, entry: dict[str, float]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(entry, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._path)
