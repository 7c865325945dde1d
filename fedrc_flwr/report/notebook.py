"""A run in a notebook: a progress bar and the report, with what every front end can show."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from fedrc_flwr.report.log import Event
from fedrc_flwr.report.terminal import round_line


def is_running() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class Bar:
    """The progress of a run as one line below the cell."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._handle: Any = None

    def __enter__(self) -> Bar:
        self._handle = _display(self._markup(0, "starting"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return

    def show(self, event: Event) -> None:
        """Move the bar to a round."""
        if event.get("event") == "round":
            text = round_line(event, self._rounds)
            self._handle.update(_html(self._markup(event["round"], text)))

    def _markup(self, done: int, text: str) -> str:
        return (
            f'<progress value="{done}" max="{self._rounds}"></progress> '
            f"<code>{html.escape(text)}</code>"
        )


def show_page(page: Path, height: int) -> None:
    """Show a page in a frame of its own, which a saved notebook keeps."""
    content = html.escape(page.read_text("utf-8"), quote=True)
    _display(
        f'<div><iframe srcdoc="{content}" title="fedrc run report" '
        f'style="width: 100%; height: {height}px; border: 0"></iframe></div>'
    )


def _display(markup: str) -> Any:
    """Show markup below the cell; the result's ``update`` replaces it."""
    from IPython.display import display

    return display(_html(markup), display_id=True)  # type: ignore[no-untyped-call]


def _html(markup: str) -> Any:
    from IPython.display import HTML

    return HTML(markup)  # type: ignore[no-untyped-call]
