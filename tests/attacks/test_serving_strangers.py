"""`fedrc serve` under half-sent requests and asked by strangers."""

from __future__ import annotations

import datetime
import json
import select
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from processes import wait_until
from test_serving import INPUTS, Served, asked, serving, serving_process
from trained_run import concept_checkpoint, write_run
from tritonclient.utils import InferenceServerException
from typer.testing import CliRunner

from deploy.certificates import create_authority, issue_server_certificate
from fedrc_flwr.cli import app
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.inference import Weights, load_trained, write_weights
from fedrc_flwr.inference.doors import Turnstile, is_loopback, read_token
from fedrc_flwr.inference.protocol import SERVICE
from fedrc_flwr.inference.serving import ServeOptions

TOKEN = "correct-horse-battery-staple"
BODY = json.dumps(
    {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 8, 8], "data": [0.5] * 64}]}
).encode()


def sent(served: Served, content: bytes) -> socket.socket:
    host, _, port = served.http.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(content)
    return connection


def status(served: Served, path: str, body: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(f"http://{served.http}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def half_a_body(length: int = 1000) -> bytes:
    return (
        b"POST /v2/models/fedrc/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % length
    )


def closed(connection: socket.socket) -> bool:
    """Whether the server has hung up, after whatever it said."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_half_sent_requests_keep_nobody_out_and_end(tmp_path: Path) -> None:
    limits = ("--max-requests", "4", "--request-seconds", "3", "--max-per-address", "60")
    with serving(tmp_path, *limits) as served:
        bodies = [sent(served, half_a_body()) for _ in range(25)]
        heads = [sent(served, b"POST /v2/models/fedrc/infer HTTP/1.1\r\nHost:") for _ in range(25)]
        in_drops = sent(served, b"GET /v2 HT")

        # More than may be in progress, and still others are served and told the truth.
        assert status(served, "/v2/health/ready") == 200
        assert status(served, "/v2/models/fedrc/infer", BODY) == 200
        np.testing.assert_allclose(
            served.client().infer("fedrc", asked(INPUTS[:2])).as_numpy("probabilities"),
            served.expected(INPUTS[:2]), atol=1e-6,
        )  # fmt: skip

        def hung_up() -> bool:
            time.sleep(0.3)
            try:
                in_drops.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(hung_up, "the server to hang up on a head that comes in drops", 20)
        assert b"408" in bodies[0].recv(65_536)
        assert all(closed(each) for each in bodies + heads)


def test_one_address_cannot_take_all_connections_nor_the_memory(tmp_path: Path) -> None:
    limits = ("--max-per-address", "20", "--request-seconds", "60", "--max-message-mb", "4")
    with serving_process(tmp_path, *limits) as (served, started):
        process = psutil.Process(started.pid)
        before = process.memory_info().rss
        taken = [sent(served, half_a_body(4_000_000)) for _ in range(19)]
        for connection in taken:
            try:
                connection.sendall(b" " * 3_900_000)
            except OSError:
                continue
        # All but the one that makes twenty.
        refused = [sent(served, b"") for _ in range(10)]
        hung_up: set[socket.socket] = set()

        def nine_are_refused() -> bool:
            ready, _, _ = select.select([c for c in refused if c not in hung_up], [], [], 1)
            hung_up.update(connection for connection in ready if closed(connection))
            return len(hung_up) >= 9

        wait_until(nine_are_refused, "nine of ten connections to be refused", 30)
        # 8 bodies of 4 MB may be held at once, of the 74 MB that were sent.
        assert process.memory_info().rss - before < 60_000_000
        for connection in taken:
            connection.close()

        def has_room() -> bool:
            try:
                return status(served, "/v2/health/ready") == 200
            except (ConnectionError, urllib.error.URLError):
                return False

        wait_until(has_room, "room again", 20)


def test_ready_is_false_while_no_connection_is_accepted() -> None:
    doors = Turnstile(most=3, most_from_one=2)

    assert [doors.enter("a"), doors.enter("a"), doors.enter("a")] == [True, True, False]
    assert not doors.full
    assert doors.enter("b")
    assert doors.full
    assert not doors.enter("c")
    doors.leave("a")
    assert doors.enter("c")


# --- who may ask ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that asks for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(TOKEN + "\n")
    with serving(folder, "--token-file", str(folder / "token")) as served:
        yield served


def test_without_the_token_nothing_but_health_is_answered(guarded: Served) -> None:
    known = {"Authorization": f"Bearer {TOKEN}"}
    infer = "/v2/models/fedrc/infer"

    assert status(guarded, infer, BODY, **known) == 200
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        assert status(guarded, infer, BODY, **header) == 401
        assert status(guarded, "/metrics", **header) == 401
        assert status(guarded, "/v2/models/fedrc", **header) == 401
        assert status(guarded, "/v2/health/ready", **header) == 200
    client = guarded.client()
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException, match="no valid token"):
        client.infer("fedrc", asked(INPUTS[:1]))
    with pytest.raises(InferenceServerException, match="no valid token"):
        client.get_model_metadata("fedrc")
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert client.infer("fedrc", asked(INPUTS[:1]), headers=headers) is not None


def test_a_stranger_is_refused_before_its_message_is_waited_for(guarded: Served) -> None:
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(60)
        yield b""

    with grpc.insecure_channel(guarded.address) as channel:
        call = channel.stream_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(nothing(), timeout=20)
        never.set()

    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def issue_client_certificate(folder: Path) -> None:
    """A certificate for a client, client.crt and client.key."""
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "clinic")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(usage, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
        )
        .sign(signer, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "client.crt").write_bytes(made.public_bytes(pem))
    (folder / "client.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )


def test_with_a_client_authority_only_its_certificates_get_in(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        create_authority(folder)
        issue_server_certificate(folder, ["127.0.0.1"])
        issue_client_certificate(folder)
    options = ("--tls-cert", str(ours / "server.crt"), "--tls-key", str(ours / "server.key"),
               "--client-ca", str(ours / "ca.crt"))  # fmt: skip
    with serving(tmp_path, *options) as served:

        def over_https(folder: Path | None) -> int:
            context = ssl.create_default_context(cafile=str(ours / "ca.crt"))
            if folder is not None:
                context.load_cert_chain(folder / "client.crt", folder / "client.key")
            url = f"https://{served.http}/v2/health/live"
            with urllib.request.urlopen(url, context=context, timeout=20) as answer:
                return int(answer.status)

        def over_grpc(folder: Path | None) -> bool:
            credentials = grpc.ssl_channel_credentials(
                (ours / "ca.crt").read_bytes(),
                *((folder / n).read_bytes() for n in ("client.key", "client.crt") if folder),
            )
            client = triton.InferenceServerClient(
                served.address, ssl=True, creds=credentials,
            )  # fmt: skip
            return bool(client.is_server_live())

        assert over_https(ours) == 200
        assert over_grpc(ours)
        for stranger in (None, theirs):
            with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
                over_https(stranger)
            with pytest.raises(InferenceServerException):
                over_grpc(stranger)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "others can reach this address: give --token-file or"),
        ({"host": "::"}, "others can reach this address"),
        ({"host": "0.0.0.0", "token_file": Path("t")}, "a token needs TLS there"),
        ({"client_ca": Path("ca")}, "need --tls-cert"),
    ],
)
def test_strangers_are_not_served_by_mistake(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ServeOptions(**options).check()


def test_they_are_served_on_purpose() -> None:
    ServeOptions(host="0.0.0.0", open=True).check()
    ServeOptions(host="0.0.0.0", token_file=Path("t"), tls_cert=Path("c")).check()
    ServeOptions(host="localhost").check()
    assert not is_loopback("example.org")


@pytest.mark.parametrize("content", ["", "short", "two words-of-sufficient-length", "ü" * 20])
def test_a_token_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)

    with pytest.raises(ConfigError, match="--token-file"):
        read_token(tmp_path / "token")


def test_the_command_itself_refuses_an_open_address(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", concept_checkpoint())
    trained = load_trained(run)
    weights = Weights(trained.clusters, np.array([0.1, 0.6, 0.3]))
    write_weights(tmp_path / "w.json", trained, weights, {})
    options = ["--weights", str(tmp_path / "w.json"), "--host", "0.0.0.0"]

    done = CliRunner().invoke(app, ["serve", str(run), *options])

    assert done.exit_code == 2
    assert "others can reach this address" in done.stderr
