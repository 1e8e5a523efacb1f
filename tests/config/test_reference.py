"""What the documentation says of keys and their defaults is what the code does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from openclaw.config.load import parse_config
from openclaw.config.reference import MAIN_KEYS, all_keys, default_text, generated
from openclaw.config.schema.tools import ExecConfig
from openclaw.config.unsupported import SAFETY, UNSUPPORTED, UNSUPPORTED_VALUES
from openclaw.tools.exec.settings import ExecSettings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_the_generated_one() -> None:
    text = PAGE.read_text("utf-8")
    assert text == generated(text), "run `make docs`"
    assert text.count("<!-- generated:") == 4


def test_the_page_names_every_setting_without_effect() -> None:
    text = PAGE.read_text("utf-8")
    for path in (*UNSUPPORTED, *UNSUPPORTED_VALUES, *SAFETY):
        assert f"`{path}`" in text


def test_every_key_has_a_meaning() -> None:
    assert [key.path for key in all_keys() if not key.meaning] == []
    assert set(MAIN_KEYS) <= {key.path for key in all_keys()}


@pytest.mark.parametrize(
    ("default", "text"),
    [(18789, "`18789`"), ("loopback", '`"loopback"`'), (True, "`true`"), ([], "`[]`"), (None, "–"), ({}, "–")],
)
def test_a_default_stands_as_in_the_file(default: object, text: str) -> None:
    assert default_text(default) == text


def test_the_defaults_of_exec_are_those_that_commands_run_with() -> None:
    written, used = msgspec.to_builtins(ExecConfig()), msgspec.to_builtins(ExecSettings())
    shared = [key for key in written if key in used and written[key] is not None]
    assert len(shared) >= 8
    assert {key: written[key] for key in shared} == {key: used[key] for key in shared}


def test_a_default_that_is_written_out_is_valid() -> None:
    for key in all_keys():
        if not key.section and "[]" not in key.path and "*" not in key.path and default_text(key.default)[0] == "`":
            value: object = key.default
            for segment in reversed(key.path.split(".")):
                value = {segment: value}
            snapshot = parse_config("openclaw.json", msgspec.json.encode(value).decode(), {})
            assert snapshot.issues == [], key.path
