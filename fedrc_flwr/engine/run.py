"""One run from its configuration to its summary, on any engine."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path

from fedrc_flwr import __version__
from fedrc_flwr.config import RunConfig, build_algorithm
from fedrc_flwr.data.scenario import scenario_of
from fedrc_flwr.engine.carrier import Carrier
from fedrc_flwr.engine.outputs import Network, Outputs
from fedrc_flwr.engine.progress import CHECKPOINT, WAITING
from fedrc_flwr.engine.rounds import Rounds
from fedrc_flwr.errors import FedRCError
from fedrc_flwr.layout import fingerprint
from fedrc_flwr.models import SplitModel, build_model
from fedrc_flwr.report.log import Event
from fedrc_flwr.state import ServerState

log = logging.getLogger("flwr")
SCHEMA = "schema.json"


def initial_models(config: RunConfig, count: int) -> list[SplitModel]:
    """The networks that a run starts from, each drawn from the seed and its number."""
    scenario = scenario_of(config.data, config.seed)
    return [
        build_model(
            config.model, scenario.input_shape, scenario.classes, seed=config.seed * 1_000 + k
        )
        for k in range(count)
    ]


class Run:
    """Enrols clients, trains, evaluates, and writes the summary whatever happens."""

    def __init__(self, config: RunConfig, directory: Path) -> None:
        self.config = config
        self.scenario = scenario_of(config.data, config.seed)
        self.algorithm = algorithm = build_algorithm(config)
        shape, classes = self.scenario.input_shape, self.scenario.classes
        models = initial_models(config, algorithm.models)
        self.layout = fingerprint(models[0], algorithm.shared_body)
        recorded = config.to_dict()
        if self.scenario.own:
            recorded["data.schema"] = self.scenario.schema.text()
        self.outputs = Outputs(
            directory, recorded, config.run, Network(shape, classes, self.layout)
        )
        state = algorithm.initial_state(models)
        if config.run.continues():
            try:
                state = self.outputs.resumed()
            except FedRCError:
                self.outputs.close()
                raise
        self.rounds = Rounds(algorithm, state, classes, config.federation, config.seed)

    def go(
        self,
        carrier: Carrier,
        enrol: Callable[[], None],
        on_event: Callable[[Event], None] | None = None,
    ) -> Event:
        """Run all rounds that are left and return the summary.

        Parameters
        ----------
        carrier : what brings messages to the clients
        enrol : waits until enough clients have enrolled
        on_event : called with each line of the metrics, when the round's checkpoint is written
        """
        config, rounds = self.config, self.rounds
        self.outputs.start(rounds.state.round + 1)
        if self.scenario.own:
            self.scenario.schema.save(self.outputs.directory / SCHEMA)
        log.info(
            "fedrc-flwr %s, %s on %s: %s clusters, rounds %s to %s", __version__, config.algorithm,
            config.named(), len(rounds.state.clusters), rounds.state.round + 1, config.rounds,
        )  # fmt: skip
        every = config.run.evaluation_interval()

        def round_done(state: ServerState, metrics: Event) -> None:
            with rounds.progress.phase(CHECKPOINT):
                event = self.outputs.round_done(state, metrics)
                if on_event is not None:
                    self.outputs.saving.done()
                    on_event(event)

        def evaluated(state: ServerState, outcome: Event) -> None:
            with rounds.progress.phase(CHECKPOINT):
                event = self.outputs.evaluated(state, outcome)
                if on_event is not None:
                    on_event(event)

        owed = self.outputs.owes_evaluation(rounds.state.round)
        try:
            with rounds.progress.phase(WAITING):
                enrol()
            rounds.run(carrier, config.rounds, every, round_done, evaluated, owed)
            self.outputs.saving.done()
        except FedRCError as error:
            log.error("%s", error)
            self._finish("failed", str(error))
            raise
        except KeyboardInterrupt:
            self._finish("stopped", "stopped by the user")
            raise
        except Exception as error:
            self._finish("failed", _told(error, self.outputs.directory))
            raise
        return self._finish("completed")

    def _finish(self, status: str, reason: str = "") -> Event:
        state = self.rounds.state
        return self.outputs.finish(state, status, self.algorithm.epsilon(state), reason)


def _told(error: Exception, directory: Path) -> str:
    """An unexpected error in words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {directory} is full: free some space and resume the run"
    return f"{type(error).__name__}: {error}"
