"""FedRC (Guo, Tang, Lin, ICML 2024): soft clustering by concept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrc_flwr import em
from fedrc_flwr.algorithms.base import Broadcast, ClusteredAlgorithm
from fedrc_flwr.em import AdamMoments, AdamSettings, Floats, Labels
from fedrc_flwr.state import ClientState

SETTLED = 1e-6  # largest change of a mixture weight at which `assign` stops


class FedRC(ClusteredAlgorithm):
    """Clients weigh every sample between the clusters, corrected by the clusters' label prior."""

    name = "fedrc"
    trains_scored = True

    def label_prior(self, broadcast: Broadcast) -> Floats | None:
        """C_{y,k}, by which the E-step divides; None once the rounds that use it are over."""
        over = 0 < self.config.prior_rounds < broadcast.round
        return None if over else broadcast.label_prior

    def expectation(
        self,
        losses: Floats,
        labels: Labels,
        broadcast: Broadcast,
        state: ClientState,
        rng: np.random.Generator,
    ) -> tuple[Floats, ClientState]:
        """One E-step from the client's mixture weights, plain or by FedRC-Adam."""
        prior, exponent = self.label_prior(broadcast), broadcast.exponent
        config = self.config
        annealed = broadcast.round <= config.annealing_rounds
        if config.annealing_by == "client" and annealed:
            responsibilities = em.pooled_e_step(losses, prior, labels, exponent)
        else:
            responsibilities = em.e_step(losses, state.mixture_weights, prior, labels, exponent)
        moments = None
        if config.e_step == "adam":
            moments = state.moments
            if moments is None or moments.responsibilities.shape != losses.shape:
                moments = AdamMoments.start(*losses.shape)
            moments = em.adam_e_step(responsibilities, moments, self._adam())
            if annealed:
                # Adam's step has the same size however small the exponent keeps the differences,
                # so it would undo the annealing. Its moments do follow: from empty ones the first
                # step would be one of the sign.
                moments = replace(moments, responsibilities=responsibilities)
            responsibilities = moments.responsibilities
        weights = em.update_mixture_weights(responsibilities)
        kept = responsibilities if config.adaptive and moments is None else None
        return responsibilities, replace(
            state, mixture_weights=weights, moments=moments, responsibilities=kept
        )

    def assign(self, losses: Floats, labels: Labels, broadcast: Broadcast) -> Floats:
        """E-steps on fixed models until the mixture weights settle."""
        weights = np.full(losses.shape[1], 1.0 / losses.shape[1])
        for _ in range(self.config.assign_steps):
            responsibilities = em.e_step(losses, weights, self.label_prior(broadcast), labels)
            previous, weights = weights, em.update_mixture_weights(responsibilities)
            if np.abs(weights - previous).max() < SETTLED:
                break
        return weights

    def _adam(self) -> AdamSettings:
        config = self.config
        return AdamSettings(
            config.adam_step, config.adam_beta1, config.adam_beta2, config.adam_epsilon
        )
