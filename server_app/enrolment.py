"""The clients of the federation by their stable names, and which of them can be reached."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from logging import INFO, WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedrc_flwr import wire
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.carrier import Enrolment
from fedrc_flwr.errors import RunError, WireError
from fedrc_flwr.records import ENROL, SCHEMA
from fedrc_flwr.words import one_line
from server_app.exchange import Answer, Outbox

#: Seconds until a node that did not answer, or could not take part, is asked again; then doubled.
ASK_AGAIN, LONGEST_PAUSE = 10.0, 300.0
#: Seconds that a node has for its answer.
ANSWER_SECONDS = 120.0


class Roster:
    """Enrolled clients by name. Flower's node ids change when a node restarts; names do not.

    Parameters
    ----------
    registered : the names under which nodes were registered, by id, where they are known
    tell : called with events about the enrolment, for whoever watches the run
    keys : whether nodes have keys; then a name belongs to the node that was registered under it
    """

    def __init__(
        self,
        grid: Grid,
        classes: int,
        window: int,
        registered: Callable[[], Mapping[int, str]] = dict,
        tell: Callable[[dict[str, Any]], None] = lambda event: None,
        keys: bool = False,
    ) -> None:
        self._grid = grid
        self._classes = classes
        self._registered = registered
        self._tell = tell
        self._keys = keys
        self._outbox: Outbox[int] = Outbox(grid, window)
        self._asked: dict[int, float] = {}  # until when an answer is expected
        self._again: dict[int, tuple[float, float]] = {}  # when to ask again, and the pause then
        self._nodes: dict[str, int] = {}
        self._online: set[int] = set()
        self.refused: dict[str, str] = {}
        self.clients: dict[str, Enrolment] = {}

    def refresh(self, seconds: float = 0.0) -> list[Enrolment]:
        """Look for nodes, ask the new ones to enrol, and return those that have enrolled.

        Waits at most ``seconds`` for answers. Those that come later are found by the next call. In
        a simulation all answers are waited for, because all nodes exist from the start.
        """
        now = time.monotonic()
        self._online = set(self._grid.get_node_ids())
        self._give_up(now)
        queue = deque(self._unknown(now))
        ends = now + (ANSWER_SECONDS if self._outbox.simulated else seconds)
        enrolled: list[Enrolment] = []
        while True:
            room = self._outbox.room()
            most = len(queue) if room is None else min(room, len(queue))
            self._ask([queue.popleft() for _ in range(most)])
            answers = list(self._outbox.replies())
            enrolled += [e for answer in answers if (e := self._understood(answer)) is not None]
            if (not queue and not len(self._outbox)) or time.monotonic() >= ends:
                return enrolled
            self._outbox.pause(bool(answers))

    def _unknown(self, now: float) -> Iterator[int]:
        """The nodes that are to be asked now."""
        known = set(self._nodes.values()) | set(self._asked)
        return (n for n in sorted(self._online - known) if self._again.get(n, (now, 0))[0] <= now)

    def _ask(self, nodes: list[int]) -> None:
        if not nodes:
            return
        query = RecordDict({"enrol": ConfigRecord({"schema": SCHEMA})})
        until = time.monotonic() + ANSWER_SECONDS
        self._asked |= dict.fromkeys(nodes, until)
        messages = [(n, Message(query, n, ENROL, ttl=ANSWER_SECONDS)) for n in nodes]
        for node in self._outbox.send(messages):
            self._refuse(node, "it could not be asked")

    def _give_up(self, now: float) -> None:
        """Expect no answer any more from nodes that went away or took too long."""
        for node, until in list(self._asked.items()):
            if now >= until or node not in self._online:
                self._outbox.forget(node)
                self._refuse(node, "it has not answered")

    def _understood(self, answer: Answer[int]) -> Enrolment | None:
        """The enrolment that a reply is, unless the client cannot take part."""
        node = answer.about
        if answer.reply is None or node not in self._asked:
            return None
        if answer.reply.has_error():
            error = answer.reply.error
            self._refuse(node, f"error {error.code}: {error.reason}")
            return None
        try:
            refusal = wire.decode_refusal(answer.reply.content)
            if refusal is not None:
                self._refuse(node, f"{refusal.reason()}; its own log says more", refusal.name)
                return None
            enrolment = wire.decode_enrolment(answer.reply.content, self._classes, (TRAIN, OBSERVE))
        except WireError as error:
            self._refuse(node, str(error))
            return None
        objection = self._objection(node, enrolment.name)
        if objection:
            self._refuse(node, objection)
            return None
        self._take(enrolment, node)
        return enrolment

    def _objection(self, node: int, name: str) -> str:
        """Why a node may not use a name; nothing if it may."""
        names = self._registered()
        registered = names.get(node, "")
        if registered and registered != name:
            return f"it was registered as {registered}, but its node.yaml has the name {name}"
        if self._keys and not registered:
            return (
                f"it calls itself {name}, but was registered without a name: `fedrc node remove` "
                "it, and register a new key with `fedrc node register`"
            )
        holder = self._nodes.get(name, node)
        if self._keys and holder != node and names.get(holder) == name:
            return f"the name {name} belongs to another node: `fedrc node remove` one of them"
        return ""

    def _take(self, enrolment: Enrolment, node: int) -> None:
        if enrolment.name in self._nodes:
            log(INFO, "%s reconnected as another node; the newer one is used", enrolment.name)
        self._nodes[enrolment.name] = node
        self._asked.pop(node, None)
        self._again.pop(node, None)
        self.refused.pop(enrolment.name, None)
        self.clients[enrolment.name] = enrolment
        if not self._outbox.simulated:
            facts = {"role": enrolment.role, "samples": enrolment.samples}
            self._tell({"event": "enrolled", "client": enrolment.name, **facts})

    def _refuse(self, node: int, reason: str, name: str = "") -> None:
        """Note, and tell at once, why a node is not enrolled; it is asked again later."""
        name = name or self._called(node)
        line = one_line(reason, "no reason given")
        self._asked.pop(node, None)
        pause = min(2 * self._again.get(node, (0.0, ASK_AGAIN / 2))[1], LONGEST_PAUSE)
        self._again[node] = (time.monotonic() + pause, pause)
        if self.refused.get(name) != line:
            log(WARNING, "%s is not enrolled: %s", name, line)
            self._tell({"event": "refused", "client": name, "reason": line})
        self.refused[name] = line

    def _called(self, node: int) -> str:
        return self._registered().get(node) or f"node {node}"

    def online(self, role: str) -> list[str]:
        """Names of the reachable clients with a role, sorted."""
        return sorted(
            name
            for name, client in self.clients.items()
            if client.role == role and self._nodes[name] in self._online
        )

    def close(self) -> None:
        """Expect no answer any more."""
        self._outbox.close()

    def node(self, name: str) -> int:
        """The node of a client."""
        return self._nodes[name]

    def wait(
        self,
        trainers: int,
        everybody: int,
        timeout: float,
        enrolled: Callable[[list[Enrolment]], None],
        all_needed: bool = False,
    ) -> None:
        """Wait for ``trainers`` training clients and, while there is time, for ``everybody``.

        With ``all_needed``, the run does not start without everybody.
        """
        ends = time.monotonic() + timeout
        told: dict[str, Any] = {}
        while True:
            enrolled(self.refresh(min(1.0, timeout)))
            training, observing = self.online(TRAIN), self.online(OBSERVE)
            if len(training) >= trainers and len(training) + len(observing) >= everybody:
                return
            # All virtual nodes exist from the start, so waiting does not help.
            if self._outbox.simulated or time.monotonic() >= ends:
                break
            waiting = self._waiting(trainers, everybody)
            if waiting != told:
                told = waiting
                self._tell({**waiting, "seconds": round(ends - time.monotonic())})
            time.sleep(0.2)
        too_few = all_needed and len(training) + len(observing) < everybody
        if len(training) < trainers or too_few:
            raise RunError(self._too_few(trainers, everybody, all_needed))
        log(WARNING, "starting with %s training clients and %s observers", len(training),
            len(observing))  # fmt: skip

    def _waiting(self, trainers: int, everybody: int) -> dict[str, Any]:
        """What is waited for, by name, as an event."""
        return {
            "event": "waiting",
            "trainers": trainers,
            "everybody": everybody,
            "training": self.online(TRAIN),
            "observing": self.online(OBSERVE),
            "asked": sorted({self._called(node) for node in self._asked} - set(self.refused)),
            "offline": self._offline(),
            "refused": sorted(self.refused),
        }

    def _offline(self) -> list[str]:
        """Registered nodes that are not connected."""
        return sorted(self._called(node) for node in set(self._registered()) - self._online)

    def _too_few(self, trainers: int, everybody: int, all_needed: bool) -> str:
        training = len(self.online(TRAIN))
        few = f"{training} of {trainers} training clients are enrolled"
        if all_needed:
            few = f"{training + len(self.online(OBSERVE))} of {everybody} clients are enrolled"
        reasons = [f"{name}: {reason}" for name, reason in sorted(self.refused.items())]
        if self._outbox.simulated:
            reasons = reasons[:3]
            few += f'; start {everybody} virtual clients (--federation-config ' \
                   f'"num-supernodes={everybody}")'  # fmt: skip
        else:
            reasons += [f"{name}: offline" for name in self._offline()]
            few += (
                "; start the nodes that are missing, raise federation.enrolment-timeout, or set "
                "federation.min-clients to the number that is enough"
            )
        return f"{few}. Not enrolled: {'; '.join(reasons)}" if reasons else few
