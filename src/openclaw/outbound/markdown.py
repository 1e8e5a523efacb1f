"""Reads Markdown into one intermediate form: a plain text and the spans of it that have a style.

The parser is CommonMark's with strikethrough, spoilers (``||…||``) and tables. HTML is text like any other, and so are
definitions of links (``[1]: https://…``), which CommonMark would hide.

The time that reading takes is bounded by the length of the text, whoever wrote it. Where marks or lines are packed more
densely than in anything that people read, they are shown as they are written (``_read_inline``, ``_read_blocks``).

No channel shows tables, so ``convert_tables`` makes them blocks of code or lists. The result is at most a few times as
long as the table: where aligned columns or repeated names would take more room than that, they are left out.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererProtocol
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token


Kind: TypeAlias = Literal["bold", "italic", "strike", "code", "block", "link", "spoiler", "quote", "heading"]

_INLINE_KINDS: dict[str, Kind] = {
    "strong_open": "bold",
    "strong_close": "bold",
    "em_open": "italic",
    "em_close": "italic",
    "s_open": "strike",
    "s_close": "strike",
    "link_open": "link",
    "link_close": "link",
}
SAFE_SCHEMES = frozenset({"http", "https", "mailto", "tel", "tg"})
"""Schemes of the addresses that become links. Other addresses are shown as text."""
PLACE = "\ue000"
"""A character that nobody writes. It stands for the place of a cut."""
BARE = "bare_url"
"""The mark of a link that is an address in the text."""
RULE_LINE = "---"
"""What a thematic break is written as."""
MARKS = "$%&*+-:<=>@[\\]^_`{}~!"
"""The characters at which the parser tries its rules."""
FREE_MARKS, FREE_LINES = 60, 40
"""So many marks and lines are read in every text, however short."""
CHARS_PER_MARK, CHARS_PER_LINE = 4, 16
"""Longer texts may have one more mark and one more line for so many characters."""
MOST_SPOILERS = 400
"""In a paragraph with more bars, they are text."""
BRACKET_STEPS = 250_000
"""An open bracket makes the parser look at all marks behind it. So many looks are allowed in one paragraph."""
FENCE_LINE = re.compile(r" {0,3}(`{3,}|~{3,})([^\n]*)")
_INSIDE = r"(?:[^*_~`\[\]\\<\n:]|:(?!//)){1,300}"
_STYLED = "|".join(
    rf"(?<![\w{mark}])[{mark}]{{{count}}}(?=[^\W_]){_INSIDE}(?<=\S)[{mark}]{{{count}}}(?=[\s.,;:!?)\"'，。、：；！？）])"
    for mark, count in (("*", 2), ("*", 1), ("_", 2), ("_", 1), ("~", 2))
)
_ADDRESS = r"(?:[^\s*_~`\[\\<>]|(?<=\w)_(?=\w)){0,2000}"
MARKS_INSIDE = re.compile(r"[\\`~*_\[<&]|!(?=\[)|:(?=//)")
"""Where something may begin inside a line that is not plain text."""
_URL_REST = re.compile(r"://[^\s<>\"`\\^{}|]+")
_URL_SCHEME = re.compile(r"\bhttps?$", re.IGNORECASE)
_SCHEME_ROOM = 6
"""The longest scheme of a bare address, and the character before it."""
_CLOSED = re.compile(
    rf"[^*_~`\[\\<:]+|:(?!//)|<(?![A-Za-z])|<(?=[A-Za-z]){_ADDRESS}>|://{_ADDRESS}(?=\s|$)|{_STYLED}|\[{_INSIDE}\]"
    rf"|(?<!`)`[^`\n]{{1,300}}`(?!`)|(?<=[^\W_])_+(?=[^\W_])|(?<!\S)\*(?=[ \n])|(?<!~)~(?!~)|\\[!-/:-@\[-`{{-~]"
)
"""A piece of text behind which no style and no link is open, whatever follows, if none was open before it."""
_CLOSING = re.compile(r"(?<=[^ \t\n])[*_~]|[`\]]")
"""The marks that may end a style, code or the label of a link."""


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
    """Reads a Markdown text. Tables are taken as text, so convert them first."""
    return write_tokens(_parser(layout.autolinks).parse(markdown), layout)


def write_tokens(tokens: Sequence[Token], layout: Layout) -> Document:
    writer = _Writer(layout)
    writer.write(tokens)
    return writer.finish()


# The parsers


@functools.cache
def _parser(autolinks: bool) -> MarkdownIt:
    parser = _bounded_parser().enable("strikethrough").disable("reference")
    return parser if autolinks else parser.disable("autolink")


def block_parser() -> MarkdownIt:
    """A new parser that finds blocks and leaves the text in them unread."""
    return _bounded_parser().disable(["inline", "text_join", "reference"])


@functools.cache
def _fence_parser() -> MarkdownIt:
    return block_parser()


@functools.cache
def html_parser(tables: bool) -> MarkdownIt:
    """A parser that makes HTML: HTML in the text is shown as text, and line ends are kept."""
    parser = _bounded_parser().enable("strikethrough").disable("reference")
    parser.options["breaks"] = True
    parser.add_render_rule("text", _text_as_html)
    return parser.enable("table") if tables else parser


def _text_as_html(self: RendererProtocol, tokens: Sequence[Token], place: int, *_: object) -> str:
    """Text that was not read has its line ends in it."""
    return html.escape(tokens[place].content, quote=False).replace('"', "&quot;").replace("\n", "<br />\n")


def parse_blocks(markdown: str) -> list[Token]:
    """The blocks of a text except for tables, without what is in their lines."""
    return _fence_parser().parse(markdown)


def inline_text(markdown: str) -> str:
    """What people see of a line in which no block begins, for example of a cell of a table."""
    if not MARKS_INSIDE.search(markdown):
        return markdown
    marks = count_marks(markdown) if len(markdown) > FREE_MARKS else 0
    if marks > FREE_MARKS + len(markdown) // CHARS_PER_MARK or markdown.count("[") * marks > BRACKET_STEPS:
        return markdown
    parser = _parser(True)
    tokens = parser.inline.parse(markdown, parser, {}, [])
    if "](" not in markdown:
        return "".join(token.content for token in tokens)
    writer = _Writer(Layout(headings=False))
    writer.write_inline(tokens)
    return writer.finish().text


def _bounded_parser() -> MarkdownIt:
    """A parser whose time grows with the length of the text and never faster."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False})
    parser.inline.ruler.before("linkify", BARE, _bare_url)
    parser.core.ruler.at("block", _read_blocks)
    parser.core.ruler.at("inline", _read_inline)
    return parser


def _read_blocks(state: StateCore) -> None:
    if too_many_lines(state.src, len(state.src)):
        state.tokens.extend(_fences_and_text(state.src))
    else:
        state.md.block.parse(state.src, state.md, state.env, state.tokens)


def too_many_lines(text: str, length: int) -> bool:
    """Whether a text of this length has so many lines that the parser would take long to tell their blocks apart.

    The code of fenced blocks does not count, since the parser passes over it quickly.
    """
    most = FREE_LINES + length // CHARS_PER_LINE
    if text.count("\n") <= most:
        return False
    lines, fence = 0, ""
    for line in text.split("\n"):
        found = FENCE_LINE.match(line) if "```" in line or "~~~" in line else None
        if found is not None:
            fence = fence_after(found, fence)
        lines += not fence or found is not None
    return lines > most


def fence_after(line: re.Match[str], fence: str) -> str:
    """The fence that is open behind a line that looks like one. ``fence`` is the one open before it."""
    marks, info = line[1], line[2]
    if not fence:
        return "" if marks[0] == "`" and "`" in info else marks
    return "" if marks[0] == fence[0] and len(marks) >= len(fence) and not info.strip() else fence


def _fences_and_text(text: str) -> list[Token]:
    """The blocks of a text that is read quickly: fenced code, and all the lines between as one paragraph each."""
    from markdown_it.token import Token

    tokens: list[Token] = []
    lines = text.split("\n")

    def add(start: int, end: int, fence: re.Match[str] | None) -> None:
        place = [start, end]
        if fence is not None:
            code = lines[start + 1 : end - 1 if _closes(lines[end - 1], fence, end - start) else end]
            token = Token("fence", "code", 0, map=place, markup=fence[1], info=fence[2].strip())
            token.content = "\n".join([*code, ""]) if code else ""
            tokens.append(token)
        elif content := "\n".join(lines[start:end]).strip():
            inline = Token("inline", "", 0, map=place, level=1, content=content)
            inline.children = [] if MARKS_INSIDE.search(content) else _unread(content)
            opening = Token("paragraph_open", "p", 1, map=place)
            tokens.extend((opening, inline, Token("paragraph_close", "p", -1)))

    opened: re.Match[str] | None = None
    done = 0
    for number, line in enumerate(lines):
        found = FENCE_LINE.match(line) if "```" in line or "~~~" in line else None
        if found is None:
            continue
        before, after = opened[1] if opened else "", fence_after(found, opened[1] if opened else "")
        if bool(before) == bool(after):
            continue
        end = number if after else number + 1
        add(done, end, opened)
        opened, done = (found, number) if after else (None, end)
    add(done, len(lines), opened)
    return tokens


def _closes(line: str, fence: re.Match[str], lines: int) -> bool:
    found = FENCE_LINE.match(line)
    return lines > 1 and found is not None and not fence_after(found, fence[1])


def _read_inline(state: StateCore) -> None:
    """Read the marks in the lines, as many as the length of the text allows. Leave a text with more as it is."""
    room = FREE_MARKS + len(state.src) // CHARS_PER_MARK
    all_marks = count_marks(state.src)
    if all_marks <= room and state.src.count("[") * all_marks <= BRACKET_STEPS:
        for token in state.tokens:
            if token.type == "inline" and not token.children:
                token.children = state.md.inline.parse(token.content, state.md, state.env, [])
        return
    for token in state.tokens:
        if token.type == "inline" and not token.children:
            content, token.children = token.content, []
            marks = count_marks(content)
            if marks <= room and content.count("[") * marks <= BRACKET_STEPS:
                room -= marks
                state.md.inline.parse(content, state.md, state.env, token.children)
            else:
                token.children += _unread(content)


def count_marks(text: str) -> int:
    """How many characters of a text the parser has to look at closely."""
    return sum(map(text.count, MARKS))


def _unread(content: str) -> list[Token]:
    """A paragraph whose marks are not read: one text with line ends in it."""
    from markdown_it.token import Token

    shown = "\n".join([line.strip(" ") for line in content.split("\n")]) if " " in content else content
    return [Token("text", "", 0, content=shown)]


def open_marks(before: str, after: str, longest_address: int) -> tuple[str, str]:
    """What closes the styles that are open between two texts, and what opens them again.

    ``after`` need only go on to where the styles end. Nothing is returned for a text that cannot be judged, and none
    for a link with a longer address.
    """
    if PLACE in before or PLACE in after:
        return "", ""
    apart = not before[-1:].strip() or not after[:1].strip()
    middle = f" {PLACE} " if apart else PLACE
    # One of these is almost always so, and the parser would take far longer to say it.
    if all_closed(before + middle) or not _CLOSING.search(before[-1:] + after):
        return "", ""
    return _open_at_place(before + middle + after, longest_address)


def all_closed(text: str) -> bool:
    """Whether every style and link of a text ends in it. Never wrongly True."""
    place = 0
    while place < len(text):
        piece = _CLOSED.match(text, place)
        if piece is None:
            return False
        place = piece.end()
    return True


def _open_at_place(text: str, longest_address: int) -> tuple[str, str]:
    opened: list[tuple[str, str]] = []
    for token in _parser(True).parse(text):
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
    found = _address_before(state.pending, state.src, state.pos, state.posMax)
    if found is None:
        return False
    scheme, url = found
    if not silent:
        state.pending = state.pending[: -len(scheme)]
        opening = state.push("link_open", "a", 1)
        opening.attrs, opening.markup = {"href": url}, BARE
        state.push("text", "", 0).content = url
        state.push("link_close", "a", -1)
    state.pos += len(url) - len(scheme)
    return True


def _address_before(before: str, text: str, place: int, end: int) -> tuple[str, str] | None:
    """Return the scheme and the address around the ``://`` at ``place``, or None. ``before`` is the text up to it."""
    scheme = _URL_SCHEME.search(before[-_SCHEME_ROOM:])
    rest = _URL_REST.match(text, place, end) if scheme else None
    if scheme is None or rest is None:
        return None
    url = _without_end(scheme[0] + rest[0])
    return (scheme[0], url) if len(url) > len(scheme[0]) + 3 else None


def _without_end(url: str) -> str:
    """Remove punctuation and closing brackets after an address."""
    missing = {")": url.count(")") - url.count("("), "]": url.count("]") - url.count("[")}
    end = len(url)
    while end and (url[end - 1] in ".,;:!?'*_~|" or missing.get(url[end - 1], 0) > 0):
        end -= 1
        if url[end] in missing:
            missing[url[end]] -= 1
    return url[:end]


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
                    self.write_inline(token.children or [], heading=heading, bars="||" in token.content)
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
        size = len(text)
        spans = [
            span if span.end <= size else msgspec.structs.replace(span, end=size)
            for span in self._spans
            if span.start < size
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
        if not self._quotes:
            item, self._marker = self._marker, ""
            self._put("\n" * breaks + ("  " * (len(self._lists) - 1) + item if item else ""))
            return
        if breaks:
            self._put("\n")
        if breaks > 1:
            started = sum(start >= 0 for start in self._quotes)
            self._put((self._layout.quote.rstrip() * started + "\n") * (breaks - 1))
        if fresh or self._marker:
            self._begin_quotes()
            item, self._marker = "  " * (len(self._lists) - 1) + self._marker if self._marker else "", ""
            self._put(self._layout.quote * len(self._quotes) + item)

    def _begin_quotes(self) -> None:
        """The quotes that have no text yet begin here. They are the last ones that were opened."""
        if self._quotes and self._quotes[-1] < 0:
            self._quotes = [self._length if start < 0 else start for start in self._quotes]

    def _block(self, token: Token) -> None:
        self._end_empty_item()
        self._next_block(token)
        self._put("\n" * self._breaks)
        self._breaks = 0
        self._begin_quotes()
        content = token.content.removesuffix("\n")
        if content:
            self._spans.append(Span(self._length, self._length + len(content), "block", _language(token.info)))
        self._put(content)

    # Inside a line

    def write_inline(self, children: Sequence[Token], *, heading: bool = False, bars: bool = False) -> None:
        if not children:
            return
        self._start_line()
        if heading:
            self._begin("heading")
        pairs = 0
        if bars and self._layout.spoilers:
            found = sum(child.content.count("||") for child in children if child.type == "text")
            pairs = found // 2 * 2 if found <= MOST_SPOILERS else 0
        for child in children:
            match child.type:
                case "text" if pairs:
                    pairs = self._with_spoilers(child.content, pairs)
                case "text":
                    self._words(child.content)
                case "softbreak" | "hardbreak":
                    self._line_end()
                case "code_inline":
                    self._begin("code")
                    self._put(child.content)
                    self._end("code")
                case "image":
                    self._image(child)
                case _ if kind := _INLINE_KINDS.get(child.type):
                    if child.nesting > 0:
                        self._begin(kind, str(child.attrs.get("href", "")))
                    else:
                        self._end(kind)
                case _:
                    self._put(child.content)
        while self._open:
            self._end(self._open[-1][0])

    def _with_spoilers(self, text: str, pairs: int) -> int:
        """Writes text with its spoiler marks. Returns how many marks are still to be taken as such."""
        for number, piece in enumerate(text.split("||")):
            if number and pairs:
                spoiler = any(kind == "spoiler" for kind, _, _ in self._open)
                self._end("spoiler") if spoiler else self._begin("spoiler")
                pairs -= 1
            elif number:
                self._put("||")
            self._words(piece)
        return pairs

    def _words(self, text: str) -> None:
        """Writes text, which has line ends in it if its marks were not read."""
        if "\n" not in text or not (self._quotes or self._open):
            self._put(text)
            return
        for number, line in enumerate(text.split("\n")):
            if number:
                self._line_end()
            self._put(line)

    def _image(self, token: Token) -> None:
        source = str(token.attrs.get("src", ""))
        self._begin("link", source)
        self._put(token.content.replace("\n", " ") or source)
        self._end("link")

    def _line_end(self) -> None:
        if not self._open and not self._quotes and not self._marker:
            self._put("\n")
            return
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

TableMode: TypeAlias = Literal["off", "bullets", "code"]

TABLE_CELLS = 20_000
"""Tables of more cells do not become HTML."""
EMPTY_CELLS = 500
"""So many cells of a table may have been left out in the text, besides what its length allows."""
_BAR = re.compile(r"(?<!\\)\|")
GROWTH, FREE_GROWTH = 4, 4000
"""A table may become so many times as long, and so many characters longer."""


def convert_tables(markdown: str, mode: TableMode) -> str:
    """The same text with its tables as blocks of code or as lists. A text without tables is returned unchanged."""
    if mode == "off" or not may_have_tables(markdown):
        return markdown
    tables = [token for token in _table_parser().parse(markdown) if token.type == "table_open" and token.level == 0]
    if not tables:
        return markdown
    lines, done = markdown.split("\n"), 0
    pieces: list[str] = []
    for token in tables:
        first, last = token.map or (0, 0)
        header, *rows = token.meta["rows"]
        room = FREE_GROWTH + GROWTH * sum(map(len, lines[first:last]))
        pieces += lines[done:first]
        if first and lines[first - 1].strip():
            pieces.append("")
        pieces.append(_code(header, rows, room) if mode == "code" else _bullets(header, rows, room))
        done = last
        if done < len(lines) and lines[done].strip():
            pieces.append("")
    return "\n".join([*pieces, *lines[done:]])


def may_have_tables(markdown: str) -> bool:
    """Whether there may be a table. The code of fenced blocks, which converted tables are, has none."""
    return _widest_rule(markdown) > 0


def may_be_html_table(markdown: str) -> bool:
    """Whether there may be a table, and none with more cells than can be written as HTML quickly."""
    # The library fills up each row to the width of the header, so a few short lines can become a very large table.
    cells = _widest_rule(markdown) * (markdown.count("\n") + 1)
    return 0 < cells <= 500 + 2 * len(markdown) and markdown.count("|") <= TABLE_CELLS


def _widest_rule(markdown: str) -> int:
    """The most bars in a line that may be the one below a header."""
    if "|" not in markdown:
        return 0
    fence, widest = "", 0
    for line in markdown.split("\n"):
        found = FENCE_LINE.match(line) if "```" in line or "~~~" in line else None
        if found is not None and (fence or not found.start(1)):
            fence = fence_after(found, fence)
        elif found is not None:  # It may open a block or close one, which depends on what it stands in.
            return max((one.count("|") for one in markdown.split("\n") if _is_rule(one)), default=0)
        elif not fence and "-" in line and _is_rule(line):
            widest = max(widest, line.count("|"))
    return widest


def _is_rule(line: str) -> bool:
    return "-" in line and "|" in line and not line.strip("|:- \t")


@functools.cache
def _table_parser() -> MarkdownIt:
    parser = block_parser().enable("table")
    parser.block.ruler.at("table", table_rows, {"alt": ["paragraph", "reference"]})
    parser.core.ruler.at("block", _read_tables)
    return parser


def _read_tables(state: StateCore) -> None:
    """The rows of tables do not count as lines, because they are read quickly."""
    if not too_many_lines(re.sub(r"(?m)^\|.*\n", "", state.src), len(state.src)):
        state.md.block.parse(state.src, state.md, state.env, state.tokens)


def table_rows(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """Read a table as one token with the cells of its rows. Omitted cells are empty, or missing if there are many."""
    from markdown_it.rules_block import table

    if not table(state, startLine, endLine, True):
        return False
    if silent:
        return True
    parent, state.parentType = state.parentType, "table"
    ends = state.md.block.ruler.getRules("blockquote")
    rows = [_cells(state, startLine)]
    columns, line, room = len(rows[0]), startLine + 2, EMPTY_CELLS
    while line < endLine and state.sCount[line] >= state.blkIndent and not state.isEmpty(line):
        if state.is_code_block(line) or any(rule(state, line, endLine, True) for rule in ends):
            break
        row = _cells(state, line)[:columns]
        room += 2 * (state.eMarks[line] - state.bMarks[line])
        if len(row) < columns <= room:
            room -= columns - len(row)
            row += [""] * (columns - len(row))
        rows.append(row)
        line += 1
    opening = state.push("table_open", "table", 1)
    opening.map, opening.meta = [startLine, line], {"rows": rows}
    state.push("table_close", "table", -1)
    state.parentType, state.line = parent, line
    return True


def _cells(state: StateBlock, line: int) -> list[str]:
    from markdown_it.common.utils import mdTrim

    text = mdTrim(state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]])
    cells = [mdTrim(cell.replace("\\|", "|")) for cell in _BAR.split(text)] if "\\" in text else text.split("|")
    first, last = text.startswith("|"), len(cells) - (not cells[-1] and len(cells) > 1)
    return list(map(mdTrim, cells[first:last]))


def _code(header: list[str], rows: list[list[str]], room: int) -> str:
    table = [[inline_text(cell) for cell in row] for row in (header, *rows)]
    widths = [max(3, *(_width(row[column]) for row in table if column < len(row))) for column in range(len(header))]
    if (sum(widths) + 3 * len(widths)) * len(table) > room:
        widths = [3] * len(header)

    def line(cells: list[str], fill: Callable[[str, int], str]) -> str:
        return "| " + " | ".join(fill(cell, width) for cell, width in zip(cells, widths, strict=False)) + " |"

    def padded(cell: str, width: int) -> str:
        return cell + " " * (width - _width(cell))

    lines = [line(table[0], padded), line(["-" * width for width in widths], padded)]
    lines += [line(row, padded) for row in table[1:]]
    text = "\n".join(lines)
    longest = max(map(len, re.findall("`+", text)), default=0) if "`" in text else 0
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def _bullets(header: list[str], rows: list[list[str]], room: int) -> str:
    names = [f"• {name or f'Column {number}'}: " for number, name in enumerate(header, 1)]
    if sum(map(len, names)) * len(rows) > room:
        names = ["• "] * len(header)
    if len(header) < 2 or not rows:
        cells = [names[0] + row[0] for row in rows if row and row[0]]
        return "\n\n".join(cells) if cells else " ".join(header)
    entries: list[str] = []
    for row in rows:
        first = row[0] if row else ""
        lines = [first if not first or first.startswith(("**", "`")) else f"**{first}**"]
        lines += [names[column] + cell for column, cell in enumerate(row) if column and cell]
        entries.append("\n".join(line for line in lines if line))
    return "\n\n".join(entry for entry in entries if entry)


def _width(text: str) -> int:
    """Columns of a terminal or of a font with fixed width."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
