"""A step of training of which only the losses and the labels matter."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedrc_flwr.algorithms.messages import Broadcast
from fedrc_flwr.algorithms.step import ClientRuntime, Step
from fedrc_flwr.bank import ModelBank
from fedrc_flwr.data.scenario import Split
from fedrc_flwr.em import Floats, Labels
from fedrc_flwr.models import SplitModel
from fedrc_flwr.state import ClientState


def step_of(losses: Floats, labels: Labels, broadcast: Broadcast, state: ClientState) -> Step:
    """The E-step's view of a client with these losses, (N, K), and labels, (N,)."""
    fit = Split(np.zeros((len(labels), 1), dtype=np.float32), labels)
    bank = ModelBank([SplitModel(nn.Identity(), nn.Linear(1, 1))], torch.device("cpu"))
    rng = np.random.default_rng(0)
    client = ClientRuntime("one", "train", bank, fit, fit, 10, noise=0.0, rng=rng)
    return Step(broadcast, state, client, losses)
