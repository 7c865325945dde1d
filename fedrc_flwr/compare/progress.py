"""Progress of a comparison: one bar over the rounds of all runs, and a line for each run."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import TaskProgressColumn, TimeRemainingColumn

from fedrc_flwr.compare.results import Figures
from fedrc_flwr.compare.runner import BEHIND
from fedrc_flwr.report.bar import Bar
from fedrc_flwr.report.log import Event
from fedrc_flwr.words import counted


class Progress(Bar):
    """Plain lines where there is no terminal.

    Parameters
    ----------
    rounds : of each run
    """

    def __init__(self, rounds: list[int], console: Console | None = None) -> None:
        super().__init__(sum(rounds), console, TaskProgressColumn(), TimeRemainingColumn())
        self._rounds = rounds

    def skip(self, number: int, name: str) -> None:
        """A run that is already finished."""
        self.say(f"{self._place(number)} {name}: done before")
        self._at(number + 1, 0, name)

    def begin(self, number: int, name: str) -> Callable[[Event], None]:
        """A run starts; what is returned follows its rounds."""
        self._at(number, 0, name)

        def follow(event: Event) -> None:
            if event.get("event") == "round":
                self._at(number, int(event["round"]), name)

        return follow

    def end(
        self, number: int, name: str, found: Figures | None, reason: str, seconds: float
    ) -> None:
        """A run has ended."""
        self._at(number + 1, 0, name)
        place = self._place(number)
        if found is None:
            lines = reason.strip().splitlines() or ["no evaluated round"]
            told = lines[0] if lines[0].startswith(BEHIND) else f"failed: {lines[0]}"
            self.say(f"{place} {name}: {told}")
            return
        self.say(
            f"{place} {name}: local {found.local:.3f}  global {found.world:.3f}  "
            f"ARI {found.rand:.3f}  {counted(found.clusters, 'cluster')}  {seconds:.0f} s"
        )

    def _place(self, number: int) -> str:
        width = len(str(len(self._rounds)))
        return f"[{number + 1:>{width}}/{len(self._rounds)}]"

    def _at(self, number: int, round_number: int, name: str) -> None:
        self.move(sum(self._rounds[:number]) + round_number, name)
