"""The report as one HTML page that needs nothing else: no network, no other file.

Texts of the run (client names, reasons) reach the page as JSON only, in which no markup can begin,
and its scripts are the three that are named by their hashes: the browser runs no others.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from functools import lru_cache
from pathlib import Path
from string import Template

from fedrc_flwr.report.colours import PALETTE
from fedrc_flwr.report.contents import Contents, gather

STATIC = Path(__file__).parent / "static"
PAGE = "report.html"
#: Inside a script element only these could end it or begin another.
ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(contents: Contents, live: bool = False) -> str:
    """The page; ``live`` makes it ask where it came from for new contents."""
    library, charts, page = _scripts()
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in (library, charts, page))
    reachable = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {reachable}; base-uri 'none'; form-action 'none'"
    )
    return Template(_read("report.html")).substitute(
        live="yes" if live else "no",
        policy=policy,
        title=html.escape(f"{contents.name}: fedrc run report"),
        style=_read("report.css"),
        contents=to_text(contents).translate(ESCAPES),
        library=library,
        charts=charts,
        page=page,
    )


def to_text(contents: Contents) -> str:
    """The contents as compact JSON."""
    return json.dumps(contents.to_json(), allow_nan=False, separators=(",", ":"))


def write_page(run: Path, path: Path | None = None) -> Path:
    """Make the page of the run in a directory, by default inside it, in one piece."""
    path = path or run / PAGE
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(render(gather(run)), encoding="utf-8")
    os.replace(beside, path)
    return path


@lru_cache(maxsize=1)
def _scripts() -> tuple[str, str, str]:
    charts = _read("charts.js").replace("$palette", json.dumps(PALETTE))
    return _read("echarts.min.js"), charts, _read("page.js")


@lru_cache(maxsize=8)
def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
