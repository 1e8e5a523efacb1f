"""Decides which commands may run when ``security`` is ``allowlist``. It parses a command without a shell.

A command is allowed only if it consists of programs with literal arguments, joined by ``|``, ``&&``, ``||`` or ``;``,
and every program is allowed. The command that runs is rebuilt from those parts, with full program paths and every
argument quoted, so the shell sees nothing that was not checked here.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_OPERATOR = re.compile(r"\|\||&&|;|\|")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]+")
_IN_DOUBLE_QUOTES = re.compile(r'[^"$`\\!\n]*')


class SafeUse(msgspec.Struct, frozen=True):
    """The arguments with which a program only filters its input: it opens no file and starts no program."""

    flags: str
    """Short options without a value."""
    values: str = ""
    """Short options with a value."""
    words: int = 0
    """How many arguments that are not options are allowed."""


SAFE_USES: Mapping[str, SafeUse] = {
    "cut": SafeUse("szn", "bcdf"),
    "grep": SafeUse("EFGPabchHilLnoqsvwxzy", "emABC", words=1),
    "head": SafeUse("qvz", "cn"),
    "jq": SafeUse("crsSnejaCM", words=1),
    "sort": SafeUse("bcdfghinrRsuVMz", "kt"),
    "tail": SafeUse("qvz", "cn"),
    "tr": SafeUse("cCdst", words=2),
    "uniq": SafeUse("cdDiuz", "fsw"),
    "wc": SafeUse("clmLw"),
}


class RefusedCommand(msgspec.Struct, frozen=True):
    reason: str


class AllowedCommand(msgspec.Struct, frozen=True):
    command: str
    """The command to run in place of the original text."""


class Segment(msgspec.Struct, frozen=True):
    joined_by: str
    """The operator before the segment. Empty for the first."""
    argv: list[str]


def evaluate(
    command: str, *, allowlist: Sequence[str], safe_bins: Sequence[str], search_path: str, cwd: str
) -> AllowedCommand | RefusedCommand:
    """Checks a command. ``allowlist`` holds globs of full program paths, ``safe_bins`` names from ``SAFE_USES``."""
    segments = parse(command)
    if isinstance(segments, RefusedCommand):
        return segments
    rebuilt: list[str] = []
    for segment in segments:
        program = resolve_program(segment.argv[0], search_path, cwd)
        if program is None:
            return RefusedCommand(f"{segment.argv[0]} is not a program on the search path")
        listed = any(matches(program.real, pattern) for pattern in allowlist)
        if not listed and not _is_safe_filter(segment.argv, safe_bins):
            return RefusedCommand(f"{program.real} is not on the allowlist")
        if segment.joined_by:
            rebuilt.append(segment.joined_by)
        rebuilt.append(shlex.join([program.run, *segment.argv[1:]]))
    return AllowedCommand(" ".join(rebuilt))


def parse(command: str) -> list[Segment] | RefusedCommand:
    """Splits a command into programs with literal arguments. Refuses what a shell would expand, redirect or nest."""
    segments: list[Segment] = []
    joined_by, argv, word = "", [], None
    position = 0
    text = command.strip()
    while position < len(text):
        character = text[position]
        if character in " \t":
            argv, word, position = [*argv, *([] if word is None else [word])], None, position + 1
        elif operator := _OPERATOR.match(text, position):
            argv = [*argv, *([] if word is None else [word])]
            if not argv:
                return RefusedCommand(f"nothing stands before {operator.group()}")
            segments.append(Segment(joined_by, argv))
            joined_by, argv, word, position = operator.group(), [], None, operator.end()
        else:
            literal = _literal(text, position)
            if literal is None:
                return RefusedCommand(f"{character!r} at position {position + 1} needs a shell to understand it")
            word, position = (word or "") + literal[0], literal[1]
    argv = [*argv, *([] if word is None else [word])]
    if not argv:
        return RefusedCommand("the command ends with an operator" if segments else "the command is empty")
    segments.append(Segment(joined_by, argv))
    assignment = next((s.argv[0] for s in segments if "=" in s.argv[0]), None)
    return RefusedCommand(f"{assignment} sets a variable") if assignment else segments


class Program(msgspec.Struct, frozen=True):
    real: str
    """The file behind all links, which the allowlist is compared with."""
    run: str
    """The path under which it is run."""


def resolve_program(name: str, search_path: str, cwd: str) -> Program | None:
    found = str(Path(cwd, name)) if "/" in name else shutil.which(name, path=search_path)
    if not found or not os.access(found, os.X_OK) or not Path(found).is_file():
        return None
    real = os.path.realpath(found)
    # Some systems install one program under many names, and it acts by the name under which it is called.
    many_names = "/" not in name and Path(real).name != name
    return Program(real, found if many_names else real)


def matches(program: str, pattern: str) -> bool:
    """Whether a glob of full paths matches.

    A bare name matches nothing, since anyone can plant a program of that name.
    """
    expanded = str(Path(pattern).expanduser()) if pattern.startswith("~/") else pattern
    return expanded.startswith("/") and fnmatch.fnmatchcase(program, expanded)


def _literal(text: str, position: int) -> tuple[str, int] | None:
    """The literal characters from here on, and the position after them. None if a shell would interpret them."""
    if text[position] == "'":
        end = text.find("'", position + 1)
        return None if end < 0 else (text[position + 1 : end], end + 1)
    if text[position] == '"':
        quoted = _IN_DOUBLE_QUOTES.match(text, position + 1)
        closed = quoted is not None and text[quoted.end() : quoted.end() + 1] == '"'
        return (quoted.group(), quoted.end() + 1) if quoted is not None and closed else None
    plain = _PLAIN.match(text, position)
    return (plain.group(), plain.end()) if plain else None


def _is_safe_filter(argv: list[str], safe_bins: Sequence[str]) -> bool:
    use = SAFE_USES.get(argv[0]) if argv[0] in safe_bins else None
    if use is None:
        return False
    words, allowed_words, rest = 0, use.words, list(reversed(argv[1:]))
    while rest:
        token = rest.pop()
        if not token.startswith("-"):
            words += 1
        elif re.fullmatch(r"-\d+", token) and argv[0] in ("head", "tail"):
            continue
        else:
            # Long options may be abbreviated, so none can be recognised as safe by its name.
            letters = token[1:].lstrip(use.flags)
            if not letters and len(token) > 1:
                continue
            if not letters or letters[0] not in use.values or (len(letters) == 1 and not rest):
                return False
            if letters[0] == "e":  # grep has its pattern now, so another word would be a file.
                allowed_words = 0
            if len(letters) == 1:
                rest.pop()
    return words <= allowed_words
