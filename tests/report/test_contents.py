"""What a report shows, against values worked out by hand from the made run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from made_runs import CLASSES, MadeRun

from fedrc_flwr.algorithms.places import SEVERAL, UNPLACED
from fedrc_flwr.config import RunConfig
from fedrc_flwr.errors import LATE, DataError
from fedrc_flwr.report import contents as module
from fedrc_flwr.report import population as population_module
from fedrc_flwr.report.contents import Contents, gather
from fedrc_flwr.report.history import MOST_FAILURES, MOST_POINTS, OTHER, history, thin
from fedrc_flwr.report.log import METRICS
from fedrc_flwr.report.population import MOST_CLIENTS, Table, label_names
from fedrc_flwr.report.tallies import Tallies
from fedrc_flwr.state import ClientRecord


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "made", rounds=9, scenario="digits", algorithm="fedrc", alpha=10.0)


def test_outcome_says_who_is_where_and_how_sure_that_is(made: MadeRun) -> None:
    made.play(6).end()

    found = gather(made.directory)

    # Wards 0 and 3 are in cluster 0; 1, 2, 4, 5 are in cluster 2; all with a weight of 18 / 20.
    assert found.outcome == (
        "FedRC found 2 concepts among 6 clients in 6 rounds: cluster 0 (2 clients: ward-000, "
        "ward-003) and cluster 2 (4 clients: ward-001, ward-004, ward-002, ward-005). Each has a "
        "weight of at least 0.90 in its cluster. Accuracy is 75.0%; what a constant answer scores "
        "is not known, because no client sends counts of its predictions."
    )
    assert found.banners == []
    assert (found.name, found.status, found.notes) == ("made", "completed", [])


def test_warnings_are_banners_and_not_the_outcome(made: MadeRun) -> None:
    made.play(5)
    made.round += 1
    made.log.append({**made.metrics(), "exponent": 0.4})

    found = gather(made.directory)

    assert found.banners == [("undecided", "Undecided: the annealing has not ended.")]
    assert found.outcome.endswith("FedRC has 2 clusters for 6 clients after 6 rounds.")


def test_only_keys_that_differ_from_the_defaults_are_told(made: MadeRun) -> None:
    found = gather(made.directory)

    assert sorted(found.settings) == [
        ("data.alpha", "10.0", "1.0"),
        ("data.clients", "12", "0"),
        ("fedrc.adaptive", "true", "false"),
        ("fedrc.clusters", "4", "3"),
        ("fedrc.merge", "true", "false"),
        ("fedrc.start", "paper", "discover"),
        ("local.clip", "1.0", "0.0"),
        ("local.learning-rate", "0.05", "0.1"),
        ("model.network", "mlp", "empty"),
        ("rounds", "9", "100"),
        ("server.optimizer", "momentum", "sgd"),
    ]
    assert module.changed(RunConfig().to_dict()) == []


def test_no_path_of_the_machine_reaches_the_page(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "run", dataset="/home/ann/secret/wards.npz", output_dir="/home/ann/x")

    found = json.dumps(gather(made.directory).to_json())

    assert "wards.npz" in found
    assert "/home/ann" not in found


def test_evidence_is_sorted_by_group(made: MadeRun) -> None:
    made.play(2)

    found = gather(made.directory).history.discovery

    assert found.said == [(1, "2 concepts among 6 clients")]
    assert found.established is True
    assert found.clients == ["ward-000", "ward-003", "ward-001", "ward-002", "ward-004", "ward-005"]
    assert found.groups == [0, 0, 2, 2, 2, 2]
    assert found.evidence[0] == [5.0, 5.0, -4.0, -4.0, -4.0, -4.0]


def test_series_and_changes(made: MadeRun) -> None:
    made.play(6)

    told = gather(made.directory).history

    assert {s.name: s.points for s in told.accuracy}["training clients"] == [
        (2, 0.75), (4, 0.75), (6, 0.75),
    ]  # fmt: skip
    assert {s.name: s.points for s in told.loss}["while training"][:3] == [
        (1, 2.0), (2, 1.0), (3, 0.66667),
    ]  # fmt: skip
    assert [(c.round, c.text) for c in told.changes] == [
        (3, "cluster 1 merged into 0"),
        (4, "cluster 3 removed"),
    ]
    assert told.epsilon[0].points[-1] == (6, 0.6)
    assert [s.points[0] for s in told.traffic] == [(1, 4000.0), (1, 3000.0)]


def test_shares_sum_to_one_in_every_round_and_end_with_their_cluster(made: MadeRun) -> None:
    made.play(6)

    shares = gather(made.directory).history.shares

    assert list(shares) == [0, 1, 2, 3]
    assert {len(points) for points in shares.values()} == {6}
    sums = np.sum([[value for _, value in points] for points in shares.values()], axis=0)
    assert sums == pytest.approx(np.ones(6), abs=1e-4)
    assert [value > 0 for _, value in shares[1]] == [True, True, False, False, False, False]
    # 18 of 20 samples of two wards in six, and 2 of 20 of the other four: (36 + 8) / 120
    assert shares[0][-1] == (6, pytest.approx(44 / 120, abs=1e-5))


def test_failed_and_late_clients_are_told_apart(made: MadeRun) -> None:
    made.play(6)

    failures = gather(made.directory).history.failures

    named = [(r, failures.clients[c], failures.reasons[w]) for r, c, w in failures.points]
    assert named == [
        (2, "ward-001", LATE),
        (5, "ward-000", "error 2: the app raised"),
        (5, "ward-001", LATE),
    ]
    assert dict(zip(failures.reasons, failures.late(), strict=True)) == {
        LATE: True,
        "error 2: the app raised": False,
    }
    assert failures.total == 3


def test_clients_are_sorted_by_cluster_with_weights_and_truth(made: MadeRun) -> None:
    made.play(6)

    people = gather(made.directory).population

    assert [(c.name, c.cluster, c.concept) for c in people.clients] == [
        ("ward-000", 0, 0), ("ward-003", 0, 0), ("ward-001", 2, 1), ("ward-004", 2, 1),
        ("ward-002", 2, 2), ("ward-005", 2, 2), ("observer-0", 0, 0),
    ]  # fmt: skip
    assert people.clients[0].weights == [0.9, 0.1]
    assert people.clients[-1].weights is None
    assert people.clients[-1].accuracy == 0.5
    assert [(c.id, c.clients, c.accuracy) for c in people.clusters] == [(0, 2, 0.5), (2, 4, 0.9)]


@pytest.mark.parametrize(
    ("weights", "cluster", "several"),
    [([0.6, 0.4], SEVERAL, True), ([0.6, 0.4], UNPLACED, False), ([1.0, 0.0], SEVERAL, False)],
)
def test_client_holds_several_concepts_if_it_was_found_to_and_still_does(
    weights: list[float], cluster: int, several: bool
) -> None:
    counts = 10.0 * np.array(weights)[:, None]
    record = ClientRecord("train", 10, label_counts=counts, cluster=cluster)

    found = population_module._client("ward", record, (0, 2), {}, Tallies())

    assert json.loads(json.dumps(asdict(found)))["several"] is several


def test_client_has_its_course_its_scores_and_its_counts(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made", tallies=True).play(6)

    found = gather(made.directory)

    ward = next(c for c in found.population.clients if c.name == "ward-001")
    assert ward.confusion == [(1, 1, 9), (1, 2, 1)]
    assert ward.right == {"0": 1, "2": 9}
    assert ward.scores == {
        "samples": 10.0, "balanced_accuracy": 0.9, "macro_f1": 0.47368, "constant_accuracy": 1.0,
    }  # fmt: skip
    course = found.history.courses["ward-001"]
    assert course.accuracy == [(2, 0.9), (4, 0.9), (6, 0.9)]
    assert [number for number, _ in course.weights[1]] == [1, 2]  # merged in round 3
    assert course.weights[2][-1] == (6, 0.9)


def test_confusion_of_a_cluster_is_the_sum_of_its_training_clients(tmp_path: Path) -> None:
    found = gather(MadeRun(tmp_path / "made", tallies=True).play(6).directory)

    # Cluster 0 has wards 0 and 3, whose labels are 0 and 3.
    assert found.population.clusters[0].confusion == [(0, 0, 5), (0, 1, 5), (3, 0, 5), (3, 3, 5)]
    assert found.history.scores["clusters"]["0"]["samples"] == 20


def test_matrices_of_very_many_clients_are_left_to_the_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population_module, "MOST_TRIPLES", 3)

    people = gather(MadeRun(tmp_path / "made", tallies=True).play(2).directory).population

    assert {client.confusion for client in people.clients} == {None}
    assert people.clusters[0].confusion


def test_labels_have_the_names_that_the_run_recorded(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made").play(1)
    names = ["a", "b", "c", "d"]

    assert gather(made.directory).population.labels == ["0", "1", "2", "3"]
    assert label_names({"data.schema": json.dumps({"classes": names})}, 4) == names
    for other in ("", "not JSON", "[]", json.dumps({"classes": ["a"]})):
        assert label_names({"data.schema": other}, 4) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("content", ["{", "[]", '{"round": 1, "clients": {"a": {}}}'])
def test_counts_of_another_version_do_not_stop_the_report(made: MadeRun, content: str) -> None:
    made.play(2)
    (made.directory / "evaluation.json").write_text(content)

    assert gather(made.directory).population.clusters[0].confusion == []


def test_samples_by_class_style_and_concept(made: MadeRun) -> None:
    made.play(6)

    people = gather(made.directory).population

    # Each ward has 2 samples spread over the labels of its other cluster: 0.5 of every label.
    assert people.classes.rows == ["0", "1", "2", "3"]
    # Label 0 is the main one of wards 0 (cluster 0) and 4 (cluster 2).
    assert people.classes.values[0] == [18 + 4 * 0.5, 18 + 2 * 0.5]
    assert people.concepts == Table(
        ["concept 0", "concept 1", "concept 2"], [[36.0, 4.0], [4.0, 36.0], [4.0, 36.0]]
    )
    assert people.styles.rows == ["none", "fog"]
    assert people.styles.values == [[18 + 4.0, 2 + 36.0], [18 + 4.0, 2 + 36.0]]


def test_label_prior_is_the_one_that_the_run_uses(tmp_path: Path) -> None:
    clear = gather(MadeRun(tmp_path / "clear", noise=0.01).play(6).directory).population
    hidden = gather(MadeRun(tmp_path / "hidden", noise=40.0).play(6).directory).population

    assert np.sum(clear.label_prior, axis=1) == pytest.approx([1.0, 1.0], abs=1e-3)
    assert clear.label_prior[0][0] == pytest.approx(20 / 44, abs=1e-4)
    assert np.array(hidden.label_prior) == pytest.approx(np.full((2, CLASSES), 1 / CLASSES))


def test_run_that_was_killed_between_metrics_and_checkpoint(made: MadeRun) -> None:
    made.play(3).play(1, checkpoint=False)

    found = gather(made.directory)

    assert found.status == "unfinished"
    assert found.history.last_round == 4
    assert found.population.round == 3
    assert any("round 3, the last checkpoint" in note for note in found.notes)


def test_torn_last_line_is_left_out(made: MadeRun) -> None:
    made.play(4)
    path = made.directory / METRICS
    path.write_bytes(path.read_bytes()[:-40])

    found = gather(made.directory)

    assert found.history.last_round == 3
    assert found.population.round == 4


def test_torn_checkpoint_gives_way_to_the_one_before(made: MadeRun) -> None:
    made.play(4)
    newest = made.directory / "checkpoints" / "round-000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])

    found = gather(made.directory)

    assert found.population.round == 3
    assert any("cannot be read" in note for note in found.notes)


def test_no_readable_checkpoint_at_all(made: MadeRun) -> None:
    made.play(1)
    (made.directory / "checkpoints" / "round-000001.safetensors").write_bytes(b"nonsense")

    found = gather(made.directory)

    assert found.population.clients == []
    assert "no checkpoint to read its clusters from" in found.outcome
    assert any("No checkpoint can be read" in note for note in found.notes)


def test_empty_directory_and_run_before_its_first_round(tmp_path: Path, made: MadeRun) -> None:
    (tmp_path / "empty").mkdir()

    for directory in (tmp_path / "empty", made.directory):
        found = gather(directory)
        assert found.outcome == "No round has finished yet."
        assert found.figures == []
        assert any("no checkpoint yet" in note for note in found.notes)


def test_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        gather(tmp_path / "gone")


def test_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").touch()

    with pytest.raises(DataError, match="holds no run"):
        gather(tmp_path)


def test_failed_run_says_why(made: MadeRun) -> None:
    made.play(2).end("failed", "nobody came")

    found = gather(made.directory)

    assert (found.status, found.reason) == ("failed", "nobody came")


def test_contents_are_json_without_nan(made: MadeRun) -> None:
    made.play(2)
    made.log.append({**made.metrics(), "round": 3, "loss": float("nan"), "epsilon": float("inf")})

    text = json.dumps(gather(made.directory).to_json(), allow_nan=False)

    assert json.loads(text)["history"]["last_round"] == 3


def test_metrics_of_another_version_do_not_stop_the_report(made: MadeRun) -> None:
    for event in (
        {"round": "x"},
        {"round": 1},
        {"round": 2, "clusters": [0], "shares": [1.0], "failed": None},
    ):
        made.log.append(event)

    found = gather(made.directory)

    assert found.history.last_round == 2
    assert found.history.shares == {0: [(2, 1.0)]}


@pytest.mark.parametrize(("count", "most"), [(0, 5), (5, 5), (6, 5), (1000, 7)])
def test_thinning_keeps_both_ends_and_no_more_than_asked(count: int, most: int) -> None:
    kept = thin(count, most)

    assert len(kept) == min(count, most)
    assert kept == sorted(set(kept))
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)


def test_long_runs_are_thinned_but_changes_stay() -> None:
    events = [
        {"round": r, "loss": 1.0, "clusters": [0, 1], "shares": [0.5, 0.5],
         "removed": [2] if r == 1234 else []}
        for r in range(1, 5001)
    ]  # fmt: skip

    told = history(events)

    assert len(told.loss[0].points) == MOST_POINTS
    assert told.loss[0].points[-1][0] == 5000
    assert 1234 in [number for number, _ in told.shares[0]]
    assert list(told.shares) == [0, 1, 2]


def test_floods_of_failures_are_bounded() -> None:
    events = [
        {"round": r, "failed": {f"c{i}": f"reason {r} {i}" for i in range(300)}}
        for r in range(1, 101)
    ]

    failures = history(events).failures

    assert failures.total == 30_000
    assert len(failures.points) == MOST_FAILURES
    assert failures.reasons[-1] == OTHER
    assert len(failures.reasons) == 101


def test_very_many_clients_are_thinned_and_it_is_said(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "many", clients=MOST_CLIENTS + 500).play(1)

    found: Contents = gather(made.directory)

    assert len(found.population.clients) == MOST_CLIENTS
    assert found.population.total == MOST_CLIENTS + 501
    assert sum(c.clients for c in found.population.clusters) == MOST_CLIENTS + 500
    assert sum(map(sum, found.population.classes.values)) == pytest.approx(
        20 * (MOST_CLIENTS + 500), rel=1e-3
    )
    assert any("chosen evenly" in note for note in found.notes)
    assert len(found.population.label_prior[0]) == CLASSES
