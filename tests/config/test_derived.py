"""What was worked out from a configuration lasts exactly as long as it."""

from __future__ import annotations

from openclaw.config.derived import MOST_KEPT, Derived
from openclaw.config.schema import Config


def test_the_same_configuration_is_asked_once_and_a_new_one_again() -> None:
    derived, first, second = Derived(), Config(), Config()
    made: list[str] = []

    def make() -> str:
        made.append("made")
        return f"value {len(made)}"

    assert derived.of(first, "key", make) == derived.of(first, "key", make) == "value 1"
    assert derived.of(first, "other", make) == "value 2"
    assert derived.of(second, "key", make) == "value 3"
    assert derived.of(first, "key", make) == "value 4"


def test_it_never_keeps_more_than_it_may() -> None:
    derived, config = Derived(), Config()
    for number in range(3 * MOST_KEPT):
        assert derived.of(config, number, lambda: [0]) == [0]
        assert len(derived._made) <= MOST_KEPT
