"""Which apps a node executes."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest
from apps import misbehaving_app
from flwr.cli.build import build_fab_from_disk
from loopback import node_yaml

from deploy.allowing import allow, bundle_hash
from deploy.bundle import check_bundle, is_installed
from deploy.files import read_node_file
from fedrc_flwr.errors import ConfigError, PolicyError
from fedrc_flwr.flower import find_app


@pytest.fixture(scope="module")
def own() -> bytes:
    """The bundle that `fedrc run` submits from here."""
    return build_fab_from_disk(find_app(Path()))


def changed(bundle: bytes, name: str, content: bytes | None) -> bytes:
    """The bundle with another content of one file, or with one file more."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(bundle)) as source, zipfile.ZipFile(out, "w") as target:
        for member in source.namelist():
            if member != name:
                target.writestr(member, source.read(member))
        if content is not None:
            target.writestr(name, content)
    return out.getvalue()


def test_the_installed_release_is_allowed_by_default(own: bytes) -> None:
    assert check_bundle(own, ["installed"]) is True
    assert check_bundle(changed(own, "CHANGELOG.md", b"another"), ["installed"]) is True


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("client_app/app.py", b"import os"),
        ("client_app/extra.py", b"import os"),
        ("pyproject.toml", b'[tool.flwr.app.components]\nclientapp = "evil:app"'),
        ("pyproject.toml", b"tool = 1"),
        ("pyproject.toml", b"[" * 100_000),
        ("fedrc_flwr/scenarios/digits.yaml", b"data: {dataset: os:system}"),
        ("client_app/../evil.py", b"import os"),
        ("client_app//app.py", b"import os"),
        ("fedrc_flwr/large.json", b"0" * 60_000_000),
    ],
)
def test_a_bundle_with_one_other_file_is_refused(own: bytes, name: str, content: bytes) -> None:
    bundle = changed(own, name, content)

    with pytest.raises(PolicyError) as caught:
        check_bundle(bundle, ["installed"])

    assert caught.value.code == "app-not-allowed"
    assert caught.value.subject == hashlib.sha256(bundle).hexdigest()


def test_a_listed_hash_is_that_of_the_content(own: bytes) -> None:
    bundle = changed(own, "client_app/app.py", b"import os")

    assert check_bundle(bundle, [bundle_hash(hashlib.sha256(bundle).hexdigest())]) is False
    with pytest.raises(PolicyError):
        check_bundle(bundle, [hashlib.sha256(own).hexdigest()])
    assert check_bundle(bundle, ["any"]) is False


@pytest.mark.parametrize("content", [b"", b"PK", b"\0" * 1000])
def test_what_is_no_bundle_is_refused(content: bytes) -> None:
    assert not is_installed(content)


def test_hash_of_a_directory_is_that_of_the_bundle_flower_makes_of_it(tmp_path: Path) -> None:
    app = misbehaving_app(tmp_path, "    return message\n")
    (tmp_path / "app.fab").write_bytes(build_fab_from_disk(app))

    assert bundle_hash(str(app)) == bundle_hash(str(tmp_path / "app.fab"))
    with pytest.raises(ConfigError, match="expected a hash"):
        bundle_hash(str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "policy",
    [
        "",
        "policy:\n  least-noise: 1  # a comment\n  smallest-cohort: 2\n",
        "policy:\n  apps: [installed]  # a comment\n  least-noise: 1\n",
        "policy:\n  apps:\n    - installed\n  least-noise: 1\n",
        "policy:\n  least-noise: 1\n  apps:\n    - installed\n",
        "policy:\n  least-noise: 1\n  apps:\n    - installed\nthreads: 2\n",
    ],
)
def test_allowing_an_app_changes_one_list_of_the_file(tmp_path: Path, policy: str) -> None:
    path = node_yaml(tmp_path)
    path.write_text(f"# kept\n{path.read_text()}{policy}")
    before = read_node_file(path)

    allow(path, before.policy.apps, "ab" * 32)
    allow(path, read_node_file(path).policy.apps, "ab" * 32)

    after = read_node_file(path)
    assert after.policy.apps == ("installed", "ab" * 32)
    assert (after.policy.least_noise, after.threads) == (before.policy.least_noise, before.threads)
    assert path.read_text().startswith("# kept\n")
    assert ("# a comment" in policy) == ("# a comment" in path.read_text())
