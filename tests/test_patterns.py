"""No text from outside makes a regular expression slow: ours, found one by one, and those of an owner."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import openclaw
from openclaw import redact
from openclaw.config.load import parse_config
from openclaw.patterns import (
    OVERLAP,
    PIECE,
    BoundedPattern,
    PatternRefused,
    exponential_reason,
    mention_pattern,
    pieces,
    redact_pattern,
    slow_reason,
)
from tests.support.sources import many_nodes, parsed

LENGTH = 4000
"""With this many characters a linear search takes a quarter of a millisecond, and a quadratic one 120 or more."""
ALLOWED_S = 0.1
"""Seconds of the processor, so that a busy machine changes nothing."""
METHODS = {"match", "search", "sub", "subn", "fullmatch", "finditer", "findall", "split"}

NEVER_TRIED_AGAIN = {
    "openclaw.config.load._SKIP": "nothing follows the repeat, so what it took is never tried again",
    "openclaw.config.edit._REST_OF_LINE": "nothing but optional parts follows the repeat",
    "openclaw.agent.compaction.summary._IDENTIFIER": "sees LONGEST_IDENTIFIER characters of one word",
    "openclaw.agent.compaction.summary._FACT": "every repeat in it is bounded",
    "openclaw.cli.gateway_target._STRING_OR_LOOSE": "reads the owner's own configuration file, in a command",
    "openclaw.cli.gateway_target._COMMENT_OR_STRING": "reads the owner's own configuration file, in a command",
}
"""Expressions that look ambiguous, and why that does no harm. The first two are attacked all the same."""
BOUNDED_INPUT = {
    "openclaw.agent.compaction.summary._IDENTIFIER": "LONGEST_IDENTIFIER",
    "openclaw.cli.gateway_target._STRING_OR_LOOSE": "the owner's file",
    "openclaw.cli.gateway_target._COMMENT_OR_STRING": "the owner's file",
    "openclaw.storage.files.newer_state._ARCHIVED": "file names",
    "openclaw.models.errors._PART": "MAX_ERROR_TEXT",
}
"""Expressions that only ever see a short text, and what bounds it."""
MADE_AT_RUN_TIME = {
    ("gateway/server/frames.py", "kind.pattern"): "a pattern of a parameter record; none is used today",
    ("models/errors.py", "pattern"): "iterates over a tuple of constants in this file",
    ("storage/files/ledger_db.py", "pattern"): "iterates over constants, for sentences of our own ledger",
    ("models/errors.py", "'|'.join((f'(?:{pattern})' for pattern in patterns))"): "constants of this file",
    ("tools/match_lines.py", "request['pattern']"): "in a process of its own, which ends after search.TIMEOUT_S",
    ("tools/search.py", "translate(_plain_glob(piece))"): "fnmatch's linear expressions, for one name of a path",
    ("tools/policy.py", "'.*'.join(map(re.escape, entry.split('*')))"): "an owner's tool names, for a tool's name",
    (
        "agent/session_access.py",
        "'.*'.join(map(re.escape, pattern.strip().split('*')))",
    ): "an owner's agent ids, for an id",
    ("inbound/directives.py", "f'{_SLASH}({names}){_END}(?:{_BLANK}:)?'"): "escaped names of models",
    ("channels/base.py", "credential.shape"): "constants of the kinds of channels, for an owner's own credentials",
    ("patterns.py", "pattern"): "the place that checks expressions of owners",
    ("patterns.py", "_CATEGORIES[value]"): "constants of this file",
    ("redact.py", "pattern"): "the built-in expressions, attacked here",
}
"""Expressions that are not constants of a module, and where their text comes from."""


class Found:
    """An expression in the package, and the methods that are called on it."""

    def __init__(self, name: str, pattern: re.Pattern[Any], uses: set[str]) -> None:
        self.name = name
        self.pattern = pattern
        self.uses = uses or METHODS


@cache
@many_nodes()
def modules() -> list[tuple[Any, ast.Module]]:
    names = [info.name for info in pkgutil.walk_packages(openclaw.__path__, "openclaw.")]
    found = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [(module, parsed(Path(module.__file__ or ""))) for module in found]


def names_in(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def uses_by_name() -> dict[tuple[str, str], set[str]]:
    uses: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                for name in names_in(node.value):
                    uses[module.__name__, name].add(node.attr)
    return uses


@cache
def expressions() -> list[Found]:
    uses = uses_by_name()
    found: dict[tuple[Any, int], Found] = {}

    def keep(value: Any, module: str, name: str, depth: int = 0) -> None:
        value = getattr(value, "__self__", value)
        if isinstance(value, re.Pattern):
            found.setdefault((value.pattern, value.flags), Found(f"{module}.{name}", value, uses[module, name]))
        elif depth < 4 and isinstance(value, (list, tuple, set, frozenset, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                keep(item, module, name, depth + 1)

    for module, tree in modules():
        for name, value in list(vars(module).items()):
            keep(value, module.__name__, name)
        for node in ast.walk(tree):
            if (call := re_call(node, METHODS)) and isinstance(call.args[0], ast.Constant):
                pattern = re.compile(call.args[0].value)
                name = f"{module.__name__}:{call.lineno}"
                found.setdefault((pattern.pattern, pattern.flags), Found(name, pattern, {call.func.attr}))
    for pattern in redact._built_in():
        found[pattern.pattern, pattern.flags] = Found("openclaw.redact._DEFAULTS", pattern, {"sub"})
    return list(found.values())


def re_call(node: ast.AST, methods: set[str]) -> Any:
    """The node, if it is a call such as ``re.sub(...)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    called = node.func
    return node if isinstance(called.value, ast.Name) and called.value.id == "re" and called.attr in methods else None


def test_every_expression_in_the_package_can_be_found_and_attacked() -> None:
    """An expression that is put together at run time has no constant to attack, so it needs a reason here."""
    strays = set()
    for module, tree in modules():
        path = str(Path(module.__file__ or "").relative_to(Path(openclaw.__file__).parent))
        calls = [call for node in ast.walk(tree) if (call := re_call(node, {*METHODS, "compile"}))]
        made = [call for call in calls if not isinstance(call.args[0], ast.Constant)]
        at_module_level = {
            id(part) for statement in tree.body if made and not is_function(statement) for part in ast.walk(statement)
        }
        for call in made:
            if call.func.attr != "compile" or id(call) not in at_module_level:
                strays.add((path, ast.unparse(call.args[0])))
    assert strays == set(MADE_AT_RUN_TIME)


def is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def test_no_expression_of_ours_can_take_exponential_time() -> None:
    ambiguous = {
        found.name: reason
        for found in expressions()
        if found.name not in NEVER_TRIED_AGAIN
        and (reason := exponential_reason(as_text(found.pattern), found.pattern.flags & ~re.UNICODE))
    }
    assert not ambiguous


def as_text(pattern: re.Pattern[Any]) -> str:
    return pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")


def test_the_list_of_harmless_expressions_holds_only_expressions_that_exist() -> None:
    names = {found.name for found in expressions()}
    assert set(NEVER_TRIED_AGAIN) | set(BOUNDED_INPUT) <= names


def test_pumped_strings_do_not_make_any_expression_of_ours_slow() -> None:
    """A signal interrupts an expression that hangs: the engine looks for one every few thousand steps."""
    before = signal.signal(signal.SIGVTALRM, give_up)
    try:
        assert attack(expressions()) == []
        assert attack([Found("slow", re.compile("(a+)+b"), {"search"})])
    finally:
        signal.signal(signal.SIGVTALRM, before)


class TooSlow(BaseException):
    pass


def give_up(*_: Any) -> None:
    raise TooSlow


def attack(expressions: list[Found]) -> list[str]:
    """The expressions that take longer than allowed for some text."""
    slow: list[str] = []
    for found in expressions:
        if found.name in BOUNDED_INPUT:
            continue
        for prefix, pump in pumps(found.pattern):
            text = prefix + pump * (LENGTH // len(pump)) + "!"
            data: Any = text if isinstance(found.pattern.pattern, str) else text.encode()
            signal.setitimer(signal.ITIMER_VIRTUAL, ALLOWED_S)
            try:
                run(found, data)
            except TooSlow:
                slow.append(f"{found.name}: {prefix!r} + {pump!r} * n")
                break
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return slow


def run(found: Found, text: Any) -> None:
    if found.uses & {"sub", "subn", "finditer", "findall", "split"}:
        for _ in found.pattern.finditer(text):
            pass
    for method in ("search", "match", "fullmatch"):
        if method in found.uses:
            getattr(found.pattern, method)(text)


def pumps(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Texts made of what the expression speaks of: its characters, its words, and pairs of them."""
    chars: list[str] = []
    words: list[str] = []
    speaks_of(parser.parse(as_text(pattern), pattern.flags & ~re.UNICODE), chars, words)
    chars = list(dict.fromkeys([*chars, "a", " "]))
    chars = chars[:: max(1, len(chars) // 10)]
    words = list(dict.fromkeys(words))[:6]
    pairs = [left + right for left in chars[:5] for right in chars[:5] if left != right]
    for pump in [*chars, *words, *pairs, *(word + char for word in words for char in chars[:2])]:
        yield "", pump
    for prefix in [*chars[:4], *words[:3]]:
        for pump in chars[:6]:
            yield prefix, pump


SAMPLES = {"DIGIT": "1", "SPACE": " \n", "WORD": "a", "NOT_DIGIT": "a", "NOT_SPACE": "a", "NOT_WORD": "-"}


def speaks_of(tree: Any, chars: list[str], words: list[str]) -> None:
    word = ""
    for op, argument in tree:
        kind = str(op)
        if kind == "LITERAL":
            chars.append(chr(argument))
            word += chr(argument)
            continue
        if len(word) > 1:
            words.append(word)
        word = ""
        match kind:
            case "NOT_LITERAL":
                chars.append(chr(argument))
            case "IN":
                for inner, value in argument:
                    match str(inner):
                        case "LITERAL":
                            chars.append(chr(value))
                        case "RANGE":
                            chars.append(chr(value[0]))
                        case "CATEGORY":
                            chars.extend(SAMPLES[str(value).removeprefix("CATEGORY_")])
                        case _:
                            pass
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                speaks_of(argument[2], chars, words)
            case "SUBPATTERN":
                speaks_of(argument[3], chars, words)
            case "ATOMIC_GROUP":
                speaks_of(argument, chars, words)
            case "BRANCH":
                for branch in argument[1]:
                    speaks_of(branch, chars, words)
            case "ASSERT" | "ASSERT_NOT":
                speaks_of(argument[1], chars, words)
            case _:
                pass
    if len(word) > 1:
        words.append(word)


SLOW = [
    "(a+)+",
    "(.*)*x",
    "(a?a?)*",
    r"(\w+\s?)*$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    "(x+x+)+y",
    "(?:a|b|ab)*c",
    "(a{1,5}){1,30}b",
    r"(\w+)\1+z",
    "([a-zA-Z]+)*",
    ".*.*x",
    r"\s*\w*\s*=a*a*b",
    r"[\s\S]*foo[\s\S]*bar",
    "a?" * 60 + "a" * 60,
    "(?:ab|ac|a.)" * 20,
    "((a{30}){30}){30}",
    r"(?=.*a)(?=.*b)c",
    r"(?:(?:a*)*)*",
    "(?:é|É|é.)*x",
    '"(?:[a-z0-9]+[_-]?)*?(?:token)"',
]
QUICK = [
    "@?clawd",
    r"\bhey\b",
    "claw(d|bot)?",
    r"(?:hey|hi|hello)\s+claude\b",
    r"\d{4}-\d{2}-\d{2}",
    r"cust-(\d+)",
    "sk-[A-Za-z0-9]{20,}",
    "(?:[0-9a-f]{2}:){5}[0-9a-f]{2}",
    r'"(?:[^"\\]|\\.)*"',
    r"^[A-Z0-9._%+-]+@[A-Z0-9-]+\.[A-Z]{2,}$",
    r"(?<!\w)bot(?!\w)",
    "(?:小爪|クロー)さん?",
]


@pytest.mark.parametrize("pattern", SLOW)
def test_an_expression_that_may_be_slow_is_refused(pattern: str) -> None:
    assert slow_reason(pattern)
    for compiled in (mention_pattern, redact_pattern):
        with pytest.raises(PatternRefused):
            compiled(pattern)


@pytest.mark.parametrize("pattern", QUICK)
def test_ordinary_expressions_are_accepted(pattern: str) -> None:
    assert slow_reason(pattern) is None


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(" * 500 + ")" * 500, "a" * 2000, "[z-a]"])
def test_what_is_no_usable_expression_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        BoundedPattern(pattern)


@pytest.mark.parametrize(
    "place",
    ["logging.redactPatterns", "messages.groupChat.mentionPatterns", "agents.list.groupChat.mentionPatterns"],
)
def test_a_slow_expression_in_the_configuration_is_a_warning_and_cannot_be_set(place: str) -> None:
    value: Any = ["fine", "(a+)+$"]
    for key in reversed(place.split(".")):
        value = {key: [{"id": "main", **value}] if key == "list" else value}
    loaded = parse_config("openclaw.json", json.dumps(value), {})
    assert ["(a+)+$" not in str(mistake) and "several ways" in str(mistake) for mistake in loaded.mistakes] == [True]


def test_a_refused_redaction_pattern_leaves_the_built_in_ones_in_place() -> None:
    try:
        refused = redact.configure(["(a+)+$", r"cust-(\d+)"])
        assert len(refused) == 1 and "(a+)+$" in refused[0]
        assert redact.redact("cust-1234567 token=abcdefgh") == "cust-*** token=***"
    finally:
        redact.configure(None)


def test_long_text_is_searched_in_pieces_that_cover_it() -> None:
    text = ("word " * 1000) + "x" * (3 * PIECE)
    cut = list(pieces(text))
    assert [start for start, _ in cut] == [0, *(end for _, end in cut[:-1])] and cut[-1][1] == len(text)
    assert all(end - start <= PIECE for start, end in cut)
    border = cut[-1][0]
    assert BoundedPattern("needle").found_in(text[: border - 3] + "needle" + text[border + 3 :]) and OVERLAP > 6
    assert BoundedPattern("w(or)d").sub("-", text).count("-") == 1000
