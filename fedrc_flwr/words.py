"""Numbers and names in sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """``1 round``, ``2,000 rounds``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def similar(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'digits'?`` after a name that nothing has, if something is called alike."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_line(text: str, otherwise: str) -> str:
    """The last line of a text from elsewhere, short and without control characters."""
    line = (text.strip().splitlines() or [otherwise])[-1][:300]
    return "".join(c if c.isprintable() else "?" for c in line)
