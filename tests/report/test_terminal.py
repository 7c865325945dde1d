"""Lines on the terminal: what they say, and that nothing that a run may log breaks them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrc_flwr.report.terminal import Terminal, evaluation_line, round_line, summary_lines

EVENT: dict[str, Any] = {
    "event": "round",
    "round": 7,
    "clusters": [0, 3],
    "shares": [0.25, 0.75],
    "loss": 1.23456,
    "seconds": 2.04,
}
SUMMARY: dict[str, Any] = {
    "status": "completed",
    "rounds": 60,
    "seconds": 12.7,
    "clusters": 3,
    "local_accuracy": 0.91234,
    "global_accuracy": 0.5,
    "adjusted_rand_index": None,
    "epsilon": None,
    "algorithm": "fedrc",
    "scenario": "digits",
    "seed": 4,
}


def test_plain_round_is_one_line() -> None:
    line = round_line(EVENT, rounds=100)

    assert line == "round   7/100  2 clusters [0.25 0.75]  loss 1.235  2.0 s"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"removed": [2, 4]}, "removed 2, 4"),
        ({"merged": [[1, 0], [5, 3]]}, "merged 1 into 0  merged 5 into 3"),
        ({"failed": {"b": "late", "a": "NaN"}}, "without a, b"),
        ({"sampled": 3, "replied": 2, "failed": {}}, "2 of 3 replied"),
        ({"late": {"b": 5, "a": 1}}, "late a (1 round), b (5 rounds)"),
        ({"epsilon": 3.14159}, "epsilon 3.14"),
    ],
)
def test_line_says_what_else_happened(more: dict[str, Any], text: str) -> None:
    assert text in round_line({**EVENT, **more}, rounds=10)
    assert text not in round_line(EVENT, rounds=10)


def test_those_who_failed_are_not_counted_as_outstanding() -> None:
    told = {**EVENT, "sampled": 3, "replied": 2, "failed": {"b": "NaN"}}

    assert "replied" not in round_line(told, rounds=10)


def test_what_was_found_is_said_below_the_round() -> None:
    console = Console(file=io.StringIO(), width=200)
    found = {"sentence": "3 concepts among 12 clients, in groups of 6, 3, 3"}

    with Terminal(10, console) as terminal:
        terminal.show({**EVENT, "discovery": found})

    assert "3 concepts among 12 clients, in groups of 6, 3, 3." in console.file.getvalue()


@pytest.mark.parametrize("key", ["local_accuracy", "global_accuracy", "epsilon"])
def test_number_that_is_missing_is_left_out(key: str) -> None:
    assert round_line({**EVENT, key: None}, rounds=10) == round_line(EVENT, rounds=10)


def test_loss_that_was_no_number_is_a_dash() -> None:
    assert "loss -" in round_line({**EVENT, "loss": None}, rounds=10)


def shown(*events: dict[str, Any], terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=40, highlight=False)
    with Terminal(rounds=10, console=console) as screen:
        for event in events:
            screen.show(event)
    return output.getvalue()


def test_without_a_terminal_rounds_are_plain_lines() -> None:
    text = shown({"event": "start"}, EVENT, {**EVENT, "round": 8}, terminal=False)

    assert text.splitlines() == [round_line(EVENT, 10), round_line({**EVENT, "round": 8}, 10)]


def test_on_a_terminal_every_round_has_its_line_beside_the_bar() -> None:
    text = shown(EVENT, terminal=True)

    assert round_line(EVENT, 10) in text
    assert "7/10" in text.replace(round_line(EVENT, 10), "")


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    text = shown({**EVENT, "failed": {"[bold]ward[/x]": "late"}}, terminal=False)

    assert "without [bold]ward[/x]" in text


def test_summary_says_what_came_out() -> None:
    lines = summary_lines(SUMMARY, Path("results"))

    assert lines == [
        "fedrc on digits, seed 4: completed after 60 rounds, 13 seconds",
        "  clusters left        3",
        "  local accuracy       0.912",
        "  global accuracy      0.500",
        "results in results",
    ]


def test_summary_begins_with_the_headline_and_shows_scores_beside_a_constant_answer() -> None:
    local = {
        "samples": 40, "accuracy": 0.9, "balanced_accuracy": 0.8, "macro_f1": 0.7,
        "constant_accuracy": 0.85, "constant_balanced_accuracy": 0.5, "constant_macro_f1": 0.46,
        "auc": 0.875, "auc_error": 0.002,
    }  # fmt: skip

    lines = summary_lines(
        {**SUMMARY, "headline": "One meaning.", "scores": {"local": local}}, Path("results")
    )

    assert lines[1] == "One meaning."
    assert lines[4:9] == [
        "  accuracy, pooled     0.900 (a constant answer: 0.850)",
        "  balanced accuracy    0.800 (a constant answer: 0.500)",
        "  macro F1             0.700 (a constant answer: 0.460)",
        "  AUC                  0.875 (a constant answer: 0.500; bins may move it by 0.002)",
        "  test samples         40",
    ]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("global_accuracy", "global accuracy      0.250"),
        ("fine_tuned_local_accuracy", "fine-tuned, local    0.250"),
        ("adjusted_rand_index", "adjusted Rand index  0.250"),
        ("epsilon", "epsilon spent        0.250 (statistics only)"),
    ],
)
def test_summary_shows_optional_numbers_where_they_are(key: str, text: str) -> None:
    lines = summary_lines({**SUMMARY, key: 0.25}, Path("results"))

    assert f"  {text}" in lines


def test_summary_of_nothing_is_shown_with_dashes() -> None:
    lines = summary_lines({}, Path("results"))

    assert "  local accuracy       -" in lines
    assert not any("global accuracy" in line for line in lines)


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ({"local_accuracy": 0.5, "global_accuracy": 0.25}, "local 0.500  global 0.250"),
        ({"local_balanced_accuracy": 0.75}, "balanced 0.750"),
        ({"local_accuracy": 0.5, "failed": {"b": "late", "a": "NaN"}}, "local 0.500  without a, b"),
        ({}, "no client has test samples"),
    ],
)
def test_an_evaluation_is_a_line_of_its_own(outcome: dict[str, Any], text: str) -> None:
    line = evaluation_line({"event": "evaluation", "round": 7, **outcome})

    assert line == f"  accuracy after round 7:  {text}"
