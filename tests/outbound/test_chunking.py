"""The limits of channels, and how longer texts are cut."""

from __future__ import annotations

import re
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openclaw.config.load import parse_config
from openclaw.outbound.channel_formats import FORMATS, Format, measure, render
from openclaw.outbound.chunking import Limits, chunk, find_fences, limits_for

PLAIN = st.text(st.sampled_from("ab (()\n\t😀é漢x ,") | st.characters(exclude_categories=["Cs", "Cc"]), max_size=200)
# fmt: off
PIECES = [
    "**", "*", "_", "~~", "`", "``", "||", "[a b](https://x.y/z)", "[", "](", ")", "<b>", "&", "<", ">", "\n", "\n\n",
    "> ", "- ", "1. ", "# ", "    ", "| a | b |\n| - | - |\n| c | d |\n", "word", "two words ", " ", "😀", "é", "\t",
    "https://e.org/_x_", "![p](http://q.r/s.png)", "---\n", "\\", "[l](http://é.x/ü)", "- - x\n", "1) ", "=\n",
    "*a\nb*", "e\u0301", "\ue000", "[l](http://long.example.org/" + "p/" * 30 + ")", "[a label of words](http://x.y)",
    "[ü](ü)", "<http://a.b/c>", "<http://é.x/ü>", "http://h.i/" + "jk" * 40, "[a](javascript:x)", "[a\nb](http://x.y/l)",
    "%zz",
    "&nGt;", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "1. one\n2. two\n3. three\n", "- item\n  - nested\n",
    "> quote\n> more\n\n",
    "**a\nb** ", "``` info string\ncode\n```\n",
    "\n\n| h | i | j |\n|---|:-:|--:|\n| 😀 | `a` | [x](http://y.z/w) |\n| **b** | | c d |\n\n",
]
FENCED = [
    "\n```py\n", "\n```\n", "\n~~~~ text\n", "\n~~~~\n", "x = 1\n", "  y\n", "\n  ```\n", "- ```js\n", "> ```\n", "\n",
]
# fmt: on
MARKDOWN = st.lists(st.sampled_from(PIECES + FENCED), max_size=40).map("".join)


@pytest.mark.parametrize(
    ("text", "limit", "chunks"),
    [
        ("hello world foo", 11, ["hello", "world foo"]),
        ("line one\nline two is long", 12, ["line one", "line two is", "long"]),
        ("see (a b c d e) tail", 12, ["see", "(a b c d e)", "tail"]),
        ("abcdefghijkl", 5, ["abcde", "fghij", "kl"]),
        ("a (unclosed b c d e f", 10, ["a", "(unclosed", "b c d e f"]),
        ("😀😀😀", 3, ["😀", "😀", "😀"]),
        ("😀", 1, ["😀"]),
        ("", 10, []),
        (" \n ", 10, []),
        ("any length", 0, ["any length"]),
        ("any length", -1, ["any length"]),
        ("short", 5, ["short"]),
        ("one\r\ntwo", 5, ["one", "two"]),
        ("para one.\n\npara two is longer.", 14, ["para one.", "para two is", "longer."]),
        ("[label](http://x.y/a b)c d", 12, ["[label](http", "://x.y/a", "b)c d"]),
    ],
)
def test_plain_text_is_cut_at_lines_then_words_then_anywhere(text: str, limit: int, chunks: list[str]) -> None:
    assert chunk(text, Limits(limit)) == chunks


@pytest.mark.parametrize(
    ("text", "limit", "chunks"),
    [
        (
            "```js\nconst a=1;\nconst b=2;\nconst c=3;\n```",
            30,
            ["```js\nconst a=1;\n```", "```js\nconst b=2;\n```", "```js\nconst c=3;\n```"],
        ),
        (
            "Intro text\n```py\nx=1\ny=2\n```\nOutro text here",
            28,
            ["Intro text", "```py\nx=1\ny=2\n```", "Outro text here"],
        ),
        ("```txt\n" + 30 * "a" + "\n```", 20, [*3 * ["```txt\naaaaaaaaa\n```"], "```txt\naaa\n```"]),
        (
            "~~~~sh\necho 1\necho 2\necho 3\n~~~~",
            22,
            ["~~~~sh\necho 1\n~~~~", "~~~~sh\necho 2\n~~~~", "~~~~sh\necho 3\n~~~~"],
        ),
        (
            "  ```js\n  a();\n  b();\n  c();\n  ```",
            24,
            ["  ```js\n  a();\n  ```", "  ```js\n  b();\n  ```", "  ```js\n  c();\n  ```"],
        ),
        ("```js\n" + 20 * "y" + "\n```", 18, [*2 * ["```js\nyyyyyyyy\n```"], "```js\nyyyy\n```"]),
        # The block is sent without fences that do not fit.
        ("```js\nabcdef\n```", 9, ["abcdef"]),
        ("```\nabc\n```", 3, ["abc"]),
        ("```verylonginfostringhere\nabc\ndef\n```", 14, ["abc\ndef"]),
        # An inner, shorter fence is code, and so is a fence with an info string.
        ("````md\n```js\nx\n```\n````\nend", 24, ["````md\n```js\nx\n```\n````", "end"]),
        # In a list, the rest of the block needs no indentation.
        (
            "- item\n\n     ```js\n     one();\n     two();\n     three();\n     ```\n- next",
            30,
            ["- item", "```js\none();\n```", "```js\ntwo();\n```", "```js\nthree();\n```\n- next"],
        ),
    ],
)
def test_a_fence_is_closed_and_opened_again_with_its_info_string(text: str, limit: int, chunks: list[str]) -> None:
    assert chunk(text, Limits(limit, format="discord")) == chunks


@pytest.mark.parametrize(
    ("text", "lines", "chunks"),
    [
        ("a\nb\nc\nd", 2, ["a\nb", "c\nd"]),
        ("```js\n1\n2\n3\n4\n```", 4, ["```js\n1\n2\n```", "```js\n3\n4\n```"]),
        ("hello\nworld", 17, ["hello\nworld"]),
    ],
)
def test_a_message_has_no_more_lines_than_the_channel_wants(text: str, lines: int, chunks: list[str]) -> None:
    assert chunk(text, Limits(2000, format="discord", lines=lines)) == chunks


def test_reopened_fences_count_as_lines_too() -> None:
    twenty = "\n".join(f"line {number}" for number in range(20))
    limits = Limits(2000, format="discord", lines=17)
    assert [len(part.split("\n")) for part in chunk(twenty, limits)] == [17, 3]
    assert [len(part.split("\n")) for part in chunk(f"```py\n{twenty}\n```", limits)] == [17, 7]


@pytest.mark.parametrize(
    ("format", "text", "limit", "shown"),
    [
        ("telegram", "**aaaa bbbb cccc** dddd", 10, ["<b>aaaa bbbb</b>", "<b>cccc</b> dddd"]),
        (
            "telegram",
            "see [a long label here](http://x.y/z) end",
            12,
            [
                'see <a href="http://x.y/z">a long</a>',
                '<a href="http://x.y/z">label here</a>',
                "end",
            ],
        ),
        (
            "telegram",
            "```js\nlet a=1;\nlet b=2;\nlet c=3;\n```",
            20,
            [
                '<pre><code class="language-js">let a=1;</code></pre>',
                '<pre><code class="language-js">let b=2;\nlet c=3;</code></pre>',
            ],
        ),
        ("telegram", "<<<<<<<<<<", 10, ["&lt;" * 10]),
        ("slack", "<<<<<<<<<<", 10, ["&lt;" * 2] * 5),
        ("slack", "*one\ntwo three four*", 12, ["_one_", "_two three_", "_four_"]),
        ("irc", "漢字漢字漢字", 9, ["漢字漢", "字漢字"]),
        ("signal", "a `b c d e` f", 5, ["a b c", "d e f"]),
    ],
)
def test_a_part_is_measured_as_it_is_shown_and_styles_go_on_behind_a_cut(
    format: Format, text: str, limit: int, shown: list[str]
) -> None:
    assert [render(part, format).text for part in chunk(text, Limits(limit, format=format))] == shown


def test_what_stood_inside_a_line_does_not_begin_a_block() -> None:
    parts = chunk("aaaa ```js bbbb", Limits(9, format="telegram"))
    assert [render(part, "telegram").text for part in parts] == ["aaaa", "```js", "bbbb"]


def words_of(text: str) -> str:
    return re.sub(r"\s", "", text)


@given(PLAIN, st.integers(1, 30))
def test_nothing_but_white_space_is_lost_and_every_piece_fits(text: str, limit: int) -> None:
    text = re.sub(r"[*_`~\[\]|<>&\\#>=-]|\d[.)]|[+]", "", text)
    for part in (parts := chunk(text, Limits(limit))):
        assert render(part, "plain").size <= limit or len(part) == 1
    assert words_of("".join(parts)) == words_of(text)


@given(
    MARKDOWN,
    st.integers(1, 60) | st.integers(1, 400),
    st.sampled_from(FORMATS),
    st.sampled_from(["length", "newline"]),
    st.sampled_from([None, "off", "off", "bullets", "code"]),
)
@example("```\n\n", 5, "discord", "length", "off")
@example("- ```js\n- ```js\nx = 1\n", 24, "telegram", "length", "off")
@example("[ü](ü)", 7, "telegram", "length", "off")
@example("see <http://é.x/ü>", 20, "irc", "length", "off")
@example(f"[a](http://x.y/{'p' * 320}é) b", 340, "irc", "length", "off")
@example("[a](http://x.y/%zz)", 19, "signal", "length", "off")
@example("[a\nb](http://x.y/long)", 25, "slack", "length", "off")
@example("> [a\n> b](http://x.y/long)", 28, "plain", "length", "off")
@example("**a\nb\nc**<", 13, "whatsapp", "length", "off")
@example("1. a\n2. b\n1. c\n" * 5, 75, "matrix", "length", "off")
@example("\x00- -", 6, "irc", "newline", "off")
@settings(max_examples=300, derandomize=True)
def test_every_part_of_any_markdown_fits_and_keeps_its_words(
    text: str, limit: int, format: Format, mode: Any, tables: Any
) -> None:
    parts = chunk(text, limits := Limits(limit, mode, format, tables))
    for part in parts:
        size = render(part, format, tables=tables).size
        assert size <= limit or len(part) == 1, (part, size)
        assert measure(part, format, tables=tables) == size
    assert limits.cut(text) == parts
    letters = re.compile(r"[^\W_]+|😀")
    said = [letter for word in letters.findall("".join(parts)) for letter in word]
    kept = [letter for word in letters.findall(text) for letter in word]
    position = 0
    # Fences that do not fit are left out together with their info strings, and tables are written in another order.
    if tables == "off" and all(
        len(f"{fence.open_line}{fence.close_line}".encode()) + 6 <= limit for fence in find_fences(text)
    ):
        for letter in said:
            if position < len(kept) and kept[position] == letter:
                position += 1
        assert position == len(kept), (text, parts)


@settings(derandomize=True)
@given(st.lists(st.sampled_from([*FENCED[:7], "prose\n", "\n\n"]), max_size=30).map("".join), st.integers(30, 60))
def test_every_part_has_its_fences_closed(text: str, limit: int) -> None:
    parts = chunk(text, Limits(limit, format="discord"))
    for part in parts[:-1]:
        fences = find_fences(part)
        assert all(fence.close < fence.end or fence.end < len(part) for fence in fences), parts


@pytest.mark.parametrize(
    ("text", "limit", "chunks"),
    [
        ("A one\n\nB two\n \nC three", 100, ["A one", "B two", "C three"]),
        ("- a\n- b\n- c", 100, ["- a\n- b\n- c"]),
        ("```\nx\n\ny\n```\n\nend", 100, ["```\nx\n\ny\n```", "end"]),
        ("p1\n\n```js\naaa\n\nbbb\n```\n\np3", 14, ["p1", "```js\naaa\n\n```", "```js\nbbb\n```", "p3"]),
        ("long paragraph\n\nb", 5, ["long", "parag", "raph", "b"]),
        ("  \n\n ", 5, []),
    ],
)
def test_by_paragraph_each_paragraph_is_a_message(text: str, limit: int, chunks: list[str]) -> None:
    assert chunk(text, Limits(limit, "newline", "discord")) == chunks


def test_a_table_is_converted_before_it_is_cut() -> None:
    rows = "".join(f"| name {number} | {number} |\n" for number in range(30))
    table = f"| Name | Age |\n| - | - |\n{rows}"
    code = chunk(table, Limits(200, format="discord"))
    assert len(code) > 3
    assert all(part.startswith("```\n| ") and part.endswith("|\n```") and len(part) <= 200 for part in code)
    bullets = chunk(table, Limits(200, format="signal"))
    assert bullets[0].startswith("**name 0**\n• Age: 0\n\n**name 1**")
    assert chunk(table, Limits(4000, format="discord")) == [table]


def test_cutting_a_long_text_costs_no_more_than_its_length() -> None:
    text = "word **bold** and [a link](https://x.y/z) " * 3000
    parts = chunk(text, Limits(4000, format="telegram"))
    shown = [render(part, "telegram") for part in parts]
    assert all(one.size <= 4000 for one in shown)
    assert words_of(re.sub("<[^>]*>", "", "".join(one.text for one in shown))) == "wordboldandalink" * 3000


DENSE = {
    "[": "[",
    "![": "![",
    "[a](": "[a](",
    "*": "*",
    "_": "_",
    "a*": "a*",
    "**a** ": "**a** ",
    "`": "`",
    "`a": "`a",
    "<": "<",
    "|": "|",
    "||a": "||a",
    "&": "&",
    "a:": "a:",
    "http://a)": "http://a" + ")" * 300,
    "> ": "> > > a\n",
    "nested >": ">" * 60 + " a\n",
    "numbers": "1. a\n",
    "lines": "*a\n",
    "tables": "|a|b|\n|-|-|\n",
    "one table": "|" + "a|" * 80 + "\n|" + "-|" * 80 + "\n" + "|a\n" * 60 + "\n",
    "fences": "~~~\na\n~~~\n",
    "giant line": "word ",
    "deep list": "".join(f"{'  ' * depth}- a\n" for depth in range(60)),
    "markers": "- " * 40 + "a\n",
    "wide cell": "| h |\n| - |\n| " + "w" * 500 + " |\n" + "|a|\n" * 60 + "\n",
    "long name": "| a | " + "n" * 500 + " |\n| - | - |\n" + "|a|b|\n" * 60 + "\n",
    "entities": "&amp;",
    "closers": "_a " * 30 + "a* " * 30,
    "growing ticks": "".join("`" * length + " " for length in range(40)),
    "paragraphs": "a\n\n",
    "long paragraph": "word *it* " * 300 + "\n\n",
    "underlined": "a\n=\n",
    "labels": "[a\n",
    "tags": "<b>x</b> <",
    "escapes": "\\*",
    "joined": "👩\u200d👩\u200d👧",
    "combining": "e\u0301",
}


@pytest.mark.parametrize("format", ["telegram", "irc"])
@pytest.mark.parametrize("shape", DENSE)
def test_the_work_of_cutting_and_rendering_grows_with_the_length_of_any_text(shape: str, format: Format) -> None:
    """The work is counted in calls, so that the load of the machine does not matter."""
    limits = Limits(400 if format == "irc" else 1000, format=format)

    def work(length: int) -> int:
        text = (DENSE[shape] * (length // len(DENSE[shape]) + 1))[:length]
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            shown = [render(part, format) for part in chunk(text, limits)]
        finally:
            sys.setprofile(None)
        assert all(one.size <= limits.text for one in shown)
        return calls

    work(200)
    assert work(10_000) <= min(2.5 * work(5000) + 5000, 200 * 10_000)


def test_marks_without_number_are_shown_as_they_are_written() -> None:
    parts = chunk("*a " * 3000, Limits(4000, format="telegram"))
    assert words_of("".join(render(part, "telegram").text for part in parts)) == "*a" * 3000
    shown = render("**bold**\n" * 500 + "```py\n[x]\n```\n**end**", "telegram").text
    assert shown == "**bold**\n" * 500 + '<pre><code class="language-py">[x]</code></pre>\n<b>end</b>'


def config(channels: dict[str, Any]) -> Any:
    loaded = parse_config("openclaw.json", msgspec.json.encode({"channels": channels}).decode(), {})
    assert loaded.valid, loaded.issues
    return loaded.config


@pytest.mark.parametrize(
    ("channels", "channel", "account", "limits"),
    [
        ({}, "signal", None, Limits(4000, format="signal")),
        (
            {"signal": {"account": "+15550000001", "textChunkLimit": 100, "markdown": {"tables": "off"}}},
            "signal",
            None,
            Limits(100, format="signal", tables="off"),
        ),
        (
            {"signal": {"textChunkLimit": 100, "accounts": {"Work": {"textChunkLimit": 50, "chunkMode": "newline"}}}},
            "signal",
            "work",
            Limits(50, "newline", "signal"),
        ),
        ({"signal": {"textChunkLimit": 100, "accounts": {"work": {}}}}, "signal", "work", Limits(100, format="signal")),
        ({"discord": {"textChunkLimit": 9000}}, "discord", None, Limits(2000, format="discord", lines=17)),
        ({}, "irc", None, Limits(350, format="irc")),
        ({"irc": {"host": "irc.example", "nick": "claw"}}, "irc", None, Limits(350, format="irc")),
        ({}, "discord", None, Limits(2000, format="discord", lines=17)),
        ({}, "unheard-of", None, Limits(4000)),
        ({}, "twitch", None, Limits(500)),
        ({"twitch": {"name": "x"}}, "twitch", None, Limits(500)),
        ({"twitch": {"accounts": {"a": {"textChunkLimit": 90}}}}, "twitch", "a", Limits(90)),
        ({"twitch": {"accounts": {"a": {"textChunkLimit": 90}}}}, "twitch", "b", Limits(500)),
    ],
)
def test_a_limit_is_the_accounts_then_the_channels_then_the_default_of_the_channel(
    channels: dict[str, Any], channel: str, account: str | None, limits: Limits
) -> None:
    assert limits_for(config(channels), channel, account) == limits
