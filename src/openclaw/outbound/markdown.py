"""Reads Markdown into one intermediate form: a plain text and the spans of it that have a style.

The parser is CommonMark's with strikethrough, spoilers (``||…||``) and tables. HTML is text like any other.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

Kind: TypeAlias = Literal["bold", "italic", "strike", "code", "block", "link", "spoiler", "quote", "heading"]
TableMode: TypeAlias = Literal["off", "bullets", "code"]

_URL_REST = re.compile(r"://[^\s<>\"`\\^{}|]+")
_URL_SCHEME = re.compile(r"\bhttps?$", re.IGNORECASE)
_INLINE_KINDS: dict[str, Kind] = {"strong": "bold", "em": "italic", "s": "strike", "link": "link"}
SAFE_SCHEMES = frozenset({"http", "https", "mailto", "tel", "tg"})
"""Schemes of the addresses that become links. Other addresses are shown as text."""
RULE_LINE = "---"
"""What a thematic break is written as."""


class Span(msgspec.Struct, frozen=True):
    """A stretch of the text with one style. ``value`` is the address of a link or the language of a block of code."""

    start: int
    end: int
    kind: Kind
    value: str = ""


class Document(msgspec.Struct, frozen=True):
    """A text without marks, and its styles. No span is empty, and spans of inline styles do not cross a line end."""

    text: str
    spans: tuple[Span, ...] = ()


class Layout(msgspec.Struct, frozen=True):
    """How blocks become lines."""

    bullet: str = "• "
    quote: str = "> "
    """Put before each quoted line."""
    autolinks: bool = True
    """Read ``<https://…>`` as a link. Slack has a meaning of its own for it."""
    spoilers: bool = False
    headings: bool = True
    """Mark headings with a span."""


def parse_markdown(markdown: str, layout: Layout) -> Document:
    """Reads a Markdown text. Tables are taken as text, so convert them first (``convert_tables``)."""
    writer = _Writer(layout)
    writer.write(_parser(layout.autolinks).parse(markdown))
    return writer.finish()


def convert_tables(markdown: str, mode: TableMode) -> str:
    """The same text with its tables as blocks of code or as lists. A text without tables is returned unchanged."""
    if mode == "off" or "|" not in markdown or not any(map(_is_table_rule, markdown.split("\n"))):
        return markdown
    tokens = _block_parser().parse(markdown)
    tables = [index for index, token in enumerate(tokens) if token.type == "table_open" and token.level == 0]
    if not tables:
        return markdown
    lines, done = markdown.split("\n"), 0
    pieces: list[str] = []
    for index in tables:
        first, last = tokens[index].map or (0, 0)
        header, rows = _table_cells(tokens, index)
        pieces += lines[done:first]
        if first and lines[first - 1].strip():
            pieces.append("")
        pieces += (_table_code(header, rows) if mode == "code" else _table_bullets(header, rows)).split("\n")
        done = last
        if done < len(lines) and lines[done].strip():
            pieces.append("")
    return "\n".join([*pieces, *lines[done:]])


@functools.cache
def _parser(autolinks: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
    parser.inline.ruler.before("linkify", "bare_url", _bare_url)
    return parser if autolinks else parser.disable("autolink")


@functools.cache
def _block_parser() -> MarkdownIt:
    """Finds blocks and leaves the text in them unread."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["inline", "text_join"])


def parse_blocks(markdown: str) -> list[Token]:
    """The blocks of a text, without what is in their lines."""
    return _block_parser().parse(markdown)


@functools.cache
def html_parser() -> MarkdownIt:
    """Makes safe HTML: HTML in the text is shown as text, and line ends are kept."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["strikethrough", "table"])
    parser.inline.ruler.before("linkify", "bare_url", _bare_url)
    parser.validateLink = is_safe_link
    return parser


def is_safe_link(url: str) -> bool:
    """Whether a person may be led to an address by a click."""
    try:
        return urlsplit(url).scheme.lower() in SAFE_SCHEMES
    except ValueError:
        return False


def _bare_url(state: StateInline, silent: bool) -> bool:
    """An address in the text is a link, so that a ``_`` or ``*`` in it is not taken for a style."""
    if state.src[state.pos] != ":" or state.linkLevel > 0:
        return False
    scheme, rest = _URL_SCHEME.search(state.pending), _URL_REST.match(state.src, state.pos, state.posMax)
    if scheme is None or rest is None or len(url := _without_end(scheme[0] + rest[0])) <= len(scheme[0]) + 3:
        return False
    if not silent:
        state.pending = state.pending[: -len(scheme[0])]
        state.push("link_open", "a", 1).attrs = {"href": url}
        state.push("text", "", 0).content = url
        state.push("link_close", "a", -1)
    state.pos += len(url) - len(scheme[0])
    return True


def _without_end(url: str) -> str:
    """Takes off the punctuation and brackets behind an address."""
    while url:
        if url[-1] in ".,;:!?'*_~|":
            url = url.rstrip(".,;:!?'*_~|")
        elif url[-1] in ")]" and url.count(url[-1]) > url.count("(" if url[-1] == ")" else "["):
            url = url[:-1]
        else:
            break
    return url


class _List(msgspec.Struct):
    number: int | None
    """The number of the next item. None in a list with bullets."""


class _Writer:
    """Writes the tokens of the parser as lines of text and notes the styles."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._pieces: list[str] = []
        self._length = 0
        self._spans: list[Span] = []
        self._open: list[tuple[Kind, str, int]] = []
        """Inline styles that are open, with the place where they began on this line."""
        self._quotes: list[int] = []
        self._lists: list[_List] = []
        self._breaks = 0
        """Line ends to write before the next text."""
        self._marker = ""
        """The bullet or number of an item that has no text yet."""

    def write(self, tokens: Sequence[Token]) -> None:
        for index, token in enumerate(tokens):
            match token.type:
                case "inline":
                    hidden = index > 0 and tokens[index - 1].type == "heading_open" and self._layout.headings
                    self._inline(token.children or [], heading=hidden)
                case "paragraph_close" | "heading_close":
                    self._end_block()
                case "bullet_list_open" | "ordered_list_open":
                    self._break(1)
                    number = int(token.attrs.get("start", 1)) if token.type == "ordered_list_open" else None
                    self._lists.append(_List(number))
                case "bullet_list_close" | "ordered_list_close":
                    self._lists.pop()
                    self._end_block()
                case "list_item_open":
                    self._break(1)
                    self._marker = self._item_marker()
                case "list_item_close":
                    if self._marker:
                        self._text("")
                        self._marker = ""
                    self._break(1)
                case "blockquote_open":
                    self._break(1)
                    self._quotes.append(-1)
                case "blockquote_close":
                    self._end_quote()
                case "fence" | "code_block":
                    self._block(token)
                case "hr":
                    self._text(RULE_LINE)
                    self._end_block()
                case _:
                    pass

    def finish(self) -> Document:
        text = "".join(self._pieces)
        kept = max((span.end for span in self._spans if span.kind == "block"), default=0)
        text = text[:kept] + text[kept:].rstrip()
        spans = [
            msgspec.structs.replace(span, end=min(span.end, len(text)))
            for span in self._spans
            if span.start < min(span.end, len(text))
        ]
        return Document(text, tuple(sorted(spans, key=lambda span: (span.start, -span.end, span.kind != "link"))))

    # Lines

    def _break(self, count: int) -> None:
        """Asks for that many line ends before the next text, if there is any text before it."""
        if self._length and not self._marker:
            self._breaks = max(self._breaks, count)

    def _end_block(self) -> None:
        self._break(1 if self._lists else 2)

    def _item_marker(self) -> str:
        here = self._lists[-1]
        if here.number is None:
            return self._layout.bullet
        here.number += 1
        return f"{here.number - 1}. "

    def _prefix(self) -> str:
        depth = len(self._lists) - (1 if self._marker else 0)
        marker, self._marker = self._marker, ""
        return self._layout.quote * len(self._quotes) + "  " * depth + marker

    def _put(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)

    def _start_line(self) -> None:
        """Writes the line ends that were asked for and what stands at the start of the new line."""
        fresh = self._length == 0 or self._breaks > 0
        while self._breaks > 0:
            self._breaks -= 1
            self._put("\n")
            if self._breaks and len(self._quotes) and self._quotes[-1] >= 0:
                self._put(self._layout.quote.rstrip() * len(self._quotes))
        if fresh or self._marker:
            self._note_quotes()
            self._put(self._prefix())

    def _note_quotes(self) -> None:
        self._quotes = [self._length if start < 0 else start for start in self._quotes]

    def _text(self, text: str) -> None:
        self._start_line()
        self._put(text)

    def _end_quote(self) -> None:
        start = self._quotes.pop()
        if not self._quotes and 0 <= start < self._length:
            self._spans.append(Span(start, self._length, "quote"))
        self._end_block()

    def _block(self, token: Token) -> None:
        content = token.content if token.content.endswith("\n") else token.content + "\n"
        if self._marker:
            self._text("")
            self._breaks = 1
        if self._length:
            self._put("\n" * self._breaks)
        self._breaks = 0
        self._note_quotes()
        self._spans.append(Span(self._length, self._length + len(content), "block", _language(token.info)))
        self._put(content)
        self._breaks = 0 if self._lists else 1

    # Inside a line

    def _inline(self, children: Sequence[Token], *, heading: bool) -> None:
        if not children:
            return
        self._start_line()
        if heading:
            self._begin("heading")
        bars = sum(child.content.count("||") for child in children if child.type == "text")
        pairs = bars // 2 * 2 if self._layout.spoilers else 0
        for child in children:
            match child.type:
                case "text":
                    pairs = self._spoken(child.content, pairs)
                case "softbreak" | "hardbreak":
                    self._line_end()
                case "code_inline":
                    self._begin("code")
                    self._put(child.content)
                    self._end("code")
                case "image":
                    self._image(child)
                case _ if child.nesting and (kind := _INLINE_KINDS.get(child.type.rpartition("_")[0])):
                    if child.nesting > 0:
                        self._begin(kind, str(child.attrs.get("href", "")))
                    else:
                        self._end(kind)
                case _:
                    self._put(child.content)
        while self._open:
            self._end(self._open[-1][0])

    def _spoken(self, text: str, pairs: int) -> int:
        """Writes text with its spoiler marks. Returns how many marks are still to be taken as such."""
        pieces = text.split("||") if pairs else [text]
        for number, piece in enumerate(pieces):
            if number and pairs:
                spoiler = any(kind == "spoiler" for kind, _, _ in self._open)
                self._end("spoiler") if spoiler else self._begin("spoiler")
                pairs -= 1
            elif number:
                self._put("||")
            self._put(piece)
        return pairs

    def _image(self, token: Token) -> None:
        source = str(token.attrs.get("src", ""))
        self._begin("link", source)
        self._put(token.content or source)
        self._end("link")

    def _line_end(self) -> None:
        styles: list[tuple[Kind, str]] = [(kind, value) for kind, value, _ in self._open]
        while self._open:
            self._end(self._open[-1][0])
        self._breaks = 1
        self._start_line()
        for kind, value in styles:
            self._begin(kind, value)

    def _begin(self, kind: Kind, value: str = "") -> None:
        self._open.append((kind, value, self._length))

    def _end(self, kind: Kind) -> None:
        for index in range(len(self._open) - 1, -1, -1):
            name, value, start = self._open[index]
            if name == kind:
                del self._open[index]
                if start < self._length:
                    self._spans.append(Span(start, self._length, kind, value))
                return


def _language(info: str) -> str:
    words = info.split()
    return words[0] if words else ""


# Tables


def _is_table_rule(line: str) -> bool:
    """Whether this may be the line below the header of a table."""
    return "-" in line and "|" in line and not line.strip("|:- \t")


def _table_cells(tokens: Sequence[Token], index: int) -> tuple[list[str], list[list[str]]]:
    rows: list[list[str]] = []
    for token in tokens[index + 1 :]:
        if token.type == "table_close" and token.level == tokens[index].level:
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(token.content.strip())
    return rows[0], rows[1:]


def _table_code(header: list[str], rows: list[list[str]]) -> str:
    table = [[_cell_text(cell) for cell in row] for row in (header, *rows)]
    widths = [max(3, *(_width(row[column]) for row in table if column < len(row))) for column in range(len(header))]

    def line(cells: list[str], fill: Callable[[str, int], str]) -> str:
        return "| " + " | ".join(fill(cell, width) for cell, width in zip(cells, widths, strict=False)) + " |"

    def padded(cell: str, width: int) -> str:
        return cell + " " * (width - _width(cell))

    lines = [line(table[0], padded), line(["-" * width for width in widths], padded)]
    lines += [line(row, padded) for row in table[1:]]
    longest = max((len(run) for text in lines for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *lines, fence])


def _table_bullets(header: list[str], rows: list[list[str]]) -> str:
    def named(column: int, cell: str) -> str:
        name = header[column] if column < len(header) and header[column] else f"Column {column + 1}"
        return f"• {name}: {cell}"

    if len(header) < 2 or not rows:
        cells = [named(0, row[0]) for row in rows if row and row[0]]
        return "\n\n".join(cells) if cells else " ".join(header)
    entries: list[str] = []
    for row in rows:
        first = row[0] if row else ""
        lines = [first if not first or first.startswith(("**", "`")) else f"**{first}**"]
        lines += [named(column, cell) for column, cell in enumerate(row) if column and cell]
        entries.append("\n".join(line for line in lines if line))
    return "\n\n".join(entry for entry in entries if entry)


def _cell_text(cell: str) -> str:
    return parse_markdown(cell, Layout(headings=False)).text.replace("\n", " ") if cell else ""


def _width(text: str) -> int:
    """Columns of a terminal or of a font with fixed width."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
