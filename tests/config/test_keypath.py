import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.keypath import KeyPathError, format_path, get_path, parse_path


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("gateway.port", ("gateway", "port")),
        ("agents.list[0].id", ("agents", "list", 0, "id")),
        ('a.b."c.d"', ("a", "b", "c.d")),
        (
            'agents.defaults.models["anthropic/claude-4.5"].alias',
            ("agents", "defaults", "models", "anthropic/claude-4.5", "alias"),
        ),
        ("list.0", ("list", "0")),
        ("channels.nextcloud-talk", ("channels", "nextcloud-talk")),
    ],
)
def test_a_path_is_read_as_people_write_it(text: str, segments: tuple[str | int, ...]) -> None:
    assert parse_path(text) == segments


@pytest.mark.parametrize("text", ["", "  ", "a..b", ".a", "a.", "a[x]", "a[", 'a."', "a b", "a[-1]"])
def test_a_path_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(KeyPathError):
        parse_path(text)


@given(
    st.lists(st.one_of(st.text(), st.integers(0, 999)), min_size=1, max_size=6).filter(lambda p: isinstance(p[0], str))
)
def test_every_path_survives_being_written_and_read(path: list[str | int]) -> None:
    assert parse_path(format_path(path)) == tuple(path)


def test_values_are_found_by_path_whatever_the_notation() -> None:
    data = {"agents": {"list": [{"id": "a"}]}, "map": {"7": "seven"}}
    assert get_path(data, "agents.list[0].id") == get_path(data, "agents.list.0.id") == "a"
    assert get_path(data, "map[7]") == "seven"
    assert get_path(data, "agents.list[1].id", "none") == "none"
    assert get_path(data, "agents.list[0].id.deeper", "none") == "none"
