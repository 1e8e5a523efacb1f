"""Directives: what is read, what is taken out, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.code_spans import code_ranges
from openclaw.inbound.commands.registry import COMMANDS, find
from openclaw.inbound.directives import (
    MAX_DIRECTIVES,
    Directives,
    level_values,
    parse_directives,
    read_level,
    read_send_policy,
    read_usage,
    stored,
)
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.sessions.prompt_prefix import CURRENT_MARKER

HISTORY = "[Chat messages since your last reply - for context]\nPeter: /thinking high please\n\n"


def parse(text: str) -> Directives:
    return parse_directives(text, ("opus", "opus-mini"), shortcuts=True)


@pytest.mark.parametrize("text", ["/think:high", "/t high", "/THINK HIGH", "/thinking  high", "/think : high"])
def test_a_level_is_read_in_every_spelling(text: str) -> None:
    found = parse(text)
    assert found.think and found.think.value == "high"
    assert found.rest == ""


@pytest.mark.parametrize(
    ("text", "value", "word", "rest"),
    [
        ("/think", None, "", ""),
        ("/think:", None, "", ""),
        ("/think extra high", None, "extra", "high"),
        ("/think big", None, "big", ""),
        ("/think x_high", "xhigh", "x_high", ""),
        ("/think high.", "high", "high", ""),
        ("/think high。", "high", "high", ""),
        ("/think high!", "high", "high", ""),
        ("/t: low, then answer", "low", "low", "then answer"),
        ("answer. /think high.", "high", "high", "answer."),
        ("/think altísimo", None, "altísimo", ""),
        ("/think highñ", None, "highñ", ""),
        ("/think high\u0301", None, "high\u0301", ""),
        ("/think high-ish", None, "high-ish", ""),
        ("/think high_er", None, "high_er", ""),
        ("/think high2", None, "high2", ""),
        ("/think (high)", None, "(high)", ""),
        ("/think ...", None, "", "..."),
        ("/think /v on", None, "", ""),
        ("/think `high`", None, "", "`high`"),
        ("please /think:high now", "high", "high", "please now"),
        ("thats not /think high/tmp/hello", None, "high/tmp/hello", "thats not"),
        ("/think high /think low", "high", "high", ""),
        ("/think\nhigh", None, "", "high"),
    ],
)
def test_a_thinking_directive_takes_its_word_and_nothing_else(
    text: str, value: str | None, word: str, rest: str
) -> None:
    found = parse(text)
    assert found.think is not None
    assert (found.think.value, found.think.word, found.rest) == (value, word, rest)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("/think extra high", "extra high"),
        ("/think about it", "about it"),
        ("/verbose don't", "don't"),
        ("hey /t what/then", "hey what/then"),
    ],
)
def test_a_word_that_is_no_level_stays_in_the_text(text: str, seen: str) -> None:
    assert parse(text).prompt() == seen


@pytest.mark.parametrize(
    "text",
    [
        "https://x.com/think/foo",
        "/thinkstuff",
        "/models",
        "a/think high",
        "/modeling",
        "/queues",
        "/usr/bin",
        "no slash",
    ],
)
def test_what_only_looks_like_a_directive_is_left_alone(text: str) -> None:
    found = parse(text)
    assert not found.kinds
    assert found.prompt() == found.rest == text


def test_a_digit_is_no_level() -> None:
    found = parse("/verbose 1")
    assert found.verbose and found.verbose.value is None
    assert (found.verbose.word, found.rest, found.prompt()) == ("1", "", "1")


def test_settings_and_a_shortcut_may_share_a_message() -> None:
    found = parse("/elevated off\n/status")
    assert found.elevated and found.elevated.value == "off"
    assert found.shortcuts == ("status",)
    assert found.rest == ""


def test_shortcuts_are_found_only_when_asked_for_and_count_once() -> None:
    assert parse("a /status b /id c /status").shortcuts == ("status", "whoami")
    assert parse("a /status b /id c /status").rest == "a b c"
    assert parse_directives("a /status b").prompt() == "a /status b"


@pytest.mark.parametrize(
    ("text", "name", "profile", "rest"),
    [
        ("/model opus@anthropic:default", "opus", "anthropic:default", ""),
        ("hey /opus do it", "opus", None, "hey do it"),
        ("hey /opus-mini: do it", "opus-mini", None, "hey do it"),
        ("/model anthropic/claude-opus-4-5 hi", "anthropic/claude-opus-4-5", None, "hi"),
        ("use /model opus. Thanks", "opus", None, "use Thanks"),
        ("/model", "", None, ""),
        ("/model: list", "list", None, ""),
    ],
)
def test_a_model_is_named_by_reference_or_alias(text: str, name: str, profile: str | None, rest: str) -> None:
    found = parse(text)
    assert found.model is not None
    assert (found.model.name, found.model.profile, found.rest) == (name, profile, rest)


def test_a_word_after_model_that_turns_out_not_to_be_one_goes_back() -> None:
    assert parse("the /model itself").prompt(model_known=False) == "the itself"
    assert parse("the /model itself").prompt(model_known=True) == "the"


@pytest.mark.parametrize(
    ("text", "wish", "reset", "invalid", "rest"),
    [
        (
            "/queue steer+backlog debounce:2s cap:5 drop:summarize",
            QueueOverrides(mode="steer-backlog", debounce_ms=2000, cap=5, drop="summarize"),
            False,
            {},
            "",
        ),
        ("/queue bogus", QueueOverrides(), False, {"mode": "bogus"}, ""),
        ("/queue collect.", QueueOverrides(mode="collect"), False, {}, ""),
        ("/queue collectó cap:3", QueueOverrides(), False, {"mode": "collectó"}, "cap:3"),
        ("/queue cap:3, ok", QueueOverrides(cap=3), False, {}, "ok"),
        ("/queue: followups cap=3 go on", QueueOverrides(mode="followup", cap=3), False, {}, "go on"),
        ("/queue reset", QueueOverrides(), True, {}, ""),
        ("/queue collect steer", QueueOverrides(mode="collect"), False, {}, "steer"),
        (
            "/queue debounce:soon cap:0 drop:some",
            QueueOverrides(),
            False,
            {"debounce": "soon", "cap": "0", "drop": "some"},
            "",
        ),
        ("/queue debounce:1500", QueueOverrides(debounce_ms=1500), False, {}, ""),
    ],
)
def test_queue_options_are_read_up_to_the_first_other_word(
    text: str, wish: QueueOverrides, reset: bool, invalid: dict[str, str], rest: str
) -> None:
    found = parse(text)
    assert found.queue is not None
    assert (found.queue.wish, found.queue.reset, found.queue.invalid, found.rest) == (wish, reset, invalid, rest)


@pytest.mark.parametrize(
    ("text", "options", "invalid", "rest"),
    [
        ("/exec host=spaceship", {}, {"host": "spaceship"}, ""),
        (
            "/exec host=node node:pi security=FULL ls -l",
            {"host": "node", "node": "pi", "security": "full"},
            {},
            "ls -l",
        ),
        ("/exec host=node.", {"host": "node"}, {}, ""),
        ("/exec ls", {}, {}, ""),
    ],
)
def test_exec_options_are_read_up_to_the_first_other_word(
    text: str, options: dict[str, str], invalid: dict[str, str], rest: str
) -> None:
    found = parse(text)
    assert found.exec is not None
    assert (found.exec.options, found.exec.invalid, found.rest) == (options, invalid, rest)


@pytest.mark.parametrize(
    ("kind", "words", "value"),
    [
        ("think", "min minimal think", "minimal"),
        ("think", "low on enable enabled thinkhard think-hard", "low"),
        ("think", "mid med medium thinkharder think-harder harder", "medium"),
        ("think", "high ultra ultrathink thinkhardest highest max", "high"),
        ("think", "xhigh x-high extra-high", "xhigh"),
        ("verbose", "off false no", "off"),
        ("verbose", "on minimal true yes", "on"),
        ("verbose", "full all everything", "full"),
        ("reasoning", "off false no hide hidden disable disabled", "off"),
        ("reasoning", "on true yes show visible enable enabled", "on"),
        ("reasoning", "stream streaming draft live", "stream"),
        ("elevated", "ask prompt approval approve", "ask"),
        ("elevated", "full auto auto-approve autoapprove", "full"),
    ],
)
def test_words_mean_levels(kind: Any, words: str, value: str) -> None:
    assert {read_level(kind, word) for word in words.split()} == {value}
    assert value in level_values(kind)
    assert read_level(kind, "nonsense") is None


def test_off_is_stored_only_where_it_must_win_over_a_default() -> None:
    fields = ("thinkingLevel", "reasoningLevel", "verboseLevel", "elevatedLevel")
    assert [stored(field, "off") for field in fields] == [None, None, "off", "off"]


@pytest.mark.parametrize(
    ("word", "policy"),
    [("on", "on"), ("OFF", "off"), ("default", "inherit"), ("reset", "inherit"), ("on now", None), ("", None)],
)
def test_send_policy_words(word: str, policy: str | None) -> None:
    assert read_send_policy(word) == policy


def test_usage_words() -> None:
    assert [read_usage(word) for word in ("on", "true", "session", "off", "cost")] == [
        "tokens",
        "tokens",
        "full",
        "off",
        None,
    ]


# The text that stays


def test_line_breaks_indentation_and_brackets_survive() -> None:
    text = "Look:\n\n/think high\n    def f():\n        return [1,  2]\n\ndone /v on"
    assert parse(text).prompt() == "Look:\n\n    def f():\n        return [1,  2]\n\ndone"


def test_nothing_changes_in_a_text_without_directives() -> None:
    text = "  a\t b\n\n\n c/d  \n"
    assert parse(text).prompt() == text


def test_code_is_never_looked_into() -> None:
    text = "why does `cd /t high` fail?\n```\nls /v on\n```\n"
    assert parse(text).prompt() == text
    assert not parse(text).kinds


CODE = [
    "```\n{}\n```",
    "```python\n{}\n```\nwhat is this?",
    "````\n```\n{}\n```\n````",
    "look: ```{}``` ok",
    "look: ```\n\n{}\n\n``` ok",
    "```\n{}",
    "~~~\n{}\n~~~",
    "~~~~ sh\n~~~\n{}\n~~~~",
    "   ~~~\n{}\n   ~~~  ",
    "look:\n\n    {}\n\nwell?",
    "look:\n    {}",
    "\t{}",
    "    {}",
    "a `{}` b",
    "a ``x ` {}`` b",
    "a `x\n{}` b",
    "> {}\n\nwhat did he mean?",
]
PARSED = ["/think high", "/t low", "/v on", "/reasoning off", "/elev full", "/model opus", "/opus", "/status"]


@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("directive", [*PARSED, "/queue collect", "/exec host=node"])
def test_a_directive_in_code_or_a_quoted_line_is_text(code: str, directive: str) -> None:
    text = code.format(directive)
    found = parse(text)
    assert not found.spans and found.prompt() == text
    beside = parse(f"{directive}\n{text}")
    assert len(beside.spans) == 1 and beside.prompt() == text.rstrip()


@pytest.mark.parametrize(
    "text", ["`", "a ` b {}", "~~ {}", "- x\n  {}", "```\nx\n```\n{}", "``` x ``` {}", "`a` {} `b`"]
)
def test_a_directive_next_to_code_counts(text: str) -> None:
    assert len(parse(text.format("/think high")).spans) == ("{}" in text)


def test_code_is_found_in_linear_time() -> None:
    for piece in ("`a", "``a`", "```a\n", "```x\ny```\n", "~~~\n", "> `\n", "    `\n", "`a\n\n", "```` ``` "):
        assert len(code_ranges(piece * 100_000)) <= 100_000


def test_text_that_quotes_our_marker_is_read_as_a_whole() -> None:
    text = f"{HISTORY}{CURRENT_MARKER}\nJake: /think:low status please"
    found = parse(text)
    assert found.think and (found.think.value, found.think.word) == ("high", "high")
    assert found.prompt() == text.replace("/thinking high ", "").replace("/think:low ", "")


def test_an_endless_row_of_directives_costs_little_and_is_cut_off() -> None:
    found = parse("/t high " * 5000)
    assert len(found.spans) == MAX_DIRECTIVES


WORDS = st.text("abcxyz0189äß!?.,()[]-_@#", min_size=1, max_size=8).filter(lambda word: ":" not in word)
LEVELS = ("/think high", "/t:low", "/v on", "/verbose:off", "/reasoning stream", "/elev full")
OTHERS = ("/exec host=node", "/queue collect cap:3", "/queue reset", "/model opus/x", "/opus:", "/status", "/whoami:")
DIRECTIVES = st.sampled_from(LEVELS + OTHERS)


@given(st.lists(st.tuples(st.booleans(), WORDS, DIRECTIVES, st.sampled_from([" ", "  ", "\n", " \n "])), max_size=8))
def test_stripping_eats_directives_and_nothing_else(parts: list[tuple[bool, str, str, str]]) -> None:
    # A word is kept off directives that read on, by a line break.
    text = "".join(f"{directive}\n" if is_directive else f"{word}{gap}" for is_directive, word, directive, gap in parts)
    words = [word for is_directive, word, _, _ in parts if not is_directive]
    assert parse(text).rest.split() == words


DIRECTIVE_WORDS = "/ /think /t /v high on foo /exec host= node /model opus /opus /queue collect cap: 9 /status /id"
FRAGMENTS = st.sampled_from([*DIRECTIVE_WORDS.split(), *" \n\t:=@-é`>.", "```", "~~~", "    ", CURRENT_MARKER])


@given(st.lists(FRAGMENTS, max_size=20).map("".join))
def test_what_is_stripped_once_has_nothing_left_to_strip(text: str) -> None:
    once = parse(text).prompt()
    again = parse(once)
    assert again.rest == again.prompt() == once
    assert not again.kinds and not again.shortcuts


@given(st.text(max_size=60))
def test_any_text_can_be_read(text: str) -> None:
    found = parse(text)
    assert found.spans or found.prompt() == text


def test_every_directive_of_the_table_is_read() -> None:
    for command in COMMANDS:
        if command.directive:
            for word in (command.name, *command.aliases):
                assert parse(f"/{word}").kinds, word
                assert find(word) == command
