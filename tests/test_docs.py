"""What the documentation says is so: files and functions exist, links lead somewhere, and commands are known."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from scripts.reference import PAGES, made
from trove_classifiers import classifiers

from openclaw.cli.command import Action, Group
from openclaw.cli.completion import completions
from openclaw.cli.main import ALIASES, TABLE, find_command
from openclaw.config.load import parse_config
from openclaw.config.reference import all_keys

ROOT = Path(__file__).parent.parent
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGE = ROOT / "src" / "openclaw"

FILES = sorted(set(re.findall(r"`((?:[\w<>]+/)*\w+\.py)`", ARCHITECTURE)))
STEPS = [
    (path, name)
    for path, names in re.findall(r"^\|(?: \d+ \|)? `([\w/]+\.py)` \| ([^|]+) \|", ARCHITECTURE, re.MULTILINE)
    for name in re.findall(r"`([\w.]+)`", names)
] + [(path, name) for name, path in re.findall(r"`(\w[\w.]*)` in `([\w/]+\.py)`", ARCHITECTURE)]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
OUTSIDE = re.compile(r"^(?:https?:|mailto:)")


@pytest.mark.parametrize("path", FILES)
def test_every_file_named_on_the_architecture_page_exists(path: str) -> None:
    assert (PACKAGE / path).is_file() or (ROOT / path).is_file(), path


@pytest.mark.parametrize(("path", "name"), STEPS)
def test_every_name_on_the_architecture_page_is_in_the_file_it_is_said_to_be_in(path: str, name: str) -> None:
    names: set[str] = set()
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name")}
    assert name in names, f"{path} has no {name}"


@pytest.mark.parametrize("name", PAGES)
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    written, generated = made(name)
    assert written == generated, "run `make docs`"
    assert set(re.findall(r"<!-- generated: ([\w ]+) -->", written)) == {*PAGES[name]}


def test_every_method_says_what_it_does() -> None:
    methods = [line for line in made("methods.md")[1].splitlines() if re.match(r"\| `[\w.-]+` \| .* \| .*\|$", line)]
    assert len(methods) > 50
    assert [line for line in methods if not line.split(" | ")[-1].strip("| ")] == []


def test_every_option_of_a_command_says_what_it_does() -> None:
    rows = re.findall(r"^\| `.*` \|.*$", made("commands.md")[1], re.MULTILINE)
    assert len(rows) > 300
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_metadata_of_the_package_is_known_to_the_index() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert [name for name in project["classifiers"] if name not in classifiers] == []
    assert project["readme"] == "README.md"
    assert all((ROOT / name).is_file() for name in (project["readme"], *project["license-files"], "SECURITY.md"))


# --- Links ---


@cache
def prose(path: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return frozenset(found)


def links(path: Path) -> list[str]:
    return re.findall(r"\]\(([^()\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path)))


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    page = ROOT / name
    broken: list[str] = []
    for link in links(page):
        if OUTSIDE.match(link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []


def test_every_page_and_picture_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    waiting = list(reached)
    while waiting:
        page = waiting.pop()
        for link in links(page):
            path = (page.parent / link.partition("#")[0]).resolve()
            if not OUTSIDE.match(link) and path.is_file() and path not in reached:
                reached.add(path)
                waiting += [path] if path.suffix == ".md" else []
    kept = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".png", ".svg", ".cast")}
    assert sorted(str(path.relative_to(ROOT)) for path in kept - reached) == []


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index) if not OUTSIDE.match(link)}
    pages = {*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")} - {index}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - named) == []


# --- Commands ---


class Written(NamedTuple):
    """One command of the terminal as a page writes it."""

    words: tuple[str, ...]
    line: str


def written_commands(path: Path) -> list[Written]:
    """Every ``openclaw …`` of a page, in blocks and in sentences; ``a|b`` stands for two commands."""
    text = path.read_text("utf-8")
    lines = [
        line.strip().removeprefix("$ ")
        for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`([^`\n]+)`", prose(path))
    found: list[Written] = []
    for line in lines:
        for command in re.split(r"&&|;| \| ", line):
            if match := re.match(r"(?:[A-Z_]+=\S+ )*openclaw(?: |$)(.*)", command.strip().replace("\\|", "|")):
                found += [Written(words, line) for words in alternatives(match[1])]
    return found


def alternatives(text: str) -> list[tuple[str, ...]]:
    text = re.split(r"\s{2,}|\s#|\s>|\s<<", text)[0]
    try:
        words = shlex.split(text.replace("[", " ").replace("]", " "))
    except ValueError:
        words = text.split()
    choices = [word.split("|") if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word) else [word] for word in words]
    return [tuple(chosen) for chosen in product(*choices)]


@cache
def options() -> dict[str, list[str]]:
    return completions()


def problem(words: tuple[str, ...]) -> str | None:
    """What is wrong with a command, or None."""
    rest = list(words)
    while rest and rest[0] in ("--profile", "--dev", "--no-color"):
        rest = rest[2:] if rest[0] == "--profile" else rest[1:]
    if not rest or rest[0] in ("--help", "-h", "--version", "-V", "help", "…") or rest[0].isupper():
        return None
    name = ALIASES.get(rest[0], rest[0])
    command = find_command(name)
    if command is None:
        return f"no command {rest[0]}"
    rest = rest[1:]
    path = name
    if isinstance(command, Group):
        if rest and rest[0] in command.actions:
            path, rest = f"{name} {rest[0]}", rest[1:]
        elif rest and re.fullmatch(r"[a-z][a-z-]+", rest[0]):
            return f"no sub-command {name} {rest[0]}"
        elif command.default:
            path = f"{name} {command.default}"
    action = command if isinstance(command, Action) else command.actions.get(path.partition(" ")[2])
    own = rest[: rest.index("--")] if "--" in rest else rest
    known = {*options()[path], "--no-color", "--help", "-h"} | {
        option for flag in (action.flags if action else ()) for option in flag.names
    }
    for word in own:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option) and option not in known:
            return f"{path} has no option {option}"
    return None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])
def test_every_command_in_the_docs_is_known(name: str) -> None:
    wrong = {found.line: said for found in written_commands(ROOT / name) if (said := problem(found.words))}
    assert wrong == {}


def test_the_check_of_commands_sees_what_is_wrong() -> None:
    assert problem(("frobnicate",)) == "no command frobnicate"
    assert problem(("cron", "frobnicate")) == "no sub-command cron frobnicate"
    assert problem(("status", "--frobnicate")) == "status has no option --frobnicate"
    assert problem(("cron", "add", "--name", "Brief")) is None
    assert len([words for name, _, _ in TABLE for words in [(name, "--help")] if problem(words)]) == 0
    assert alternatives("gateway start|stop --json") == [("gateway", "start", "--json"), ("gateway", "stop", "--json")]


# --- Configuration ---


def settings_blocks(path: Path) -> list[str]:
    """The blocks of a page that are a whole ``openclaw.json``, or the part of one that matters."""
    blocks = re.findall(r"^[ ]*```json5\n(.*?)^[ ]*```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if block.lstrip().startswith("{") and "$include" not in block]


@pytest.mark.parametrize("name", [name for name in NAMES if settings_blocks(ROOT / name)])
def test_every_setting_in_an_example_is_known_and_valid(name: str) -> None:
    for block in settings_blocks(ROOT / name):
        names = re.findall(r"env: \"(\w+)\"|\$\{(\w+)\}", block)
        snapshot = parse_config("openclaw.json", block, {a or b: "a-secret-of-many-letters" for a, b in names})
        assert [str(issue) for issue in (*snapshot.issues, *snapshot.warnings)] == [], block


@cache
def keys_of_the_schema() -> re.Pattern[str]:
    """Every key. ``*`` stands for a name of the user, ``[]`` for an item of a list."""
    return re.compile("|".join(re.escape(key.path).replace(r"\*", r"[\w-]+") for key in all_keys()))


def known_key(path: str) -> bool:
    return keys_of_the_schema().fullmatch(re.sub(r"\[\d*\]", "[]", path)) is not None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "CHANGELOG.md"])
def test_every_key_that_is_set_in_an_example_is_known(name: str) -> None:
    keys = {
        found.words[2]
        for found in written_commands(ROOT / name)
        if found.words[:1] == ("config",) and found.words[1:2] in (("set",), ("get",), ("unset",)) and found.words[2:]
    }
    # Words in capitals stand for a key, and one example shows what happens to a mistyped one.
    named = [key for key in sorted(keys) if "." in key and not key.isupper() and key != "gateway.prot"]
    assert [key for key in named if not known_key(key)] == []


# --- The README in two languages ---

ENGLISH, SPANISH = ROOT / "README.md", ROOT / "README.es.md"


def shape(path: Path) -> list[str]:
    """What does not depend on the language: levels of headings, rows of tables, code without remarks, links."""
    found: list[str] = []
    for part in re.split(r"(^```[a-z0-9]*\n.*?^```$)", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
        if part.startswith("```"):
            language, _, code = part.removeprefix("```").partition("\n")
            # The drawing without a language has words in it.
            found += [re.sub(r"\s+#.*", "", line).rstrip() for line in code.splitlines()] if language else ["drawing"]
            continue
        for line in part.splitlines():
            if heading := re.match(r"#+ ", line):
                found.append(f"heading {len(heading[0]) - 1}")
            elif line.startswith("|"):
                found.append("row")
            if not line.startswith(("[English]", "**English**")):
                found += re.findall(r"\]\(([^()\s]+)\)", line)
                found += [f"`{code}`" for code in re.findall(r"`([^`]+)`", line) if code != "docs"]
    return found


def test_the_spanish_readme_has_what_the_english_one_has() -> None:
    english, spanish = shape(ENGLISH), shape(SPANISH)
    assert sorted({*english} ^ {*spanish}) == [], "one of the two says something that the other does not"
    assert sorted(english) == sorted(spanish)
    headings = [part for part in english if part.startswith("heading")]
    assert headings == [part for part in spanish if part.startswith("heading")]
    assert len(headings) > 5
    assert "(README.es.md)" in ENGLISH.read_text("utf-8") and "(README.md)" in SPANISH.read_text("utf-8")
