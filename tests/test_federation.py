"""From Python: a federation of arrays, what a fit returns, and what is refused."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import fedrc_flwr
from fedrc_flwr import Federation, Run
from fedrc_flwr.errors import CheckpointError, ConfigError, DataError, FedRCError, RunError
from fedrc_flwr.inference import load_exported, load_trained, read_weights, scenario_client
from fedrc_flwr.report import notebook

#: Two groups of points; clients c and d call each group by the other's name.
CLIENTS = ("a", "b", "c", "d")
SWAPPED = ("c", "d")
SMALL: dict[str, Any] = {
    "rounds": 20,
    "progress": False,
    "fedrc": {
        "start": "paper",
        "clusters": 2,
        "annealing_rounds": 6,
        "merge": False,
        "adaptive": False,
    },
    "local": {"epochs": 2, "batch_size": 20},
}


def points(rows: int, swapped: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, rows)
    x = rng.normal(0.0, 0.5, (rows, 2)).astype(np.float32)
    x[:, 0] += 4.0 * group - 2.0
    return x, 1 - group if swapped else group


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = [points(60, name in SWAPPED, seed) for seed, name in enumerate(CLIENTS)]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    return x, y, np.repeat(CLIENTS, 60)


def two_meanings(**settings: Any) -> Federation:
    return Federation.from_arrays(*arrays(), name="points", model={"hidden": 8}, **settings)


@pytest.fixture(scope="module")
def run() -> Run:
    return two_meanings().fit(**SMALL)


# --- what a run says ----------------------------------------------------------------------------


def test_clients_that_agree_share_a_cluster(run: Run) -> None:
    assert sorted(run.clusters.values()) == [["a", "b"], ["c", "d"]]
    for name, weights in run.weights.items():
        assert set(weights) == set(run.clusters)
        assert sum(weights.values()) == pytest.approx(1.0)
        assert name in run.clusters[max(weights, key=weights.__getitem__)]


def test_history_has_a_row_for_each_round(run: Run) -> None:
    assert run.history.index.tolist() == list(range(1, 21))
    assert run.history["loss"].iloc[-1] < run.history["loss"].iloc[0]
    # Evaluated after every fifth round.
    assert run.history["local_accuracy"].dropna().index.tolist() == [5, 10, 15, 20]
    assert run.history["local_accuracy"].iloc[-1] == run.accuracy == run.summary["local_accuracy"]


def test_clients_are_a_table(run: Run) -> None:
    assert run.clients.index.tolist() == list(CLIENTS)
    assert run.clients["samples"].tolist() == [54] * 4  # a tenth is held out
    assert run.clients["accuracy"].mean() == pytest.approx(run.accuracy)
    for name in CLIENTS:
        assert name in run.clusters[run.clients.loc[name, "cluster"]]


def test_run_says_its_result_and_who_is_where(run: Run) -> None:
    assert run.headline in repr(run)
    assert "points" in repr(run)
    assert ">a, b<" in run._repr_html_()


def test_names_of_clients_are_not_markup() -> None:
    x, y = points(20, False, 0)
    federation = Federation.from_arrays(x, y, np.repeat(["<b>", "c"], 10))

    shown = federation.fit(rounds=1, progress=False, algorithm="fedavg")._repr_html_()

    assert "<b>" not in shown
    assert "&lt;b&gt;" in shown


# --- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedrc", "fedavg", "ifca", "cfl"])
def test_model_predicts_as_the_run_evaluated(algorithm: str) -> None:
    federation = Federation.from_scenario("digits", data={"clients": 3, "samples_per_client": 80})
    run = federation.fit(rounds=2, progress=False, algorithm=algorithm, model={"hidden": 8})

    assert len(run.clients) == 6
    for name in run.clients.index:
        test = scenario_client(run.trained.config, name).test
        right = run.model(name).predict(test.inputs) == test.labels
        assert right.mean() == pytest.approx(run.clients.loc[name, "accuracy"])


def test_probabilities_are_the_weighted_mean_of_the_clusters(run: Run) -> None:
    model = run.model("b")
    x, _ = points(1500, False, 9)  # more than one batch
    inputs = run.trained.schema.scaled(x)
    each = run.trained.log_probabilities(inputs).exp().numpy()  # (N, K, C)
    weights = np.array([run.weights["b"][cluster] for cluster in run.clusters])

    np.testing.assert_allclose(
        model.predict_proba(x), np.einsum("nkc,k->nc", each, weights), atol=1e-5
    )
    assert model.predict_proba(x[:0]).shape == (0, 2)


def test_tensors_and_arrays_give_the_same(run: Run) -> None:
    x, _ = points(10, False, 9)
    tensor = torch.from_numpy(x).requires_grad_()

    np.testing.assert_array_equal(run.model("a").predict(tensor), run.model("a").predict(x))


def test_swapped_clients_answer_the_other_way_round(run: Run) -> None:
    x = np.array([[-2.0, 0.0], [2.0, 0.0]])

    assert run.model("a").predict(x).tolist() == [0, 1]
    assert run.model("d").predict(x).tolist() == [1, 0]


def test_newcomer_is_assigned_by_its_labels(run: Run) -> None:
    x, y = points(30, True, 77)

    model = run.model_for(x, torch.from_numpy(y))

    assert model.cluster == run.model("c").cluster
    assert model.assignment is not None
    assert model.assignment.samples == 30
    assert f"cluster {model.cluster}" in repr(model)
    assert "30 labelled samples" in repr(model)


def test_observer_has_a_model_without_having_trained() -> None:
    x, y, client = arrays()
    federation = Federation.from_arrays(x, y, client, observer=client == "d")

    run = federation.fit(**SMALL)

    assert federation.clients == ["a", "b", "c", "d"]
    assert sorted(run.weights) == ["a", "b", "c"]
    assert run.model("d").cluster == run.model("c").cluster == run.clients.loc["d", "cluster"]


def test_model_is_saved_and_exported(run: Run, tmp_path: Path) -> None:
    x, _ = points(10, False, 9)
    model = run.model("c")

    weights = read_weights(model.save(tmp_path / "c.json"), load_trained(run.directory))
    exported = load_exported(model.export(tmp_path / "c.pt2"), [str(tmp_path / "c.pt2")])

    assert dict(zip(weights.clusters, weights.values.tolist(), strict=True)) == model.weights
    np.testing.assert_allclose(exported.probabilities(x), model.predict_proba(x), atol=1e-5)


@pytest.mark.parametrize(
    ("x", "problem"),
    [
        (np.zeros(2), "one sample"),
        (np.zeros((3, 5)), r"\(N, 2\)"),
        (np.array([["a", "b"]]), "expected numbers"),
    ],
)
def test_samples_that_do_not_fit_are_refused(run: Run, x: np.ndarray, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        run.model("a").predict(x)


@pytest.mark.parametrize(
    ("y", "problem"),
    [(np.zeros(3), "y has the shape"), (np.full(2, 2), "label '2'"), (None, "y is missing")],
)
def test_labels_that_do_not_fit_are_refused(run: Run, y: np.ndarray | None, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        run.model_for(np.zeros((2, 2)), y)


def test_client_that_is_unknown_is_refused(run: Run) -> None:
    with pytest.raises(DataError, match="client 'e': the run has a to d"):
        run.model("e")


def test_personal_networks_are_not_taken_for_the_shared_ones() -> None:
    run = two_meanings().fit(rounds=1, progress=False, algorithm="pfedme")

    assert sorted(run.weights) == list(CLIENTS)
    with pytest.raises(CheckpointError, match="pFedMe predicts with a network of its own"):
        run.model("a")


# --- tables, files, folders ---------------------------------------------------------------------


def wards(rows: int = 60) -> pandas.DataFrame:
    """Raw units, a missing value, names for labels; the wards c and d swap the two findings."""
    parts = []
    for seed, name in enumerate(CLIENTS):
        rng = np.random.default_rng(seed)
        crp = rng.choice([20.0, 220.0], rows) + rng.normal(0, 15, rows).round(1)
        ill = (crp > 120) != (name in SWAPPED)
        sex = rng.choice(["f", "m"], rows)
        finding = np.where(ill, "sepsis", "well")
        parts.append(pandas.DataFrame({"ward": name, "sex": sex, "crp": crp, "finding": finding}))
    frame = pandas.concat(parts, ignore_index=True)
    frame.loc[5, "crp"] = np.nan
    return frame


@pytest.fixture(scope="module")
def table() -> Run:
    return Federation.from_frame(wards(), "finding", "ward", model={"hidden": 8}).fit(**SMALL)


def test_raw_rows_go_in_and_names_come_out(table: Run) -> None:
    rows = pandas.DataFrame({"crp": [20.0, 220.0], "sex": ["m", "f"]})  # in another order

    assert sorted(table.clusters.values()) == [["a", "b"], ["c", "d"]]
    assert table.model("a").classes.tolist() == ["sepsis", "well"]
    assert table.model("a").predict(rows).tolist() == ["well", "sepsis"]
    assert table.model("c").predict(rows).tolist() == ["sepsis", "well"]
    assert table.model("c").predict_proba(rows)[0, 0] > 0.9


def test_numbers_of_a_table_are_scaled_even_if_their_columns_are_all_it_has() -> None:
    x, y, client = arrays()
    frame = pandas.DataFrame({"crp": 1000.0 + 300.0 * x[:, 0], "age": 60.0 + x[:, 1]})
    run = Federation.from_frame(frame.assign(y=y, client=client)).fit(**SMALL | {"rounds": 1})
    inputs = run.trained.schema.features(frame)
    assert inputs.shape == frame.shape
    each = run.trained.log_probabilities(inputs).exp().numpy()
    weights = np.array(list(run.weights["a"].values()))

    found = run.model("a").predict_proba(frame)

    np.testing.assert_allclose(found, np.einsum("nkc,k->nc", each, weights), atol=1e-5)


def test_newcomer_with_a_table_is_assigned_by_its_labels(table: Run) -> None:
    frame = wards().query("ward == 'd'").head(30)

    by_column = table.model_for(frame)
    by_labels = table.model_for(frame, frame["finding"].tolist())

    assert by_column.cluster == by_labels.cluster == table.model("c").cluster


def test_table_models_want_a_table(table: Run) -> None:
    with pytest.raises(DataError, match="trained on a table"):
        table.model("a").predict(np.zeros((2, 2)))
    with pytest.raises(DataError, match="'crp'"):
        table.model("a").predict(pandas.DataFrame({"sex": ["f"]}))


def test_table_that_cannot_be_used_is_refused_in_python_s_words() -> None:
    with pytest.raises(DataError) as refused:
        Federation.from_frame(wards().drop(columns="finding"), "crp", name="wards")

    message = str(refused.value)
    assert message.startswith("wards: ")
    assert "quantity" in message  # the label is a number
    assert 'such as client="ward"' in message  # and nothing is a client
    assert 'use data={"clients": 12}' in message
    assert not re.search("--(client|label|set)", message)


def test_check_prints_and_returns_what_is_in_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = Federation.from_frame(wards(), "finding", "ward", name="wards").check()

    assert found.clients == dict.fromkeys(CLIENTS, 60)
    assert found.problems == ()
    told = capsys.readouterr().out
    assert told.startswith("wards: ")
    assert "sepsis" in told
    with pytest.raises(DataError, match="ready-made"):
        Federation.from_scenario("digits").check()


def test_text_labels_of_arrays_come_out_again() -> None:
    x, y, client = arrays()
    named = pandas.Series(np.array(["left", "right"])[y], dtype=object)

    run = Federation.from_arrays(x, named, client).fit(rounds=1, progress=False)

    assert set(run.model("a").predict(x)) <= {"left", "right"}
    assert run.model("a").classes.tolist() == ["left", "right"]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_are_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"wards.{form}"
    if form == "csv":
        wards().to_csv(path, sep=";", index=False)
        federation = Federation.from_csv(path, "finding", "ward", ignore=["sex"])
    else:
        wards().to_parquet(path)
        federation = Federation.from_parquet(path, "finding", "ward", columns=["crp:number"])

    assert repr(federation).startswith("<federation wards: 4 clients, 2 classes")
    assert federation.clients == list(CLIENTS)


def test_folder_of_images_is_read(tmp_path: Path) -> None:
    for ward in ("north", "south"):
        for finding in ("ill", "well"):
            (tmp_path / "scans" / ward / finding).mkdir(parents=True)
            for number in range(3):
                pixels = np.full((6, 6), 40 * number + 100 * (finding == "ill"), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "scans" / ward / finding / f"{number}.png")

    federation = Federation.from_folder(tmp_path / "scans", clients="outer")

    assert federation.clients == ["north", "south"]
    assert repr(federation) == "<federation scans: 2 clients, 2 classes, samples of shape (6, 6)>"


def test_column_with_a_comma_cannot_be_chosen() -> None:
    with pytest.raises(ConfigError, match="rename it"):
        Federation.from_frame(wards(), "finding", "ward", ignore=["a,b"])


# --- where results are --------------------------------------------------------------------------


def test_results_are_temporary_and_last_as_long_as_the_run() -> None:
    run = two_meanings().fit(rounds=1, progress=False, algorithm="fedavg")
    gc.collect()
    directory = run.directory
    source = Path(str(run.trained.config.to_dict()["data.dataset"]))
    assert source.exists()  # the federation's data is still there, too

    del run
    gc.collect()

    assert not directory.exists()
    assert not source.exists()


def test_run_in_a_directory_can_be_opened_again(tmp_path: Path) -> None:
    first = two_meanings().fit(
        rounds=2, progress=False, algorithm="fedavg", output=tmp_path / "run"
    )
    gc.collect()

    again = Run.load(tmp_path / "run")

    assert again.clusters == first.clusters
    assert again.summary == first.summary
    assert len(scenario_client(again.trained.config, "a").test) == 6


def test_directory_must_be_new(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ConfigError, match="not empty"):
        two_meanings().fit(rounds=1, output=tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_directory_without_a_run_is_refused(tmp_path: Path, there: bool) -> None:
    with pytest.raises(FedRCError):
        Run.load(tmp_path if there else tmp_path / "nowhere")


def test_show_says_where_the_page_is(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.show()

    page = Path(capsys.readouterr().out.removeprefix("report in ").strip())
    assert page.parent == run.directory
    assert "<html" in page.read_text("utf-8")
    assert not notebook.is_running()


# --- settings -----------------------------------------------------------------------------------


def test_settings_are_nested_or_dotted_with_dashes_or_underscores() -> None:
    federation = Federation.from_scenario("digits", data={"clients": 3, "observers_per_concept": 0})

    run = federation.fit(
        rounds=1,
        seed=5,
        progress=False,
        model={"hidden": 4},
        local={"learning_rate": 0.25},
        **{"fedrc.start": "paper", "fedrc.clusters": 2, "local.batch-size": 7},
    )

    config = run.trained.config.to_dict()
    assert len(federation.clients) == config["data.clients"] == 3
    assert config["seed"] == 5
    assert (config["local.learning-rate"], config["local.batch-size"]) == (0.25, 7)
    assert (config["fedrc.clusters"], config["model.hidden"]) == (2, 4)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rouns": 3}, "did you mean 'rounds'"),
        ({"local": {"epoch": 3}}, "did you mean 'local.epochs'"),
        ({"rounds": 0}, "rounds = 0"),
        ({"recipe": "none-such"}, "no such recipe"),
        ({"engine": "ray"}, "engine = 'ray'"),
        ({"scenario": "digits"}, "make another federation"),
        ({"run": {"name": "x"}}, "give output"),
        ({"resolved": True}, "resolved"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        two_meanings().fit(**settings)


def test_data_that_cannot_be_used_is_refused_at_once() -> None:
    x, y, client = arrays()
    with pytest.raises(DataError, match="differ in length"):
        Federation.from_arrays(x, y[:-1], client)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_run_that_fails_raises_with_its_reason() -> None:
    with pytest.raises(RunError, match=r"did not complete.*too few usable replies"):
        two_meanings().fit(
            rounds=3, progress=False, algorithm="fedavg", local={"learning-rate": 1e30}
        )


# --- the package --------------------------------------------------------------------------------


def test_importing_the_package_is_light() -> None:
    code = "import sys, fedrc_flwr; print({'torch', 'pandas', 'flwr'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="no attribute 'Federations'"):
        _ = fedrc_flwr.Federations
