import copy
import functools
import json
import os
from typing import Any

import pyjson5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.config.edit import merge_patch, merge_text, remove_value, saved_text, set_value, shown_values
from openclaw.config.keypath import KeyPathError
from openclaw.config.load import parse_config
from openclaw.config.secrets import SENTINEL, redacted

DOCUMENT = """// my gateway
{
  // who may come in
  gateway: {
    port: 18789, // the usual
    auth: { mode: 'token', token: "abc" },
  },
  "agents": {
    list: [
      { id: "main" },
      { id: "work", /* second */ name: "Work" }
    ]
  }
}
"""


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("gateway", "port"), 19000, "port: 18789, // the usual", "port: 19000, // the usual"),
        (("gateway", "auth", "mode"), "password", "mode: 'token'", 'mode: "password"'),
        (("gateway", "bind"), "lan", '"abc" },\n  },', '"abc" },\n    bind: "lan",\n  },'),
        (("gateway", "auth", "password"), "x", '"abc" },', '"abc", password: "x" },'),
        (("agents", "list", 1, "default"), True, 'name: "Work" }', 'name: "Work", default: true }'),
        (
            ("agents", "list", 2),
            {"id": "x"},
            'name: "Work" }\n',
            'name: "Work" },\n      {\n        id: "x"\n      }\n',
        ),
        (
            ("ui", "assistant", "name"),
            "Al",
            "    ]\n  }\n}",
            '    ]\n  },\n  ui: {\n    assistant: {\n      name: "Al"\n    }\n  }\n}',
        ),
    ],
)
def test_setting_a_key_touches_nothing_else(path: tuple[str | int, ...], value: Any, old: str, new: str) -> None:
    assert DOCUMENT.count(old) == 1
    assert set_value(DOCUMENT, path, value) == DOCUMENT.replace(old, new)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (("gateway", "port"), "    port: 18789, // the usual\n", ""),
        (("gateway", "auth", "token"), ', token: "abc"', ""),
        (("gateway", "auth", "mode"), " mode: 'token',", ""),
        (("agents", "list", 0), '      { id: "main" },\n', ""),
        (("agents", "list", 1), ' },\n      { id: "work", /* second */ name: "Work" }', " }"),
        (
            ("agents",),
            '  },\n  "agents": {\n    list: [\n      { id: "main" },\n'
            '      { id: "work", /* second */ name: "Work" }\n    ]\n  }',
            "  }",
        ),
    ],
)
def test_removing_a_key_touches_nothing_else(path: tuple[str | int, ...], old: str, new: str) -> None:
    assert DOCUMENT.count(old) == 1
    assert remove_value(DOCUMENT, path) == DOCUMENT.replace(old, new)


def test_removing_what_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError, match=r"gateway\.bind"):
        remove_value(DOCUMENT, ("gateway", "bind"))


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (("gateway", "port", "x"), "plain value"),
        (("agents", "list", 5), "next one is"),
        (("agents", "list", "x"), "next one is"),
        (("new", 3), "first index"),
    ],
)
def test_a_place_that_cannot_exist_is_refused(path: tuple[str | int, ...], hint: str) -> None:
    with pytest.raises(KeyPathError, match=hint):
        set_value(DOCUMENT, path, 1)


def test_windows_line_ends_and_tabs_are_kept() -> None:
    text = '{\r\n\t"a": 1\r\n}\r\n'
    changed = set_value(text, ("b",), {"c": [1, 2]})
    assert changed == '{\r\n\t"a": 1,\r\n\t"b": {\r\n\t\t"c": [1, 2]\r\n\t}\r\n}\r\n'
    assert remove_value(changed, ("b",)) == text


def test_plain_json_stays_plain_json() -> None:
    text = json.dumps({"gateway": {"port": 1}, "ui": {}}, indent=4)
    changed = merge_text(text, {"gateway": {"bind": "lan"}, "ui": {"seamColor": "#fff"}, "cron": {"enabled": False}})
    assert json.loads(changed) == {
        "gateway": {"port": 1, "bind": "lan"},
        "ui": {"seamColor": "#fff"},
        "cron": {"enabled": False},
    }
    assert json.loads(merge_text(changed, {"cron": None})) == {
        "gateway": {"port": 1, "bind": "lan"},
        "ui": {"seamColor": "#fff"},
    }


NAMES = st.one_of(st.sampled_from(["a", "b", "c.d", "e f", "é", "'", '"', "$x", "\\"]), st.text(max_size=4))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-999, 999), st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A JSON5 text in one of many styles, and what it means."""
    newline = draw(st.sampled_from(["\n", "\r\n", ""]))
    gap = draw(st.sampled_from(["", " ", "  ", "\t"]))
    trailing = draw(st.booleans())
    comment = (
        draw(st.sampled_from(["", " // note { , ", " /* [ */"])) if newline else draw(st.sampled_from(["", "/* } */"]))
    )
    data = draw(st.dictionaries(NAMES, VALUES, max_size=4))

    def render(value: Any, indent: str) -> str:
        if not isinstance(value, dict | list) or not value:
            return (
                json.dumps(value, ensure_ascii=False)
                if not isinstance(value, dict | list)
                else ("{" + gap + "}" if isinstance(value, dict) else "[" + gap + "]")
            )
        inner = indent + gap
        if isinstance(value, dict):
            parts = [json.dumps(key) + ":" + gap + render(item, inner) for key, item in value.items()]
        else:
            parts = [render(item, inner) for item in value]
        lead = newline + inner if newline else gap
        body = "".join(
            lead + part + ("," if trailing or index < len(parts) - 1 else "") + comment
            for index, part in enumerate(parts)
        )
        brackets = "{}" if isinstance(value, dict) else "[]"
        return brackets[0] + body + (newline + indent if newline else gap) + brackets[1]

    return "// head\n" + render(data, "") + newline, data


def objects_of(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if isinstance(data, dict) else []
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += objects_of(value, (*path, key))
    return found


@given(documents(), st.data())
def test_setting_a_new_key_and_removing_it_again_gives_the_same_bytes(
    document: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    text, meaning = document
    assert pyjson5.decode(text) == meaning
    parent = data.draw(st.sampled_from(objects_of(meaning)))
    value = data.draw(VALUES)
    changed = set_value(text, (*parent, "brandNew"), value)
    expected: Any = json.loads(json.dumps(meaning))
    place = expected
    for segment in parent:
        place = place[segment]
    place["brandNew"] = value
    assert pyjson5.decode(changed) == expected
    assert remove_value(changed, (*parent, "brandNew")) == text


@given(documents(), st.dictionaries(NAMES, VALUES, max_size=3))
def test_merging_into_the_text_means_merging_the_values(
    document: tuple[str, dict[str, Any]], patch: dict[str, Any]
) -> None:
    text, meaning = document
    assert pyjson5.decode(merge_text(text, patch)) == merge_patch(meaning, patch)


@given(documents(), st.data())
def test_every_key_can_be_removed(document: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    text, meaning = document
    if not meaning:
        return
    key = data.draw(st.sampled_from(list(meaning)))
    rest = {name: value for name, value in meaning.items() if name != key}
    assert pyjson5.decode(remove_value(text, (key,))) == rest


FILE = """{
  // Mine.
  gateway: { auth: { token: "a-very-long-secret-token" } }, // keep
  agents: { defaults: { model: "p/m", workspace: "${HOME_OF_IT}" }, list: [{ id: "a", name: "A" }, { id: "b" }] },
  ui: { assistant: { name: "Ada" }, seamColor: "#fff" },
}
"""
VARIABLES = {"HOME_OF_IT": "/srv/work"}


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values below an object."""
    found: list[tuple[Any, ...]] = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += [(*path, key), *nodes(item, (*path, key))]
    return found


@settings(max_examples=int(os.environ.get("OPENCLAW_EDIT_CASES", "60")), deadline=None)
@given(st.data())
def test_what_a_form_saves_is_what_it_is_shown_afterwards(data: st.DataObject) -> None:
    before = parse_config("openclaw.json", FILE, VARIABLES)
    form: Any = copy.deepcopy(shown_values(before))
    for _ in range(data.draw(st.integers(0, 3), label="changes")):
        path = data.draw(st.sampled_from(nodes(form)), label="path")
        parent = functools.reduce(lambda at, key: at[key], path[:-1], form)
        if isinstance(parent[path[-1]], str) and data.draw(st.booleans(), label="set"):
            parent[path[-1]] = data.draw(st.sampled_from(["x", "p/other", "#000"]), label="value")
        elif path[-1] != "id":
            del parent[path[-1]]
        if not nodes(form):
            break
    after = parse_config("openclaw.json", saved_text(json.dumps(form, indent=2), before), VARIABLES)
    assert shown_values(after) == redacted(form)
    if form == shown_values(before):
        assert after.raw == FILE
    if form.get("gateway", {}).get("auth", {}).get("token") == SENTINEL:
        assert after.parsed["gateway"]["auth"]["token"] == "a-very-long-secret-token"
    if form.get("agents", {}).get("defaults", {}).get("workspace") == "/srv/work":
        assert after.parsed["agents"]["defaults"]["workspace"] == "${HOME_OF_IT}"
