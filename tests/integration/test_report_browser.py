"""The report in a real browser, from disk, with the network off."""

from __future__ import annotations

import io
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import SCRIPT, MadeRun
from PIL import Image
from processes import FEDRC, MARK, marked, wait_until

from fedrc_flwr.report.log import CONFIG, METRICS, read_events, read_json, write_json
from fedrc_flwr.report.page import write_beside, write_comparison, write_page

browser_module = pytest.importorskip("browser", reason="selenium is not installed")
Browser = browser_module.Browser

ALL = {
    "accuracy", "loss", "confusion", "evidence", "shares", "weights", "concepts", "styles",
    "classes", "prior", "failures", "seconds", "traffic", "epsilon",
}  # fmt: skip
#: For each figure: how many things its series hold, and how many pixels are not background.
COUNT = """
const found = {};
for (const figure of document.querySelectorAll("figure")) {
  const box = figure.querySelector(".chart");
  if (box.hidden) continue;
  const chart = echarts.getInstanceByDom(box);
  const canvas = box.querySelector("canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const context = copy.getContext("2d", {willReadFrequently: true});
  context.drawImage(canvas, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  let inked = 0;
  for (let i = 3; i < pixels.length; i += 4) inked += pixels[i] > 40;
  const series = chart.getModel().getSeries();
  found[figure.id] = [series.reduce((sum, one) => sum + one.getData().count(), 0), inked];
}
return found;
"""
CELL = """
const box = document.querySelector("#weights .chart");
box.scrollIntoView({block: "center"});
const chart = echarts.getInstanceByDom(box);
const at = chart.convertToPixel({xAxisIndex: 0, yAxisIndex: 0}, arguments[0]);
const rect = box.getBoundingClientRect();
return [rect.left + at[0], rect.top + at[1]];
"""
TIP = """
const tips = [...document.querySelectorAll(arguments[0] + " .tip")];
const shown = tips.filter((one) => one.getBoundingClientRect().width > 0);
return shown.length ? shown[0].innerText : "";
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    window = Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "made", rounds=6, tallies=True).play(6)


def opened(browser: Any, run: Path) -> None:
    browser.open(write_page(run).as_uri())


def rows(browser: Any) -> list[str]:
    cells = "document.querySelectorAll('#clients tbody tr td:first-child')"
    return list(browser.run(f"return [...{cells}].map((cell) => cell.innerText)"))


def hover(browser: Any, position: list[float]) -> None:
    for wobble in (3, 0):
        browser.driver.execute_cdp_cmd(
            "Input.dispatchMouseEvent",
            {"type": "mouseMoved", "x": position[0] + wobble, "y": position[1]},
        )


def test_every_chart_has_marks_and_the_console_is_silent(browser: Any, made: MadeRun) -> None:
    made.end()

    opened(browser, made.directory)

    marks = browser.run(COUNT)
    assert set(marks) == ALL
    # 6 wards x 2 clusters and 6 concepts; 3 failures; 4 clusters x 6 rounds
    assert {name: marks[name][0] for name in ("weights", "failures", "shares")} == {
        "weights": 18, "failures": 3, "shares": 24,
    }  # fmt: skip
    for name, (things, inked) in marks.items():
        assert things > 0, name
        assert inked > 300, name
    assert browser.text("#status") == "completed"
    assert "found 2 concepts" in browser.text("#outcome")
    assert browser.errors() == []


def test_network_is_really_off(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)

    outcome = browser.driver.execute_async_script(
        "const done = arguments[0]; const image = new Image();"
        "image.onload = () => done('loaded'); image.onerror = () => done('refused');"
        "image.src = 'http://example.org/x.png';"
    )

    assert outcome == "refused"
    browser.errors()


def test_hovering_a_cell_shows_client_and_weight(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)
    position = browser.run(CELL, [1, 2])  # the third row is ward-001, the second column cluster 2

    hover(browser, position)
    browser.wait(lambda: browser.run(TIP, "#weights") != "")

    text = browser.run(TIP, "#weights")
    assert "ward-001" in text
    assert "weight in cluster 2" in text
    assert "0.9000" in text


def test_picking_a_cluster_shows_its_clients_alone(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)
    everybody = rows(browser)

    browser.run("document.querySelector('#picker [data-cluster=\"0\"]').click()")

    assert len(everybody) == 7
    assert rows(browser) == ["ward-000", "ward-003", "observer-0"]
    assert browser.run(COUNT)["weights"][0] == 2 * 2 + 2
    assert browser.run(COUNT)["failures"][0] == 1
    assert browser.text("#shown") == "3 of 7 clients"
    browser.run("document.querySelector('#picker [data-cluster=\"all\"]').click()")
    assert rows(browser) == everybody
    assert browser.errors() == []


def test_choosing_a_client_shows_everything_of_it(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)
    assert not browser.find("#about")[0].is_displayed()

    browser.run("document.querySelectorAll('#clients tbody tr')[2].click()")

    assert browser.run("return document.querySelector('#choice').value") == "ward-001"
    assert "in cluster 2 with a weight of 0.900" in browser.text("#about-text")
    assert "accuracy 90.0% on 10 test samples" in browser.text("#about-text")
    marks = browser.run(COUNT)
    # 2 + 2 rounds of clusters 1 and 3 that went, 6 of the others; 3 evaluations; 2 cells
    assert marks["client-weights"][0] == 6 + 2 + 6 + 3
    assert {name: marks[f"client-{name}"][0] for name in ("accuracy", "clusters", "confusion")} == {
        "accuracy": 3, "clusters": 2, "confusion": 2,
    }  # fmt: skip
    assert browser.text("#about-failures").count("reply not used") == 2
    assert browser.errors() == []


def test_accuracy_is_visible_on_a_phone(browser: Any, made: MadeRun) -> None:
    browser.look(390)
    try:
        opened(browser, made.directory)
        ends = browser.run("""
          const heads = [...document.querySelectorAll("#clients th, #scores th")];
          return heads.filter((head) => head.innerText === "accuracy")
            .map((head) => head.getBoundingClientRect().right);
        """)
    finally:
        browser.look()

    assert len(ends) == 2
    assert max(ends) <= 390


def test_warnings_are_banners(browser: Any, made: MadeRun) -> None:
    made.round += 1
    made.log.append({**made.metrics(), "exponent": 0.5})

    opened(browser, made.directory)

    assert browser.text(".banner.undecided b") == "Undecided:"


@pytest.mark.parametrize("width", [1280, 390])
def test_two_runs_side_by_side(browser: Any, made: MadeRun, tmp_path: Path, width: int) -> None:
    other = MadeRun(tmp_path / "other", rounds=3).play(3)
    # As a run of another algorithm records it, without the settings of FedRC.
    recorded = read_json(other.directory / CONFIG)
    kept = {key: value for key, value in recorded.items() if not key.startswith("fedrc.")}
    write_json(other.directory / CONFIG, {**kept, "algorithm": "fedavg"})
    page = write_beside([made.directory, other.directory], tmp_path / "beside.html")

    browser.look(width)
    try:
        browser.open(page.as_uri())
        tops = browser.run(
            "return [...document.querySelectorAll('article')].map("
            "(one) => one.getBoundingClientRect().top)"
        )
        overflow = browser.run("return document.documentElement.scrollWidth - innerWidth")
        differ = browser.text("#differences tbody")
        figures = browser.run(
            "return [...document.querySelectorAll('figure')].map("
            "(one) => one.getBoundingClientRect().top)"
        )
    finally:
        browser.look()

    assert (tops[0] == tops[1]) == (width > 1000)
    assert (figures[:5] == figures[5:]) == (width > 1000)
    assert overflow <= 0
    assert "rounds" in differ
    assert "fedrc.clusters4\u2013" in differ
    assert browser.text("#moves tbody").startswith("ward-000cluster 0 (0.90) \u00b7 50.0%")
    assert browser.errors() == []


def test_clients_are_searched_and_sorted(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)

    browser.find("#search")[0].send_keys("WARD-00")
    header = (
        "[...document.querySelectorAll('#clients th button')].find((b) => b.innerText === 'client')"
    )
    browser.run(f"{header}.click()")
    browser.run(f"{header}.click()")

    assert rows(browser) == [f"ward-00{i}" for i in (5, 4, 3, 2, 1, 0)]


def test_figures_are_saved_from_the_page(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)

    links = browser.run("""
      const links = [];
      HTMLAnchorElement.prototype.click = function () {
        links.push([this.download, this.href.slice(0, 22)]);
      };
      for (const button of document.querySelectorAll("#weights .save button")) button.click();
      return links;
    """)

    assert [name for name, _ in links] == ["made-weights.png", "made-weights.svg"]
    assert links[0][1] == "data:image/png;base64,"
    assert links[1][1].startswith("blob:")
    assert browser.errors() == []


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        ("light", 1280, False), ("dark", 1280, True),
        ("phone", 390, False), ("dark-phone", 390, True),
    ],
)  # fmt: skip
def test_light_dark_and_a_phone(
    browser: Any, made: MadeRun, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    browser.look(width, dark)
    try:
        opened(browser, made.directory)
        picture = browser.screenshot(tmp_path / f"{name}.png")
        overflow = browser.run("return document.documentElement.scrollWidth - innerWidth")
        marks = browser.run(COUNT)
    finally:
        browser.look()

    with Image.open(io.BytesIO(picture)) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape[1] == width
    assert (np.median(pixels) < 60) == dark
    assert overflow <= 0
    assert all(inked > 300 for _, inked in marks.values())
    assert browser.errors() == []


def test_theme_button_turns_the_page_over(browser: Any, made: MadeRun) -> None:
    opened(browser, made.directory)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)

    browser.find("#theme")[0].click()

    assert browser.run(ground) != light
    assert browser.text("#theme") == "Light"


# --- what must not break it ---------------------------------------------------------------------


def test_names_that_are_markup_do_nothing_anywhere(browser: Any, tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "hostile")
    image = "<img src=x onerror=document.title='broken'>"
    made.names[:3] = [SCRIPT, image, "{a|b} <b>bold</b>"]
    made.play(6).end("failed", f"{SCRIPT} {image}")

    opened(browser, made.directory)
    for row in range(6):
        hover(browser, browser.run(CELL, [0, row]))
        browser.wait(lambda: browser.run(TIP, "#weights") != "")
    browser.run("document.querySelector('#failures').scrollIntoView({block: 'center'})")
    shown = browser.run("""
      const chart = echarts.getInstanceByDom(document.querySelector("#failures .chart"));
      chart.dispatchAction({type: "showTip", seriesIndex: 0, dataIndex: 0});
      return document.querySelector("#failures .tip").innerText;
    """)

    assert image in shown
    assert (
        browser.run("return document.querySelectorAll('b:not(.tip b, figcaption b)').length") == 0
    )
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.run("return document.scripts.length") == 4
    assert browser.driver.title == "hostile: fedrc run report"
    assert {SCRIPT, image} <= set(rows(browser))
    assert browser.errors() == []  # an alert would have raised an error by now


@pytest.mark.parametrize("kind", ["empty", "started", "torn"])
def test_runs_of_which_little_is_known(browser: Any, tmp_path: Path, kind: str) -> None:
    run = tmp_path / kind
    if kind == "empty":
        run.mkdir()
    else:
        made = MadeRun(run, tallies=True)
        if kind == "torn":
            made.play(3)
            path = run / METRICS
            path.write_bytes(path.read_bytes()[:-50])

    opened(browser, run)

    drawn = set(browser.run(COUNT))
    if kind == "torn":
        assert drawn == ALL
        assert "2 rounds" in browser.text("#outcome")
    else:
        assert drawn == set()
        assert browser.text("#outcome") == "No round has finished yet."
        assert len([e for e in browser.find(".empty") if e.is_displayed()]) == len(ALL)
    assert browser.text("#status") == "not ended"
    assert browser.errors() == []


def test_300_clients_over_200_rounds_open_and_can_be_picked(browser: Any, tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "large", clients=300, rounds=200)
    made.play(198, checkpoint=False).play(2).end()

    opened(browser, made.directory)
    browser.run("document.querySelector('#picker [data-cluster=\"0\"]').click()")

    assert browser.text("#shown") == "101 of 301 clients"
    assert browser.run(COUNT)["weights"][0] == 100 * 2 + 100
    assert browser.errors() == []


# --- a run that goes on --------------------------------------------------------------------------


def watched(run: Path) -> tuple[subprocess.Popen[str], str]:
    """`fedrc watch` and the address that it prints."""
    process = subprocess.Popen(
        [FEDRC, "watch", str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split(" on ")[1].split()[0]


def last_round(browser: Any) -> int:
    facts = browser.run(
        "return [...document.querySelectorAll('#facts dd')].map((d) => d.innerText)"
    )
    return next((int(f.split(" of ")[0]) for f in facts if " of " in f), 0)


@pytest.mark.deployment  # with the other long trials of `make test-deployment`
@pytest.mark.timeout(1500)
def test_watching_a_real_run_and_losing_both_ends(tmp_path: Path) -> None:
    """New rounds appear without reloading; killing the viewer does not touch the run; the page of
    the run that was then killed in mid-round opens from disk.
    """
    output, mark = tmp_path / "run", uuid.uuid4().hex
    small = ["recipe=paper", "data.clients=6", "model.hidden=16", "rounds=1000"]
    settings = [part for setting in small for part in ("--set", setting)]
    run = subprocess.Popen(
        [FEDRC, "simulate", "--output", str(output), *settings],
        env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    window = Browser(tmp_path / "profile", network=True)
    viewer = None

    def done() -> int:
        return len([e for e in read_events(output / METRICS) if e["event"] == "round"])

    try:
        wait_until(lambda: done() >= 2 or run.poll() is not None, "two rounds", 480)
        assert run.poll() is None
        viewer, address = watched(output)
        window.open(address)
        window.run("window.reloaded = false")
        seen = last_round(window)
        window.wait(lambda: last_round(window) >= seen + 2, 300)
        assert window.run("return window.reloaded") is False
        assert set(window.run(COUNT)) >= {"accuracy", "loss", "shares", "weights", "seconds"}
        assert window.errors() == []

        viewer.kill()
        viewer.wait()
        window.wait(lambda: "does not answer" in window.text("#written"), 60)
        before = done()
        wait_until(lambda: done() >= before + 2 or run.poll() is not None, "two more rounds", 300)
        assert run.poll() is None

        for process in marked(mark):
            process.kill()
        run.wait(timeout=60)
        window.driver.get("about:blank")  # the live page goes on asking a viewer that is gone
        window.errors()
        opened(window, output)
        assert window.text("#status") == "not ended"
        assert last_round(window) >= before
        assert window.errors() == []
    finally:
        for process in marked(mark):
            process.kill()
        run.wait(timeout=60)
        if viewer is not None:
            viewer.kill()
            viewer.wait()
        window.close()


def comparison_contents() -> dict[str, Any]:
    """A comparison of FedAvg and a method with two clusters."""
    nothing = {"rows": [], "values": []}
    table = {"rows": ["a", "b"], "values": [[3.0, 1.0], [0.0, 2.0]]}
    usual = {
        "cells": ["0.5"], "local": 0.5, "global": 0.4, "gap": 0.1, "rand": None, "seed": 0,
        "curves": {"local": [[1, 0.3], [2, 0.5]], "global": [[1, 0.2], [2, 0.4]]},
    }  # fmt: skip
    alone = {"clusters": [{"id": 0}], "concepts": nothing, "styles": nothing, "classes": nothing}
    two = {
        "clusters": [{"id": 0}, {"id": 1}],
        "concepts": table,
        "styles": nothing,
        "classes": table,
    }
    lines = [
        {**usual, "row": "FedAvg", "gain": None, "paper": None, "population": alone},
        {**usual, "row": SCRIPT, "gain": 0.0, "paper": {"local": 0.6, "global": None},
         "population": two},
    ]  # fmt: skip
    return {
        "title": SCRIPT, "stands": "", "outcomes": ["one sentence"], "facts": [["seeds", "0"]],
        "differs": [SCRIPT], "ended": [], "meaning": "what it means",
        "columns": [{"name": "digits", "heads": ["local"], "lines": lines}],
    }  # fmt: skip


@pytest.mark.parametrize("width", [1280, 390])
def test_page_of_a_comparison_draws_what_there_is(browser: Any, tmp_path: Path, width: int) -> None:
    browser.look(width)

    browser.open(write_comparison(comparison_contents(), tmp_path / "page.html").as_uri())

    shown = browser.run(
        "return [...document.querySelectorAll('figure')].filter((f) => !f.hidden)"
        ".map((f) => f.querySelector('b').textContent)"
    )
    # The paper has no global accuracy of this, and styles are not known
    assert shown == ["Local accuracy", "Global accuracy", "Local accuracy and the paper's",
                     "Gain over FedAvg", "Gap", "By class", "By concept"]  # fmt: skip
    assert browser.text("#name") == SCRIPT
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.errors() == []
    browser.find("#theme")[0].click()
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    browser.look()
