"""The skills that an agent can use: reading ``SKILL.md`` files, checking their needs, listing them in the prompt.

The prompt lists only name, purpose and path. The model reads a skill's file when it wants to. Nothing in a skill is run
here. The functions that read the disk block. A turn calls them only after ``WorkspaceSnapshots`` has seen a change. The
reader understands the part of YAML that the headers of skills use, including JSON.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast
from xml.sax.saxutils import escape

import msgspec
import pyjson5

from openclaw.config.agents import agent_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.path_opener import FileMissing, Kind, PathOpener, PathRefused
from openclaw.text import clipped
from openclaw.variables import is_refused_variable, refused_variable

log = logging.getLogger("openclaw.agent.skills")

BUNDLED = "openclaw-bundled"
SKILL_FILE = "SKILL.md"
MAX_FOLDERS = 300
"""The number of folders that are searched in one place."""
MAX_FILE_BYTES = 256_000
MAX_IN_PROMPT = 150
MAX_PROMPT_CHARS = 30_000
WINDOW_SHARE = 10
"""The list takes at most one tenth of the model's window."""
_CHARS_PER_TOKEN = 4
_INTRODUCTION = "\n".join(
    (
        "Before you answer, look through the list: each entry is a skill, with what it is good for.",
        "- If exactly one fits the task, read the file at its <location> with `read`, then follow it.",
        "- If several could fit, take the most specific one, read only that.",
        "- If none clearly fits, read none.",
        "Relative paths inside a skill start at the folder of its file.",
    )
)
_CAPITAL = re.compile(r"(?<!^)([A-Z])")
_SYSTEMS = {"darwin": ("darwin", "macos"), "linux": ("linux",), "win32": ("win32", "windows")}
"""The names that a skill may use for each ``sys.platform``."""


class BadSkill(Exception):
    """A SKILL.md cannot be used. The text tells its author why."""


class SkillNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a skill requires of the machine, or the part of it that is missing."""

    bins: tuple[str, ...] = ()
    """Programs that must all be installed."""
    any_bins: tuple[str, ...] = ()
    """Programs of which one must be installed."""
    env: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    """Key paths of the config that must have a value."""
    os: tuple[str, ...] = ()
    """The operating systems on which the skill works; empty means all."""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """The header of one SKILL.md."""

    name: str
    description: str
    path: str
    source: str = ""
    """The name of the place where it was found; see ``SkillFolder``."""
    key: str
    """The name of its settings in ``skills.entries``."""
    emoji: str | None = None
    homepage: str | None = None
    primary_env: str | None = None
    """The variable that ``skills.entries.<key>.apiKey`` sets."""
    always: bool = False
    """Ignores all needs except the operating system."""
    hidden: bool = False
    """The prompt does not list it. A person may still name it."""
    needs: SkillNeeds = SkillNeeds()
    install: tuple[dict[str, Any], ...] = ()
    """The author's suggestions for installing what it needs. They are shown to people and never run."""
    block: str = ""
    """Its lines in the prompt's list."""


class SkillFolder(msgspec.Struct, frozen=True):
    """A folder that is searched for skills. ``source`` is the name of the place, as ``skills.status`` shows it."""

    source: str
    folder: Path
    workspace: Path | None = None
    """The workspace that it is in. Links there may not lead out of it, since the agent or a stranger can make them."""

    @property
    def opener(self) -> PathOpener:
        return PathOpener(self.workspace or self.folder, confine=self.workspace is not None)


class SkillProblem(msgspec.Struct, frozen=True):
    """A skill file that cannot be used, and why."""

    path: str
    reason: str


class SkillLibrary(msgspec.Struct, frozen=True):
    """The skills that were found, sorted by name. Of several with the same name it holds the strongest one."""

    skills: list[Skill]
    problems: list[SkillProblem]


class SkillVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one agent can use a skill, and what prevents it."""

    skill: Skill
    eligible: bool
    disabled: bool
    """True if ``skills.entries`` switches it off."""
    blocked: bool
    """True if the agent's own list of skills, or the list of allowed bundled skills, does not name it."""
    missing: SkillNeeds

    @property
    def offered(self) -> bool:
        """Whether the prompt lists the skill."""
        return self.eligible and not self.skill.hidden


class SkillsPrompt(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    """The list as the prompt shows it; empty without skills."""
    skills: tuple[Skill, ...] = ()
    left_out: int = 0
    """The number of skills for which there was no room."""


# Finding


def skill_folders(config: Config, state_dir: str, agent_id: str) -> list[SkillFolder]:
    """The folders of an agent. Of skills with the same name, the one in the last folder counts."""
    extra = [Path(folder).expanduser() for folder in config.skills.load.extra_dirs if folder]
    workspace = workspace_dir(config, state_dir, agent_id)
    return [
        *(SkillFolder("openclaw-extra", folder) for folder in extra),
        SkillFolder(BUNDLED, bundled_dir()),
        SkillFolder("openclaw-managed", managed_dir(state_dir)),
        SkillFolder("openclaw-workspace", workspace / "skills", workspace),
    ]


def bundled_dir() -> Path:
    return Path(str(files("openclaw"))) / "skills"


def managed_dir(state_dir: str) -> Path:
    return Path(state_dir) / "skills"


def find_skills(where: list[SkillFolder]) -> SkillLibrary:
    """Reads every skill in the folders. Blocking."""
    skills: dict[str, Skill] = {}
    problems: list[SkillProblem] = []
    for source in where:
        problems += _closed_folders(source)
        for path in skill_files(source):
            try:
                skill = _read(path, source)
                skills[skill.name] = skill
            except FileMissing:
                continue  # It was removed since the folder was listed.
            except (BadSkill, PathRefused, OSError) as problem:
                problems.append(SkillProblem(str(path), str(problem)))
    return SkillLibrary([skills[name] for name in sorted(skills)], problems)


def _closed_folders(place: SkillFolder) -> Iterator[SkillProblem]:
    """The links that lead out of the workspace, so that a person learns why their skills are missing."""
    links = [name for name, kind in _names_in(place, place.folder).items() if kind == "link"]
    for folder in (place.folder, *(place.folder / name for name in links)) if place.workspace else ():
        try:
            place.opener.scan(str(folder))
        except FileMissing:
            continue
        except PathRefused as problem:
            yield SkillProblem(str(folder), str(problem))


def skill_files(place: SkillFolder) -> Iterator[Path]:
    """The ``SKILL.md`` files in the subfolders, in sorted order. A subfolder without one may hold a group of skills."""
    for child in folders_in(place):
        names = _names_in(place, child)
        if SKILL_FILE in names:
            yield child / SKILL_FILE
            continue
        for grandchild in folders_in(place, child):
            if SKILL_FILE in _names_in(place, grandchild):
                yield grandchild / SKILL_FILE


def folders_in(place: SkillFolder, folder: Path | None = None) -> list[Path]:
    """The subfolders in sorted order, without hidden ones; empty if the folder cannot be read.

    A link counts as a folder. It is followed if it leads to one, in a workspace only inside of it.
    """
    folder = folder or place.folder
    names = [
        name
        for name, kind in _names_in(place, folder).items()
        if kind != "file" and not name.startswith((".", "_")) and name != "node_modules"
    ]
    return [folder / name for name in names[:MAX_FOLDERS]]


def _names_in(place: SkillFolder, folder: Path) -> dict[str, Kind]:
    try:
        return dict(place.opener.scan(str(folder)))
    except (OSError, PathRefused):
        return {}


def _read(path: Path, place: SkillFolder) -> Skill:
    with place.opener.open_read(str(path)) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BadSkill(f"larger than {MAX_FILE_BYTES} bytes; move details into files beside it")
    text = data.decode("utf-8", "replace")
    return parse_skill(text, path=str(path), folder=path.parent.name, source=place.source)


# Judging


def judged_skills(
    config: Config, state_dir: str, agent_id: str, environ: Mapping[str, str] = os.environ
) -> tuple[list[SkillVerdict], list[SkillProblem]]:
    """Every skill in the agent's folders with its verdict, and the files that cannot be used. Blocking."""
    library = find_skills(skill_folders(config, state_dir, agent_id))
    agent = agent_config(config, agent_id)
    allowed = agent.skills if agent else None
    return [_judge(skill, config, environ, allowed) for skill in library.skills], library.problems


def _judge(skill: Skill, config: Config, environ: Mapping[str, str], allowed: Collection[str] | None) -> SkillVerdict:
    """``allowed`` is the agent's own list of skills; None allows all."""
    settings = config.skills.entries.get(skill.key)
    disabled = settings is not None and not settings.enabled
    bundled = config.skills.allow_bundled
    blocked = (allowed is not None and skill.name not in allowed and skill.key not in allowed) or (
        skill.source == BUNDLED and bundled is not None and skill.name not in bundled and skill.key not in bundled
    )
    missing = _missing(skill, config, environ)
    lacks = bool(missing.os) if skill.always else missing != SkillNeeds()
    return SkillVerdict(
        skill=skill, eligible=not (disabled or blocked or lacks), disabled=disabled, blocked=blocked, missing=missing
    )


def _missing(skill: Skill, config: Config, environ: Mapping[str, str]) -> SkillNeeds:
    """The part of the skill's needs that is not met."""
    needs = skill.needs
    if needs == SkillNeeds():
        return needs
    search_path = environ.get("PATH", "")
    settings = config.skills.entries.get(skill.key)

    def is_set(name: str) -> bool:
        if environ.get(name):
            return True
        if settings is None or is_refused_variable(name):
            return False
        return bool(settings.env.get(name)) or (settings.api_key is not None and name == skill.primary_env)

    def is_installed(name: str) -> bool:
        return "/" not in name and shutil.which(name, path=search_path) is not None

    systems = _SYSTEMS.get(sys.platform, (sys.platform,))
    return SkillNeeds(
        bins=tuple(name for name in needs.bins if not is_installed(name)),
        any_bins=() if any(is_installed(name) for name in needs.any_bins) else needs.any_bins,
        env=tuple(name for name in needs.env if not is_set(name)),
        config=tuple(path for path in needs.config if not _is_configured(config, path)),
        os=() if not needs.os or any(name.lower() in systems for name in needs.os) else needs.os,
    )


def _is_configured(config: Config, path: str) -> bool:
    """Whether a key path such as ``channels.signal.account`` has a value that is neither empty nor false."""
    value: Any = config
    for segment in path.split("."):
        if isinstance(value, msgspec.Struct):
            value = getattr(value, _CAPITAL.sub(r"_\1", segment).lower(), None)
        elif isinstance(value, dict):
            value = cast("dict[str, Any]", value).get(segment)
        else:
            return False
    if isinstance(value, msgspec.Struct):
        # A section that is not in the file has its default values.
        return msgspec.to_builtins(value) != msgspec.to_builtins(type(value)())
    return bool(value)


def skill_environment(verdicts: Iterable[SkillVerdict], config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ``env`` and ``apiKey`` of the eligible skills set.

    A variable of the Gateway's own environment is never overridden, and one that could change which program runs is
    not set. Blocking: a key may be in a file or come from a program.
    """
    values: dict[str, str] = {}
    for verdict in verdicts:
        settings = config.skills.entries.get(verdict.skill.key)
        if settings is None or not verdict.eligible:
            continue
        for name, value in settings.env.items():
            if is_refused_variable(name, value):
                log.warning("skills.entries.%s.env: %s", verdict.skill.key, refused_variable(name))
            elif value and not environ.get(name):
                values.setdefault(name, value)
        name = verdict.skill.primary_env
        if not name or settings.api_key is None or environ.get(name) or name in values:
            continue
        if is_refused_variable(name):
            log.warning("%s: primaryEnv: %s", verdict.skill.path, refused_variable(name))
            continue
        try:
            if key := resolve_secret(settings.api_key, environ, f"skills.entries.{verdict.skill.key}.apiKey"):
                values[name] = key
        except SecretUnavailable as problem:
            log.warning("%s", problem)
    return values


# Listing


def skills_prompt(verdicts: list[SkillVerdict], context_window: int) -> SkillsPrompt:
    """The list of the offered skills, in the order of names, as far as it fits its share of the window."""
    room = min(MAX_PROMPT_CHARS, context_window * _CHARS_PER_TOKEN // WINDOW_SHARE)
    offered = [verdict.skill for verdict in verdicts if verdict.offered]
    shown: list[Skill] = []
    for skill in offered[:MAX_IN_PROMPT]:
        room -= len(skill.block) + 1
        if room < 0:
            break
        shown.append(skill)
    return SkillsPrompt(text=_list(shown), skills=tuple(shown), left_out=len(offered) - len(shown))


def only(prompt: SkillsPrompt, names: Collection[str]) -> SkillsPrompt:
    """The list with the named skills alone. They are named as in an agent's own list."""
    shown = tuple(skill for skill in prompt.skills if skill.name in names or skill.key in names)
    return msgspec.structs.replace(prompt, text=_list(shown), skills=shown)


def variables_of(prompt: SkillsPrompt, config: Config, given: Mapping[str, str]) -> dict[str, str]:
    """Those of the skills' variables that the skills on the list have. The keys of the others stay away."""
    settings = [config.skills.entries.get(skill.key) for skill in prompt.skills]
    own = {name for setting in settings if setting is not None for name in setting.env}
    own |= {skill.primary_env for skill in prompt.skills if skill.primary_env}
    return {name: value for name, value in given.items() if name in own}


def _list(shown: Sequence[Skill]) -> str:
    if not shown:
        return ""
    blocks = "\n".join(skill.block for skill in shown)
    return f"{_INTRODUCTION}\n<available_skills>\n{blocks}\n</available_skills>"


# Reading a SKILL.md

HEADER_LINE = "---"
MAX_HEADER_LINES = 400
_DEEPEST = 12
_KEY = re.compile(r"([A-Za-z_][\w.-]*|\"[^\"\n]+\"|'[^'\n]+')\s*:(?:\s+(.*)|\s*)$")
_WORD_OR_TEXT = re.compile(r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|(?:[^\s,\[\]{}:\"'#]|:(?=\S))+")
_LITERAL = re.compile(r"true|false|null|-?\d+(?:\.\d+)?\Z")
MAX_DESCRIPTION = 1024
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_MAX_NAME = 64
_NAMESPACES = ("openclaw", "clawdbot", "moltbot")
"""The keys under ``metadata`` where a skill keeps its settings. The first is current, the others are older."""
_INSTALL_KEYS = ("id", "kind", "label", "bins")


def parse_skill(text: str, *, path: str, folder: str, source: str) -> Skill:
    """Reads a SKILL.md. ``folder`` is its name if the header has none. Raises ``BadSkill``."""
    header = parse_header(text)
    name = str(header.get("name") or folder).strip()
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise BadSkill(f"name {name[:80]!r}: use lower-case letters, digits and single hyphens, at most {_MAX_NAME}")
    description = " ".join(str(header.get("description") or "").split())
    if not description:
        raise BadSkill("the header has no description; say in one sentence when the skill is to be used")
    description = clipped(description, MAX_DESCRIPTION)
    own = _own_metadata(header.get("metadata"))
    requires = _mapping(own.get("requires"))
    return Skill(
        name=name,
        description=description,
        path=path,
        source=source,
        key=_word(own.get("skillKey")) or name,
        emoji=_word(own.get("emoji")),
        homepage=_word(own.get("homepage")) or _word(header.get("homepage")),
        primary_env=_word(own.get("primaryEnv")),
        always=own.get("always") is True,
        hidden=str(header.get("disable-model-invocation")).strip().lower() in ("true", "yes", "on", "1"),
        needs=SkillNeeds(
            bins=_words(requires.get("bins")),
            any_bins=_words(requires.get("anyBins")),
            env=_words(requires.get("env")),
            config=_words(requires.get("config")),
            os=_words(own.get("os")),
        ),
        install=_installers(own.get("install")),
        block=(
            "  <skill>\n"
            f"    <name>{escape(name)}</name>\n"
            f"    <description>{escape(description)}</description>\n"
            f"    <location>{escape(path)}</location>\n"
            "  </skill>"
        ),
    )


def _own_metadata(metadata: Any) -> dict[str, Any]:
    """The part of ``metadata`` under the first of our namespaces that it has."""
    if isinstance(metadata, str) and metadata.strip().startswith("{"):
        try:
            metadata = pyjson5.loads(metadata)
        except pyjson5.Json5Exception as problem:
            raise BadSkill(f"metadata is not valid JSON: {str(problem)[:120]}") from None
    fields = _mapping(metadata)
    return next((_mapping(fields[name]) for name in _NAMESPACES if name in fields), {})


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _word(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _words(value: Any) -> tuple[str, ...]:
    """A list of words, which may also be written as one text with commas."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return ()
    return tuple(item.strip() for item in cast("list[Any]", value) if isinstance(item, str) and item.strip())


def _installers(value: Any) -> tuple[dict[str, Any], ...]:
    """The suggestions in ``metadata.openclaw.install``, reduced to the known keys."""
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    shown: list[dict[str, Any]] = []
    for index, row in enumerate(rows[:20]):
        spec = _mapping(row)
        kind = _word(spec.get("kind"))
        if kind is None:
            continue
        fields = {name: spec[name] for name in _INSTALL_KEYS if name in spec}
        shown.append({"id": f"{kind}-{index}", "label": kind, **fields, "bins": list(_words(spec.get("bins")))})
    return tuple(shown)


def parse_header(text: str) -> dict[str, Any]:
    """Reads the header between the two ``---`` lines. Raises ``BadSkill``.

    Keys stand at the margin. A value may be plain, quoted, continued on indented lines, a ``|`` or ``>`` block, JSON,
    or indented lists and keys.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != HEADER_LINE:
        raise BadSkill("the file does not begin with a header between two lines of ---")
    end = next((n for n, line in enumerate(lines[1:MAX_HEADER_LINES], 1) if line.rstrip() == HEADER_LINE), None)
    if end is None:
        raise BadSkill(f"the header is not closed by a line of --- within {MAX_HEADER_LINES} lines")
    header: dict[str, Any] = {}
    at = 1
    while at < end:
        line = lines[at]
        at += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _KEY.match(line)
        if match is None:
            raise BadSkill(f"line {at} of the header is not of the form `key: value`: {line.strip()[:60]!r}")
        below: list[str] = []
        while at < end and _belongs(lines[at], 0):
            below.append(lines[at])
            at += 1
        header[_unquoted(match[1])] = _value(match[1], (match[2] or "").strip(), below, _DEEPEST)
    return header


def _belongs(line: str, margin: int) -> bool:
    """Whether a line belongs to the value of the key before it, which stands at this margin."""
    inner = line.lstrip()
    indent = len(line) - len(inner)
    return not inner or indent > margin or (indent == margin and (inner[0] in "}]" or inner.startswith("- ")))


def _value(key: str, first: str, below: list[str], depth: int) -> Any:
    """The value of a key. ``first`` is the text on the key's own line, ``below`` the lines that belong to it."""
    if first[:1] in ("|", ">"):
        lines = [line.strip() for line in below]
        return ("\n" if first[0] == "|" else " ").join(lines).strip()
    whole = "\n".join([first, *below]).strip()
    if whole[:1] in ("{", "["):
        try:
            return pyjson5.loads(whole)
        except pyjson5.Json5Exception as problem:
            try:
                return pyjson5.loads(_WORD_OR_TEXT.sub(_quoted, whole))
            except pyjson5.Json5Exception:
                raise BadSkill(f"{key} is not valid JSON: {str(problem)[:120]}") from None
    if first and not first.startswith("#"):
        return _scalar(" ".join([first, *(line.strip() for line in below if line.strip())]))
    return _nested([line for line in below if line.strip() and not line.lstrip().startswith("#")], depth)


def _quoted(word: re.Match[str]) -> str:
    """The word in quotes, unless it has them or is a literal. YAML allows words without quotes, JSON does not."""
    return word[0] if word[0][0] in "\"'" or _LITERAL.match(word[0]) else json.dumps(word[0])


def _nested(lines: list[str], depth: int) -> Any:
    """The value of the lines below a key: a list, a mapping, or text."""
    if not lines or depth <= 0:
        return " ".join(line.strip() for line in lines)
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    if lines[0].lstrip().startswith("- "):
        return [_item(group, depth) for group in _groups(lines, lambda line: line[margin:].startswith("- "))]
    groups = _groups(lines, lambda line: not _belongs(line, margin))
    keys = [_KEY.match(group[0].strip()) for group in groups]
    if not all(keys):
        return " ".join(line.strip() for line in lines)
    return {
        _unquoted(key[1]): _value(key[1], (key[2] or "").strip(), group[1:], depth - 1)
        for key, group in zip(keys, groups, strict=True)
        if key
    }


def _groups(lines: list[str], begins: Callable[[str], bool]) -> list[list[str]]:
    """The lines in groups. A new group starts at each line for which ``begins`` is true."""
    groups: list[list[str]] = []
    for line in lines:
        if begins(line) or not groups:
            groups.append([])
        groups[-1].append(line)
    return groups


def _item(lines: list[str], depth: int) -> Any:
    """One item of a list: a mapping or another value."""
    first = lines[0].replace("- ", "  ", 1)
    if _KEY.match(first.strip()) and first.strip()[:1] not in ("{", "["):
        return _nested([first, *lines[1:]], depth - 1)
    return _value("an item", first.strip(), lines[1:], depth - 1)


def _unquoted(key: str) -> str:
    return key[1:-1] if key[0] in "\"'" else key


def _scalar(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        if text[0] == "'":
            return text[1:-1].replace("''", "'")
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text[1:-1]
    plain = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    return {"true": True, "false": False, "null": None, "~": None}.get(plain.lower(), plain)
