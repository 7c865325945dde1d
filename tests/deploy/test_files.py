"""superlink.yaml and node.yaml: what is read, and how everything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loopback import node_file, node_yaml, superlink_file, superlink_yaml

from deploy.fields import Address
from deploy.files import read_node_file, read_superlink_file
from deploy.tunnel import read_operator_file
from fedrc_flwr import __version__
from fedrc_flwr.errors import ConfigError

#: What the client app is told of a policy that demands nothing.
POLICY = {"largest-clip": 1.0, "smallest-cohort": 1, "least-samples": 1, "delta": 1e-5}
EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


def refusal(kind: str, folder: Path, changes: dict[str, Any]) -> str:
    """How a file is refused."""
    write, read = {
        "superlink": (superlink_yaml, read_superlink_file),
        "node": (node_yaml, read_node_file),
    }[kind]
    path = write(folder, **changes)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_the_example_of_the_server_loads_as_it_is() -> None:
    file = read_superlink_file(EXAMPLES / "superlink.yaml")

    assert file.address == Address("fedrc.example.org", 8000)
    assert file.listen == Address("0.0.0.0", 8000)
    assert file.control == Address("127.0.0.1", 8002)
    assert file.health == Address("127.0.0.1", 8001)
    assert not file.insecure
    assert file.tls is not None
    assert file.tls.ca == EXAMPLES / "certificates" / "ca.crt"
    assert file.tls.certificate == EXAMPLES / "certificates" / "server.crt"
    assert file.tls.key == EXAMPLES / "certificates" / "server.key"
    assert file.database_file is not None
    assert file.database_file.parent == file.secret.parent == EXAMPLES / "state"
    assert file.outputs == EXAMPLES / "outputs"


def test_the_example_of_an_operator_loads_as_it_is() -> None:
    file = read_operator_file(EXAMPLES / "operator.yaml")

    assert file.superlink == Address("fedrc.example.org", 8000)
    assert (file.ca, file.key) == (EXAMPLES / "ca.crt", EXAMPLES / "alice.key")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"listen": "0.0.0.0:8002", "control": "127.0.0.1:8002"}, "listen and control have the sa"),
        ({"connections": 0}, "connections = 0: expected a number from 1"),
        ({"largest-reply": -1}, "largest-reply = -1: expected a number from 1"),
    ],
)
def test_a_gate_that_could_not_work_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert refusal("superlink", tmp_path, changes).startswith(said)


def test_the_example_of_a_node_loads_as_it_is() -> None:
    file = read_node_file(EXAMPLES / "node.yaml")

    assert not file.insecure
    assert (file.ca, file.key) == (EXAMPLES / "ca.crt", EXAMPLES / "node.key")
    assert file.listen == Address("127.0.0.1", 9094)
    assert file.node_config() == {
        "name": "hospital-a",
        "role": "train",
        "partition-id": 0,
        "device": "auto",
        "state-dir": str(EXAMPLES / "state"),
        "count-noise": 0.0,
        "version": __version__,
        **POLICY,
    }


def test_node_config_carries_what_the_file_says(tmp_path: Path) -> None:
    file = node_file(
        tmp_path, name="b", role="observe", partition=7, device="cuda:1", count_noise=2
    )

    config = file.node_config()

    assert config == {
        "name": "b",
        "role": "observe",
        "partition-id": 7,
        "device": "cuda:1",
        "state-dir": str(tmp_path / "state"),
        "count-noise": 2.0,
        "version": __version__,
        **POLICY,
    }
    assert type(config["count-noise"]) is float


def test_a_node_without_noise_of_its_own_leaves_it_to_the_run(tmp_path: Path) -> None:
    file = node_file(tmp_path)

    assert "count-noise" not in file.node_config()
    assert "confusion" not in file.node_config()
    assert file.node_config()["role"] == "train"


def test_paths_count_from_the_file_wherever_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink_yaml(tmp_path / "site", outputs="../results", state=str(tmp_path / "var"))
    node_yaml(tmp_path / "site", key="~/node.key")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    server = read_superlink_file(Path("site/superlink.yaml"))
    node = read_node_file(Path("site/node.yaml"))

    assert server.outputs == tmp_path / "results"
    assert server.state == tmp_path / "var"
    assert server.certificates == tmp_path / "site" / "certificates"
    assert node.ca == tmp_path / "site" / "ca.crt"
    assert node.key == tmp_path / "home" / "node.key"


@pytest.mark.parametrize(
    ("kind", "key", "suggestion"),
    [
        ("superlink", "adress", "did you mean 'address'?"),
        ("superlink", "certificate", "did you mean 'certificates'?"),
        ("superlink", "partition", "known: address, listen, state, outputs"),
        ("node", "rolle", "did you mean 'role'?"),
        ("node", "count_noises", "did you mean 'count-noise'?"),
        ("node", "zzz", "known: name, superlink, state, partition, role"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(
    tmp_path: Path, kind: str, key: str, suggestion: str
) -> None:
    # The node's helper writes underscores as dashes.
    said = refusal(kind, tmp_path, {key: "x"})

    assert said.startswith(f"unknown key {key.replace('_', '-')!r}")
    assert suggestion in said


def test_an_underscore_in_place_of_a_dash_is_pointed_out(tmp_path: Path) -> None:
    path = node_yaml(tmp_path)
    path.write_text(path.read_text() + "count_noise: 1.0\n")

    with pytest.raises(ConfigError, match="unknown key 'count_noise'; did you mean 'count-noise'"):
        read_node_file(path)


@pytest.mark.parametrize(
    ("kind", "key", "value", "wanted"),
    [
        ("superlink", "state", 5, "a path"),
        ("superlink", "outputs", "", "a path"),
        ("superlink", "certificates", ["a"], "a path"),
        ("superlink", "insecure", "yes", "true or false"),
        ("superlink", "insecure", 1, "true or false"),
        ("node", "name", 7, "text"),
        ("node", "role", True, "text"),
        ("node", "ca", 1, "a path"),
        ("node", "key", False, "a path"),
        ("node", "state", {"a": 1}, "a path"),
        ("node", "partition", "0", "a whole number"),
        ("node", "partition", 1.0, "a whole number"),
        ("node", "partition", True, "a whole number"),
        ("node", "device", 0, "text"),
        ("node", "count-noise", "much", "a number"),
        ("node", "count-noise", True, "a number"),
        ("node", "confusion", "perhaps", "without-noise, always or never"),
        ("node", "insecure", "true", "true or false"),
    ],
)
def test_a_wrong_type_is_refused_with_key_value_and_what_is_allowed(
    tmp_path: Path, kind: str, key: str, value: Any, wanted: str
) -> None:
    assert refusal(kind, tmp_path, {key: value}) == f"{key} = {value!r}: expected {wanted}"


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("superlink", "address"),
        ("superlink", "listen"),
        ("superlink", "health"),
        ("node", "superlink"),
        ("node", "listen"),
        ("node", "health"),
    ],
)
@pytest.mark.parametrize(
    "value",
    ["fedrc.example.org", ":8000", "host:", "host:http", "host:0", "host:65536", "host:-1", 8000,
     "http://host:8000", "two words:8000", "me@host:8000"],
)  # fmt: skip
def test_a_bad_address_is_refused(tmp_path: Path, kind: str, key: str, value: Any) -> None:
    assert refusal(kind, tmp_path, {key: value}) == f"{key} = {value!r}: expected host:port"


@pytest.mark.parametrize(
    ("text", "host"), [("[::1]:8000", "::1"), ("localhost:8000", "localhost"), ("::1:8000", "::1")]
)
def test_addresses_are_read_and_written(tmp_path: Path, text: str, host: str) -> None:
    file = superlink_file(tmp_path, address=text)

    assert file.address == Address(host, 8000)
    assert str(file.address) == ("[::1]:8000" if host == "::1" else text)


@pytest.mark.parametrize(
    ("kind", "key", "wanted"),
    [
        ("superlink", "address", "host:port"),
        ("superlink", "listen", "host:port"),
        ("superlink", "state", "a path"),
        ("superlink", "outputs", "a path"),
        ("node", "name", "text"),
        ("node", "superlink", "host:port"),
        ("node", "state", "a path"),
    ],
)
def test_a_missing_key_is_refused(tmp_path: Path, kind: str, key: str, wanted: str) -> None:
    assert refusal(kind, tmp_path, {key: None}) == f"{key} is missing: expected {wanted}"


def test_node_holds_data_of_its_own_or_a_part_of_a_scenario(tmp_path: Path) -> None:
    said = refusal("node", tmp_path, {"partition": None})

    assert said.startswith("data or partition is missing: expected the path of this node's own")
    own = node_file(tmp_path, partition=None, data="mine.csv")
    assert own.node_config()["partition-id"] == 0
    assert own.node_config()["dataset"] == str(tmp_path / "mine.csv")
    bound = node_file(tmp_path, data="mine.csv", schema="schema.json")
    assert bound.node_config()["schema"] == str(tmp_path / "schema.json")
    assert refusal("node", tmp_path, {"schema": "s.json"}).startswith("schema without data")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("partition", -1, "partition = -1: expected a number from 0"),
        ("role", "trainer", "role = 'trainer': expected train or observe"),
        ("name", " ", "name = ' ': expected 1 to 128 printable characters"),
        ("name", "a\nb", "name = 'a\\nb': expected 1 to 128 printable characters"),
        ("name", "n" * 129, f"name = {'n' * 128!r}: expected 1 to 128 printable characters"),
        ("count-noise", -0.5, "count-noise = -0.5: expected a number from 0"),
        ("count-noise", float("nan"), "count-noise = nan: expected a number from 0"),
        ("count-noise", float("inf"), "count-noise = inf: expected a number from 0"),
    ],
)
def test_a_value_out_of_range_is_refused(tmp_path: Path, key: str, value: Any, said: str) -> None:
    assert refusal("node", tmp_path, {key: value}) == said


def test_a_database_is_a_file_or_in_memory(tmp_path: Path) -> None:
    said = refusal("superlink", tmp_path, {"database": "postgres"})

    assert said == "database = 'postgres': expected file or memory"


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("superlink", {"certificates": None}, "certificates"),
        ("superlink", {"certificates": None, "insecure": False}, "certificates"),
        ("node", {"ca": None}, "ca"),
        ("node", {"key": None}, "key"),
        ("node", {"ca": None, "key": None}, "ca, key"),
    ],
)
def test_plain_text_is_never_the_result_of_a_forgotten_line(
    tmp_path: Path, kind: str, changes: dict[str, Any], named: str
) -> None:
    said = refusal(kind, tmp_path, changes)

    assert said.startswith(f"{named} missing")
    assert "set insecure: true" in said


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("superlink", {}, "certificates"),
        ("node", {}, "ca, key"),
        ("node", {"ca": None}, "key"),
        ("node", {"key": None}, "ca"),
    ],
)
def test_contradictions_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], named: str
) -> None:
    said = refusal(kind, tmp_path, {**changes, "insecure": True})

    assert said == f"insecure = True contradicts {named}: drop one or the other"


def test_plain_text_by_name_is_accepted(tmp_path: Path) -> None:
    server = superlink_file(tmp_path, certificates=None, insecure=True)
    node = node_file(tmp_path, ca=None, key=None, insecure=True)

    assert server.tls is None
    assert server.insecure
    assert node.insecure
    assert (node.ca, node.key) == (None, None)


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "just text\n"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "superlink.yaml"
    path.write_text(content)

    with pytest.raises(ConfigError, match="expected lines of the form `key: value`"):
        read_superlink_file(path)


@pytest.mark.parametrize("content", [b"a: [1\n", b"\xff\xfe\x00", None])
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "node.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        read_node_file(path)

    assert str(path) in str(caught.value)
