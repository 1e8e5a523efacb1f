"""What people are told when a model cannot be called."""

from __future__ import annotations

import pytest

from openclaw.models.base import ModelError
from openclaw.models.spoken_error import in_plain_words


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("auth", "does not accept the key"),
        ("billing", "nothing left to pay with"),
        ("rate_limit", "takes no more requests from this account for now"),
        ("overloaded", "too much to do"),
        ("timeout", "took too long"),
        ("network", "could not be reached"),
        ("format", "refused the request"),
        ("other", "went wrong at the model's provider"),
    ],
)
def test_every_kind_says_what_is_wrong_what_to_do_and_what_the_provider_said(kind: str, words: str) -> None:
    told = in_plain_words(ModelError("418 teapot: short and stout", kind=kind, status=418))  # type: ignore[arg-type]
    assert words in told
    assert "/model" in told
    assert "418 teapot: short and stout" in told


def test_our_own_words_are_left_alone() -> None:
    assert (
        in_plain_words(ModelError("the budget of today is used up", kind="billing")) == "the budget of today is used up"
    )


def test_what_does_not_fit_is_explained_elsewhere() -> None:
    assert in_plain_words(ModelError("prompt is too long", kind="overflow")) == "prompt is too long"
