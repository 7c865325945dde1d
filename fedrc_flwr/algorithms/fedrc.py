"""FedRC (Guo, Tang, Lin, ICML 2024): soft clustering by concept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.adaptive import AdaptiveSettings
from fedrc_flwr.algorithms.discovering import Discovering, DiscoverySettings, beginning
from fedrc_flwr.algorithms.messages import Broadcast, Phase
from fedrc_flwr.algorithms.places import FALLBACK
from fedrc_flwr.algorithms.settings import AlgorithmSettings, SharedBodySettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import AdamMoments, AdamSettings, Floats, Labels
from fedrc_flwr.settings import key
from fedrc_flwr.state import ClientState, ServerState

SETTLED = 1e-6  # largest change of a mixture weight at which `assign` stops
MOST_STEPS = 100  # of `assign`
#: Annealing of a run in which nothing could be discovered: rounds, and the exponent at the start.
FALLBACK_ANNEALING, FALLBACK_START = 20, 0.05


@dataclass(frozen=True)
class MixtureSettings(DiscoverySettings, SharedBodySettings, AdaptiveSettings):
    """Settings of FedRC and FedEM."""

    clustering: str = key(
        "soft",
        "`soft`; `hard-test` (TeHC): predict with the likeliest cluster alone; `hard-train` "
        "(TrHC): each client also trains that cluster alone.",
        choices=("soft", "hard-test", "hard-train"),
    )
    e_step: str = key("plain", "`plain`, or `adam` (FedRC-Adam).", choices=("plain", "adam"))
    prior_rounds: int = key(
        0,
        "Number of rounds in which the E-step divides by the label prior; afterwards it uses the "
        "likelihood alone. 0: all rounds.",
        low=0,
        rounds=True,
    )
    annealing_rounds: int = key(
        0,
        "Rounds over which the exponent of the E-step grows. 0: no annealing.",
        low=0,
        rounds=True,
    )
    annealing_start: float = key(0.05, "The exponent in round 1.", above=0.0, high=1.0)
    annealing_by: str = key(
        "sample",
        "`sample`: each sample has its own responsibilities and the exponent grows to 1. `client`: "
        "during the annealing all samples of a client have the same responsibilities, from the "
        "mean of their scores, and the exponent grows towards `annealing-end`.",
        choices=("sample", "client"),
    )
    annealing_end: float = key(
        6.0, "What the exponent grows towards with `annealing-by = client`.", low=1.0
    )

    def mode(self) -> str:
        """As set."""
        return self.clustering

    def needs_start(self, field: str) -> str:
        """The E-step's schedule and the rules of removing and merging are the paper start's."""
        schedule = field.startswith(("annealing_", "prior_"))
        if self.discovers() and (schedule or field in AdaptiveSettings.__dataclass_fields__):
            return "paper"
        return super().needs_start(field)


@dataclass(frozen=True)
class FedRCSettings(MixtureSettings):
    """Settings of FedRC, which begins with discovery."""

    start: str = beginning("discover")


class FedRC(Discovering):
    """Clients weight each sample between the clusters, corrected by the clusters' label prior."""

    name = "fedrc"
    title = "FedRC"
    Settings: ClassVar[type[AlgorithmSettings]] = FedRCSettings
    settings: MixtureSettings
    trains_scored = True
    keeps_places = True

    def adaptation(self, state: ServerState) -> AdaptiveSettings | None:
        """Clusters are removed and merged as set; with discovery, only if that found nothing."""
        if not self.settings.discovers():
            return self.settings
        return AdaptiveSettings(adaptive=True, merge=True) if FALLBACK in state.numbers else None

    def phase(self, round_number: int, state: ServerState) -> Phase:
        """The E-step of a round: annealed at first, and with the label prior while it is used."""
        settings = self.settings
        if state.numbers.get(FALLBACK):
            since = round_number - int(state.numbers[FALLBACK])
            return Phase(exponent=em.annealing_exponent(since, FALLBACK_ANNEALING, FALLBACK_START))
        if settings.discovers():
            return Phase()
        by_client = settings.annealing_by == "client"
        return Phase(
            exponent=em.annealing_exponent(
                round_number,
                settings.annealing_rounds,
                settings.annealing_start,
                settings.annealing_end if by_client else 1.0,
            ),
            pooled=by_client and round_number <= settings.annealing_rounds,
            prior=not 0 < settings.prior_rounds < round_number,
        )

    def expectation(self, step: Step) -> tuple[Floats, ClientState]:
        """One E-step from the client's mixture weights, plain or by FedRC-Adam."""
        losses, labels, state, phase = step.losses, step.labels, step.state, step.broadcast.phase
        prior = self._label_prior(step.broadcast)
        if phase.listens:
            weights = self.assign(losses, labels, step.broadcast)
            responsibilities = em.e_step(losses, weights, prior, labels)
        elif phase.pooled:
            responsibilities = em.pooled_e_step(losses, prior, labels, phase.exponent)
        else:
            weights = state.mixture_weights
            if phase.shares:
                weights = np.asarray(phase.shares)
            elif self.settings.discovers():
                weights = em.reachable(weights)
            responsibilities = em.e_step(losses, weights, prior, labels, phase.exponent)
        moments = None
        if self.settings.e_step == "adam":
            moments = state.moments
            if moments is None or moments.responsibilities.shape != losses.shape:
                moments = AdamMoments.start(*losses.shape)
            moments = em.adam_e_step(responsibilities, moments, AdamSettings())
            if phase.annealed:
                # Adam's step has the same size however small the exponent makes the differences, so
                # it would undo the annealing. Its moments are updated all the same: from empty
                # moments the first step would depend only on the sign.
                moments = replace(moments, responsibilities=responsibilities)
            responsibilities = moments.responsibilities
        weights = em.update_mixture_weights(responsibilities)
        kept = responsibilities if self.settings.removes() and moments is None else None
        return responsibilities, replace(
            state, mixture_weights=weights, moments=moments, responsibilities=kept
        )

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """E-steps on fixed models until the mixture weights settle."""
        weights = np.full(losses.shape[1], 1.0 / losses.shape[1])
        prior = self._label_prior(broadcast)
        for _ in range(MOST_STEPS):
            responsibilities = em.e_step(losses, weights, prior, labels)
            previous, weights = weights, em.update_mixture_weights(responsibilities)
            if np.abs(weights - previous).max() < SETTLED:
                break
        return weights

    def _label_prior(self, broadcast: Broadcast) -> Floats | None:
        """C_{y,k} as the models were trained, or None in rounds whose E-step does not use it."""
        return self.local.trained_prior(broadcast.label_prior) if broadcast.phase.prior else None
