"""Decides which commands may run without a question when ``security`` is ``allowlist``. No shell is involved.

A command is allowed only if it is one program with literal arguments. It is run as that, without a shell. Chains,
pipes, redirections, expansions and comments are always put before a person.

What ``allow-always`` may store is decided here too (``rule_for``). A program is stored with all its arguments free only
if no arguments make it read files or run anything. Everything else is stored as this one command in this folder. Both
hold as long as the program, and every file that the arguments name, have the same content. Nothing is stored for
programs that run what their arguments name, for scripts, and for programs and files in folders that the agent can write
to, because what they load in turn cannot be bound.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from openclaw.tools.exec.binding import (
    Binding,
    BoundFile,
    Program,
    agent_can_write,
    bind,
    is_native,
    is_visible,
    named_paths,
    named_programs,
    names,
    resolve_program,
    runs_arguments,
    runs_others,
)

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./^-]+")
_IN_DOUBLE_QUOTES = re.compile(r'[^"$`\\!\n]*')
_GLOB = re.compile(r"[*?\[]")
_EXACT = "="
"""The first character of a pattern that is a whole command. No older reader takes it for a path."""
SYSTEM_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin", "/opt/homebrew/bin", "/run/current-system/sw/bin")
"""Where filters are taken from. The search path may name folders that the agent can write."""
FREE_ARGUMENTS = names(
    "echo printf id whoami uname pwd true false uptime arch nproc groups logname seq sleep basename dirname ls df"
)
"""Programs that neither read nor write named files nor run anything, whatever their arguments."""


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
    "sort": SafeUse("bcdfghinrRsuVMz", "kt"),
    "tail": SafeUse("qvz", "cn"),
    "tr": SafeUse("cCdst", words=2),
    "uniq": SafeUse("cdDiuz", "fsw"),
    "wc": SafeUse("clmLw"),
}


class AllowRule(msgspec.Struct, frozen=True, kw_only=True):
    """What people allowed for good."""

    pattern: str
    """A glob of full program paths, or ``=`` and a whole command."""
    cwd: str | None = None
    files: tuple[BoundFile, ...] = ()
    """The content that the files must have. Empty in rules that a person wrote."""


class RefusedCommand(msgspec.Struct, frozen=True):
    reason: str


class AllowedCommand(msgspec.Struct, frozen=True):
    binding: Binding
    """The program to run in place of the original text."""
    is_filter: bool = False
    """It only filters its input, so it gets no environment."""


def evaluate(
    command: str,
    *,
    rules: Sequence[AllowRule],
    safe_bins: Sequence[str],
    search_path: str,
    cwd: str,
    workspace: Path | None = None,
) -> AllowedCommand | RefusedCommand:
    """Checks a command. ``safe_bins`` are names from ``SAFE_USES``. Blocking.

    The agent can rewrite what is in the ``workspace``, so no rule covers a program there.
    """
    argv = parse(command)
    if isinstance(argv, RefusedCommand):
        return argv
    if (safe := _safe_filter(argv, safe_bins)) is not None:
        bound = bind([safe.run, *argv[1:]], "", cwd, inputs=False)
        if bound is not None:
            return AllowedCommand(bound, is_filter=True)
    program = resolve_program(argv[0], search_path, cwd)
    if program is None:
        return RefusedCommand(f"{argv[0]} is not a program on the search path")
    # A glob covers programs that nobody thought of, so none of them may be a wrapper around another one.
    wraps = any(named_programs(word, search_path, cwd) for word in argv[1:])
    own = workspace is not None and Path(program.real).is_relative_to(workspace.resolve())
    covering = [
        rule for rule in rules if _covers(rule, program, argv, cwd) and not (wraps and _is_glob(rule)) and not own
    ]
    if not covering:
        why = " and runs whatever its arguments name" if runs_arguments(program) else ""
        why = ", and the agent can rewrite it" if own else why
        return RefusedCommand(f"{program.real} is not on the allowlist{why}")
    exact = [rule for rule in covering if _is_exact(rule)]
    bound = bind(argv, search_path, cwd, inputs=bool(exact))
    if bound is None:
        return RefusedCommand(f"{argv[0]} cannot be run")
    if any(_same_content(rule, bound) for rule in covering if rule not in exact):
        return AllowedCommand(bound)
    # A rule of an older version, or one that a person wrote, covers no more than what would be stored today.
    standing = _standing_rule(argv, program, bound, search_path, cwd, workspace)
    if isinstance(standing, str):
        return RefusedCommand(standing)
    if not any(_same_content(rule, bound) for rule in exact):
        return RefusedCommand(f"{program.real}, or a file it is given, has changed since it was allowed")
    return AllowedCommand(bound)


def parse(command: str) -> list[str] | RefusedCommand:
    """Takes a command apart into a program and its arguments. Refuses what a shell would expand, redirect or nest."""
    argv: list[str] = []
    word: str | None = None
    position = 0
    text = command.strip(" \t")
    if not is_visible(text):
        return RefusedCommand("it has more than one line, or characters that cannot be seen")
    while position < len(text):
        if text[position] == " ":
            argv, word, position = [*argv, *([] if word is None else [word])], None, position + 1
            continue
        literal = _literal(text, position)
        if literal is None:
            return RefusedCommand(f"{text[position]!r} at position {position + 1} needs a shell to understand it")
        word, position = (word or "") + literal[0], literal[1]
    argv = [*argv, *([] if word is None else [word])]
    if not argv or not argv[0]:
        return RefusedCommand("the command is empty")
    return RefusedCommand(f"{argv[0]} sets a variable") if "=" in argv[0] else argv


def rule_for(command: str, search_path: str, cwd: str, workspace: Path | None = None) -> AllowRule | str:
    """Return what ``allow-always`` stores for the command, or why it stores nothing. Raises ``ToolError``. Blocking."""
    argv = parse(command)
    if isinstance(argv, RefusedCommand):
        return f"only a single program with plain arguments can be allowed for good ({argv.reason})"
    program = resolve_program(argv[0], search_path, cwd)
    bound = bind(argv, search_path, cwd)
    if program is None or bound is None:
        return f"{argv[0]} is not a program on the search path"
    return _standing_rule(argv, program, bound, search_path, cwd, workspace)


def _standing_rule(
    argv: Sequence[str], program: Program, bound: Binding, search_path: str, cwd: str, workspace: Path | None
) -> AllowRule | str:
    if bound.program is None or runs_others(program):
        return f"{argv[0]} can run other programs, so each of its commands is asked about"
    if not is_native(program.real):
        return f"{argv[0]} is a script; what it loads could be changed without a question"
    if agent_can_write(program.run, workspace):
        return f"{argv[0]} is in a folder that the agent can write to, so it could be changed without a question"
    if set(program.names) <= FREE_ARGUMENTS and Path(program.run).parent in map(Path, SYSTEM_FOLDERS):
        return AllowRule(pattern=program.real, files=(bound.program,))
    for path in (path for word in argv[1:] for path in named_paths(word, cwd)):
        if agent_can_write(path, workspace):
            return f"{path} can be written by the agent, so it could be changed without a question"
    for named in (named for word in argv[1:] for named in named_programs(word, search_path, cwd)):
        return f"{argv[0]} may run {named.run}, which its arguments name"
    return AllowRule(pattern=_exact(program, argv), cwd=cwd, files=(bound.program, *bound.files))


def matches(program: Program, pattern: str) -> bool:
    """Whether a glob of full paths covers a program.

    A bare name covers nothing, since anyone can plant a program of that name. A shell, a wrapper or an interpreter is
    never covered, and a program that can be made to run others only by its full path.
    """
    expanded = str(Path(pattern).expanduser()) if pattern.startswith("~/") else pattern
    if not expanded.startswith("/") or runs_arguments(program):
        return False
    if _GLOB.search(pattern):
        return not runs_others(program) and fnmatch.fnmatchcase(program.real, expanded)
    return program.real == expanded


def _covers(rule: AllowRule, program: Program, argv: Sequence[str], cwd: str) -> bool:
    if _is_exact(rule):
        return bool(rule.files) and rule.pattern == _exact(program, argv) and rule.cwd == cwd
    return matches(program, rule.pattern)


def _is_exact(rule: AllowRule) -> bool:
    return rule.pattern.startswith(_EXACT)


def _is_glob(rule: AllowRule) -> bool:
    return not _is_exact(rule) and _GLOB.search(rule.pattern) is not None


def _exact(program: Program, argv: Sequence[str]) -> str:
    return _EXACT + shlex.join([program.run, *argv[1:]])


def _same_content(rule: AllowRule, bound: Binding) -> bool:
    if not rule.files:
        return True
    recorded = {bound.program, *bound.files}
    return recorded == set(rule.files) if _is_exact(rule) else rule.files[0] in recorded


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


def _safe_filter(argv: list[str], safe_bins: Sequence[str]) -> Program | None:
    """The program, if the command only filters its input."""
    use = SAFE_USES.get(argv[0]) if argv[0] in safe_bins else None
    if use is None or not _only_filters(argv, use):
        return None
    return next((path for folder in SYSTEM_FOLDERS if (path := resolve_program(argv[0], folder, "/"))), None)


def _only_filters(argv: list[str], use: SafeUse) -> bool:
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
