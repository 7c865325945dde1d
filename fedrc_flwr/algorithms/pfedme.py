"""pFedMe (Dinh et al. 2020): personal models by Moreau envelopes."""

from __future__ import annotations

from dataclasses import replace

from fedrc_flwr.algorithms.base import Broadcast, ClientRuntime, local_settings
from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.local import PERSONAL
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import batch_gradients


class PFedMe(FedAvg):
    """A personal model near the client's copy w of the global one, found by a few inner steps.

    Per batch: ``theta ~ argmin loss(theta) + lambda/2 |theta - w|^2``, then
    ``w -= eta * lambda * (w - theta)``. The server moves by ``global-learning-rate`` (the paper's
    beta) towards the mean of w. Local momentum is not part of it and is not used.
    """

    name = "pfedme"

    def maximisation(
        self,
        broadcast: Broadcast,
        state: ClientState,
        client: ClientRuntime,
        responsibilities: Floats,
    ) -> tuple[dict[int, Vector], ClientState]:
        """Inner solves and outer steps over the client's batches."""
        config, bank = self.config, client.bank
        bank.load(broadcast.models, None)
        network = bank.units[0]
        copy = network.vector.clone()  # w; the network itself holds theta
        count = network.parameter_count
        inputs, labels = client.tensors(client.fit)
        for gradient in batch_gradients(bank, inputs, labels, local_settings(config), client.rng):
            for _ in range(config.pfedme_steps):
                pull = network.trainable - copy[:count]
                step = gradient() + config.pfedme_lambda * pull
                network.trainable.sub_(step, alpha=config.pfedme_rate)
            outer = config.learning_rate * config.pfedme_lambda
            copy[:count].sub_(copy[:count] - network.trainable, alpha=outer)
        copy[count:] = network.vector[count:]  # running statistics
        personal = network.vector.cpu().numpy().copy()
        update = copy.cpu().numpy() - broadcast.models[0]
        return {0: update}, replace(state, vectors={PERSONAL: personal})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """theta, as the last training left it."""
        return None if state is None else state.vectors.get(PERSONAL)
