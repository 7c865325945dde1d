from __future__ import annotations

import pytest

from fedrc_flwr.words import counted, similar


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 rounds"), (1, "1 round"), (2_000, "2,000 rounds")]
)
def test_noun_agrees_with_its_number(number: int, words: str) -> None:
    assert counted(number, "round") == words


@pytest.mark.parametrize(
    ("name", "words"), [("digit", "; did you mean 'digits'?"), ("unlike", ""), ("", "")]
)
def test_similar_name_is_suggested(name: str, words: str) -> None:
    assert similar(name, ["cifar10", "digits"]) == words
