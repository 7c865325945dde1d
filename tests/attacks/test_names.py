"""A name belongs to a key: nobody takes part under the name of another node."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import (
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata
from flwr.proto.node_pb2 import Node
from processes import Federation, Part, fedrc, wait_until
from settings_of import PLAIN, dotted

from deploy.launch import node_program

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]

SETTINGS = {
    "clients": 2, "observers_per_concept": 0, "rounds": 8, "hidden": 8, "epochs": 1,
    "min_clients": 2, "evaluate_every": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        for partition in range(2):
            made.node(f"client-{partition}", partition).start()
        wait_until(
            lambda: "2 nodes registered, 2 online" in fedrc("node", "list", made.file).stdout,
            "two nodes online",
        )
        yield made
    finally:
        made.stop()


def unchecked(federation: Federation, name: str) -> Part:
    """A node without the checks of `fedrc supernode`, as somebody would start it who means ill."""
    path = federation.folder / name / "node.yaml"
    return Part(federation.folder, f"{name}-node", node_program(path), federation.mark)


def test_a_registered_node_under_anothers_name_is_refused_on_both_sides(
    federation: Federation,
) -> None:
    thief = federation.node("thief", 0)
    path = federation.folder / "thief" / "node.yaml"
    path.write_text(path.read_text().replace("name: thief", "name: client-1"))

    thief.start()
    wait_until(lambda: not thief.running(), "the thief's own check")
    assert "this node's key is registered as thief, but its name is client-1" in thief.log()

    flags = [f"{k}={json.dumps(v) if isinstance(v, bool) else v}"
             for k, v in {**PLAIN, **dotted(SETTINGS)}.items()]  # fmt: skip
    run = federation.run("stolen-name", *flags)
    federation.wait_for_round("stolen-name", 1)
    # In the middle of a run, when nobody looks at the list of nodes any more.
    unchecked(federation, "thief").start()

    assert federation.finish(run) == 0, run.log()
    events = (federation.outputs / "stolen-name" / "metrics.jsonl").read_text()
    said = [json.loads(line) for line in events.splitlines()]
    refused = [event for event in said if event["event"] == "refused"]
    enrolled = [event["client"] for event in said if event["event"] == "enrolled"]
    assert sorted(enrolled) == ["client-0", "client-1"]
    assert all(event["replied"] == 2 for event in federation.rounds("stolen-name"))
    for event in refused:  # unless the run was over before it was asked
        assert event["client"] == "thief"
        assert (
            "it was registered as thief, but its node.yaml has the name client-1"
            in (event["reason"])
        )


def test_a_node_keeps_its_name_and_its_weights_with_a_new_key(federation: Federation) -> None:
    site = federation.folder / "client-0"
    federation.nodes["client-0"].stop_gently()
    for name in ("node.key", "node.key.pub"):
        (site / name).rename(site / f"old-{name}")
    assert fedrc("node", "key", site / "node.key").returncode == 0

    done = fedrc("node", "rotate", federation.file, "client-0", site / "node.key.pub")

    assert done.stdout == "client-0 has a new key; the old one is no longer let in\n", done.stderr
    federation.nodes["client-0"].start()
    wait_until(
        lambda: "client-0: online" in fedrc("node", "list", federation.file).stdout, "it is back"
    )
    log = fedrc("doctor", "--node", site / "node.yaml").stdout
    assert "registered as client-0" in log

    for name in ("node.key", "node.key.pub"):
        (site / name).rename(site / f"new-{name}")
        (site / f"old-{name}").rename(site / name)
    old = fedrc("doctor", "--node", site / "node.yaml")
    assert "this node is not registered" in old.stdout


def test_a_registered_node_acts_for_nobody_else(federation: Federation) -> None:
    """With its own key it asks for the messages of another, ends its session, answers for it."""
    site = federation.folder / "client-1"
    key = serialization.load_ssh_private_key((site / "node.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    registry = next((federation.folder / "state").rglob("nodes*.json"))
    ids = {name: int(node) for node, name in json.loads(registry.read_text()).items()}
    own, other = (Node(node_id=ids[name]) for name in ("client-1", "client-0"))
    context = ssl.create_default_context(cafile=str(site / "ca.crt"))

    def ask(call: str, request: Any) -> int:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        signature = key.sign(now.encode(), ec.ECDSA(hashes.SHA256()))
        headers = {
            "flwr-public-key": base64.b64encode(public), "flwr-timestamp": now,
            "flwr-signature": base64.b64encode(signature),
            "content-type": "application/protobuf", "accept": "application/protobuf",
        }  # fmt: skip
        connection = http.client.HTTPSConnection(
            "127.0.0.1", federation.port, context=context, timeout=30
        )
        connection.request("POST", f"/v1/fleet/{call}", request.SerializeToString(), headers)
        status = connection.getresponse().status
        connection.close()
        return status

    alive = SendNodeHeartbeatRequest(node=own, heartbeat_interval=30)
    assert ask("send-node-heartbeat", alive) == 200
    assert ask("pull-messages", PullMessagesRequest(node=other)) == 401
    assert ask("deactivate-node", DeactivateNodeRequest(node_id=other.node_id)) == 401
    assert ask("push-messages", PushMessagesRequest(node=other)) == 401
    for sender in (other.node_id, SUPERLINK_NODE_ID):  # Flower believes what is in the message
        about = Metadata(src_node_id=sender, dst_node_id=other.node_id, message_type="train")
        forged = PushMessagesRequest(node=own, messages_list=[MessageProto(metadata=about)])
        assert ask("push-messages", forged) == 400
