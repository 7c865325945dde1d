"""Half-sent requests, large bodies, idle connections: the gate's memory, and who is served."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from processes import Federation, fedrc, wait_until

from deploy.files import read_node_file
from deploy.membership import signed_headers, who_am_i

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]

IDLE, MEMORY = 1_100, 200e6
BODY = 300_000_000


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    try:
        made.start()
        made.node("client-0", 0).start()
        wait_until(
            lambda: "1 node registered, 1 online" in fedrc("node", "list", made.file).stdout,
            "a node online",
        )
        yield made
    finally:
        made.stop()


class Watch:
    """The largest memory of the gate's process."""

    def __init__(self, process: psutil.Process) -> None:
        self.largest = 0.0
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._done.wait(0.05):
            self.largest = max(self.largest, self._process.memory_info().rss)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._done.set()
        self._thread.join()


def watch(federation: Federation) -> Watch:
    assert federation.superlink.process is not None
    return Watch(psutil.Process(federation.superlink.process.pid))


def context(federation: Federation) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(federation.folder / "certificates" / "ca.crt"))


def served(federation: Federation) -> bool:
    """Whether a registered node is answered, and the one that runs is online still."""
    file = read_node_file(federation.folder / "client-0" / "node.yaml")
    assert file.key is not None
    online = "client-0: online" in fedrc("node", "list", federation.file).stdout
    return who_am_i(file, file.key) == (200, "client-0") and online


def test_idle_connections_and_half_sent_requests_leave_room_for_nodes(
    federation: Federation,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    address = ("127.0.0.1", federation.port)
    held: list[socket.socket] = []
    halves = [b"POST /v1/fleet/push-object HTTP/1.1\r\nHost:", b"G", b""]
    tls = context(federation)
    with watch(federation) as memory:
        for number in range(IDLE):
            held.append(socket.create_connection(address))
            if number % 4 == 0:  # some get as far as TLS and half a request
                with contextlib.suppress(OSError):
                    held[-1].settimeout(20)
                    held[-1] = tls.wrap_socket(held[-1], server_hostname="127.0.0.1")
                    held[-1].sendall(halves[number // 4 % 3])
            if number % 200 == 199:
                assert served(federation), number
        assert served(federation)
        time.sleep(1)
        assert served(federation)
    for connection in held:
        connection.close()

    print(f"{IDLE} connections: gate at most {memory.largest / 1e6:.0f} MB")
    assert memory.largest < MEMORY


@pytest.mark.parametrize("known", [False, True])
def test_large_bodies_are_not_held_in_memory(federation: Federation, known: bool) -> None:
    """By a stranger, who is refused at once, and by a registered node, as often as it likes."""
    key = federation.folder / "client-0" / "node.key"
    piece = b"a" * 2**20

    def push(size: int) -> int:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", federation.port, context=context(federation), timeout=60
        )
        connection.putrequest("POST", "/v1/fleet/push-object")
        for name, value in (signed_headers(key) if known else {}).items():
            connection.putheader(name, value)
        connection.putheader("Content-Type", "application/protobuf")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        with contextlib.suppress(OSError):  # it does not listen to the end
            for _ in range(size // len(piece)):
                connection.send(piece)
        try:
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    with watch(federation) as memory:
        refused = {push(BODY) for _ in range(4)}
        assert refused <= {0, 401, 413}
        if known:  # within the limit: passed on while it arrives
            assert push(30 * len(piece)) == 400, "Flower itself finds it is no message"
        assert served(federation)

    print(f"bodies of {BODY / 1e6:.0f} MB: gate at most {memory.largest / 1e6:.0f} MB")
    assert memory.largest < MEMORY
