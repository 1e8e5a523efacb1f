"""How often a part of a reply may already have arrived, kept in its ``error`` so that it survives a restart.

A part is in doubt when it was handed to a channel and nobody learned what became of it: the process died, or the
answer never came.
"""

from __future__ import annotations

import re

_DOUBT = re.compile(r"interrupted(?: (\d+) times)?(?:: |$)")


def doubts(error: str) -> int:
    """How many times this part may have arrived unnoticed."""
    found = _DOUBT.match(error)
    return 0 if found is None else int(found[1] or 1)


def in_doubt(times: int, problem: str = "") -> str:
    """The error of a part that may have arrived ``times`` times; ``problem`` is what went wrong last."""
    if not times:
        return problem
    head = "interrupted" if times == 1 else f"interrupted {times} times"
    return f"{head}: {problem}" if problem else head


def problem_of(error: str) -> str:
    """What went wrong last, without the count."""
    found = _DOUBT.match(error)
    return error if found is None else error[found.end() :]


REPEATED = "possibly delivered twice: it was in doubt whether the first try arrived"
"""Noted with a part that was sent again after a doubt."""
_GIVEN_UP = "in doubt "


def given_up(times: int, problem: str) -> str:
    """The error of a part that is not sent again, because it may have arrived too often already."""
    return f"{_GIVEN_UP}{times} times, so not sent again: {problem or 'the Gateway stopped while sending it'}"


def is_uncertain(error: str) -> bool:
    """Whether the part may have arrived though nobody confirmed it."""
    return doubts(error) > 0 or error.startswith(_GIVEN_UP)


def may_be_repeated(error: str) -> bool:
    """Whether the person may have got this part more than once."""
    return is_uncertain(error) or error == REPEATED
