"""A progress bar on the terminal, as long as a block runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn


class Bar:
    """Lines can be printed above it; where there is no terminal, there are only the lines.

    Parameters
    ----------
    total : rounds until the bar is full
    columns : what is shown to its right
    """

    def __init__(self, total: int, console: Console | None, *columns: ProgressColumn) -> None:
        self.console = console or Console(highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
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

    def move(self, completed: int, description: str) -> None:
        """Show how many rounds are done, and what is going on."""
        self._bar.update(self._task, completed=completed, description=description)
