"""Progress and report in a notebook, with a stand-in for its kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrc_flwr.report import notebook

ROUND = {
    "event": "round", "round": 3, "loss": 0.25, "shares": [1.0], "clusters": [0], "seconds": 0.1,
    "failed": {"<i>": "late"},
}  # fmt: skip


class Displayed:
    """What `display` was called with, and later updates of it."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, content: Any, display_id: bool = False) -> Displayed:
        self.update(content)
        return self

    def update(self, content: Any) -> None:
        self.shown.append(content.data)


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> Displayed:
    found = Displayed()
    monkeypatch.setattr("IPython.display.display", found)
    return found


def test_bar_moves_with_the_rounds(displayed: Displayed) -> None:
    with notebook.Bar(rounds=4) as bar:
        bar.show(ROUND)
        bar.show({"event": "end"})

    first, second = displayed.shown
    assert '<progress value="0" max="4">' in first
    assert '<progress value="3" max="4">' in second
    assert "loss 0.250" in second
    assert "<i>" not in second


def test_page_is_a_frame_with_the_page_within(displayed: Displayed, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text('<p class="x">A & B</p>', "utf-8")

    notebook.show_page(page, height=500)

    assert displayed.shown == [
        '<div><iframe srcdoc="&lt;p class=&quot;x&quot;&gt;A &amp; B&lt;/p&gt;" '
        'title="fedrc run report" style="width: 100%; height: 500px; border: 0"></iframe></div>'
    ]
