"""A time zone nobody knows is refused when it is written, and told when it is there already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openclaw.clock import SystemClock
from openclaw.config.load import parse_config
from openclaw.config.store import ConfigStore
from openclaw.config.validate import ConfigInvalid


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("userTimezone", "Mars/Base", "such as Europe/Madrid"),
        ("userTimezone", "Europe/Madird", "near it: Europe/Madrid"),
        ("userTimezone", "../../etc/passwd", "is not a time zone"),
        ("envelopeTimezone", "madrid", "near it: Europe/Madrid"),
    ],
)
def test_a_zone_nobody_knows_is_named_with_what_could_be_meant(key: str, value: str, words: str) -> None:
    found = parse_config("x", json.dumps({"agents": {"defaults": {key: value}}}), {})
    assert found.valid
    (mistake,) = found.mistakes
    assert mistake.path == f"agents.defaults.{key}"
    assert f'"{value}" is not a time zone' in mistake.message
    assert words in mistake.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("userTimezone", "Asia/Kolkata"),
        ("userTimezone", "UTC"),
        ("envelopeTimezone", "local"),
        ("envelopeTimezone", "UTC"),
        ("envelopeTimezone", "user"),
        ("envelopeTimezone", "America/St_Johns"),
    ],
)
def test_known_zones_and_words_are_taken(key: str, value: str) -> None:
    assert not parse_config("x", json.dumps({"agents": {"defaults": {key: value}}}), {}).warnings


def test_a_mistake_cannot_be_written_but_one_that_is_there_hinders_no_other_change(tmp_path: Path) -> None:
    path = tmp_path / "openclaw.json"
    path.write_text(json.dumps({"agents": {"defaults": {"userTimezone": "Mars/Base"}}}))
    store = ConfigStore(str(path), SystemClock(), {})
    store.set_path("gateway.port", 18790)
    with pytest.raises(ConfigInvalid, match=r'userTimezone.*"Venus" is not a time zone'):
        store.set_path("agents.defaults.userTimezone", "Venus")
    store.set_path("agents.defaults.userTimezone", "Europe/Madrid")
    assert "Madrid" in path.read_text()
