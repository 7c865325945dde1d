"""pFedMe (Dinh et al. 2020): personal models by Moreau envelopes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrc_flwr.algorithms.fedavg import FedAvg
from fedrc_flwr.algorithms.local_only import PERSONAL
from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.algorithms.settings import AlgorithmSettings
from fedrc_flwr.algorithms.step import Step
from fedrc_flwr.em import Floats
from fedrc_flwr.layout import Vector
from fedrc_flwr.settings import key
from fedrc_flwr.sgd import LocalSettings, descend
from fedrc_flwr.state import ClientState
from fedrc_flwr.training import batch_gradients


@dataclass(frozen=True)
class PFedMeSettings(AlgorithmSettings):
    """Settings of pFedMe."""

    lambda_: float = key(15.0, "How near the personal model stays to the global one.", above=0.0)
    steps: int = key(5, "Steps of the inner solve.", low=1)
    rate: float = key(0.03, "Learning rate of the inner solve.", above=0.0)


class PFedMe(FedAvg):
    """A personal model near the client's copy w of the global one, found by a few inner steps.

    Per batch: ``theta ~ argmin loss(theta) + lambda/2 |theta - w|^2``, then
    ``w -= eta * lambda * (w - theta)``. The server moves by ``server.learning-rate`` (the paper's
    beta) towards the mean of w. Local momentum is not used.
    """

    name = "pfedme"
    title = "pFedMe"
    Settings = PFedMeSettings
    settings: PFedMeSettings
    is_personal = True

    def local_settings(self, samples: int) -> LocalSettings:
        """The inner problem has its own proximal term instead of FedProx's."""
        return super().local_settings(samples).without_prox("pfedme")

    def maximisation(
        self, step: Step, responsibilities: Floats
    ) -> tuple[dict[int, Vector], ClientState]:
        """Inner solves and outer steps over the client's batches."""
        broadcast, client, state = step.broadcast, step.client, step.state
        bank, own = client.bank, self.settings
        bank.load(broadcast.models, None)
        network = bank.units[0]
        copy = network.vector.clone()  # w; the network itself holds theta
        count = network.parameter_count
        inputs, labels = client.tensors(client.fit)
        settings = self.local_settings(len(client.fit))
        emphasis = step.emphasis(settings)[:, 0]
        for gradient in batch_gradients(bank, inputs, labels, emphasis, settings, client.rng):
            for _ in range(own.steps):
                pull = network.trainable - copy[:count]
                network.trainable.sub_(gradient() + own.lambda_ * pull, alpha=own.rate)
            outer = own.lambda_ * (copy[:count] - network.trainable)
            copy[:count] = descend(copy[:count], outer, settings)
        copy[count:] = network.vector[count:]  # running statistics
        personal = network.vector.cpu().numpy().copy()
        update = copy.cpu().numpy() - broadcast.models[0]
        return {0: update}, replace(state, vectors={PERSONAL: personal})

    def personal(self, broadcast: Broadcast, state: ClientState | None) -> Vector | None:
        """theta, as the last training left it."""
        return None if state is None else state.vectors.get(PERSONAL)
