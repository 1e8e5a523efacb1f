import pytest

from openclaw.clock import duration_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30m", 1_800_000),
        ("1h30m", 5_400_000),
        ("90s", 90_000),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        (5, 300_000),
        ("5", 300_000),
        ("0m", 0),
        (" 1H ", 3_600_000),
    ],
)
def test_durations_are_read_as_people_write_them(text: str | int, ms: int) -> None:
    assert duration_ms(text) == ms


def test_a_bare_number_has_the_unit_of_its_setting() -> None:
    assert duration_ms(30, "d") == 30 * 86_400_000


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-5m", "5m later", "nan", "999999999d"])
def test_what_is_not_a_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration_ms(text)
