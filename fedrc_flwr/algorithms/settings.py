"""The settings that algorithms have in common; each algorithm's own are in its file."""

from __future__ import annotations

from dataclasses import dataclass

from fedrc_flwr.settings import key


@dataclass(frozen=True)
class AlgorithmSettings:
    """Settings that every algorithm has."""

    fine_tune: bool = key(
        False,
        "Also report each training client's local accuracy after one more local epoch (FedRC-FT).",
    )

    def tunes(self) -> bool:
        """Whether evaluation fine-tunes."""
        return self.fine_tune

    def models(self) -> int:
        """How many models the server starts with."""
        return 1

    def spread(self) -> float:
        """How far apart they start."""
        return 1.0

    def one_body(self) -> bool:
        """Whether they share their feature extractor."""
        return False

    def mode(self) -> str:
        """Soft or hard clustering."""
        return "soft"

    def discovers(self) -> bool:
        """Whether a run begins with discovery."""
        return False

    def needs_start(self, field: str) -> str:
        """The `start` with which alone a setting is read; empty: with any."""
        return ""


@dataclass(frozen=True)
class ClusteredSettings(AlgorithmSettings):
    """Settings of an algorithm with a model for each cluster."""

    clusters: int = key(3, "Number of clusters K at the start.", low=1, high=500, common=True)
    initial_spread: float = key(
        1.0,
        "How far apart the clusters' models start. 1: independent random networks. Less: all start "
        "near the first one, moved by this fraction towards their own random values.",
        above=0.0,
        high=1.0,
    )

    def models(self) -> int:
        """K."""
        return self.clusters

    def spread(self) -> float:
        """As set."""
        return self.initial_spread


@dataclass(frozen=True)
class SharedBodySettings(ClusteredSettings):
    """Settings of an algorithm whose clusters can share their feature extractor."""

    shared_body: bool = key(False, "Share the feature extractor: one body, K heads.")

    def one_body(self) -> bool:
        """As set."""
        return self.shared_body
