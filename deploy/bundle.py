"""Whether a node executes an app: its bundle is known by its hash, or is the release on the node.

Flower unpacks and imports whatever the server sends. ``check_bundle`` comes before that, in the
node's own code.
"""

from __future__ import annotations

import hashlib
import io
import tomllib
import zipfile
from collections.abc import Collection
from pathlib import Path

from deploy.policy import ANY, INSTALLED
from fedrc_flwr.errors import PolicyError

#: The packages of the app, and where its client starts.
CLIENT = "client_app.app:app"
PACKAGES = ("client_app", "fedrc_flwr", "server_app")
#: How much a bundle may hold once it is unpacked, and in how many files.
MOST_BYTES, MOST_FILES = 50_000_000, 5_000


def hash_of(content: bytes) -> str:
    """The hash by which node.yaml lists a bundle."""
    return hashlib.sha256(content).hexdigest()


def check_bundle(content: bytes, apps: Collection[str]) -> bool:
    """Refuse a bundle that the node does not execute.

    The hash is that of the content, whatever the server says it is.

    Parameters
    ----------
    content : the bundle as it arrived
    apps : ``policy.apps`` of node.yaml

    Returns
    -------
    Whether the bundle is the installed release, so that the installed code can be run in its place.
    """
    same = INSTALLED in apps and is_installed(content)
    if not same and ANY not in apps and hash_of(content) not in apps:
        raise PolicyError("app-not-allowed", hash_of(content))
    return same


def is_installed(content: bytes) -> bool:
    """Whether a bundle is this app, and all files of its packages are those installed here.

    Other files do not matter, because the installed code is run and nothing is unpacked.
    """
    root = Path(__file__).resolve().parent.parent
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            members = [member for member in bundle.infolist() if not member.is_dir()]
            if len(members) > MOST_FILES or sum(m.file_size for m in members) > MOST_BYTES:
                return False
            project = tomllib.loads(bundle.read("pyproject.toml").decode())
            if project["tool"]["flwr"]["app"]["components"]["clientapp"] != CLIENT:
                return False
            return all(_is_same(bundle, member, root) for member in members)
    except (zipfile.BadZipFile, OSError, LookupError, TypeError, ValueError, RuntimeError):
        return False


def _is_same(bundle: zipfile.ZipFile, member: zipfile.ZipInfo, root: Path) -> bool:
    name = member.filename
    parts = name.split("/")
    if parts[0] not in PACKAGES:
        return True
    if ".." in parts or "" in parts or "\\" in name:
        return False
    path = root.joinpath(*parts)
    return path.is_file() and path.read_bytes() == bundle.read(member)
