"""What a run may claim: each sentence needs its evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrc_flwr.config import load_config
from fedrc_flwr.engine.in_process import run_in_process
from fedrc_flwr.report.headline import Headline, headline, parted
from fedrc_flwr.report.history import history
from fedrc_flwr.report.population import Client, Cluster, Population, Table

FEDRC = {"algorithm": "fedrc", "fedrc.adaptive": True, "fedrc.merge": True}
GOOD = {
    "samples": 200, "accuracy": 0.9, "balanced_accuracy": 0.9, "error": 0.02, "better": True,
    "constant_accuracy": 0.5, "constant_balanced_accuracy": 0.5, "auc": None, "ranks": False,
}  # fmt: skip
#: Two clusters of 100 test samples: each model is right on 90 of its own and on 10 of the other's.
APART = {
    "0": {"samples": 100, "right": {"0": 90, "2": 10}},
    "2": {"samples": 100, "right": {"0": 10, "2": 90}},
}


def people(
    *weights: list[float], ids: tuple[int, ...] = (0, 2), labels: tuple[float, ...] = ()
) -> Population:
    clients = [
        Client(f"ward-{i}", "train", 20, ids[int(np.argmax(w))], w, -1, "", 0.9)
        for i, w in enumerate(weights)
    ]
    clusters = [Cluster(k, 0.5, sum(c.cluster == k for c in clients), 0.9) for k in ids]
    nothing = Table([], [])
    held = Table([str(y) for y in range(len(labels))], [[samples] for samples in labels])
    total = len(clients)
    return Population(9, clusters, clients, total, total, 0, held, nothing, nothing, [])


SURE = people([0.95, 0.05], [0.9, 0.1], [0.05, 0.95])


def said(
    population: Population = SURE,
    config: dict[str, Any] = FEDRC,
    status: str = "completed",
    reason: str = "",
    local: dict[str, Any] = GOOD,
    clusters: dict[str, Any] = APART,
    **last: Any,
) -> Headline:
    """The headline of a run of nine quiet rounds, of which the last also has other metrics."""
    events: list[dict[str, Any]] = [
        {"round": number, "movement": 0.01, "loss": 1.0, "exponent": 1.0} for number in range(1, 10)
    ]
    events[-1] |= {"scores": {"local": local, "clusters": clusters}, "local_accuracy": 0.9, **last}
    return headline(config, history(events), population, status, reason)


def test_concepts_with_their_clients_and_how_sure_that_is() -> None:
    assert said().text == (
        "FedRC found 2 concepts among 3 clients in 9 rounds: cluster 0 (2 clients: ward-0, ward-1) "
        "and cluster 2 (1 client: ward-2). Each has a weight of at least 0.90 in its cluster. "
        "Balanced accuracy is 90.0% on 200 test samples (a constant answer: 50.0%), accuracy 90.0% "
        "(50.0%)."
    )
    assert said().kinds == ["concepts", "accuracy"]


def test_client_between_clusters_is_named_with_its_weight() -> None:
    found = said(people([0.95, 0.05], [0.9, 0.1], [0.05, 0.95], [0.6, 0.4]))

    assert "cluster 0 (2 clients: ward-0, ward-1)" in found.text
    assert "except 1 client between clusters (ward-3: 0.60)" in found.text


def test_client_that_holds_several_concepts_is_named_with_its_shares() -> None:
    # Two of five, with a weight in one cluster that would otherwise place the last.
    everybody = people([0.95, 0.05], [0.9, 0.1], [0.05, 0.95], [0.5, 0.5], [0.25, 0.75])
    several = [replace(c, several=c.name in ("ward-3", "ward-4")) for c in everybody.clients]

    found = said(replace(everybody, clients=several))

    assert "cluster 0 (2 clients: ward-0, ward-1) and cluster 2 (1 client: ward-2)" in found.text
    assert "between clusters" not in found.text
    assert (
        "2 clients hold several concepts (ward-3: 50% in cluster 0, 50% in cluster 2; "
        "ward-4: 25% in cluster 0, 75% in cluster 2)."
    ) in found.text
    assert found.kinds == ["concepts", "accuracy"]


def test_several_concepts_need_clients_that_hold_one() -> None:
    everybody = people([0.5, 0.5], [0.4, 0.6])
    several = [replace(client, several=True) for client in everybody.clients]

    assert said(replace(everybody, clients=several)).kinds[0] == "undecided"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exponent": 0.5}, "the annealing has not ended"),
        ({"movement": 0.2}, "the clients' weights still move (by 0.20 in one of the last 3 round"),
        ({"undecided": "which are the same"}, "noise on the statistics hides which are the same"),
    ],
)
def test_undecided_while_the_clusters_have_not_settled(change: dict[str, Any], words: str) -> None:
    found = said(**change)

    assert found.kinds == ["undecided", "accuracy", "progress"]
    assert f"Undecided: {words}" in found.text
    assert "concept" not in found.text


def test_undecided_where_weights_are_nearly_uniform() -> None:
    found = said(people([0.55, 0.45], [0.6, 0.4], [0.05, 0.95]))

    assert found.kinds[0] == "undecided"
    assert "2 of 3 clients belong to no cluster (the largest weight is 0.57 on av" in found.text


def test_undecided_where_test_samples_are_too_few_to_tell_clusters_apart() -> None:
    few = {k: {"samples": 2, "right": {"0": 1, "2": 1}} for k in ("0", "2")}

    found = said(clusters=few)

    assert "Undecided: too few test samples to tell clusters 0 and 2 apart." in found.text


def test_not_learning_claims_no_concepts() -> None:
    bad = GOOD | {"balanced_accuracy": 0.52, "better": False}

    found = said(local=bad)

    assert found.kinds == ["not-learning", "progress"]
    assert found.text.startswith(
        "Not learning: balanced accuracy is 52.0% on 200 test samples, and a constant answer "
        "scores 50.0%; two standard errors are 4.0%."
    )
    assert "concept" not in found.text


def test_scores_that_rank_are_not_called_not_learning() -> None:
    ranked = GOOD | {"balanced_accuracy": 0.5, "better": False, "auc": 0.96, "ranks": True}

    found = said(local=ranked)

    assert found.text.startswith("No better than a constant answer:")
    assert "The scores do tell the classes apart (AUC 0.960)." in found.text


def test_class_weights_are_suggested_where_they_may_help() -> None:
    rare = GOOD | {"balanced_accuracy": 0.5, "better": False, "constant_accuracy": 0.98}
    advice = "try local.class-weights = balanced"

    assert advice in said(local=rare).text
    assert advice not in said(local=rare, config=FEDRC | {"local.class-weights": "balanced"}).text
    assert advice not in said(local=rare | {"constant_accuracy": 0.5}).text


def test_clusters_that_predict_alike_are_one_meaning() -> None:
    alike = {k: {"samples": 2000, "right": {"0": 1800, "2": 1790}} for k in ("0", "2")}

    assert said(clusters=alike).kinds == ["one-meaning", "accuracy"]
    assert said(people([1.0], [1.0], ids=(0,))).text.startswith(
        "One meaning: nothing separates the labels of 2 clients after 9 rounds."
    )


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ((98.0, 2.0), "A disagreement about label 1 alone (2.0% of the samples) would not show."),
        ((96.0, 2.0, 2.0), "about one of the 2 labels with less than 5% of the samples would not"),
    ],
)
def test_one_meaning_says_which_disagreement_would_not_show(
    labels: tuple[float, ...], words: str
) -> None:
    assert words in said(people([1.0], ids=(0,), labels=labels)).text
    assert "would not show" not in said(people([1.0], ids=(0,), labels=(60.0, 40.0))).text


@pytest.mark.parametrize("reason", ["training diverged in round 3", "models are no longer finite"])
def test_diverged_run_says_nothing_else(reason: str) -> None:
    found = said(status="failed", reason=reason)

    assert found.text == "Diverged after 9 rounds: lower local.learning-rate."


def test_growing_loss_is_called_diverged() -> None:
    assert said(loss=2.5).text == (
        "Diverged: the training loss is 2.5 after round 9 and was 1 in round 1; lower "
        "local.learning-rate."
    )
    assert said(loss=1.5).kinds[0] == "concepts"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "fedrc", "fedrc.clusters": 3}, "FedRC trained 2 clusters among 3 clients"),
        ({"algorithm": "ifca"}, "IFCA trained 2 clusters among 3 clients"),
        ({"algorithm": "mine"}, "mine trained 2 clusters among 3 clients"),
    ],
)
def test_algorithm_that_was_told_the_number_of_clusters_found_none(
    config: dict[str, Any], words: str
) -> None:
    assert said(config=config).text.startswith(words)


def test_one_model_has_no_clusters() -> None:
    one = people([1.0], [1.0], ids=(0,))

    fedavg = said(one, config={"algorithm": "fedavg"}).text
    assert fedavg.startswith("FedAvg trained one model for 2 clients in 9 rounds.")
    pfedme = said(one, config={"algorithm": "pfedme"}).text
    assert pfedme.startswith("pFedMe trained a model for each of 2 clients in 9 rounds.")


def test_discovery_says_how_certain_the_places_are(tmp_path: Path) -> None:
    text = sentence(tmp_path, federation(tmp_path, flipped=2), rounds=6)

    assert text.startswith("FedRC found 2 concepts among 6 clients in 6 rounds")
    assert "Each client's cluster is more than 99% certain" in text
    assert "weight of at least" not in text


def test_least_certain_client_is_named() -> None:
    everybody = people([0.95, 0.05], [0.9, 0.1], [0.05, 0.95])
    certainties = (0.95, 0.879, 1.0)
    clients = [
        replace(c, certainty=sure) for c, sure in zip(everybody.clients, certainties, strict=True)
    ]

    text = said(replace(everybody, clients=clients)).text

    assert "Each client's cluster is at least 87% certain (ward-1)." in text


def test_parting_by_hand() -> None:
    """Own models are right on 180 of 200 and the others' on 20; or on 90 of 100 and 80."""
    assert parted(APART, 0, 2) is True
    close = {
        "0": {"samples": 50, "right": {"0": 45, "2": 40}},
        "2": {"samples": 50, "right": {"0": 40, "2": 45}},
    }
    # 91/102 - 81/102 = 0.098 is less than 2 * sqrt((0.096 + 0.163) / 102) = 0.101
    assert parted(close, 0, 2) is None
    assert parted({}, 0, 2) is True


# --- claims that were once false ----------------------------------------------------------------


def federation(
    folder: Path,
    positives: float = 0.5,
    flipped: int = 0,
    chance: bool = False,
    rows: int = 120,
) -> dict[str, Any]:
    """Six hospitals, some of which label the other way round, or at random."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, rows, 3))
    score = x[:, :, 0] + 0.2 * rng.normal(size=(6, rows))
    score[:flipped] *= -1
    y = (score > np.quantile(score, 1 - positives, axis=1, keepdims=True)).astype(np.int64)
    if chance:
        y = rng.integers(0, 2, y.shape)
    names = np.repeat([f"hospital-{i}" for i in range(6)], rows)
    path = folder / "hospitals.npz"
    np.savez(path, x=x.reshape(-1, 3).astype(np.float32), y=y.ravel(), client=names)
    return {"data.dataset": str(path), "data.test-fraction": 0.4}


#: The default recipe, shortened.
SHORT = {"rounds": 24, "model.hidden": 16, "local.epochs": 2, "local.batch-size": 24}


def sentence(folder: Path, data: dict[str, Any], **settings: Any) -> str:
    config = load_config({**SHORT, **data, **settings})
    return str(run_in_process(config, folder / "run")["headline"])


def test_hospitals_that_label_alike_with_two_percent_positives(tmp_path: Path) -> None:
    text = sentence(tmp_path, federation(tmp_path, positives=0.02), rounds=6)

    assert "balanced accuracy is 50.0% on 288 test samples, and a constant answer scores" in text
    assert "found" not in text


def test_too_few_rounds(tmp_path: Path) -> None:
    text = sentence(tmp_path, federation(tmp_path, flipped=3), rounds=3)

    assert text.startswith("Undecided: the concepts are looked for from round 5 on.")
    assert "found" not in text


def test_random_labels(tmp_path: Path) -> None:
    text = sentence(tmp_path, federation(tmp_path, chance=True))

    assert "Not learning: balanced accuracy is" in text
    assert "found" not in text


def test_no_concept_shift(tmp_path: Path) -> None:
    text = sentence(tmp_path, federation(tmp_path))

    assert text.startswith("One meaning: nothing separates the labels of 6 clients after 24 round")


def test_concept_shift_is_still_claimed(tmp_path: Path) -> None:
    text = sentence(tmp_path, federation(tmp_path, flipped=2))

    assert text.startswith("FedRC found 2 concepts among 6 clients in 24 rounds: cluster")
    assert "(2 clients: hospital-0, hospital-1)" in text


@pytest.mark.parametrize(
    ("class_weights", "words"),
    [
        ("none", "balanced accuracy is 50.0% on 1,200 test samples, and a constant answer scores"),
        ("balanced", "FedAvg trained one model for 6 clients in 8 rounds. Balanced accuracy is 9"),
    ],
)
def test_rare_positives_are_predicted_only_with_class_weights(
    tmp_path: Path, class_weights: str, words: str
) -> None:
    data = federation(tmp_path, positives=0.02, rows=500)
    settings = {"algorithm": "fedavg", "rounds": 8, "recipe": "paper", "local.learning-rate": 0.1,
                "local.epochs": 3, "model.hidden": 16, "local.batch-size": 50}  # fmt: skip

    config = load_config({**settings, **data, "local.class-weights": class_weights})
    text = run_in_process(config, tmp_path / "run")["headline"]

    assert words in text
