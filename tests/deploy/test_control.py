"""Nodes and runs by name, from what a SuperLink answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.supercore.control import ControlHttpClient
from loopback import make_inner_certificates, superlink_file

from deploy.control import FORGOTTEN, FlowerRun, Node, find_node, nodes_of, runs_of, status_of
from deploy.files import SuperLinkFile
from fedrc_flwr.errors import ConfigError, RunError


@pytest.fixture
def file(tmp_path: Path) -> SuperLinkFile:
    make_inner_certificates(tmp_path)
    return superlink_file(tmp_path)


def answer(monkeypatch: pytest.MonkeyPatch, call: str, content: Any) -> None:
    monkeypatch.setattr(ControlHttpClient, call, lambda client, request: content)


def test_nodes_are_sorted_by_name_and_removed_ones_left_out(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = [
        NodeInfo(node_id=3, name="b", status="offline", public_key=b"B"),
        NodeInfo(node_id=1, name="a", status="online"),
        NodeInfo(node_id=2, name="gone", status="unregistered"),
        NodeInfo(node_id=4, status="registered"),
    ]
    answer(monkeypatch, "ListNodes", ListNodesResponse(nodes_info=infos))

    nodes = nodes_of(file)

    assert nodes == [
        Node(1, "a", "online"), Node(3, "b", "offline", b"B"), Node(4, "", "registered"),
    ]  # fmt: skip
    assert [node.called for node in nodes] == ["a", "b", "node 4"]
    assert [node.online for node in nodes] == [True, False, False]


def run(number: int, pending_at: str, status: RunStatus, **settings: Any) -> Run:
    config = user_config_to_proto(settings)
    return Run(run_id=number, pending_at=pending_at, status=status, override_config=config)


def test_runs_have_the_names_that_they_were_submitted_under(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {
        5: run(5, "2026-01-01", RunStatus(status="finished", sub_status="stopped"),
               **{"run.name": "first"}),
        4: run(4, "2026-01-02", RunStatus(status="running"), **{"run.name": "second"}),
        9: run(9, "2025-12-31", RunStatus(status="pending")),
    }  # fmt: skip
    answer(monkeypatch, "ListRuns", ListRunsResponse(run_dict=runs))

    assert runs_of(file) == [
        FlowerRun(4, "second", "running"),
        FlowerRun(5, "first", "finished:stopped"),
        FlowerRun(9, "", "pending"),
    ]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RunStatus(status="pending"), "pending"),
        (RunStatus(status="finished", sub_status="completed"), "finished:completed"),
        (404, FORGOTTEN),
        (503, ""),
        (httpx.ConnectError("nobody there"), ""),
    ],
)
def test_the_status_of_a_run_is_told_apart_from_a_server_that_does_not_answer(
    status: Any, expected: str, file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def list_runs(client: ControlHttpClient, request: Any) -> ListRunsResponse:
        asked.append(request.run_id)
        if isinstance(status, httpx.HTTPError):
            raise status
        if isinstance(status, int):
            refused = httpx.Response(status, request=httpx.Request("POST", "https://here"))
            refused.raise_for_status()
        return ListRunsResponse(run_dict={7: run(7, "2026-01-01", status)})

    monkeypatch.setattr(ControlHttpClient, "ListRuns", list_runs)

    assert status_of(file, "7") == expected
    assert asked == [7]


def test_a_server_that_refuses_is_no_empty_list(
    file: SuperLinkFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(client: ControlHttpClient, request: Any) -> Any:
        raise httpx.HTTPError("404 Not Found\nsee also")

    monkeypatch.setattr(ControlHttpClient, "ListNodes", refuse)

    with pytest.raises(RunError, match=f"the SuperLink at {file.control} says: 404 Not Found$"):
        nodes_of(file)


def test_a_node_is_found_by_name_or_number_but_never_guessed() -> None:
    nodes = [Node(1, "a", "online"), Node(2, "b", "online"), Node(3, "b", "offline")]

    assert find_node(nodes, "a") == find_node(nodes, "1") == nodes[0]
    with pytest.raises(ConfigError, match="2 nodes are called 'b': give a number, 2, 3"):
        find_node(nodes, "b")
