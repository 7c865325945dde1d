"""A client of a simulation that attacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedrc_flwr.algorithms.messages import Broadcast, Reply
from fedrc_flwr.attacks import AttackSettings
from fedrc_flwr.engine.client import Participant
from fedrc_flwr.state import ClientState


@dataclass(frozen=True)
class Attacker(Participant):
    """Trains like an honest client, and changes its data or its replies."""

    attack: AttackSettings = field(default_factory=AttackSettings)

    def train(self, broadcast: Broadcast, received: float) -> tuple[Reply, ClientState]:
        """What the attack makes of an honest client's reply."""
        reply, state = super().train(broadcast, received)
        seeds = (self.seed, broadcast.round)
        return self.attack.changed_reply(reply, seeds, self.data.name), state


def armed(honest: Participant, attack: AttackSettings, index: int, clients: int) -> Participant:
    """The client itself, or an attacker in its place.

    Parameters
    ----------
    index : the client's number in its scenario, in which training clients come first
    clients : how many training clients there are
    """
    if index not in attack.attackers(clients, honest.seed):
        return honest
    fields = {name: getattr(honest, name) for name in Participant.__dataclass_fields__}
    attacker = Attacker(**fields, attack=attack)
    return replace(attacker, data=attack.changed_data(honest.data))
