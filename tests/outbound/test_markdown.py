"""What is not given to the parser has nothing in it to read, and tables are read as the library reads them."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from openclaw.outbound import markdown as reading
from openclaw.outbound.markdown import PLACE, inline_text, table_rows

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


def stock_parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


STOCK, ROWS_ONLY = stock_parser(), stock_parser()
ROWS_ONLY.block.ruler.at("table", table_rows, {"alt": ["paragraph", "reference"]})


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
    for token in STOCK.parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and token.level > 3 and rows:
            rows[-1].append(token.content)
    ours = [row for token in ROWS_ONLY.parse(text) if token.type == "table_open" for row in token.meta["rows"]]
    assert ours == rows
