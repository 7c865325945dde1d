"""APFL (Deng et al. 2020): each client mixes a network of its own with the global one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.local_only import PERSONAL
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector, as_tensor
from fedrc_flwr.settings import key
from fedrc_flwr.sgd import descend, momentum_step, proximal_pull
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import batch_gradients

ALPHA = "alpha"


@dataclass(frozen=True)
class APFLSettings(AlgorithmSettings):
    """Settings of APFL."""

    alpha: float = key(0.5, "The personal model's share at the start.", low=0.0, high=1.0)
    adaptive: bool = key(True, "Let the share follow the loss.")


class APFL(FedAvg):
    """A mixture ``alpha v + (1 - alpha) w`` of the client's own v and its copy w of the global one.

    w takes the gradient at w, v the gradient at the mixture (times alpha, by the chain rule), and
    alpha goes down the same loss: ``alpha -= eta <v - w, gradient at the mixture>``, kept in
    [0, 1], once a round, at its first batch, as the paper's experiments do.
    """

    name = "apfl"
    title = "APFL"
    Settings = APFLSettings
    settings: APFLSettings
    is_personal = True

    def maximisation(
        self, step: Step, responsibilities: Floats
    ) -> tuple[dict[int, Vector], ClientState]:
        """Both networks over the same batches."""
        broadcast, client, state = step.broadcast, step.client, step.state
        bank = client.bank
        bank.load(broadcast.models, None)
        network = bank.units[0]
        count = network.parameter_count
        start = network.vector.clone()
        shared = start.clone()
        own = as_tensor(state.vectors.get(PERSONAL, broadcast.models[0])).to(bank.device, copy=True)
        alpha = state.numbers.get(ALPHA, self.settings.alpha)
        velocities = [torch.zeros_like(network.trainable) for _ in range(2)]
        inputs, labels = client.tensors(client.fit)
        settings = self.local_settings(len(client.fit))
        emphasis = step.emphasis(settings)[:, 0]
        batches = batch_gradients(bank, inputs, labels, emphasis, settings, client.rng)
        for number, gradient in enumerate(batches):
            network.vector.copy_(shared)
            at_shared = gradient() + proximal_pull((shared - start)[:count], settings)
            shared[count:] = network.vector[count:]
            network.vector.copy_(alpha * own + (1 - alpha) * shared)
            at_mixture = gradient()
            own[count:] = network.vector[count:]
            difference = own[:count] - shared[:count]
            momentum_step(shared[:count], velocities[0], at_shared, settings)
            momentum_step(own[:count], velocities[1], alpha * at_mixture, settings)
            if number == 0 and self.settings.adaptive:
                slope = float(difference @ at_mixture)
                alpha = float(np.clip(descend(alpha, slope, settings), 0.0, 1.0))
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
