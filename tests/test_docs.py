"""Every snippet of the documentation: commands are parsed, short programs are run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from trained_run import concept_checkpoint, write_run

from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.cli import app
from fedrc_flwr.config import load_config, parse_setting
from fedrc_flwr.data.scenario import scenario_of
from fedrc_flwr.data.settings import DataSettings
from fedrc_flwr.inference import Weights, export_model, load_trained, write_weights

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\.\.\.|key=value")
DOCS = sorted(ROOT.glob("docs/*.md"))
PAGES = [*DOCS, ROOT / "README.md", ROOT / "deploy" / "README.md"]
SHELLS = ("bash", "sh", "console")


@dataclass(frozen=True)
class Snippet:
    page: Path
    language: str
    text: str


SNIPPETS = [
    Snippet(page, language, text)
    for page in PAGES
    for language, text in FENCE.findall(page.read_text("utf-8"))
]


def commands(page: Path) -> list[list[str]]:
    """Every `fedrc ...` of a page's shell snippets, and of its running text where it is whole."""
    shell = [s.text for s in SNIPPETS if s.page == page and s.language in SHELLS]
    lines = [text.replace("\\\n", " ") for text in shell]
    prose = re.findall(r"`(fedrc [^`]+)`", FENCE.sub("", page.read_text("utf-8")))
    lines += [re.sub(r"\s+", " ", one) for one in prose if not PLACEHOLDER.search(one)]
    found = []
    for line in "\n".join(lines).splitlines():
        words = shlex.split(line, comments=True)
        while words and ("=" in words[0] or words[0] in ("sudo", "exec", "$")):
            words = words[1:]
        if words and words[0].endswith("fedrc") and words != ["fedrc"]:
            found.append([word for word in words[1:] if word != "&"])
    return found


COMMAND = typer.main.get_command(app)


def parse(words: list[str]) -> click.Context:
    """What click makes of a command line, down to the last subcommand; raises where it is wrong."""
    command: click.Command = COMMAND
    context = click.Context(command, info_name="fedrc")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, f"no such command: {name}"
        command = found
        if not words and isinstance(command, click.Group):
            break
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name, parent=context)
    if words == ["--help"]:
        return context
    return command.make_context(command.name, list(words))


def test_there_is_something_to_check() -> None:
    assert len([s for s in SNIPPETS if s.language in SHELLS]) > 10
    assert sum(len(commands(page)) for page in PAGES) > 30


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(page, words, id=f"{page.parent.name}/{page.stem}: {' '.join(words)}")
        for page in PAGES
        for words in commands(page)
    ],
)
def test_command_is_one_that_fedrc_takes(page: Path, words: list[str]) -> None:
    mentioned = len(words) <= 2 and not any(word.startswith("-") for word in words)
    try:
        context = parse(words)
    except click.MissingParameter:
        # `fedrc stop` in a sentence names the command; a snippet must be whole.
        assert mentioned, words
        return
    named = {name: context.params.get(name) for name in ("scenario", "recipe")}
    given = {name: value for name, value in named.items() if value and ".y" not in str(value)}
    given |= dict(parse_setting(text) for text in context.params.get("settings") or [])
    # A comparison has several algorithms, and settings for some of them.
    sections = {name.partition(".")[0] for name in given}
    for algorithm in {str(given.get("algorithm", "fedrc")), *(sections & set(ALGORITHMS))}:
        own = {n: v for n, v in given.items() if n.partition(".")[0] not in ALGORITHMS}
        own |= {n: v for n, v in given.items() if n.startswith(f"{algorithm}.")}
        load_config({**own, "algorithm": algorithm})


@pytest.mark.parametrize("words", [["simulat"], ["report"], ["report", "x", "--figurs", "y"]])
def test_command_that_is_wrong_is_noticed(words: list[str]) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse(words)


def write_what_serving_speaks_of() -> None:
    """A run in outputs/demo, and the weights and models that the page's commands make of it."""
    run = write_run(Path("outputs/demo"), concept_checkpoint())
    trained = load_trained(run)
    weights = Weights(trained.clusters, np.array([0.0, 1.0, 0.0]))
    write_weights(Path("weights.json"), trained, weights, {})
    for name in ("model.pt2", "model.onnx"):
        export_model(Path(name), trained, weights, hard=False)


@pytest.mark.parametrize("page", DOCS, ids=lambda p: p.stem)
def test_programs_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = [s.text for s in SNIPPETS if s.page == page and s.language == "python"]
    if page.stem == "serving":
        write_what_serving_speaks_of()

    for program in programs:
        code = compile(program, str(page), "exec")
        # tests/integration/test_serving.py has a server for this one.
        if "tritonclient" not in program:
            exec(code, {})

    if page.stem == "tutorial":
        assert len(programs) == 2
        with np.load("new.npz") as labelled, np.load("unlabelled.npz") as unlabelled:
            assert (len(labelled["y"]), len(unlabelled["x"])) == (20, 40)
        scenario = scenario_of(DataSettings(dataset=str(tmp_path / "clinics.npz")), seed=0)
        assert len(scenario) == 10
        assert scenario.classes == 3
        assert len(scenario.client(0).fit) == 72
        with np.load("clinics.npz") as content:
            assert content["x"].shape == (800, 8)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target
        # Sphinx makes pages of docs/ alone.
        if page in DOCS and target.endswith(".md"):
            assert "/" not in target, target


def test_examples_that_are_named_exist() -> None:
    named = {n for p in PAGES for n in re.findall(r"examples/(\w+\.py)", p.read_text("utf-8"))}

    assert named == {path.name for path in (ROOT / "examples").glob("*.py")}
