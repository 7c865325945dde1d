"""Whether the federation knows a node's key, and under this node's name."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import ssl
from pathlib import Path

from deploy import certificates
from deploy.files import NodeFile
from deploy.findings import ERROR, OK, Finding
from fedrc_flwr.errors import ConfigError

CONNECT_SECONDS = 5.0
ME = "/v1/gate/me"


def check_registered(file: NodeFile, key: Path) -> Finding:
    """Ask the gate, signed with the node's key, who this is."""
    try:
        status, name = who_am_i(file, key)
    except ConfigError as error:
        return Finding(ERROR, str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Finding(ERROR, f"{file.superlink} does not say whether this node is known: {error}")
    if status == http.HTTPStatus.UNAUTHORIZED:
        return Finding(
            ERROR,
            f"this node is not registered: copy {key}.pub to the server as {file.name}.pub and run "
            f"there: fedrc node register superlink.yaml {file.name}.pub",
        )
    if status != http.HTTPStatus.OK:
        return Finding(OK, "whether this node is registered cannot be seen from here")
    if name != file.name:
        return Finding(
            ERROR,
            f"this node's key is registered as {name or 'a node without a name'}, but its name is "
            f"{file.name}: change `name`, or register a new key under that name on the server",
        )
    return Finding(OK, f"registered as {name}")


def who_am_i(file: NodeFile, key: Path) -> tuple[int, str]:
    """The status of the gate's answer, and the name under which the key is registered."""
    context = ssl.create_default_context(cafile=str(file.ca)) if file.ca else None
    connection = http.client.HTTPSConnection(
        file.superlink.host, file.superlink.port, timeout=CONNECT_SECONDS, context=context
    )
    try:
        connection.request("GET", ME, headers=signed_headers(key))
        response = connection.getresponse()
        content = response.read()
        known = response.status == http.HTTPStatus.OK
        return response.status, str(json.loads(content).get("name", "")) if known else ""
    finally:
        connection.close()


def signed_headers(key: Path) -> dict[str, str]:
    """The headers by which a SuperNode shows who it is."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    return {
        "flwr-public-key": base64.b64encode(certificates.public_half(key)).decode("ascii"),
        "flwr-timestamp": now,
        "flwr-signature": base64.b64encode(certificates.sign(key, now.encode())).decode("ascii"),
    }
