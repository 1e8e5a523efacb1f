"""Skills: found, read, gated and listed; never run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.skills import (
    MAX_DESCRIPTION,
    BadSkill,
    bundled_dir,
    find_skills,
    judged_skills,
    parse_header,
    parse_skill,
    skill_folders,
    skills_prompt,
)
from openclaw.config.schema import Config

Settings = dict[str, Any]

BUNDLED_NAMES = [
    *("backup", "calendar-file", "gateway-care", "git", "pdf", "skill-writer", "spreadsheet", "summarise-page"),
    *("system-status", "weather"),
]


def config(**sections: Any) -> Config:
    return msgspec.convert(sections, Config)


def put(folder: Path, name: str, description: str = "Does things", header: str = "") -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n{header}\n---\n# Body of {name}\n")
    return path


def rows(state: Path, settings: Settings | None = None, environ: dict[str, str] | None = None) -> dict[str, Any]:
    skills = {"allowBundled": [], **(settings or {})}
    verdicts, _ = judged_skills(config(skills=skills), str(state), "main", environ or {"PATH": ""})
    return {verdict.skill.name: verdict for verdict in verdicts}


HEADERS = [
    ("name: a", {"name": "a"}),
    ("description: one\n  two\n  three", {"description": "one two three"}),
    ("description: >-\n  one\n  two", {"description": "one two"}),
    ("description: |\n  one\n  two", {"description": "one\ntwo"}),
    ('description: "a: b # c"', {"description": "a: b # c"}),
    ("description: 'it''s'", {"description": "it's"}),
    ("a: true\nb: no # note", {"a": True, "b": "no"}),
    ("metadata: {openclaw: {os: ['linux'],},}", {"metadata": {"openclaw": {"os": ["linux"]}}}),
    ('metadata:\n  {\n    "x": 1,\n  }', {"metadata": {"x": 1}}),
    ("metadata:\n  author: me\n  version: '1.0'", {"metadata": {"author": "me", "version": "1.0"}}),
    ("tags:\n  - a\n  - b", {"tags": ["a", "b"]}),
    ("tags: [a, b-c, 'd e', 1, true]", {"tags": ["a", "b-c", "d e", 1, True]}),
    ("metadata: {openclaw: {os: [linux, darwin]}}", {"metadata": {"openclaw": {"os": ["linux", "darwin"]}}}),
    (
        "metadata:\n  openclaw:\n    emoji: '*'\n    requires:\n      bins: [git]\n      env:\n        - A_KEY\n"
        "    install:\n      - id: x\n        kind: brew\n        bins: [git]\n      - id: y\n        kind: go\n",
        {
            "metadata": {
                "openclaw": {
                    "emoji": "*",
                    "requires": {"bins": ["git"], "env": ["A_KEY"]},
                    "install": [{"id": "x", "kind": "brew", "bins": ["git"]}, {"id": "y", "kind": "go"}],
                }
            }
        },
    ),
    ("homepage: https://example.org/x", {"homepage": "https://example.org/x"}),
    ("# only a comment\n\nname: a", {"name": "a"}),
]


@pytest.mark.parametrize(("header", "expected"), HEADERS)
def test_the_header_is_the_little_of_yaml_that_skills_use(header: str, expected: Settings) -> None:
    assert parse_header(f"---\n{header}\n---\nbody: not a key") == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# no header", "does not begin with a header"),
        ("---\nname: a\n", "not closed"),
        ("---\nwhat is this\n---\n", "line 2"),
        ("---\nname: a\n---\n", "no description"),
        ("---\nname: A B\ndescription: x\n---\n", "name 'A B'"),
        ("---\nname: a\ndescription: x\nmetadata: {broken\n---\n", "metadata is not valid JSON"),
    ],
)
def test_a_bad_skill_says_what_is_wrong_with_it(text: str, complaint: str) -> None:
    with pytest.raises(BadSkill, match=complaint):
        parse_skill(text, path="/p", folder="a", source="s")


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail_in_another_way(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n"):
        try:
            skill = parse_skill(whole, path="/p", folder="a", source="s")
        except BadSkill:
            continue
        assert skill.name and 0 < len(skill.description) <= MAX_DESCRIPTION


def test_of_equal_names_extra_gives_way_to_bundled_managed_and_workspace(tmp_path: Path) -> None:
    extra, state = tmp_path / "extra", tmp_path / "state"
    settings = config(skills={"load": {"extraDirs": [str(extra)]}})
    where = skill_folders(settings, str(state), "main")
    assert [place.source.removeprefix("openclaw-") for place in where] == ["extra", "bundled", "managed", "workspace"]
    for folder in (extra, state / "skills", state / "workspace" / "skills"):
        put(folder, "weather")
        put(folder, "mine")
        found = {skill.name: skill.path for skill in find_skills(where).skills}
        assert found["mine"] == str(folder / "mine" / "SKILL.md")
        assert found["weather"] == str((bundled_dir() if folder == extra else folder) / "weather" / "SKILL.md")


def test_skills_may_be_grouped_in_folders_and_hidden_folders_are_skipped(tmp_path: Path) -> None:
    put(tmp_path / "skills" / "office", "letters")
    put(tmp_path / "skills" / ".trash", "old")
    assert list(rows(tmp_path)) == sorted([*BUNDLED_NAMES, "letters"])


def test_a_changed_skill_is_read_again_and_a_removed_one_is_gone(tmp_path: Path) -> None:
    path = put(tmp_path / "skills", "mine", "first")
    assert rows(tmp_path)["mine"].skill.description == "first"
    put(tmp_path / "skills", "mine", "second version")
    assert rows(tmp_path)["mine"].skill.description == "second version"
    path.unlink()
    assert "mine" not in rows(tmp_path)


def test_unreadable_skills_are_reported_and_stop_nothing(tmp_path: Path) -> None:
    put(tmp_path / "skills", "good")
    put(tmp_path / "skills", "huge", "x" * 300_000)
    os.mkfifo(put(tmp_path / "skills", "pipe").with_suffix(".pipe"))
    os.replace(tmp_path / "skills/pipe/SKILL.pipe", tmp_path / "skills/pipe/SKILL.md")
    verdicts, problems = judged_skills(config(), str(tmp_path), "main", {"PATH": ""})
    assert "good" in {verdict.skill.name for verdict in verdicts}
    assert [Path(problem.path).parent.name for problem in problems] == ["huge", "pipe"]


OTHER_OS = "win32" if sys.platform != "win32" else "linux"
GATES: list[tuple[str, Settings, dict[str, str], dict[str, tuple[str, ...]]]] = [
    ('{"requires": {"bins": ["prog-x"]}}', {}, {}, {"bins": ("prog-x",)}),
    ('{"requires": {"bins": ["../prog-x"]}}', {}, {}, {"bins": ("../prog-x",)}),
    ('{"requires": {"anyBins": ["prog-x", "prog-y"]}}', {}, {}, {"any_bins": ("prog-x", "prog-y")}),
    ('{"requires": {"env": ["MY_KEY"]}}', {}, {}, {"env": ("MY_KEY",)}),
    ('{"requires": {"env": ["MY_KEY"]}}', {}, {"MY_KEY": "1"}, {}),
    ('{"requires": {"env": ["MY_KEY"]}}', {"entries": {"mine": {"env": {"MY_KEY": "1"}}}}, {}, {}),
    ('{"primaryEnv": "MY_KEY", "requires": {"env": ["MY_KEY"]}}', {"entries": {"mine": {"apiKey": "k"}}}, {}, {}),
    ('{"requires": {"config": ["skills.load.extraDirs"]}}', {}, {}, {"config": ("skills.load.extraDirs",)}),
    ('{"requires": {"config": ["skills.load.watch", "session.mainKey"]}}', {}, {}, {}),
    ('{"requires": {"config": ["no.such.thing"]}}', {}, {}, {"config": ("no.such.thing",)}),
    (f'{{"os": ["{OTHER_OS}"]}}', {}, {}, {"os": (OTHER_OS,)}),
    (f'{{"os": ["{sys.platform}"]}}', {}, {}, {}),
]


@pytest.mark.parametrize(("own", "settings", "environ", "missing"), GATES)
def test_a_skill_is_offered_only_where_it_has_what_it_needs(
    tmp_path: Path, own: str, settings: Settings, environ: dict[str, str], missing: dict[str, Any]
) -> None:
    put(tmp_path / "skills", "mine", header=f'metadata: {{"openclaw": {own}}}')
    verdict = rows(tmp_path, settings, {"PATH": str(tmp_path / "bin"), **environ})["mine"]
    found = {name: value for name, value in msgspec.structs.asdict(verdict.missing).items() if value}
    assert (found, verdict.eligible) == (missing, not missing)


def test_a_program_installed_later_makes_the_skill_available(tmp_path: Path) -> None:
    put(tmp_path / "skills", "mine", header='metadata: {"openclaw": {"requires": {"anyBins": ["prog-x", "prog-y"]}}}')
    (tmp_path / "bin").mkdir()
    environ = {"PATH": str(tmp_path / "bin")}
    assert not rows(tmp_path, environ=environ)["mine"].eligible
    (tmp_path / "bin" / "prog-y").touch(0o755)
    assert rows(tmp_path, environ=environ)["mine"].eligible


def test_always_overrules_needs_but_not_the_switch(tmp_path: Path) -> None:
    put(tmp_path / "skills", "mine", header='metadata: {"openclaw": {"always": true, "requires": {"bins": ["nope"]}}}')
    assert rows(tmp_path)["mine"].eligible
    off = rows(tmp_path, {"entries": {"mine": {"enabled": False}}})["mine"]
    assert (off.disabled, off.eligible) == (True, False)


def test_lists_of_allowed_skills_block_the_others(tmp_path: Path) -> None:
    put(tmp_path / "skills", "mine")
    found = rows(tmp_path, {"allowBundled": ["skill-writer"]})
    assert {name: verdict.blocked for name, verdict in found.items()} == {
        **dict.fromkeys(BUNDLED_NAMES, True),
        "mine": False,
        "skill-writer": False,
    }
    agents = config(agents={"list": [{"id": "main", "skills": ["weather"]}]})
    verdicts, _ = judged_skills(agents, str(tmp_path), "main", {"PATH": ""})
    assert {verdict.skill.name for verdict in verdicts if not verdict.blocked} == {"weather"}


def test_the_prompt_names_purpose_and_place_escaped_and_nothing_of_the_body(tmp_path: Path) -> None:
    path = put(tmp_path / "skills", "mine", "Reads </description><b> & more")
    put(tmp_path / "skills", "secret", header="disable-model-invocation: true")
    prompt = skills_prompt(list(rows(tmp_path).values()), 200_000)
    assert [skill.name for skill in prompt.skills] == ["mine"]
    assert prompt.text.endswith(
        "<available_skills>\n  <skill>\n    <name>mine</name>\n"
        "    <description>Reads &lt;/description&gt;&lt;b&gt; &amp; more</description>\n"
        f"    <location>{path}</location>\n  </skill>\n</available_skills>"
    )
    assert "Body of" not in prompt.text


def test_the_list_keeps_within_its_share_of_a_small_window(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path / "skills", f"skill-{number:02}", "x" * 500)
    prompt = skills_prompt(list(rows(tmp_path).values()), 8192)
    assert 0 < len(prompt.skills) < 20
    assert len(prompt.skills) + prompt.left_out == 20
    assert len(prompt.text) < 8192 * 4 // 10 + 1000


def test_the_bundled_skills_are_well_formed() -> None:
    library = find_skills(
        [place for place in skill_folders(config(), "/nowhere", "main") if place.folder == bundled_dir()]
    )
    assert [skill.name for skill in library.skills] == BUNDLED_NAMES
    assert library.problems == []
    assert all(not skill.install for skill in library.skills)
