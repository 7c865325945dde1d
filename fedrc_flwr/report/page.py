"""The report as one self-contained HTML page.

Texts of the run (client names, reasons) are embedded as JSON only, which cannot contain markup. A
content security policy with hashes allows only the page's own three scripts.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

from fedrc_flwr.files import replacing
from fedrc_flwr.report.colours import PALETTE
from fedrc_flwr.report.contents import Contents, gather

STATIC = Path(__file__).parent / "static"
PAGE, BESIDE = "report.html", "beside.html"
#: Characters that could end a script element or begin another.
ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def render(contents: Contents, live: bool = False) -> str:
    """The page of a run; with ``live`` it fetches new contents from its server."""
    title = f"{contents.name}: fedrc run report"
    return _filled("report.html", "page.js", title, to_text(contents), live)


def render_beside(runs: Sequence[Contents]) -> str:
    """Several runs side by side on one page."""
    title = f"{', '.join(one.name for one in runs)}: fedrc runs side by side"
    return _filled("beside.html", "beside.js", title, f"[{','.join(map(to_text, runs))}]")


def write_comparison(contents: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a comparison."""
    text = json.dumps(contents, allow_nan=False, separators=(",", ":"))
    title = f"{contents['title']}: fedrc comparison"
    return _written(path, _filled("comparison.html", "comparison.js", title, text))


def _filled(template: str, script: str, title: str, contents: str, live: bool = False) -> str:
    """A page with its scripts, and a policy that allows nothing else."""
    scripts = _scripts(script)
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in scripts)
    reachable = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {reachable}; base-uri 'none'; form-action 'none'"
    )
    library, charts, page = scripts
    return Template(_read(template)).substitute(
        live="yes" if live else "no",
        policy=policy,
        title=html.escape(title),
        style=_read("report.css"),
        contents=contents.translate(ESCAPES),
        library=library,
        charts=charts,
        page=page,
    )


def to_text(contents: Contents) -> str:
    """The contents as compact JSON."""
    return json.dumps(contents.to_json(), allow_nan=False, separators=(",", ":"))


def write_page(run: Path, path: Path | None = None) -> Path:
    """Write the page of the run in a directory, by default into that directory."""
    return _written(path or run / PAGE, render(gather(run)))


def write_beside(runs: Sequence[Path], path: Path | None = None) -> Path:
    """Write a page of several runs, by default into the working directory."""
    return _written(path or Path(BESIDE), render_beside([gather(run) for run in runs]))


def _written(path: Path, text: str) -> Path:
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
    return path


@lru_cache(maxsize=3)
def _scripts(page: str) -> tuple[str, str, str]:
    charts = _read("charts.js").replace("$palette", json.dumps(PALETTE))
    return _read("echarts.min.js"), charts, _read(page)


@lru_cache(maxsize=8)
def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
