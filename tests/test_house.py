"""The house rules that a reader relies on: who imports whom, who reads which setting, how long."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.config import SECTIONS, all_sections

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedrc_flwr", "server_app", "client_app", "deploy")
LONGEST = 350


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    module_name(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "app" not in path.relative_to(ROOT / package).parts[:-1]
}


@cache
def tree_of(name: str) -> ast.Module:
    """A module's syntax tree; parsed when a test asks for it, not when tests are collected."""
    return ast.parse(FILES[name].read_text("utf-8"))


def test_every_test_module_has_a_name_of_its_own() -> None:
    # pytest imports them by that name alone, and leaves the second one out with an error.
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))

    assert [name for name, count in names.items() if count > 1] == []


# --- imports ------------------------------------------------------------------------------------


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from outside_functions(child)


def imported(nodes: Iterator[ast.AST]) -> set[str]:
    """The modules of this project that import statements name."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            # `from package import module` imports the module; of a package's own names, the package
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else str(node.module))
    return found & set(FILES)


@cache
def imports() -> dict[str, set[str]]:
    """For each module, those that it imports when it is imported itself."""
    return {name: imported(outside_functions(tree_of(name))) - {name} for name in FILES}


@cache
def ever() -> dict[str, set[str]]:
    """For each module, those that it imports at any time."""
    return {name: imported(ast.walk(tree_of(name))) - {name} for name in FILES}


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 80
    assert "fedrc_flwr.em" in imports()["fedrc_flwr.algorithms.fedrc"]
    assert "fedrc_flwr.config" in ever()["fedrc_flwr.cli"] - imports()["fedrc_flwr.cli"]


def test_imports_go_one_way() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


def test_nothing_imports_the_command() -> None:
    assert [name for name, modules in ever().items() if "fedrc_flwr.cli" in modules] == []


def test_server_app_does_not_import_the_report() -> None:
    for name in FILES:
        if name.partition(".")[0] == "server_app":
            assert not [module for module in ever()[name] if ".report" in module], name


def test_only_what_travels_knows_flower() -> None:
    for name in FILES:
        words = {
            part.partition(".")[0]
            for node in ast.walk(tree_of(name))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for part in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
            )
        }
        if name.startswith("fedrc_flwr") and "flwr" in words:
            assert name in ("fedrc_flwr.wire", "fedrc_flwr.arrays", "fedrc_flwr.records")


# --- settings -----------------------------------------------------------------------------------


def homes() -> dict[str, dict[str, set[str]]]:
    """By section and field: the modules that may read the setting.

    All algorithms' sections are one, ``algorithm_settings``.
    """
    found: dict[str, dict[str, set[str]]] = {}
    for name, section in all_sections().items():
        if not name:
            continue
        fields = found.setdefault(name if name in SECTIONS else "algorithm_settings", {})
        for field in dataclasses.fields(section):
            owner = next(
                c for c in section.__mro__ if field.name in vars(c).get("__annotations__", {})
            )
            fields.setdefault(field.name, set()).add(owner.__module__)
    return found


HOMES = homes()
#: What reads like a setting: a client's data (``ClientData``) know their classes, too.
NOT_SETTINGS = ("data.classes", "self.data.classes")
ANY = {
    field: {home for fields in HOMES.values() for home in fields.get(field, ())}
    for fields in HOMES.values()
    for field in fields
}


def read_elsewhere(name: str, tree: ast.AST) -> Iterator[str]:
    """Reads of settings in a module that is not the settings' own."""
    defined = {
        statement.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        holder = node.value
        called = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
        if called == "settings" and node.attr not in defined:
            allowed = ANY.get(node.attr, set())
        else:
            allowed = HOMES.get(called, {}).get(node.attr, set())
        if ast.unparse(node) in NOT_SETTINGS or not allowed:
            continue
        if not any(at_home(name, home) for home in allowed):
            yield f"{name}:{node.lineno}: {ast.unparse(node)}"


def at_home(name: str, home: str) -> bool:
    """Whether a module may read what is set in a home: its own, or the data's in their package."""
    return name == home or (
        home == "fedrc_flwr.data.settings" and name.startswith("fedrc_flwr.data.")
    )


def test_homes_of_the_settings_are_known() -> None:
    assert HOMES["local"]["epochs"] == {"fedrc_flwr.sgd"}
    assert HOMES["algorithm_settings"]["clusters"] == {
        "fedrc_flwr.algorithms.settings", "fedrc_flwr.algorithms.cfl",
    }  # fmt: skip
    assert HOMES["algorithm_settings"]["merge"] == {"fedrc_flwr.adaptive"}


@pytest.mark.parametrize("text", ["config.local.epochs", "self.local.epochs",
                                  "algorithm_settings.merge", "self.settings.clusters",
                                  "settings.window"])  # fmt: skip
def test_setting_that_is_read_elsewhere_is_noticed(text: str) -> None:
    assert list(read_elsewhere("fedrc_flwr.elsewhere", ast.parse(text)))


@pytest.mark.parametrize("name", FILES)
def test_settings_are_read_in_their_own_module_alone(name: str) -> None:
    assert list(read_elsewhere(name, tree_of(name))) == []


# --- small rooms --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_module_is_not_too_long(name: str) -> None:
    assert len(FILES[name].read_text("utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_says_its_name_its_title_and_its_settings(name: str) -> None:
    algorithm = ALGORITHMS[name]

    assert {"name", "title", "Settings"} <= set(vars(algorithm))
    assert algorithm.name == name
    assert algorithm.__module__ == f"fedrc_flwr.algorithms.{name.replace('-', '_')}"
