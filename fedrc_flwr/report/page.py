"""The report as one self-contained HTML page.

Texts of the run (client names, reasons) are embedded as JSON only, which cannot contain markup. A
content security policy with hashes allows only the page's own three scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import lru_cache
from pathlib import Path
from string import Template

from fedrc_flwr.files import replacing
from fedrc_flwr.report.colours import PALETTE
from fedrc_flwr.report.contents import Contents, gather

STATIC = Path(__file__).parent / "static"
PAGE = "report.html"
#: Characters that could end a script element or begin another.
ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(contents: Contents, live: bool = False) -> str:
    """The page; with ``live`` it fetches new contents from its server."""
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
    """Write the page of the run in a directory, by default into that directory."""
    path, text = path or run / PAGE, render(gather(run))
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
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
