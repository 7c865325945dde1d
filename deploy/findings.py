"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """One check's outcome."""

    level: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<7} {self.text}"
