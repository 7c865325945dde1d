"""The page as text, and the pictures; what a browser makes of it: test_report_browser.py."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_runs import SCRIPT, MadeRun
from PIL import Image
from typer.testing import CliRunner

from fedrc_flwr.cli import app
from fedrc_flwr.report.contents import gather
from fedrc_flwr.report.drawings import draw_figures
from fedrc_flwr.report.page import render, render_beside, write_page

MEGABYTE = 1_000_000


class Elements(HTMLParser):
    """All elements with their attributes, and the text inside scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "made").play(6)


def test_page_holds_all_contents_and_asks_for_nothing(made: MadeRun) -> None:
    page = render(gather(made.directory))

    elements = Elements(page)
    assert json.loads(elements.scripts[0]) == json.loads(
        json.dumps(gather(made.directory).to_json())
    )
    for tag, attributes in elements.tags:
        assert tag not in ("iframe", "object", "embed", "img"), tag
        assert "src" not in attributes
        assert not (tag == "link" and attributes["href"] != "data:,")
    assert "@import" not in page[: page.index("</style>")]
    assert "url(" not in page[: page.index("</style>")]


def test_policy_names_exactly_the_scripts_of_the_page(made: MadeRun) -> None:
    elements = Elements(render(gather(made.directory)))

    policy = next(a["content"] for t, a in elements.tags if t == "meta" and "http-equiv" in a)
    named = set(re.findall(r"'sha256-([^']+)'", str(policy)))
    scripts = elements.scripts[1:]  # the first is data
    assert named == {
        base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts
    }
    assert len(scripts) == 3
    assert "connect-src 'none'" in str(policy)
    assert "connect-src 'self'" in render(gather(made.directory), live=True)


def test_no_text_of_the_run_can_begin_markup(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / f"{SCRIPT.replace('/', '')}&")
    made.names[1] = f"{SCRIPT}\u2028</SCRIPT><!--"
    made.play(6).end("failed", SCRIPT)

    page = render(gather(made.directory))

    plain = Elements(render(gather(MadeRun(tmp_path / "plain").play(6).directory)))
    assert [t for t, _ in Elements(page).tags] == [t for t, _ in plain.tags]
    assert "alert(1)</" not in page
    assert json.loads(Elements(page).scripts[0])["reason"] == SCRIPT


def test_page_is_written_into_the_run_in_one_piece(made: MadeRun, tmp_path: Path) -> None:
    assert write_page(made.directory) == made.directory / "report.html"
    assert write_page(made.directory, tmp_path / "elsewhere.html").exists()
    assert not list(made.directory.glob("*.tmp"))


def test_two_runs_side_by_side_keep_to_the_same_rules(tmp_path: Path) -> None:
    first = MadeRun(tmp_path / "first", tallies=True).play(6)
    second = MadeRun(tmp_path / "second").play(2)
    second.names[0] = SCRIPT
    runs = [gather(run.directory) for run in (first, second)]

    elements = Elements(render_beside(runs))

    assert [run["name"] for run in json.loads(elements.scripts[0])] == ["first", "second"]
    policy = next(a["content"] for t, a in elements.tags if t == "meta" and "http-equiv" in a)
    for script in elements.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in str(policy)
    assert "connect-src 'none'" in str(policy)


def test_300_clients_over_200_rounds_stay_under_5_megabytes(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "large", clients=300, tallies=True)
    made.play(198, checkpoint=False).play(2)

    assert write_page(made.directory).stat().st_size < 5 * MEGABYTE


def test_every_figure_as_png_and_svg(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made", tallies=True)
    made.names[0] = r"$\ward$ one"
    made.play(6)

    written = draw_figures(gather(made.directory), tmp_path / "figures")

    names = ["accuracy", "classes", "concepts", "confusion", "epsilon", "evidence", "failures",
             "loss", "prior", "seconds", "shares", "styles", "traffic", "weights"]  # fmt: skip
    assert sorted(p.name for p in written) == sorted(
        f"{n}.{k}" for n in names for k in ("png", "svg")
    )
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            with Image.open(path) as image:
                sampled = image.convert("RGB").resize((image.width // 4, image.height // 4))
                assert len(sampled.getcolors(1 << 24) or []) > 10
    assert r"$\ward$ one" in (tmp_path / "figures" / "weights.svg").read_text("utf-8")


def test_figures_of_many_clients_leave_their_names_out(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "many", clients=90).play(5)

    draw_figures(gather(made.directory), tmp_path / "figures")

    text = (tmp_path / "figures" / "weights.svg").read_text("utf-8")
    assert "cluster 2" in text
    assert "ward-010" not in text


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert draw_figures(gather(tmp_path / "empty"), tmp_path / "figures") == []


# --- the command --------------------------------------------------------------------------------


def test_report_command_names_what_it_made(made: MadeRun, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["report", str(made.directory), "--figures", str(tmp_path / "f")]
    )

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"report in {made.directory / 'report.html'}",
        f"26 pictures in {tmp_path / 'f'}",
    ]


def test_report_command_puts_several_runs_side_by_side(made: MadeRun, tmp_path: Path) -> None:
    other, page = MadeRun(tmp_path / "other").play(1), tmp_path / "both.html"
    runs = [str(made.directory), str(other.directory)]

    result = CliRunner().invoke(app, ["report", *runs, "--output", str(page)])
    refused = CliRunner().invoke(app, ["report", *runs, "--figures", str(tmp_path / "f")])

    assert result.stdout == f"report in {page}\n"
    assert "side by side" in page.read_text("utf-8")
    assert refused.exit_code == 2
    assert "--figures draws one run: 2 were given" in refused.stderr


@pytest.mark.parametrize("kind", ["missing", "file"])
def test_report_of_what_is_no_run_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("no run")

    result = CliRunner().invoke(app, ["report", str(path)])

    assert result.exit_code == 2
    assert "no such directory" in result.stderr
    assert "Traceback" not in result.output
    assert path.exists() == (kind == "file")


def test_report_that_cannot_be_written_is_said(made: MadeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")

    result = CliRunner().invoke(
        app, ["report", str(made.directory), "--output", str(tmp_path / "file" / "x.html")]
    )

    assert result.exit_code == 2
    assert str(tmp_path / "file") in result.stderr
