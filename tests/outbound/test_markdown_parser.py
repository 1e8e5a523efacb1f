"""The parser reads the same as the library's own, and what is not given to it has nothing in it to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from openclaw.outbound import markdown as reading
from openclaw.outbound.markdown import BARE, PLACE, inline_text
from openclaw.outbound.markdown_parser import _PLAIN_ADDRESS, MarkdownParser, table_rows

# fmt: off
PIECES = [
    "**", "*", "_", "__", "~~", "~", "`", "``", "[", "]", "(", ")", "](", "http://x.y/", "https://a_b.c/d", "a", "b c",
    " ", "\n", "\n\n", "é", "!", "![", "<", ">", "\\", ".", ":", ",", "- ", "* ", "+ ", "\n- ", "1. ", "2) ", "# ",
    "😀", "漢", "<http:", "mailto:", "|", "&amp;", "**bold** ", "*it*, ", "[l](http://u.v) ", "`c` ", "_x_ ", "~~s~~ ",
    "://", "\n---\n", "===\n", "\n> ", "    ", "\t", "  \n", "\n```\n", "\\\n", "<b>", "| a | b |\n| - | - |\n",
    "[x](<a b> 'c')", "![p](http://q.r/s.png)", "<http://a.b/c>", "<a@b.c>", "&#65;", "&nope;", "&", "[x]",
    "[a:b](http://c.d)",
    "_https://x", "- x\n", "- y **z**\n", "1. x\n", "2. `y`\n", "3) z\n", "  - n\n", "- [ ] t\n", "- 1.\n", "“",
    "\u3000",
]
# fmt: on
MARKDOWN = st.lists(st.sampled_from(PIECES), max_size=15).map("".join)


def parsers(*enabled: str) -> tuple[MarkdownIt, MarkdownIt]:
    stock = MarkdownIt("commonmark", {"html": False})
    stock.inline.ruler.before("linkify", BARE, reading._bare_url)
    ours = MarkdownParser(BARE, reading._bare_url)
    for parser in (stock, ours):
        parser.enable(["strikethrough", *enabled]).disable("reference")
    return stock, ours


def comparable(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    """Tokens without empty text, and without the note that a text was an escape or an entity."""
    kept: list[dict[str, Any]] = []
    for token in tokens:
        if token.type == "text" and not token.content:
            continue
        fields = token.as_dict(children=False)
        fields["children"] = comparable(token.children or [])
        if token.type == "text":
            fields["markup"] = fields["info"] = ""
        kept.append(fields)
    return kept


STOCK, OURS = parsers()
STOCK_TABLES, OURS_TABLES = parsers("table")
ROWS_ONLY = parsers("table")[1]
ROWS_ONLY.block.ruler.at("table", table_rows, {"alt": ["paragraph", "reference"]})


@given(MARKDOWN)
@settings(max_examples=300, derandomize=True)
@example("- a\n- b\n***\n1. c\n2. d\n> e\nf\n===\n")
@example("[a [b](c) d](e) ![f *g*](h) <http://i.j> k\\*l&amp;*m*")
@example("**bold *it ~~strike~~ al* ic** and *more **nested** words* but *not this\\nand _that_x 2*3*4 **")
@example("- a\\n- **b** c\\n- `d`\\n\\n7. e\\n8. f\\n\\ng\\n\\n* h\\n* i\\nlazy\\n\\n+ j\\n\\n+ k\\n")
def test_every_text_is_read_as_the_library_reads_it(text: str) -> None:
    assert comparable(OURS.parse(text)) == comparable(STOCK.parse(text))
    assert comparable(OURS_TABLES.parse(text)) == comparable(STOCK_TABLES.parse(text))


@given(MARKDOWN, MARKDOWN)
@settings(max_examples=300, derandomize=True)
@example("<http:\\`c`~~s~~http://x.y/>`,a", "`")
@example("[see https://x.y/a](http://y) ", "b](http://z)")
@example("**see https://x.y/a**(b) ", "c**")
@example("`a\n- b` ", "c`")
@example("_it_", "b_")
@example("\\__a b", "c_")
def test_what_looks_closed_has_no_style_open_at_its_end(before: str, after: str) -> None:
    apart = not before[-1:].strip() or not after[:1].strip()
    text = before + (f" {PLACE} " if apart else PLACE)
    if reading.all_closed(text) or not reading._CLOSING.search(before[-1:] + after):
        assert reading._open_at_place(text + after, 1000) == ("", "")


@given(st.from_regex(_PLAIN_ADDRESS, fullmatch=True))
def test_a_plain_address_needs_no_encoding(url: str) -> None:
    assert MarkdownIt().normalizeLink(url) == url


@given(MARKDOWN)
@settings(derandomize=True)
def test_a_cell_without_marks_is_shown_as_it_is(text: str) -> None:
    cell = " ".join(text.split())
    if not reading.MARKS_INSIDE.search(cell):
        assert STOCK.parseInline(cell)[0].children == ([Token("text", "", 0, content=cell)] if cell else [])
    assert "\n" not in inline_text(cell)


ROWS = st.lists(
    st.sampled_from(
        ["| a | b |", "|-|-|", "a | b", "|", "- | -", "\\|", "| ", "x|y|z", " ", "```", "> ", "|:-:|\n", "\n"]
    )
)


@given(ROWS.map("\n".join) | MARKDOWN)
@settings(derandomize=True)
@example("| a | b\\|c |\n| - | - |\n| d |\n|e|f|g|\nh\n\n> i | j\n> -|-\n")
def test_tables_are_read_as_the_library_reads_them(text: str) -> None:
    rows: list[list[str]] = []
    for token in STOCK_TABLES.parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level > 3 and rows:
            rows[-1].append(token.content)
    ours = [row for token in ROWS_ONLY.parse(text) if token.type == "table_open" for row in token.meta["rows"]]
    assert ours == rows
