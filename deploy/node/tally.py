"""What a node has done since it was started."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fedrc_flwr.engine.admission import FAILED, REASONS

#: More than a node can hold.
MOST_SAMPLES = 10**12


@dataclass
class Tally:
    """Counters of a node, read by whoever watches it.

    Parameters
    ----------
    online : whether the node has signed on at its SuperLink
    busy : whether a message is being worked on
    messages : messages that arrived, by their type
    refused : those that the node refused, by the code of the reason
    failed : those whose reply was another error
    samples : that it trained on, of all rounds together
    died : workers that ended without an answer
    bytes_down, bytes_up : of messages and replies
    seconds : spent on receiving, working and sending
    last_message : when the last one arrived, in seconds since 1970
    workers : worker processes that were started
    worker_memory : bytes that the worker held after its last task; 0: there is none
    """

    online: bool = False
    busy: bool = False
    messages: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    samples: int = 0
    died: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    last_message: float = 0.0
    workers: int = 0
    worker_memory: int = 0

    def arrived(self, kind: str) -> None:
        """A message has arrived."""
        self.messages[kind] = self.messages.get(kind, 0) + 1
        self.last_message = time.time()

    def trained(self, samples: int) -> None:
        """A message was about so many samples; what no node could have is not believed."""
        if 0 < samples < MOST_SAMPLES:
            self.samples += samples

    def refuse(self, code: str) -> None:
        """A message was refused; a reason that is not known is none that an app may invent."""
        code = code if code in REASONS else FAILED
        self.refused[code] = self.refused.get(code, 0) + 1

    def spent(self, phase: str, seconds: float) -> None:
        """Time went by on one thing."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
