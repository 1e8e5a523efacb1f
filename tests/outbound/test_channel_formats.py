"""How Markdown is shown on each channel."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.outbound.channel_formats import FORMATS, render, utf16_length
from openclaw.outbound.markdown import Layout, convert_tables, parse_markdown

TABLE = "| Name | Age |\n| --- | --- |\n| **Ann** | 30 |\n| Bob | |"
# fmt: off
PIECES = [
    "**", "*", "_", "~~", "`", "```", "```py\n", "||", "[a](https://x.y)", "[", "](", ")", "<b>", "&", "<", ">", "\n",
    "\n\n", "> ", "- ", "1. ", "# ", "    ", "| a | b |\n| - | - |\n| c | d |\n", "word", " ", "😀", "é", "\r", "\x00",
    "\x02", "https://e.org/_x_", "![p](http://q.r/s.png)", "<@U1>", "---\n", "\\", "</b>", '"',
]
# fmt: on
MARKDOWN = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=40
).map("".join)
ALL = "**bold _both_** ~~gone~~ [docs](https://e.org/a?x=1&y=2) <b>raw</b>"


@pytest.mark.parametrize(
    ("format", "markdown", "text"),
    [
        (
            "telegram",
            ALL,
            '<b>bold <i>both</i></b> <s>gone</s> <a href="https://e.org/a?x=1&amp;y=2">docs</a> &lt;b&gt;raw&lt;/b&gt;',
        ),
        ("slack", ALL, "*bold _both_* ~gone~ <https://e.org/a?x=1&amp;y=2|docs> &lt;b&gt;raw&lt;/b&gt;"),
        ("whatsapp", ALL, "*bold _both_* ~gone~ docs (https://e.org/a?x=1&y=2) <b>raw</b>"),
        ("plain", ALL, "bold both gone docs (https://e.org/a?x=1&y=2) <b>raw</b>"),
        ("no such format", ALL, "bold both gone docs (https://e.org/a?x=1&y=2) <b>raw</b>"),
        ("discord", ALL, ALL),
        ("irc", "**b** *i* ~~s~~ `c`", "\x02b\x02 \x1di\x1d \x1es\x1e \x11c\x11"),
        (
            "slack",
            "a & b <@U123> <https://x.y> <script> 3 > 2",
            "a &amp; b <@U123> <https://x.y> &lt;script&gt; 3 &gt; 2",
        ),
        (
            "slack",
            "[https://a.b](https://a.b) [m@x.y](mailto:m@x.y) [L](https://a.b)",
            "https://a.b m@x.y <https://a.b|L>",
        ),
        ("slack", "x\n```js\na\n\nb\n```\ny", "x\n```\na\n\nb\n```\ny"),
        ("slack", "> a\n> b\n\nafter", "> a\n> b\n\nafter"),
        ("slack", "<!channel> <!here> `<!everyone>`", "&lt;!channel&gt; &lt;!here&gt; `&lt;!everyone&gt;`"),
        ("slack", "&lt;!channel&gt; <!subteam^S1|@all> <@U1>", "&lt;!channel&gt; &lt;!subteam^S1|@all&gt; <@U1>"),
        ("slack", "[a|b>c](https://x.y/|z>)", "<https://x.y/%7Cz%3E|a|b&gt;c>"),
        ("telegram", "- one\n- two\n  - nested\n\n3. x\n4. y", "• one\n• two\n  • nested\n\n3. x\n4. y"),
        ("telegram", "> a\n> b\n\nafter", "<blockquote>a\nb</blockquote>\n\nafter"),
        ("telegram", "# Head **b**\n\nx ||y|| z", "<b>Head b</b>\n\nx <tg-spoiler>y</tg-spoiler> z"),
        ("telegram", "```py\na<1\n```", '<pre><code class="language-py">a&lt;1</code></pre>'),
        ("telegram", '```"><script>\na\n```', "<pre><code>a</code></pre>"),
        ("telegram", "**a `c` b**", "<b>a </b><code>c</code><b> b</b>"),
        ("telegram", "[`c`](https://x.y)", '<a href="https://x.y">c</a>'),
        ("telegram", "[x](javascript:alert(1)) [y](foo:bar)", "[x](javascript:alert(1)) y (foo:bar)"),
        ("telegram", '[x](https://x.y/"onclick=1)', '<a href="https://x.y/%22onclick=1">x</a>'),
        (
            "telegram",
            "see https://e.org/_a_/b.",
            'see <a href="https://e.org/_a_/b">https://e.org/_a_/b</a>.',
        ),
        ("irc", "a\r\nQUIT :x\x00\x01\n\n```\ncode\n```", "a\nQUIT :x\ncode"),
        ("irc", "one\u2028two\u0085three", "one two three"),
        ("plain", "![chart](https://x.y/c.png)", "chart (https://x.y/c.png)"),
    ],
)
def test_a_text_is_written_in_the_form_of_its_channel(format: str, markdown: str, text: str) -> None:
    assert render(markdown, format).text == text


@pytest.mark.parametrize(
    ("markdown", "text", "ranges"),
    [
        ("😀 **hi**", "😀 hi", ["3:2:BOLD"]),
        ("[L](https://a.b) m@x.y **[B](http://c.d)**", "L (https://a.b) m@x.y B (http://c.d)", ["22:1:BOLD"]),
        ("**a _b_** ||c|| `d`", "a b c d", ["0:3:BOLD", "2:1:ITALIC", "4:1:SPOILER", "6:1:MONOSPACE"]),
        ("# A **b**", "A b", ["0:3:BOLD"]),
        ("x\n\n```js\na\n```", "x\n\na", ["3:1:MONOSPACE"]),
    ],
)
def test_signal_gets_plain_text_and_ranges_in_utf16_units(markdown: str, text: str, ranges: list[str]) -> None:
    rendered = render(markdown, "signal")
    assert (rendered.text, [str(one) for one in rendered.ranges]) == (text, ranges)


def test_matrix_gets_a_plain_body_and_safe_html() -> None:
    rendered = render("**a** <script>\n[x](https://y.z) ![p](https://q.r/s.png) [u](foo:bar)", "matrix")
    assert rendered.text == "a <script>\nx (https://y.z) p (https://q.r/s.png) u (foo:bar)"
    assert rendered.html == (
        '<p><strong>a</strong> &lt;script&gt;<br />\n<a href="https://y.z">x</a> p [u](foo:bar)</p>'
    )


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("code", "```\n| Name | Age |\n| ---- | --- |\n| Ann  | 30  |\n| Bob  |     |\n```"),
        ("bullets", "**Ann**\n• Age: 30\n\n**Bob**"),
        ("off", TABLE),
    ],
)
def test_tables_become_code_or_lists(mode: str, text: str) -> None:
    assert convert_tables(TABLE, mode) == text  # type: ignore[arg-type]


def test_a_table_keeps_its_distance_from_the_text_around_it() -> None:
    shown = convert_tables(f"before\n\n{TABLE}\n\nafter", "bullets")
    assert shown == "before\n\n**Ann**\n• Age: 30\n\n**Bob**\n\nafter"
    assert convert_tables("| H |\n| - |\n| a |\n| b |", "bullets") == "• H: a\n\n• H: b"
    assert convert_tables("| | |\n| - | - |\n| a | b |", "bullets") == "**a**\n• Column 2: b"
    assert render(TABLE, "signal").text == "Ann\n• Age: 30\n\nBob"
    assert render(TABLE, "signal", tables="off").text == TABLE.replace("**", "")


class _TelegramChecker(HTMLParser):
    """Refuses what Telegram's parser refuses: unknown tags, and tags that are not closed in order."""

    allowed = frozenset({"b", "i", "s", "code", "pre", "a", "tg-spoiler", "blockquote"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.allowed
        assert {name for name, _ in attrs} <= ({"href"} if tag == "a" else {"class"} if tag == "code" else set())
        if self.open and self.open[-1] == "code":
            raise AssertionError(f"{tag} inside code")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@given(MARKDOWN)
def test_telegram_gets_balanced_tags_of_its_own_and_everything_else_escaped(markdown: str) -> None:
    rendered = render(markdown, "telegram")
    checker = _TelegramChecker()
    checker.feed(rendered.text)
    checker.close()
    assert checker.open == []
    assert rendered.size == utf16_length(html.unescape(re.sub(r"<[^>]*>", "", rendered.text)))
    for address in re.findall(r'href="([^"]*)"', rendered.text):
        assert re.match(r"(?i)(https?|mailto|tel|tg):", html.unescape(address))


@given(MARKDOWN)
def test_every_text_can_be_rendered_for_every_channel(markdown: str) -> None:
    for format in FORMATS:
        for tables in (None, "off", "bullets", "code"):
            rendered = render(markdown, format, tables=tables)
            assert rendered.size >= 0
    irc = render(markdown, "irc").text
    assert not re.search(r"[\x00\r]", irc)
    assert not set(irc) & {chr(code) for code in range(32)} - {"\n", "\x02", "\x1d", "\x1e", "\x11"}


@given(MARKDOWN)
def test_signal_ranges_lie_within_the_text_and_ranges_of_one_style_apart(markdown: str) -> None:
    rendered = render(markdown, "signal")
    assert rendered.size == utf16_length(rendered.text)
    ends: dict[str, int] = {}
    for one in rendered.ranges:
        assert one.length > 0
        assert one.start + one.length <= rendered.size
        assert one.start > ends.get(one.style, -1)
        ends[one.style] = one.start + one.length


@given(st.text(st.sampled_from("abc xyz.,é漢😀"), max_size=60))
def test_a_text_without_marks_stays_as_it_is(text: str) -> None:
    words = " ".join(text.split())
    assert parse_markdown(words, Layout()).text == words
    for format in FORMATS:
        assert render(words, format).text == words
