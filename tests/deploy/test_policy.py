"""What a node lets a run do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from loopback import node_file
from settings_of import configured

from deploy.policy import Policy, check_run
from fedrc_flwr.engine.admission import REASONS, harmless, refusal
from fedrc_flwr.errors import ConfigError, PolicyError

USUAL = Policy()


def refused(policy: Policy = USUAL, own_data: bool = False, **settings: Any) -> PolicyError:
    """The error with which a run with these settings is refused."""
    run = {**configured().to_dict(), **dotted(settings)}
    with pytest.raises(PolicyError) as caught:
        check_run(policy, run, own_data, None)
    return caught.value


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {k.replace("__", ".").replace("_", "-"): v for k, v in settings.items()}


def allowed(policy: Policy = USUAL, own_data: bool = False, **settings: Any) -> None:
    check_run(policy, {**configured().to_dict(), **dotted(settings)}, own_data, None)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"data__dataset": "os.path:join"}, "data.dataset"),
        ({"data__dataset": "/etc/evil.py:run"}, "data.dataset"),
        ({"data__dataset": "/srv/other-patients.csv"}, "data.dataset"),
        ({"data__dataset": "patients.csv"}, "data.dataset"),
        ({"data__directory": "/srv"}, "data.directory"),
        ({"data__schema": "/etc/passwd"}, "data.schema"),
        ({"model__network": "evil.module:build"}, "model.network"),
        ({"scenario": "/srv/scenario.yaml"}, "scenario"),
        ({"scenario": "../../srv/scenario"}, "scenario"),
        ({"recipe": "recipe.yml"}, "recipe"),
    ],
)
def test_what_a_run_may_not_name_by_default(settings: dict[str, Any], key: str) -> None:
    error = refused(**settings)

    assert (error.code, error.subject) == ("not-allowed", key)
    assert key in harmless(error)


@pytest.mark.parametrize(
    "settings",
    [{}, {"data__dataset": "own"}, {"data__dataset": "cifar10"}, {"model__network": "resnet18"}],
)
def test_what_a_run_may_name_by_default(settings: dict[str, Any]) -> None:
    allowed(**settings)


def test_a_node_with_own_data_never_opens_the_file_that_a_run_names() -> None:
    told = {"data__classes": 3, "data__input_shape": "5"}

    allowed(own_data=True, data__dataset="/operator/all.csv", **told)
    assert refused(own_data=True, data__dataset="/operator/all.csv").subject == "data.dataset"
    assert refused(own_data=True, data__dataset="os:system", **told).subject == "data.dataset"


def test_a_node_lists_what_else_a_run_may_name() -> None:
    policy = Policy(files=("/srv/table.csv", "/srv"), functions=("ours.models:net",))

    allowed(policy, data__dataset="/srv/table.csv", data__directory="/srv")
    allowed(policy, model__network="ours.models:net")
    assert refused(policy, model__network="ours.models:other").subject == "model.network"
    assert refused(policy, data__dataset="/srv/../srv/table.csv").subject == "data.dataset"


def test_datasets_can_be_restricted() -> None:
    policy = Policy(datasets=("digits",))

    assert refused(policy, data__dataset="cifar10", resolved=True).subject == "data.dataset"
    # What is not resolved may get another dataset from its scenario.
    assert refused(policy, scenario="cifar10").subject == "scenario"
    allowed(policy, scenario="cifar10", resolved=True)


@pytest.mark.parametrize("noise", [0.0, 4.9, math.nan, "a lot"])
def test_less_noise_than_demanded_is_refused(noise: Any) -> None:
    error = refused(Policy(least_noise=5.0), privacy__count_noise=noise)

    assert error.code == "too-little-noise"


def test_the_nodes_own_noise_counts_not_the_runs() -> None:
    run = configured().to_dict()

    check_run(Policy(least_noise=5.0), {**run, "privacy.count-noise": 0.0}, False, own_noise=5.0)
    with pytest.raises(PolicyError):
        check_run(Policy(least_noise=5.0), {**run, "privacy.count-noise": 9.0}, False, 0.0)


@pytest.mark.parametrize("clip", [0.0, 0.6, 1.0, -1.0, math.nan])
def test_a_larger_clip_than_allowed_is_refused_where_there_is_noise(clip: float) -> None:
    policy = Policy(largest_clip=0.5)

    refused_run = refused(policy, privacy__count_noise=1.0, privacy__count_clip=clip)
    assert refused_run.code == "too-large-clip"
    allowed(policy, privacy__count_noise=1.0, privacy__count_clip=0.5)
    allowed(policy, privacy__count_noise=0.0, privacy__count_clip=clip)


def test_a_node_with_a_budget_takes_part_only_with_noise() -> None:
    assert refused(Policy(most_epsilon=8.0)).code == "too-little-noise"


def test_every_refusal_has_words() -> None:
    for code in ("app-not-allowed", "not-allowed", "too-little-noise", "too-large-clip",
                 "epsilon-spent", "small-cohort"):  # fmt: skip
        assert code in REASONS
        told = refusal(PolicyError(code, "data.dataset"), "hospital-a")
        assert (told.name, told.code, told.column) == ("hospital-a", code, "data.dataset")


# --- the file ------------------------------------------------------------------------------------


def test_a_nodes_file_has_a_policy(tmp_path: Path) -> None:
    file = node_file(
        tmp_path,
        policy={"apps": ["installed", "ab" * 32], "least-noise": 2, "smallest-cohort": 5,
                "most-epsilon": 8},
    )  # fmt: skip

    assert file.policy == Policy(
        apps=("installed", "ab" * 32), least_noise=2, smallest_cohort=5, most_epsilon=8
    )
    assert file.node_config()["smallest-cohort"] == 5
    assert file.node_config()["most-epsilon"] == 8.0


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"aps": []}, "did you mean 'apps'"),
        ({"apps": "installed"}, "apps = 'installed': expected a list"),
        ({"apps": ["abc"]}, "a hash as `fedrc node allow` adds it"),
        ({"datasets": ["mnist"]}, "datasets: 'mnist': expected any of digits"),
        ({"functions": ["os"]}, "expected package.module:function"),
        ({"largest-clip": 2}, "largest-clip: out of range"),
        ({"smallest-cohort": 0}, "smallest-cohort: out of range"),
        ("no", "policy: expected lines"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, policy: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        node_file(tmp_path, policy=policy)


def test_noise_below_the_nodes_own_demand_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"below policy\.least-noise"):
        node_file(tmp_path, count_noise=1.0, policy={"least-noise": 2})
