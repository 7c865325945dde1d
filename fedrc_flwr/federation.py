"""Federated learning from Python: a federation of clients with their data, and ``fit``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrc_flwr.config import RunConfig, load_config
from fedrc_flwr.data.inspection import Findings
from fedrc_flwr.data.own import looked_at
from fedrc_flwr.data.scenario import Scenario, scenario_of
from fedrc_flwr.data.settings import NO_SCENARIO
from fedrc_flwr.data.telling import report
from fedrc_flwr.engine.directory import DATA, check_new, clear
from fedrc_flwr.errors import ConfigError, DataError, RunError
from fedrc_flwr.inference.raw import as_array
from fedrc_flwr.plugins import CODE
from fedrc_flwr.report import notebook
from fedrc_flwr.report.log import Event
from fedrc_flwr.report.terminal import Terminal
from fedrc_flwr.run import Run
from fedrc_flwr.settings import flattened
from fedrc_flwr.simulation import FLOWER, IN_PROCESS, run_here
from fedrc_flwr.words import counted

if TYPE_CHECKING:
    from pandas import DataFrame

Settings = Mapping[str, Any]
#: Settings that ``fit`` does not take, and what to do instead.
ELSEWHERE = {
    "scenario": "make another federation",
    "data.dataset": "make another federation",
    "resolved": "leave it out",
    "run.name": "give output, the run's directory",
    "run.output-dir": "give output, the run's directory",
}


class Federation:
    """Clients with their data.

    Parameters
    ----------
    settings : who holds which data: ``scenario``, ``data.*`` and ``model.*``
    name : what runs are called
    keep : the temporary directory that the data is in, if any
    """

    def __init__(
        self, settings: Settings, name: str, keep: TemporaryDirectory[str] | None = None
    ) -> None:
        self.name = name
        self._settings = spelled(settings)
        self._keep = keep
        try:
            self._scenario()  # what cannot be used is refused here
        except DataError as error:
            raise DataError(self._in_python(str(error))) from None

    # --- where the data comes from ---------------------------------------------------------------

    @classmethod
    def from_scenario(cls, scenario: str = "digits", **settings: Any) -> Federation:
        """A ready-made scenario, or the path of a scenario file; see ``fedrc scenario list``.

        Parameters
        ----------
        settings : changes to it, such as ``data={"clients": 6}``
        """
        return cls({**settings, "scenario": scenario}, Path(scenario).stem)

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        client: Any,
        *,
        observer: Any = None,
        concept: Any = None,
        name: str = "arrays",
        **settings: Any,
    ) -> Federation:
        """Arrays or tensors of all samples, and whose they are.

        Parameters
        ----------
        x : (N, ...)
        y : (N,), the labels
        client : (N,), the name or number of the client that holds each sample
        observer : (N,), whether that client is only evaluated and never trained on
        concept : (N,), the client's true concept where it is known, only used to judge the result
        name : what the data is called
        settings : such as ``model={"hidden": 128}`` or ``data={"test-fraction": 0.2}``
        """
        given = {"x": x, "y": y, "client": client, "observer": observer, "concept": concept}
        arrays = {key: as_array(value) for key, value in given.items() if value is not None}
        arrays |= {k: a.astype(str) for k, a in arrays.items() if k != "x" and a.dtype.hasobject}
        if arrays["x"].dtype.hasobject:
            raise DataError("x is an array of objects: expected numbers")
        folder, path = _place(f"{name}.npz")
        np.savez(path, allow_pickle=False, **arrays)
        return cls({**settings, **_own(path)}, name, folder)

    @classmethod
    def from_frame(
        cls,
        frame: DataFrame,
        label: str = "",
        client: str = "",
        *,
        ignore: Sequence[str] = (),
        columns: Sequence[str] = (),
        name: str = "table",
        **settings: Any,
    ) -> Federation:
        """A pandas frame with raw columns: numbers, categories, texts and dates.

        Parameters
        ----------
        label, client : the columns with the labels and with the client of each row; empty: those
            with a usual name, such as ``label`` and ``client``
        ignore : columns to leave out
        columns : the only columns to use, each as ``name`` or ``name:kind``; empty: all
        name : what the data is called
        """
        folder, path = _place(f"{name}.csv")
        frame.to_csv(path, index=False)
        chosen = _chosen(label, client, ignore, columns)
        return cls({**settings, **chosen, **_own(path)}, name, folder)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        label: str = "",
        client: str = "",
        *,
        ignore: Sequence[str] = (),
        columns: Sequence[str] = (),
        **settings: Any,
    ) -> Federation:
        """A ``.csv``, ``.tsv``, ``.parquet`` or ``.npz`` file; see ``from_frame``."""
        path = Path(path).expanduser()
        chosen = _chosen(label, client, ignore, columns)
        return cls({**settings, **chosen, **_own(path)}, path.name.partition(".")[0])

    from_csv = from_parquet = from_file

    @classmethod
    def from_folder(cls, path: str | Path, clients: str = "", **settings: Any) -> Federation:
        """A folder of images with a subfolder per client and in it one per class, or vice versa.

        Parameters
        ----------
        clients : the folders that are clients, ``outer`` or ``inner``; empty: find out
        """
        path = Path(path).expanduser()
        return cls({**settings, **_chosen(client=clients), **_own(path)}, path.resolve().name)

    # --- what is in it ---------------------------------------------------------------------------

    @property
    def clients(self) -> list[str]:
        """Names of all clients, those that train first."""
        scenario = self._scenario()
        return [scenario.outline(index).name for index in range(len(scenario))]

    def check(self) -> Findings:
        """Print what is in the data and what will be done to it, as ``fedrc check``; return it."""
        if not self._scenario().own:
            raise DataError(f"{self.name}: a ready-made dataset, there is nothing to check")
        found = looked_at(self._config({}).data)
        print(self._in_python("\n".join(report(found))))
        return found

    def __repr__(self) -> str:
        scenario = self._scenario()
        observers = f" and {counted(scenario.observers, 'observer')}" if scenario.observers else ""
        return (
            f"<federation {self.name}: {counted(scenario.clients, 'client')}{observers}, "
            f"{scenario.classes} classes, samples of shape {scenario.input_shape}>"
        )

    # --- learning --------------------------------------------------------------------------------

    def fit(
        self,
        rounds: int | None = None,
        *,
        recipe: str | None = None,
        algorithm: str | None = None,
        seed: int | None = None,
        output: str | Path | None = None,
        engine: str = IN_PROCESS,
        progress: bool = True,
        **settings: Any,
    ) -> Run:
        """Train, and return the run.

        Parameters
        ----------
        rounds, recipe, algorithm, seed : as in ``fedrc simulate``; None: as the recipe says
        output : directory for the results, which must be new; None: a temporary one that lives as
            long as the run
        engine : ``in-process``, or ``flower`` for its simulation engine
        progress : whether to show a bar
        settings : any other settings, such as ``local={"epochs": 2}`` or
            ``**{"fedrc.clusters": 4}``; ``fedrc config --all`` lists them
        """
        if engine not in (FLOWER, IN_PROCESS):
            raise ConfigError(f"engine = {engine!r}: expected {IN_PROCESS!r} or {FLOWER!r}")
        named = {"rounds": rounds, "recipe": recipe, "algorithm": algorithm, "seed": seed}
        given = spelled(settings) | {k: v for k, v in named.items() if v is not None}
        for key in given:
            if key in ELSEWHERE:
                raise ConfigError(f"{key}: not a setting of fit: {ELSEWHERE[key]}")
        config = self._config(given)
        keep: object = self._keep
        if output is None:
            folder = TemporaryDirectory(prefix="fedrc-run-")
            directory, keep = Path(folder.name) / self.name, (folder, self._keep)
        else:
            directory = Path(output)
            check_new(directory)
            clear(directory)
            config = self._beside(config, given, directory)
        with _shown(config.rounds, progress) as on_event:
            outcome = run_here(config, directory, on_event, engine)
        if outcome.summary.get("status") == "stopped":
            raise KeyboardInterrupt
        if not outcome.completed:
            raise RunError(f"the run did not complete: {outcome.reason}")
        recorded = config.to_dict()
        return Run(directory, keep, [str(recorded[name]) for name in CODE])

    def _in_python(self, message: str) -> str:
        """A message with arguments instead of options, and without a temporary path."""
        if self._keep is not None:
            message = message.replace(str(self._settings["data.dataset"]), self.name)
        message = re.sub(r"--set (\w+)\.([\w-]+)=(\w+)", r'\1={"\2": \3}', message)
        message = re.sub(r"--(label|client) ([\w-]+)", r'\1="\2"', message)
        return re.sub(r"--(label|client|ignore|columns)\b", r"\1", message)

    def _beside(self, config: RunConfig, given: Settings, directory: Path) -> RunConfig:
        """The same with the data in the run's directory, where it outlives this object."""
        if self._keep is None:
            return config
        source = Path(self._settings["data.dataset"])
        copy = directory / DATA / source.name
        copy.parent.mkdir(parents=True)
        shutil.copyfile(source, copy)
        return self._config({**given, "data.dataset": str(copy)})

    def _config(self, given: Settings) -> RunConfig:
        return load_config({**self._settings, **given}).located()

    def _scenario(self) -> Scenario:
        config = self._config({})
        return scenario_of(config.data, config.seed)


def spelled(settings: Settings) -> dict[str, Any]:
    """Settings under their dotted names: ``local={"batch_size": 16}`` is ``local.batch-size``."""
    return {name.replace("_", "-"): value for name, value in flattened(settings).items()}


def _place(name: str) -> tuple[TemporaryDirectory[str], Path]:
    """A temporary directory, and a file in it."""
    if Path(name).name != name or not Path(name).suffix:
        raise ConfigError(f"name = {Path(name).stem!r}: expected a word that can name a file")
    folder = TemporaryDirectory(prefix="fedrc-data-")
    return folder, Path(folder.name) / name


def _own(path: Path) -> dict[str, Any]:
    return {"scenario": NO_SCENARIO, "data.dataset": str(path)}


def _chosen(
    label: str = "", client: str = "", ignore: Sequence[str] = (), columns: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings that say what the columns of a table are."""
    for name in (*ignore, *columns):
        if "," in name:
            raise ConfigError(f"column {name!r}: cannot be chosen, because of its comma: rename it")
    return {
        "data.label-column": label,
        "data.client-column": client,
        "data.ignore": ",".join(ignore),
        "data.columns": ",".join(columns),
    }


@contextmanager
def _shown(rounds: int, progress: bool) -> Iterator[Callable[[Event], None]]:
    """What to call with each round's event."""
    if not progress:
        yield lambda event: None
        return
    with notebook.Bar(rounds) if notebook.is_running() else Terminal(rounds, lines=False) as bar:
        yield bar.show
