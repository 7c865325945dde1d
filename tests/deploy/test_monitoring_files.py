"""Dashboard, alerts and documentation speak of the metrics that the code exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.catalogue import COUNTER, NODE, SERVER, Exported

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "monitoring"
CATALOGUE = {metric.name: metric for metric in (*SERVER, *NODE)}
#: What Prometheus itself adds.
OWN = {"up": Exported("up", "gauge", "", ()), "time": Exported("time", "function", "", ())}
ADDED = {"job", "instance"}
WORDS = {"and", "on", "by", "sum", "rate", "increase"}
DASHBOARD = json.loads((FILES / "grafana.json").read_text("utf-8"))
RULES = [
    rule
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]


def panels(content: dict[str, Any] = DASHBOARD) -> Iterator[dict[str, Any]]:
    for panel in content["panels"]:
        yield panel
        yield from panels(panel) if panel.get("panels") else ()


QUERIES = [target["expr"] for panel in panels() for target in panel.get("targets", [])]
EXPRESSIONS = [*QUERIES, *(rule["expr"] for rule in RULES)]


def problems(expression: str) -> list[str]:
    """What is wrong with an expression of Prometheus', as far as the catalogue can tell."""
    found = []
    plain = re.sub(r'"[^"]*"', '""', expression)
    for opening, closing in ("()", "[]", "{}"):
        if plain.count(opening) != plain.count(closing):
            found.append(f"{opening} is not closed")
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on) \([^)]*\)", "", plain)
    used = [word for word in re.findall(r"[a-z_]\w*", bare) if word not in WORDS]
    found += [f"{name} is not exported" for name in used if name not in CATALOGUE | OWN]
    known = {label for name in used for label in (CATALOGUE | OWN).get(name, OWN["up"]).labels}
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", plain):
        wanted = set(re.findall(r"(\w+)\s*[=!]", matchers))
        labels = (CATALOGUE | OWN).get(name, OWN["up"]).labels
        found += [f"{name} has no label {each}" for each in wanted - set(labels) - ADDED]
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", plain):
        wanted = {each.strip() for each in group.split(",")}
        found += [f"nothing has the label {each}" for each in wanted - known - ADDED]
    for name in re.findall(r"(?:rate|increase)\((\w+)", plain):
        if CATALOGUE[name].kind != COUNTER:
            found.append(f"{name} is no counter")
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_is_about_what_is_exported(expression: str) -> None:
    assert problems(expression) == []


@pytest.mark.parametrize(
    "expression",
    [
        "fedrc_nothing == 1", "rate(fedrc_round[5m])", 'fedrc_round{client="a"}',
        "sum by (client) (fedrc_round)", "sum(fedrc_round",
    ],
)  # fmt: skip
def test_expression_that_is_wrong_is_noticed(expression: str) -> None:
    assert problems(expression)


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for expr in QUERIES for name in re.findall(r"fedrc_\w+", expr)}
    # One has no value worth a picture, the others say a second time what is shown.
    left_out = {
        "fedrc_build_info", "fedrc_rounds_total", "fedrc_run_phase", "fedrc_clusters",
        "fedrc_cluster_share", "fedrc_node_busy", "fedrc_node_last_message_timestamp_seconds",
        "fedrc_node_workers_total",
    }  # fmt: skip

    assert shown | left_out == set(CATALOGUE)
    assert not shown & left_out


def test_the_dashboard_is_one_that_grafana_can_place() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                names = re.findall(r"fedrc_\w+", target["expr"])
                assert any(label in (*CATALOGUE[name].labels, *ADDED) for name in names), label


def test_alerts_have_a_name_a_weight_and_a_sentence() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names)) > 8
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        labels = {label for name in re.findall(r"\w+", rule["expr"])
                  for label in (CATALOGUE | OWN).get(name, OWN["up"]).labels}  # fmt: skip
        for used in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert used in labels | ADDED, rule["alert"]


def test_prometheus_is_told_of_the_rules_and_of_both_kinds_of_targets() -> None:
    content = yaml.safe_load((FILES / "prometheus.yaml").read_text("utf-8"))

    assert [(FILES / name).exists() for name in content["rule_files"]] == [True]
    jobs = {job["job_name"] for job in content["scrape_configs"]}
    assert jobs == {"fedrc-server", "fedrc-node"}
    used = {job for expr in EXPRESSIONS for job in re.findall(r'job="([^"]+)"', expr)}
    assert used <= jobs


# --- the page ------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "monitoring.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("heading", "catalogue"), [("## The server's metrics", SERVER), ("## A node's metrics", NODE)]
)
def test_the_page_has_every_metric_as_the_code_has_it(
    heading: str, catalogue: tuple[Exported, ...]
) -> None:
    section = PAGE.split(heading)[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]

    assert rows == [
        f"| `{m.name}` | {m.kind} | {', '.join(f'`{label}`' for label in m.labels) or '-'} "
        f"| {m.help} |"
        for m in catalogue
    ]


def test_the_page_explains_every_alert_and_names_nothing_else() -> None:
    assert set(re.findall(r"`(Fedrc\w+)`", PAGE)) == {rule["alert"] for rule in RULES}
    assert set(re.findall(r"`(fedrc_\w+)`", PAGE)) == set(CATALOGUE)


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
def test_names_are_as_prometheus_wants_them(metric: Exported) -> None:
    assert re.fullmatch(r"fedrc_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == COUNTER)
    assert metric.help.endswith(".")
