"""The clients of the federation by their stable names, and which of them can be reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO, WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedrc_flwr import wire
from fedrc_flwr.data.scenario import OBSERVE, TRAIN
from fedrc_flwr.engine.rounds import Enrolment
from fedrc_flwr.errors import RunError, WireError
from server_app.exchange import exchange, is_simulation

TRIES = 3


class Roster:
    """Enrolled clients by name. Flower's node ids change when a node restarts; names do not."""

    def __init__(self, grid: Grid, classes: int, window: int) -> None:
        self._grid = grid
        self._classes = classes
        self._window = window
        self._nodes: dict[str, int] = {}
        self._failures: dict[int, int] = {}
        self._online: set[int] = set()
        self._problem = ""
        self.clients: dict[str, Enrolment] = {}

    def refresh(self, deadline: float) -> list[Enrolment]:
        """Look for nodes and enrol the new ones. Returns the newly enrolled.

        A new node that has not answered after ``deadline`` seconds is asked again next time.
        """
        self._online = set(self._grid.get_node_ids())
        known = set(self._nodes.values())
        unknown = [
            node for node in sorted(self._online - known) if self._failures.get(node, 0) < TRIES
        ]
        content = RecordDict({"enrol": ConfigRecord({"schema": wire.SCHEMA})})
        queries = (
            (str(node), Message(content, node, wire.ENROL, ttl=deadline)) for node in unknown
        )
        enrolled = []
        for answer in exchange(self._grid, queries, self._window, deadline):
            node = int(answer.name)
            problem = None
            if answer.reply is None:
                problem = "no answer"
            elif answer.reply.has_error():
                problem = answer.reply.error.reason
            else:
                try:
                    enrolment = wire.decode_enrolment(
                        answer.reply.content, self._classes, (TRAIN, OBSERVE)
                    )
                except WireError as error:
                    problem = str(error)
                else:
                    self._take(enrolment, node)
                    enrolled.append(enrolment)
            if problem:
                self._failures[node] = self._failures.get(node, 0) + 1
                self._problem = problem.strip().splitlines()[-1]
                log(WARNING, "node %s could not be enrolled: %s", node, problem)
        return enrolled

    def _take(self, enrolment: Enrolment, node: int) -> None:
        earlier = self._nodes.get(enrolment.name)
        if earlier is not None:
            log(INFO, "%s reconnected as another node; the newer one is used", enrolment.name)
        self._nodes[enrolment.name] = node
        self.clients[enrolment.name] = enrolment

    def online(self, role: str) -> list[str]:
        """Names of the reachable clients with a role, sorted."""
        return sorted(
            name
            for name, client in self.clients.items()
            if client.role == role and self._nodes[name] in self._online
        )

    def node(self, name: str) -> int:
        """The node of a client."""
        return self._nodes[name]

    def wait(
        self,
        trainers: int,
        everybody: int,
        timeout: float,
        enrolled: Callable[[list[Enrolment]], None],
    ) -> None:
        """Wait for ``trainers`` training clients and, while there is time, for ``everybody``."""
        ends = time.monotonic() + timeout
        while True:
            enrolled(self.refresh(timeout))
            training, observing = len(self.online(TRAIN)), len(self.online(OBSERVE))
            if training >= trainers and training + observing >= everybody:
                return
            # All virtual nodes exist from the start, so waiting does not help.
            if is_simulation(self._grid) or time.monotonic() >= ends:
                break
            time.sleep(1.0)
        if training < trainers:
            raise RunError(
                f"{training} of {trainers} training clients are enrolled. In simulation start "
                f'{everybody} virtual clients (--federation-config "num-supernodes={everybody}"); '
                "in a deployment start more nodes, raise federation.enrolment-timeout, or set "
                "federation.min-clients to the number that is enough"
                + (
                    f". The last node that could not be enrolled said: {self._problem}"
                    * bool(self._problem)
                )
            )
        log(WARNING, "starting with %s training clients and %s observers", training, observing)
