"""What passes the gate, what does not, and what a stranger can do to it."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gates import Opened, one_answer, open_gate, read_all, status_of
from loopback import HOST, make_certificates

from deploy.certificates import create_node_key, public_half
from deploy.gate.conversation import Limits
from deploy.gate.identity import Node
from deploy.gate.rules import Allowance, Refusal
from deploy.operators import issue_operator, withdraw_operator

FLEET = b"/v1/fleet/pull-messages"
QUICK = Limits(head=0.5, idle=2.0, pause=0.5, slowest=10**9)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A gate with an operator, and one whom another federation admits."""
    folder = tmp_path_factory.mktemp("gate")
    make_certificates(folder / "certificates")
    issue_operator(folder / "certificates", "alice", folder / "operator")
    issue_operator(folder / "others", "mallory", folder / "operator")
    with open_gate(folder, Limits(refused=0.05)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _fresh(gate: Opened) -> None:
    gate.flower.requests.clear()
    gate.refused.clear()


# --- nodes ---------------------------------------------------------------------------------------


def test_a_nodes_call_reaches_flower_as_it_was_made(gate: Opened) -> None:
    answer = gate.talk(gate.call(FLEET, b"\x00body", extra=b"Connection: close\r\n"))

    assert status_of(answer) == 200
    assert answer.endswith(b"\r\n\r\nfine")
    ((head, body),) = gate.flower.requests
    assert head.startswith(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
    assert body == b"\x00body"
    assert b"flwr-signature: " in head.lower()
    assert b"x-forwarded-for: 127.0.0.1" in head.lower()


def test_what_a_caller_says_about_itself_is_not_passed_on(gate: Opened) -> None:
    lies = b"X-Forwarded-For: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\nCookie: a\r\n"
    lies += b"flwr-superexec-ts: 1\r\nUpgrade: h2c\r\nConnection: close, upgrade\r\n"

    gate.talk(gate.call(FLEET, extra=lies))

    ((head, _),) = gate.flower.requests
    for word in (b"10.9.9.9", b"cookie", b"superexec", b"upgrade"):
        assert word not in head.lower(), head


def test_many_requests_follow_each_other_on_one_connection(gate: Opened) -> None:
    with gate.connect() as connection:
        for number in range(5):
            connection.sendall(gate.call(FLEET, b"%d" % number))
            assert status_of(one_answer(connection)) == 200

    assert [body for _, body in gate.flower.requests] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_large_body_passes_in_both_directions(gate: Opened) -> None:
    body = bytes(range(256)) * 4096 * 5
    gate.flower.answer = body
    try:
        request = gate.call(b"/v1/fleet/push-object", body, extra=b"Connection: close\r\n")
        with gate.connect() as connection:
            connection.sendall(request)
            answer = read_all(connection)
    finally:
        gate.flower.answer = b"fine"

    ((_, passed),) = gate.flower.requests
    assert passed == body
    assert answer.endswith(body)


def test_a_key_that_was_registered_a_moment_ago_is_let_in(gate: Opened, tmp_path: Path) -> None:
    create_node_key(tmp_path / "new.key")
    signed = gate.signed(tmp_path / "new.key")
    request = b"GET /v1/gate/me HTTP/1.1\r\nHost: gate\r\n" + signed + b"\r\n"
    assert gate.status(request) == 401

    gate.nodes[public_half(tmp_path / "new.key")] = Node(8, "client-1")
    with gate.connect() as connection:
        connection.sendall(request)
        answer = one_answer(connection)

    assert status_of(answer) == 200
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"name": "client-1"}


def test_strangers_with_new_keys_do_not_make_flower_busy(gate: Opened, tmp_path: Path) -> None:
    before = len(gate.questions)
    connections = []
    for number in range(6):
        create_node_key(tmp_path / f"{number}.key")
        connections.append(gate.connect())
        signed = gate.signed(tmp_path / f"{number}.key")
        connections[-1].sendall(b"GET /v1/gate/me HTTP/1.1\r\nHost: gate\r\n" + signed + b"\r\n")

    assert [status_of(one_answer(connection)) for connection in connections] == [401] * 6
    assert len(gate.questions) - before <= 2


# --- who is not let in ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        b"/", b"/docs", b"/openapi.json", b"/redoc", b"/v1/fleet", b"/v1/fleet/",
        b"/v1/fleet/register-node", b"/v1/fleet/unregister-node", b"/v1/runtime/acquire-task",
        b"/v1/runtime/get-nodes", b"/v1/control/create-federation", b"/v1/responses",
        b"/v1/fleet/../control/start-run", b"/v1/fleet/%2e%2e/control/start-run",
        b"/v1/fleet/..%2fcontrol%2fstart-run", b"//v1/fleet/pull-messages",
        b"/v1//fleet/pull-messages", b"/V1/Fleet/pull-messages", b"/v1/fleet/PULL-MESSAGES",
        b"/v1/fleet/pull-messages/", b"/v1/fleet/pull-messages?x=/v1/control/start-run",
        b"/v1/fleet/pull-messages#x", b"/v1/fleet/pull-messages;x", b"/v1/fleet/pull%2dmessages",
        b"http://gate/v1/fleet/pull-messages", b"https://127.0.0.1:8002/v1/control/list-nodes",
        b"*", b"\\v1\\fleet\\pull-messages", b"/v1/fleet\\..\\control\\start-run",
    ],
)  # fmt: skip
def test_only_the_exact_calls_of_a_node_pass(gate: Opened, target: bytes) -> None:
    assert gate.status(gate.call(target)) == 404
    assert gate.flower.requests == []


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"OPTIONS", b"DELETE", b"post", b"PRI"])
def test_only_the_right_method_passes(gate: Opened, method: bytes) -> None:
    request = gate.call(FLEET).replace(b"POST", method, 1)

    assert gate.status(request) in (400, 404)
    assert gate.flower.requests == []


def test_a_head_gets_no_body(gate: Opened) -> None:
    answer = gate.talk(b"HEAD /docs HTTP/1.1\r\nHost: gate\r\n\r\n")

    assert status_of(answer) == 404
    assert answer.endswith(b"\r\n\r\n")


def test_a_tunnel_is_not_opened(gate: Opened) -> None:
    request = b"CONNECT 127.0.0.1:8002 HTTP/1.1\r\nHost: 127.0.0.1:8002\r\n\r\n"

    assert gate.status(request) == 404


def test_a_body_is_not_read_before_its_sender_is_known(gate: Opened) -> None:
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: gate\r\nContent-Length: 30000000\r\n\r\n"
    with gate.connect() as connection:
        connection.sendall(head)  # and nothing of the body

        assert status_of(one_answer(connection)) == 401
    assert gate.flower.requests == []


def without(name: bytes) -> Callable[[bytes], bytes]:
    def change(headers: bytes) -> bytes:
        return b"".join(
            line for line in headers.splitlines(True) if not line.lower().startswith(name)
        )

    return change


@pytest.mark.parametrize(
    "change",
    [
        without(b"flwr-signature"), without(b"flwr-timestamp"), without(b"flwr-public-key"),
        lambda headers: headers.replace(b"flwr-signature: M", b"flwr-signature: N"),
        lambda headers: headers.replace(b"flwr-timestamp: 20", b"flwr-timestamp: 21"),
        lambda headers: headers.replace(b"flwr-public-key: L", b"flwr-public-key: !"),
        lambda headers: headers.replace(b"+00:00", b""),
    ],
)  # fmt: skip
def test_a_call_that_is_not_signed_well_is_refused(
    gate: Opened, change: Callable[[bytes], bytes]
) -> None:
    request = gate.call(FLEET)
    changed = change(request[: request.index(b"\r\n\r\n")]) + b"\r\n\r\n"
    changed = changed.replace(b"\r\n\r\n\r\n", b"\r\n\r\n")
    assert changed != request

    assert gate.status(changed) == 401
    assert gate.flower.requests == []


def test_a_registered_key_is_worth_nothing_with_anothers_signature(
    gate: Opened, tmp_path: Path
) -> None:
    create_node_key(tmp_path / "mallory.key")
    forged = gate.signed(tmp_path / "mallory.key")
    ours = [line for line in gate.signed().splitlines(True) if b"public-key" in line]
    theirs = [line for line in forged.splitlines(True) if b"public-key" not in line]
    request = b"POST " + FLEET + b" HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n"

    assert gate.status(request + b"".join(ours + theirs) + b"\r\n") == 401
    assert gate.flower.requests == []


# --- operators -----------------------------------------------------------------------------------


LIST = b"POST /v1/control/list-nodes HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n"


def test_the_control_interface_is_for_operators_with_a_certificate(gate: Opened) -> None:
    assert gate.status(LIST, operator="alice") == 200
    ((head, _),) = gate.flower.requests
    assert head.startswith(b"POST /v1/control/list-nodes ")

    assert gate.status(LIST) == 403
    assert gate.status(gate.call(b"/v1/control/start-run")) == 403, "a node is no operator"
    assert len(gate.flower.requests) == 1


def test_an_operator_is_not_let_in_with_a_certificate_of_another_authority(gate: Opened) -> None:
    assert gate.talk(LIST, operator="mallory") == b""
    assert gate.flower.requests == []


def test_an_operator_is_neither_a_node_nor_an_executor(gate: Opened) -> None:
    unsigned = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n"

    assert gate.status(unsigned, operator="alice") == 401
    assert gate.status(gate.call(b"/v1/runtime/acquire-task"), operator="alice") == 404
    assert gate.flower.requests == []


def test_an_operator_who_was_withdrawn_is_locked_out_at_once(gate: Opened) -> None:
    issue_operator(gate.folder / "certificates", "bob", gate.folder / "operator")
    with gate.connect("bob") as connection:
        connection.sendall(LIST)
        assert status_of(one_answer(connection)) == 200

        withdraw_operator(gate.folder / "certificates", "bob")
        connection.sendall(LIST)

        assert status_of(one_answer(connection)) == 403
    assert gate.status(LIST, operator="alice") == 200


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "length"),
    [
        (b"/v1/fleet/pull-messages", 65_537),
        (b"/v1/fleet/send-node-heartbeat", 300_000_000),
        (b"/v1/fleet/push-messages", 8 * 2**20 + 1),
        (b"/v1/fleet/push-object", 300_000_000),
        (b"/v1/fleet/push-object", 10**30),
    ],
)
def test_a_body_that_is_too_large_is_refused_by_its_length(
    gate: Opened, target: bytes, length: int
) -> None:
    request = gate.call(target).replace(b"Content-Length: 0", b"Content-Length: %d" % length)

    assert gate.status(request) in (400, 413)
    assert gate.flower.requests == []


@pytest.mark.parametrize(
    "extra",
    [b"X: " + b"a" * 20_000 + b"\r\n", b"X: a\r\n" * 5_000, b"X" * 20_000 + b": a\r\n"],
)
def test_a_head_that_is_too_large_is_refused(gate: Opened, extra: bytes) -> None:
    assert gate.status(gate.call(FLEET, extra=extra)) in (400, 431)
    assert gate.flower.requests == []


def test_a_node_may_upload_one_reply_for_each_message_that_it_got() -> None:
    allowance = Allowance(100)
    allowance.upload(b"node", 100)  # after a restart of the gate it may be in the middle of one
    allowance.upload(b"node", 100)
    with pytest.raises(Refusal, match="largest-reply"):
        allowance.upload(b"node", 1)

    allowance.asked(b"node")
    allowance.upload(b"node", 60)
    allowance.upload(b"node", 40)
    with pytest.raises(Refusal):
        allowance.upload(b"node", 1)
    allowance.upload(b"another", 100)

    for _ in range(50):
        allowance.asked(b"node")
    allowance.upload(b"node", 300)
    with pytest.raises(Refusal):
        allowance.upload(b"node", 1)


def test_a_nodes_uploads_are_limited_until_it_gets_a_message(tmp_path: Path) -> None:
    with open_gate(tmp_path, reply=1000) as gate:
        push = gate.call(b"/v1/fleet/push-object", b"a" * 1000, extra=b"Connection: close\r\n")
        pull = gate.call(FLEET, extra=b"Connection: close\r\n")
        assert [gate.status(push) for _ in range(3)] == [200, 200, 413]

        gate.flower.answer = b""  # no message
        gate.status(pull)
        assert gate.status(push) == 413

        gate.flower.status, gate.flower.answer = b"400 Bad Request", b"no question as it should be"
        gate.status(pull)
        assert gate.status(push) == 413

        gate.flower.status, gate.flower.answer = b"200 OK", b"a message"
        gate.status(pull)
        assert [gate.status(push) for _ in range(2)] == [200, 413]
        address, who, why = gate.refused[-1]
        assert (address, who) == (HOST, "client-0")
        assert "largest-reply" in why


# --- tricks with HTTP ----------------------------------------------------------------------------


SMUGGLED = b"POST /v1/control/start-run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def head_of(gate: Opened, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    start = b"POST " + FLEET + b" " + version + b"\r\nHost: gate\r\n"
    return start + gate.signed() + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([b"Content-Length: 0", b"Content-Length: %d" % len(SMUGGLED)], SMUGGLED),
        ([b"Content-Length: %d, 0" % len(SMUGGLED)], SMUGGLED),
        ([b"Content-Length: 4", b"Transfer-Encoding: chunked"], b"0\r\n\r\n" + SMUGGLED),
        ([b"Transfer-Encoding: chunked"], b"5\r\nhello\r\n0\r\n\r\n" + SMUGGLED),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], b"0\r\n\r\n" + SMUGGLED),
        ([b"Transfer-Encoding: xchunked", b"Content-Length: 0"], SMUGGLED),
        ([b"Transfer-Encoding : chunked", b"Content-Length: 0"], SMUGGLED),
        ([b"Transfer-Encoding:\x0bchunked", b"Content-Length: 0"], SMUGGLED),
        ([b" Transfer-Encoding: chunked", b"Content-Length: 0"], SMUGGLED),
        ([b"Content-Length: +0"], SMUGGLED),
        ([b"Content-Length: -1"], SMUGGLED),
        ([b"Content-Length: 0x10"], SMUGGLED),
        ([b"Content-Length: 1_0"], SMUGGLED),
        ([b"Content-Length:"], SMUGGLED),
        ([b"Content-Length: 0", b"Host: other"], SMUGGLED),
        ([b"Content-Length: 0", b"X: a\rContent-Length: 99"], SMUGGLED),
        ([b"Content-Length: 0", b"X: a\x00b"], SMUGGLED),
        ([b"Content-Length: 0", b"no colon"], SMUGGLED),
    ],
)
def test_nothing_is_smuggled_past_the_gate(gate: Opened, lines: list[bytes], body: bytes) -> None:
    answer = gate.talk(head_of(gate, *lines) + body)

    targets = [head.split()[1] for head, _ in gate.flower.requests]
    assert set(targets) <= {FLEET}
    for head, _ in gate.flower.requests:  # what is passed on has one length and no other framing
        assert head.lower().count(b"content-length:") == 1
        assert b"transfer-encoding" not in head.lower()
    statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses
    assert statuses[-1] in (400, 401, 403, 404, 411)


def test_pipelined_requests_are_judged_one_by_one(gate: Opened) -> None:
    first = gate.call(FLEET, b"one")
    docs = b"GET /docs HTTP/1.1\r\nHost: gate\r\n\r\n"

    answer = gate.talk(first + docs + gate.call(FLEET, b"three"))

    statuses = [part.split()[0] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"404"], "after a refusal the connection is closed"
    assert [body for _, body in gate.flower.requests] == [b"one"]


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b""])
def test_other_versions_of_http_are_refused(gate: Opened, version: bytes) -> None:
    assert gate.status(head_of(gate, b"Content-Length: 0", version=version)) in (400, 505)
    assert gate.flower.requests == []


def test_http_2_is_not_spoken(gate: Opened) -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    context = gate.context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    raw = socket.create_connection((HOST, gate.port))
    with context.wrap_socket(raw, server_hostname=HOST) as connection:
        assert connection.selected_alpn_protocol() == "http/1.1"

    assert gate.status(preface) == 505
    upgrade = head_of(
        gate, b"Content-Length: 0", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAAQAAP__",
    )  # fmt: skip
    answer = gate.talk(upgrade)
    assert status_of(answer) == 200, "the request is answered, the upgrade ignored"
    assert b"upgrade" not in answer.lower()


def test_plain_text_is_not_answered(gate: Opened) -> None:
    with socket.create_connection((HOST, gate.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: gate\r\n\r\n")
        connection.settimeout(5)

        assert b"HTTP" not in read_all(connection)


def test_old_tls_is_not_spoken(gate: Opened) -> None:
    context = gate.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    raw = socket.create_connection((HOST, gate.port))
    with context.wrap_socket(raw, server_hostname=HOST) as connection:
        assert connection.version() == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    raw = socket.create_connection((HOST, gate.port))
    with pytest.raises(ssl.SSLError), raw:
        context.wrap_socket(raw, server_hostname=HOST)


# --- slow and many -------------------------------------------------------------------------------


def closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_half_sent_requests_end_in_time(tmp_path: Path) -> None:
    with open_gate(tmp_path, QUICK) as gate:
        silent = socket.create_connection((HOST, gate.port))  # no TLS even
        greeted = gate.connect()
        half = gate.connect()
        half.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost:")
        body = gate.connect()
        whole = gate.call(b"/v1/fleet/push-object", b"a" * 1000)
        body.sendall(whole[:-500])

        for connection in (silent, greeted, half, body):
            assert closed_within(connection, 10)
        assert gate.status(gate.call(FLEET, extra=b"Connection: close\r\n")) == 200
        assert all(head.split()[1] == FLEET for head, _ in gate.flower.requests)


def test_a_head_that_trickles_in_does_not_hold_a_connection(tmp_path: Path) -> None:
    with open_gate(tmp_path, QUICK) as gate, gate.connect() as connection:
        ends = time.monotonic() + 15
        open_still = True
        while open_still and time.monotonic() < ends:
            connection.sendall(b"X")
            open_still = not closed_within(connection, 0.1)

        assert not open_still


def test_a_node_is_served_while_a_stranger_holds_all_connections(tmp_path: Path) -> None:
    with open_gate(tmp_path, Limits(head=60.0), connections=10) as gate:
        node = gate.connect()
        node.sendall(gate.call(FLEET, b"0"))
        assert status_of(one_answer(node)) == 200

        strangers = [socket.create_connection((HOST, gate.port)) for _ in range(50)]
        node.sendall(gate.call(FLEET, b"1"))
        assert status_of(one_answer(node)) == 200, "who is known is not pushed out"
        assert gate.status(gate.call(FLEET, b"2", extra=b"Connection: close\r\n")) == 200

        assert sum(closed_within(one, 0.2) for one in strangers) >= 40
        for stranger in strangers:
            stranger.close()
        node.close()


def test_one_node_cannot_hold_the_connections_of_the_others(tmp_path: Path) -> None:
    create_node_key(tmp_path / "other.key")
    with open_gate(tmp_path, connections=12) as gate:
        gate.nodes[public_half(tmp_path / "other.key")] = Node(8, "client-1")
        greedy = [gate.connect() for _ in range(12)]
        for connection in greedy:
            connection.sendall(gate.call(FLEET))
            assert status_of(one_answer(connection)) == 200
        signed = gate.signed(tmp_path / "other.key")

        request = b"GET /v1/gate/me HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n" + signed
        assert gate.status(request + b"\r\n") == 200
        assert sum(closed_within(one, 0.2) for one in greedy) == 4


def test_health_is_answered_without_asking_flower(gate: Opened) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n"
    answer = gate.talk(request)
    assert status_of(answer) == 200
    assert b"\r\ndate: " in answer.lower()

    gate.healthy[0] = False
    try:
        assert gate.status(request) == 503
    finally:
        gate.healthy[0] = True
    assert gate.flower.requests == []
