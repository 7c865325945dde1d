"""What a comparison consists of: rows (methods) by columns (federations) by seeds and rates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedrc_flwr import yaml_files
from fedrc_flwr.algorithms import ALGORITHMS
from fedrc_flwr.config import all_keys, load_config, read_scenario
from fedrc_flwr.errors import ConfigError
from fedrc_flwr.models import VISION
from fedrc_flwr.settings import flattened
from fedrc_flwr.words import similar

FOLDER = Path(__file__).resolve().parent.parent / "comparisons"
Settings = dict[str, Any]
#: A setting for all columns that only some networks have.
WEIGHTS = "model.weights"
#: Local and global accuracy in the paper, from 0 to 1; None where it has none.
Published = tuple[float | None, float | None]


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    row: str
    column: str
    seed: int
    rate: float | None
    settings: Settings

    @property
    def name(self) -> str:
        """For progress lines."""
        rate = "" if self.rate is None else f", learning rate {self.rate:g}"
        return f"{self.column}: {self.row}, seed {self.seed}{rate}"

    @property
    def folder(self) -> Path:
        """Its directory within the comparison's."""
        rate = "" if self.rate is None else f"-rate{self.rate:g}"
        return Path(_slug(self.column)) / _slug(self.row) / f"seed{self.seed}{rate}"


@dataclass(frozen=True)
class Comparison:
    """Every method on every federation.

    Parameters
    ----------
    rows : run-config keys of each method, by its name in the table
    columns : run-config keys of each federation, by its name in the table
    rates : learning rates to try with every method; empty: as configured
    settings : keys for all runs
    scale : fraction of clients, data and rounds
    reproduces : which tables and figures of the paper it stands for
    paper : the paper's figures by column and row
    differs : what is not as in the paper
    small : keys of its small form besides the usual ones
    """

    title: str
    rows: dict[str, Settings]
    columns: dict[str, Settings]
    seeds: tuple[int, ...] = (0,)
    rates: tuple[float, ...] = ()
    settings: Settings = field(default_factory=dict)
    scale: float = 1.0
    reproduces: str = ""
    paper: dict[str, dict[str, Published]] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    small: Settings = field(default_factory=dict)

    def cells(self) -> Iterator[Cell]:
        """All runs, one seed after another, so that a table of one seed is ready early."""
        for seed in self.seeds:
            for column in self.columns:
                for row in self.rows:
                    for rate in self.rates or (None,):
                        yield Cell(row, column, seed, rate, self._settings(row, column, seed, rate))

    def to_json(self) -> dict[str, Any]:
        """What decides the runs, as JSON, to recognise the comparison when it continues."""
        return {
            "title": self.title,
            "rows": self.rows,
            "columns": self.columns,
            "seeds": list(self.seeds),
            "rates": list(self.rates),
            "settings": self.settings,
            "scale": self.scale,
        }

    def _settings(self, row: str, column: str, seed: int, rate: float | None) -> Settings:
        settings = {**self.columns[column], **self.settings, **self.rows[row], "seed": seed}
        if rate is not None:
            settings["local.learning-rate"] = rate
        # What is set for all rows may concern the algorithms of some.
        others = tuple(f"{name}." for name in ALGORITHMS if name != settings.get("algorithm"))
        settings = {n: value for n, value in settings.items() if not n.startswith(others)}
        if WEIGHTS in self.settings and not self.takes_weights(column):
            settings.pop(WEIGHTS, None)
        return scaled(settings, self.scale)

    def takes_weights(self, column: str) -> bool:
        """Whether a column's network can start from a file of weights."""
        own = {**self.columns[column], **self.settings}
        scenario = read_scenario(str(own["scenario"])) if "scenario" in own else {}
        return {**scenario, **own}.get("model.network") in VISION


def scaled(settings: Settings, scale: float) -> Settings:
    """The same federation with fewer clients of the same size, for fewer rounds."""
    from fedrc_flwr.data.scenario import scenario_of

    if scale == 1.0:
        return settings
    config, known = load_config(settings), all_keys()
    shrunk = {
        name: min(int(value), math.ceil(int(value) * scale))
        for name, value in config.to_dict().items()
        if known[name].metadata["rounds"] and not config.needs_start(name)
    }
    return {**settings, **shrunk, **scenario_of(config.data, config.seed).smaller(scale)}


def comparison_names() -> list[str]:
    """The ready-made comparisons."""
    return yaml_files.names(FOLDER)


def read_comparison(name_or_path: str) -> Comparison:
    """A ready-made comparison, or one from a file."""
    path, content = yaml_files.read("comparison", name_or_path, FOLDER)
    try:
        return _parsed(content, path.stem)
    except ConfigError as error:
        raise ConfigError(f"comparison file {path}: {error}") from None


def of_scenario(scenario: str, algorithms: Iterable[str]) -> Comparison:
    """The given algorithms on one scenario."""
    rows: dict[str, Settings] = {}
    for name in algorithms:
        rows[name] = {"algorithm": name}
        if name == "local-only":
            rows[name]["local-only.share-models"] = True  # or observers would get an untrained one
    column = {Path(scenario).stem: {"scenario": scenario}}
    return Comparison(f"Comparison on {Path(scenario).stem}", rows, column)


def check(comparison: Comparison, data: bool = True) -> None:
    """Refuse wrong keys and, where ``data`` are needed, missing ones before anything is started."""
    from fedrc_flwr.data.scenario import scenario_of

    if not 0 < comparison.scale <= 1:
        raise ConfigError(f"scale = {comparison.scale:g}: expected a number above 0, at most 1")
    if len(set(comparison.seeds)) < max(len(comparison.seeds), 1):
        raise ConfigError(f"seeds = {list(comparison.seeds)}: expected different whole numbers")
    if len(set(comparison.rates)) < len(comparison.rates):
        rates = ", ".join(f"{rate:g}" for rate in comparison.rates)
        raise ConfigError(f"learning rates {rates}: expected different numbers")
    if not comparison.rows or not comparison.columns:
        raise ConfigError("a comparison needs at least one row and one column")
    folders = [cell.folder for cell in comparison.cells()]
    if len(set(folders)) < len(folders):
        raise ConfigError("two rows or two columns have names that differ in punctuation alone")
    _refuse_overridden(comparison)
    for cell in comparison.cells():
        load_config(cell.settings)
    for column in comparison.columns if data else ():
        for cell in comparison.cells():
            if cell.column == column:
                config = load_config(cell.settings)
                scenario_of(config.data, config.seed).client(0)
                break


def _refuse_overridden(comparison: Comparison) -> None:
    """Refuse settings that the comparison itself decides."""
    decided = {
        "seed": "a comparison has seeds: give them with --seeds",
        "run.name": "a comparison names its runs itself: give its directory with --output",
        "run.output-dir": "a comparison has a directory for all its runs: give it with --output",
    }
    if comparison.rates:
        rates = ", ".join(f"{rate:g}" for rate in comparison.rates)
        decided["local.learning-rate"] = (
            f"this comparison tries the learning rates {rates}: give others with --learning-rates"
        )
    tables = (comparison.settings, *comparison.rows.values(), *comparison.columns.values())
    for name, reason in decided.items():
        if any(name in table for table in tables):
            raise ConfigError(f"{name}: {reason}")


def part(comparison: Comparison, rows: Sequence[str], columns: Sequence[str]) -> Comparison:
    """The same comparison with these rows and columns alone; empty: all."""
    chosen = []
    for kind, wanted, known in (
        ("row", rows, comparison.rows),
        ("column", columns, comparison.columns),
    ):
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    f"--{kind} {name!r}: no such {kind}{similar(name, known)}; there are "
                    + "; ".join(known)
                )
        chosen.append({name: own for name, own in known.items() if not wanted or name in wanted})
    return replace(comparison, rows=chosen[0], columns=chosen[1])


def with_changes(
    comparison: Comparison,
    seeds: tuple[int, ...],
    rates: tuple[float, ...],
    settings: Settings,
    scale: float | None,
) -> Comparison:
    """The same comparison with the changes of the command line."""
    given = flattened(settings)
    differs = [
        f"{name} = {value}, for all rows that do not set it." for name, value in given.items()
    ]
    if rates and rates != comparison.rates:
        differs.append(f"Learning rates: {', '.join(f'{rate:g}' for rate in rates)}.")
    if scale not in (None, comparison.scale):
        differs.append(f"Scaled by {scale:g}: fewer clients of the same size, fewer rounds.")
    return replace(
        comparison,
        seeds=seeds or comparison.seeds,
        rates=rates or comparison.rates,
        settings={**comparison.settings, **given},
        scale=comparison.scale if scale is None else scale,
        differs=(*comparison.differs, *differs),
    )


def _parsed(content: Settings, stem: str) -> Comparison:
    known = {
        "title", "rows", "columns", "seeds", "learning-rates", "set", "scale", "reproduces",
        "paper", "differs", "small",
    }  # fmt: skip
    if unknown := sorted(set(content) - known):
        raise ConfigError(f"unknown key {unknown[0]!r}: expected {', '.join(sorted(known))}")
    for name in ("rows", "columns"):
        if not isinstance(content.get(name), dict):
            raise ConfigError(f"{name}: expected names, each with its settings")
    scale = content.get("scale", 1.0)
    if not _is_number(scale):
        raise ConfigError(f"scale = {scale!r}: expected a number above 0 and at most 1")
    return Comparison(
        title=str(content.get("title", stem)),
        rows={str(k): _table(f"rows: {k}", v) for k, v in content["rows"].items()},
        columns={str(k): _table(f"columns: {k}", v) for k, v in content["columns"].items()},
        seeds=tuple(_list(content, "seeds", [0], int, "whole numbers, such as [0, 1, 2]")),
        rates=tuple(
            float(rate)
            for rate in _list(content, "learning-rates", [], float, "numbers, such as [0.03, 0.1]")
        ),
        settings=_table("set", content.get("set") or {}),
        scale=float(scale),
        reproduces=str(content.get("reproduces", "")),
        paper=_published(content),
        differs=_texts("differs", content.get("differs") or []),
        small=_table("small", content.get("small") or {}),
    )


def _published(content: Settings) -> dict[str, dict[str, Published]]:
    """The paper's percentages as shares; refuses names that the comparison does not have."""
    found: dict[str, dict[str, Published]] = {}
    for column, rows in (content.get("paper") or {}).items():
        for row, pair in rows.items() if isinstance(rows, dict) else [("", None)]:
            numbers = pair if isinstance(pair, list) else []
            if len(numbers) != 2 or not all(one is None or _is_number(one) for one in numbers):
                raise ConfigError(
                    f"paper: {column}: {row} = {pair!r}: expected local and global accuracy in "
                    "percent, such as [42.1, 34.4]; null where there is none"
                )
            if column not in content["columns"] or row not in content["rows"]:
                raise ConfigError(f"paper: {column}: {row}: no such column or row")
            shares = [None if one is None else one / 100 for one in numbers]
            found.setdefault(column, {})[row] = (shares[0], shares[1])
    return found


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{name} = {value!r}: expected a list of sentences")
    return tuple(value)


def _table(where: str, value: Any) -> Settings:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} = {value!r}: expected settings, such as {{rounds: 20}}")
    return flattened(value)


def _list(content: Settings, name: str, otherwise: list[Any], kind: type, words: str) -> list[Any]:
    value = content.get(name, otherwise)
    if not isinstance(value, list) or not all(
        _is_number(part) and (kind is float or part == int(part)) for part in value
    ):
        raise ConfigError(f"{name} = {value!r}: expected a list of {words}")
    return [kind(part) for part in value]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
