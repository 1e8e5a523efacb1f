"""The parser reads the same as the library's own, and what is not given to it has nothing in it to read."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from openclaw.outbound import markdown as reading
from openclaw.outbound.markdown import BARE, PLACE, Layout, parse_markdown
from openclaw.outbound.markdown_parser import _PLAIN_ADDRESS, MarkdownParser

# fmt: off
PIECES = [
    "**", "*", "_", "__", "~~", "~", "`", "``", "[", "]", "(", ")", "](", "http://x.y/", "https://a_b.c/d", "a", "b c",
    " ", "\n", "\n\n", "é", "!", "![", "<", ">", "\\", ".", ":", ",", "- ", "* ", "+ ", "\n- ", "1. ", "2) ", "# ",
    "😀", "漢", "<http:", "mailto:", "|", "&amp;", "**bold** ", "*it*, ", "[l](http://u.v) ", "`c` ", "_x_ ", "~~s~~ ",
    "://", "\n---\n", "===\n", "\n> ", "    ", "\t", "  \n", "\n```\n", "\\\n", "<b>", "| a | b |\n| - | - |\n",
    "[x](<a b> 'c')",
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


STOCK, OURS = parsers()
STOCK_TABLES, OURS_TABLES = parsers("table")


@given(MARKDOWN)
@settings(max_examples=300)
@example("- a\n- b\n***\n1. c\n2. d\n> e\nf\n===\n")
@example("[a [b](c) d](e) ![f *g*](h) <http://i.j> k\\*l&amp;*m*")
def test_every_text_is_read_as_the_library_reads_it(text: str) -> None:
    assert OURS.parse(text) == STOCK.parse(text)
    assert OURS_TABLES.parse(text) == STOCK_TABLES.parse(text)


@given(MARKDOWN, MARKDOWN)
@settings(max_examples=300)
@example("<http:\\`c`~~s~~http://x.y/>`,a", "`")
@example("[see https://x.y/a](http://y) ", "b](http://z)")
@example("**see https://x.y/a**(b) ", "c**")
@example("`a\n- b` ", "c`")
@example("_it_", "b_")
@example("\\__a b", "c_")
def test_what_looks_closed_has_no_style_open_at_its_end(before: str, after: str) -> None:
    apart = not before[-1:].strip() or not after[:1].strip()
    text = before + (f" {PLACE} " if apart else PLACE)
    if reading._all_closed(text):
        assert reading._open_at_place(text + after, 1000) == ("", "")


@given(st.from_regex(_PLAIN_ADDRESS, fullmatch=True))
def test_a_plain_address_needs_no_encoding(url: str) -> None:
    assert MarkdownIt().normalizeLink(url) == url


@given(st.from_regex(reading._PLAIN_CELL, fullmatch=True) | MARKDOWN)
def test_the_text_of_a_plain_cell_is_the_cell(text: str) -> None:
    if reading._PLAIN_CELL.fullmatch(cell := text.strip()):
        assert parse_markdown(cell, Layout(headings=False)).text == cell
