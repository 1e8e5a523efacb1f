"""Reads Markdown into one intermediate form: a plain text and the spans of it that have a style.

The parser is CommonMark's with strikethrough, spoilers (``||…||``) and tables. HTML is text like any other, and so are
definitions of links (``[1]: https://…``), which CommonMark would hide.
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
PLACE = "\ue000"
"""A character that nobody writes. It stands for the place of a cut."""
BARE = "bare_url"
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

    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").disable("reference")
    parser.inline.ruler.before("linkify", BARE, _bare_url)
    return parser if autolinks else parser.disable("autolink")


@functools.cache
def _block_parser() -> MarkdownIt:
    """Finds blocks and leaves the text in them unread."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table").disable(["inline", "text_join", "reference"])


def parse_blocks(markdown: str) -> list[Token]:
    """The blocks of a text, without what is in their lines."""
    return _block_parser().parse(markdown)


def open_marks(before: str, after: str, longest_address: int) -> tuple[str, str]:
    """What closes the styles that are open between two texts, and what opens them again.

    ``after`` need only go on to where the styles end. Nothing is returned for a text that cannot be judged, and none
    for a link with a longer address.
    """
    if PLACE in before or PLACE in after:
        return "", ""
    apart = not before[-1:].strip() or not after[:1].strip()
    middle = f" {PLACE} " if apart else PLACE
    opened: list[tuple[str, str]] = []
    for token in _parser(True).parse(before + middle + after):
        for child in token.children or ():
            if child.type == "code_inline" and PLACE in child.content:
                opened.append((child.markup, child.markup))
            if PLACE in child.content:
                return "".join(close for _, close in reversed(opened)), "".join(start for start, _ in opened)
            if child.type == "link_open":
                address = str(child.attrs.get("href", ""))
                plain = child.markup in ("autolink", BARE) or len(address) > longest_address
                opened.append(("", "") if plain else ("[", f"](<{address}>)"))
            elif child.nesting > 0:
                opened.append((child.markup, child.markup))
            elif child.nesting < 0 and opened:
                opened.pop()
        opened.clear()
    return "", ""


@functools.cache
def html_parser() -> MarkdownIt:
    """Makes safe HTML: HTML in the text is shown as text, and line ends are kept."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["strikethrough", "table"])
    parser.disable("reference").inline.ruler.before("linkify", BARE, _bare_url)
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
        opening = state.push("link_open", "a", 1)
        opening.attrs, opening.markup = {"href": url}, BARE
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


class _Writer:
    """Writes the tokens of the parser as lines of text and notes the styles. Blank lines stay where they were."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._pieces: list[str] = []
        self._length = 0
        self._spans: list[Span] = []
        self._open: list[tuple[Kind, str, int]] = []
        """Inline styles that are open, with the place where they began on this line."""
        self._quotes: list[int] = []
        """Where the open quotes began. -1: they have no text yet."""
        self._lists: list[int | None] = []
        """The number of the next item of each open list. None in a list with bullets."""
        self._marker = ""
        """The bullet or number of an item that has no text yet."""
        self._breaks = 0
        """Line ends to write before the next text."""
        self._last_line = 0
        """The line of the source behind the last block."""

    def write(self, tokens: Sequence[Token]) -> None:
        for index, token in enumerate(tokens):
            match token.type:
                case "inline":
                    heading = index > 0 and tokens[index - 1].type == "heading_open" and self._layout.headings
                    self._inline(token.children or [], heading=heading)
                case "paragraph_open" | "heading_open":
                    self._next_block(token)
                case "bullet_list_open":
                    self._lists.append(None)
                case "ordered_list_open":
                    self._lists.append(int(token.attrs.get("start", 1)))
                case "bullet_list_close" | "ordered_list_close":
                    self._lists.pop()
                case "list_item_open":
                    self._end_empty_item()
                    self._marker = self._item_marker()
                case "list_item_close":
                    self._end_empty_item()
                case "blockquote_open":
                    self._quotes.append(-1)
                case "blockquote_close":
                    start = self._quotes.pop()
                    if not self._quotes and 0 <= start < self._length:
                        self._spans.append(Span(start, self._length, "quote"))
                case "fence" | "code_block":
                    self._block(token)
                case "hr":
                    self._next_block(token)
                    self._start_line()
                    self._put(RULE_LINE)
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

    def _next_block(self, token: Token) -> None:
        """Begins a block on a line of its own, behind a blank line if the source has one there."""
        first, end = token.map or (0, 0)
        if self._length:
            self._breaks = 2 if first > self._last_line else 1
        self._last_line = end

    def _item_marker(self) -> str:
        number = self._lists[-1]
        if number is None:
            return self._layout.bullet
        self._lists[-1] = number + 1
        return f"{number}. "

    def _end_empty_item(self) -> None:
        if self._marker:
            self._breaks = 1 if self._length else 0
            self._marker = self._marker.rstrip()
            self._start_line()

    def _put(self, text: str) -> None:
        self._pieces.append(text)
        self._length += len(text)

    def _start_line(self) -> None:
        """Writes the line ends that were asked for and what stands at the start of the new line."""
        fresh = self._length == 0 or self._breaks > 0
        breaks, self._breaks = self._breaks, 0
        started = sum(start >= 0 for start in self._quotes)
        for number in range(breaks):
            self._put("\n" if number == 0 else self._layout.quote.rstrip() * started + "\n")
        if fresh or self._marker:
            self._quotes = [self._length if start < 0 else start for start in self._quotes]
            item, self._marker = "  " * (len(self._lists) - 1) + self._marker if self._marker else "", ""
            self._put(self._layout.quote * len(self._quotes) + item)

    def _block(self, token: Token) -> None:
        self._end_empty_item()
        self._next_block(token)
        self._put("\n" * self._breaks)
        self._breaks = 0
        self._quotes = [self._length if start < 0 else start for start in self._quotes]
        content = token.content.removesuffix("\n")
        if content:
            self._spans.append(Span(self._length, self._length + len(content), "block", _language(token.info)))
        self._put(content)

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
        self._put(token.content.replace("\n", " ") or source)
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
                if start == self._length and kind == "link":
                    self._put(value)  # A link without words shows where it leads.
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
