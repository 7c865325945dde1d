"""Progress of a comparison: one bar over the rounds of all runs, and a line for each run."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedrc_flwr.compare.results import Figures
from fedrc_flwr.report.log import Event


class Progress:
    """Plain lines where there is no terminal.

    Parameters
    ----------
    rounds : of each run
    """

    def __init__(self, rounds: list[int], console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._rounds = rounds
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=sum(rounds))

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, soft_wrap=True, markup=False)

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
            self.say(f"{place} {name}: failed: {lines[0]}")
            return
        self.say(
            f"{place} {name}: local {found.local:.3f}  global {found.world:.3f}  "
            f"ARI {found.rand:.3f}  {found.clusters} clusters  {seconds:.0f} s"
        )

    def _place(self, number: int) -> str:
        width = len(str(len(self._rounds)))
        return f"[{number + 1:>{width}}/{len(self._rounds)}]"

    def _at(self, number: int, round_number: int, name: str) -> None:
        done = sum(self._rounds[:number]) + round_number
        self._bar.update(self._task, completed=done, description=name)
