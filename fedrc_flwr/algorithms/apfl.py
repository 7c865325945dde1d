"""APFL (Deng et al. 2020): each client mixes a network of its own with the global one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrc_flwr.algorithms.base import Broadcast, ClientRuntime, local_settings
from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.local import PERSONAL
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector, as_tensor
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import batch_gradients

ALPHA = "alpha"


class APFL(FedAvg):
    """A mixture ``alpha v + (1 - alpha) w`` of the client's own v and its copy w of the global one.

    w takes the gradient at w, v the gradient at the mixture (times alpha, by the chain rule), and
    alpha goes down the same loss: ``alpha -= eta <v - w, gradient at the mixture>``, kept in
    [0, 1], once a round, at its first batch, as the paper's experiments do.
    """

    name = "apfl"

    def maximisation(
        self,
        broadcast: Broadcast,
        state: ClientState,
        client: ClientRuntime,
        responsibilities: Floats,
    ) -> tuple[dict[int, Vector], ClientState]:
        """Both networks over the same batches."""
        config, bank = self.config, client.bank
        bank.load(broadcast.models, None)
        network = bank.units[0]
        count = network.parameter_count
        start = network.vector.clone()
        shared = start.clone()
        own = as_tensor(state.vectors.get(PERSONAL, broadcast.models[0])).to(bank.device, copy=True)
        alpha = state.numbers.get(ALPHA, config.apfl_alpha)
        velocities = [torch.zeros_like(network.trainable) for _ in range(2)]
        inputs, labels = client.tensors(client.fit)
        settings = local_settings(config)
        batches = batch_gradients(bank, inputs, labels, settings, client.rng)
        for number, gradient in enumerate(batches):
            network.vector.copy_(shared)
            at_shared = gradient() + config.prox_mu * (shared - start)[:count]
            shared[count:] = network.vector[count:]
            network.vector.copy_(alpha * own + (1 - alpha) * shared)
            at_mixture = gradient()
            own[count:] = network.vector[count:]
            difference = own[:count] - shared[:count]
            _step(shared[:count], velocities[0], at_shared, config.momentum, config.learning_rate)
            _step(own[:count], velocities[1], alpha * at_mixture, config.momentum,
                  config.learning_rate)  # fmt: skip
            if number == 0 and config.apfl_adaptive:
                slope = float(difference @ at_mixture)
                alpha = float(np.clip(alpha - config.learning_rate * slope, 0.0, 1.0))
        update = shared.cpu().numpy() - broadcast.models[0]
        kept = {PERSONAL: own.cpu().numpy()}
        return {0: update}, replace(state, vectors=kept, numbers={ALPHA: alpha})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """The mixture of the client's own network and the broadcast one."""
        if state is None or PERSONAL not in state.vectors:
            return None
        alpha = state.numbers[ALPHA]
        mixture = alpha * state.vectors[PERSONAL] + (1 - alpha) * broadcast.models[0]
        return mixture.astype(np.float32)


def _step(
    parameters: Tensor, velocity: Tensor, gradient: Tensor, momentum: float, rate: float
) -> None:
    velocity.mul_(momentum).add_(gradient)
    parameters.sub_(velocity, alpha=rate)
