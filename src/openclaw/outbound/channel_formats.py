"""Writes a Markdown text in the form that a channel shows: its tags, marks, text styles or control codes.

A channel renders the text of each message when it sends it. ``Rendered.size`` is the length as the platform counts it.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args
from urllib.parse import quote

import msgspec

from openclaw.outbound.markdown import (
    Document,
    Kind,
    Layout,
    Span,
    TableMode,
    convert_tables,
    html_parser,
    is_safe_link,
    may_be_html_table,
    parse_markdown,
    write_tokens,
)

if TYPE_CHECKING:
    from markdown_it.token import Token

Format: TypeAlias = Literal["telegram", "discord", "slack", "whatsapp", "signal", "matrix", "irc", "plain"]
FORMATS: tuple[Format, ...] = get_args(Format)
TABLES: dict[Format, TableMode] = {"whatsapp": "bullets", "signal": "bullets"}
"""How tables are shown where nothing is configured. Everywhere else they are blocks of code."""

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u0085\u2028\u2029]")
# Whoever talks to the agent could have it call a whole channel, so calls to many (<!channel>) are text.
_SLACK_TOKEN = re.compile(r"<(?:(?:[@#]|!date\^)[^<>\s]{1,200}|(?:mailto:|tel:|https?://|slack://)[^<>\s]{1,2000})>")
_SIGNAL_STYLES: dict[Kind, str] = {
    "bold": "BOLD",
    "heading": "BOLD",
    "italic": "ITALIC",
    "strike": "STRIKETHROUGH",
    "code": "MONOSPACE",
    "block": "MONOSPACE",
    "spoiler": "SPOILER",
}
_TELEGRAM_TAGS: dict[Kind, str] = {
    "bold": "b",
    "heading": "b",
    "italic": "i",
    "strike": "s",
    "code": "code",
    "spoiler": "tg-spoiler",
    "quote": "blockquote",
}
_SLACK_MARKS: dict[Kind, str] = {"bold": "*", "heading": "*", "italic": "_", "strike": "~", "code": "`"}
_IRC_CODES: dict[Kind, str] = {"bold": "\x02", "heading": "\x02", "italic": "\x1d", "strike": "\x1e", "code": "\x11"}
_RANK: dict[Kind, int] = {
    "quote": 0,
    "link": 1,
    "block": 2,
    "heading": 3,
    "bold": 4,
    "italic": 5,
    "strike": 6,
    "spoiler": 7,
    "code": 8,
}


class TextRange(msgspec.Struct, frozen=True):
    """A styled stretch of a Signal message, in UTF-16 units."""

    start: int
    length: int
    style: str

    def __str__(self) -> str:
        return f"{self.start}:{self.length}:{self.style}"


class Rendered(msgspec.Struct, frozen=True):
    """A text as a channel sends it."""

    text: str
    ranges: tuple[TextRange, ...] = ()
    """The styles of ``text``. Signal only."""
    html: str = ""
    """The formatted form beside the plain ``text``. Matrix only."""
    size: int = 0
    """The length as the platform counts it: UTF-16 units, on IRC bytes. Telegram does not count tags."""


def utf16_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def render(markdown: str, format: str, *, tables: str | None = None) -> Rendered:
    """The text in a channel's own form. ``tables`` is ``off``, ``bullets`` or ``code``; None is the channel's default.

    An unknown format is rendered as ``plain``. Every text can be rendered; nothing is raised.
    """
    known, text = _prepared(markdown, format, tables)
    return _RENDERERS[known](text)


def measure(markdown: str, format: str, *, tables: str | None = None) -> int:
    """Return the ``size`` of what ``render`` would give, without writing marks that do not count."""
    known, text = _prepared(markdown, format, tables)
    if known == "telegram":
        return utf16_length(_telegram_document(text).text)
    return (_plain if known == "matrix" else _RENDERERS[known])(text).size


def _prepared(markdown: str, format: str, tables: str | None) -> tuple[Format, str]:
    known: Format = format if format in FORMATS else "plain"
    mode: TableMode = tables if tables in ("off", "bullets", "code") else TABLES.get(known, "code")
    return known, convert_tables(markdown.replace("\r\n", "\n").replace("\r", "\n"), mode)


# Telegram


def _telegram(markdown: str) -> Rendered:
    document = _telegram_document(markdown)
    codes = [span for span in document.spans if span.kind in ("code", "block")]
    spans: list[Span] = []
    link_end = 0
    for span in document.spans:
        if span.kind == "link":
            link_end = span.end
        if span.kind == "code" and span.end <= link_end:
            continue  # A link and code exclude each other, and the link is worth more.
        if span.kind in ("quote", "link", "code", "block"):
            spans.append(span)
        else:  # Styles may not lie around code.
            spans += _without(span, codes) if codes else [span]
    text = _woven(document.text, spans, _telegram_open, _telegram_close, _escaped)
    return Rendered(text, size=utf16_length(document.text))


def _telegram_document(markdown: str) -> Document:
    return _with_unsafe_links_as_text(parse_markdown(markdown, Layout(quote="", spoilers=True)))


def _telegram_open(span: Span) -> str:
    match span.kind:
        case "link":
            return f'<a href="{html.escape(span.value)}">'
        case "block" if re.fullmatch(r"[\w+#.-]{1,40}", span.value, re.ASCII):
            return f'<pre><code class="language-{span.value}">'
        case "block":
            return "<pre><code>"
        case _:
            return f"<{_TELEGRAM_TAGS[span.kind]}>"


def _telegram_close(span: Span) -> str:
    match span.kind:
        case "link":
            return "</a>"
        case "block":
            return "</code></pre>"
        case _:
            return f"</{_TELEGRAM_TAGS[span.kind]}>"


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


# Discord


def _discord(markdown: str) -> Rendered:
    """Discord reads Markdown itself."""
    return Rendered(markdown, size=utf16_length(markdown))


# Slack and WhatsApp


def _slack(markdown: str) -> Rendered:
    document = parse_markdown(markdown, Layout(autolinks=False))
    document = _with_unsafe_links_as_text(document)
    spans = [
        span
        for span in document.spans
        if span.kind != "quote"
        and not (span.kind == "link" and _same_target(document.text[span.start : span.end], span))
    ]
    text = _woven(document.text, spans, _slack_open, _slack_close, _slack_escaped)
    return Rendered(text, size=utf16_length(text))


def _slack_open(span: Span) -> str:
    match span.kind:
        case "link":
            return f"<{_slack_url(span.value)}|"
        case "block":
            return "```\n"
        case _:
            return _SLACK_MARKS.get(span.kind, "")


def _slack_close(span: Span) -> str:
    match span.kind:
        case "link":
            return ">"
        case "block":
            return "\n```"
        case _:
            return _SLACK_MARKS.get(span.kind, "")


def _slack_url(url: str) -> str:
    return _escaped(quote(url, safe="%/:=&?~#+!$,;'@()*[]._-"))


def _slack_escaped(text: str) -> str:
    """Escape all but Slack's own mentions and addresses in angle brackets, and the marks of quoted lines."""
    if "<" not in text and ">" not in text and "&" not in text:
        return text
    pieces: list[str] = []
    done = 0
    for token in _SLACK_TOKEN.finditer(text):
        pieces += (_slack_plain(text[done : token.start()]), token[0])
        done = token.end()
    return "".join([*pieces, _slack_plain(text[done:])])


def _slack_plain(text: str) -> str:
    return re.sub(r"(?m)^((?:&gt; ?)+)", lambda marks: marks[1].replace("&gt;", ">"), _escaped(text))


def _whatsapp(markdown: str) -> Rendered:
    document = _with_links_as_text(parse_markdown(markdown, Layout(bullet="- ")))
    marks: dict[Kind, str] = {**_SLACK_MARKS, "block": "```"}
    spans = [span for span in document.spans if span.kind in marks]
    text = _marked(document.text, spans, marks)
    return Rendered(text, size=utf16_length(text))


# Signal


def _signal(markdown: str) -> Rendered:
    document = _with_links_as_text(parse_markdown(markdown, Layout(spoilers=True)))
    styles = [(span, style) for span in document.spans if (style := _SIGNAL_STYLES.get(span.kind))]
    text = document.text.rstrip()
    places = _utf16_places(text)
    ranges = {
        TextRange(start, end - start, style)
        for span, style in styles
        if (start := places(span.start)) < (end := places(min(span.end, len(text))))
    }
    ordered = sorted(_merged(ranges), key=lambda one: (one.start, -one.length, one.style))
    return Rendered(text, ranges=tuple(ordered), size=utf16_length(text))


def _merged(ranges: Iterable[TextRange]) -> list[TextRange]:
    """Join ranges of one style that overlap or touch."""
    kept: list[TextRange] = []
    for one in sorted(ranges, key=lambda one: (one.style, one.start, -one.length)):
        last = kept[-1] if kept else None
        if last is not None and last.style == one.style and one.start <= last.start + last.length:
            end = max(last.start + last.length, one.start + one.length)
            kept[-1] = TextRange(last.start, end - last.start, one.style)
        else:
            kept.append(one)
    return kept


def _utf16_places(text: str) -> Callable[[int], int]:
    if text.isascii() or max(text) <= "\uffff":
        return lambda place: place
    places = [0]
    for char in text:
        places.append(places[-1] + (2 if char > "\uffff" else 1))
    return lambda place: places[min(place, len(text))]


# Matrix, IRC and plain text


def _matrix(markdown: str) -> Rendered:
    parser = html_parser(may_be_html_table(markdown))
    tokens = parser.parse(markdown)
    tables = any(token.type == "table_open" for token in tokens)
    text = _plain(markdown).text if tables else _plain_text(write_tokens(tokens, Layout()))
    for token in tokens:
        if token.children:
            token.children = _harmless(token.children)
    formatted = parser.renderer.render(tokens, parser.options, {}).strip()
    return Rendered(text, html=formatted, size=utf16_length(text))


def _harmless(children: Sequence[Token]) -> list[Token]:
    """Show pictures and unsafe links as text. A picture at another server would tell its owner who reads it."""
    from markdown_it.token import Token

    kept: list[Token] = []
    ends: list[str | None] = []
    for child in children:
        shown: str | None = None
        if child.type == "image":
            shown = child.content
        elif child.type == "link_open":
            address = str(child.attrs.get("href", ""))
            marks = ("<", ">") if child.markup == "autolink" else ("[", f"]({address})")
            shown, end = (None, None) if is_safe_link(address) else marks
            ends.append(end)
        elif child.type == "link_close" and ends:
            shown = ends.pop()
        kept.append(child if shown is None else Token("text", "", 0, content=shown))
    return kept


def _irc(markdown: str) -> Rendered:
    """One line of the text is one message. Control characters of the text itself are left out."""
    document = _with_links_as_text(parse_markdown(CONTROLS.sub(" ", markdown), Layout(bullet="- ")))
    marked = _marked(document.text, [span for span in document.spans if span.kind in _IRC_CODES], _IRC_CODES)
    text = "\n".join(line.rstrip() for line in marked.split("\n") if line.strip())
    return Rendered(text, size=len(text.encode("utf-8", "replace")))


def _plain(markdown: str) -> Rendered:
    text = _plain_text(parse_markdown(markdown, Layout()))
    return Rendered(text, size=utf16_length(text))


def _plain_text(document: Document) -> str:
    return _with_links_as_text(document).text.rstrip()


# Common to several formats


def _same_target(label: str, span: Span) -> bool:
    return not span.value or label in (span.value, span.value.removeprefix("mailto:")) or not label.strip()


def _with_links_as_text(document: Document) -> Document:
    """The same document with the address of each link written behind its label, unless the label is the address."""
    return _with_addresses(document, lambda span: True)


def _with_unsafe_links_as_text(document: Document) -> Document:
    return _with_addresses(document, lambda span: not is_safe_link(span.value))


def _with_addresses(document: Document, chosen: Callable[[Span], bool]) -> Document:
    links = [span for span in document.spans if span.kind == "link" and chosen(span)]
    if not links:
        return document
    places: list[tuple[int, str]] = []
    for number, link in enumerate(links):
        following = links[number + 1] if number + 1 < len(links) else None
        continued = following is not None and following.value == link.value and following.start == link.end + 1
        if not continued and not _same_target(document.text[link.start : link.end], link):
            places.append((link.end, f" ({link.value})"))
    pieces: list[str] = []
    done, added = 0, [0]
    for place, address in places:
        pieces += (document.text[done:place], address)
        added.append(added[-1] + len(address))
        done = place
    ends = [place for place, _ in places]
    # An address stands behind all that ends where its label ends, and before all that begins there.
    spans = [
        Span(
            span.start + added[bisect_right(ends, span.start)],
            span.end + added[bisect_left(ends, span.end)],
            span.kind,
            span.value,
        )
        for span in document.spans
        if span.kind != "link" or not chosen(span)
    ]
    return Document("".join([*pieces, document.text[done:]]), tuple(spans))


def _without(span: Span, holes: Sequence[Span]) -> list[Span]:
    """Return the pieces of a span between the holes. The holes are in order and do not overlap."""
    left: list[Span] = []
    start = span.start
    for index in range(bisect_left(holes, span.start, key=lambda hole: hole.end), len(holes)):
        hole = holes[index]
        if hole.start >= span.end:
            break
        if start < hole.start:
            left.append(msgspec.structs.replace(span, start=start, end=hole.start))
        start = max(start, hole.end)
    if start < span.end:
        left.append(msgspec.structs.replace(span, start=start))
    return left


def _marked(text: str, spans: Iterable[Span], marks: Mapping[Kind, str]) -> str:
    def mark(span: Span) -> str:
        return marks[span.kind]

    return _woven(text, spans, mark, mark, lambda piece: piece)


def _woven(
    text: str,
    spans: Iterable[Span],
    opening: Callable[[Span], str],
    closing: Callable[[Span], str],
    escape: Callable[[str], str],
) -> str:
    """Write the marks of the spans into the text. Spans that overlap are closed and opened again, so all nest."""
    starts: dict[int, list[Span]] = {len(text): []}
    ends: dict[int, int] = {}
    kept = _distinct(spans)
    if all(one.end <= following.start for one, following in pairwise(kept)):
        return _woven_apart(text, kept, opening, closing, escape)
    for span in kept:
        starts.setdefault(span.start, []).append(span)
        ends[span.end] = ends.get(span.end, 0) + 1
    pieces: list[str] = []
    stack: list[Span] = []
    done = 0
    for place in sorted(starts.keys() | ends.keys()):
        pieces.append(escape(text[done:place]))
        done = place
        again: list[Span] = []
        left = ends.get(place, 0)
        while left:
            span = stack.pop()
            pieces.append(closing(span))
            if span.end > place:
                again.append(span)
            else:
                left -= 1
        opened = [*again, *starts.get(place, ())]
        if len(opened) > 1:
            opened.sort(key=lambda span: (-span.end, _RANK[span.kind]))
        for span in opened:
            pieces.append(opening(span))
            stack.append(span)
    return "".join(pieces)


def _woven_apart(
    text: str,
    spans: Iterable[Span],
    opening: Callable[[Span], str],
    closing: Callable[[Span], str],
    escape: Callable[[str], str],
) -> str:
    """Return the same for spans of which none lies in another one, as in most texts."""
    pieces: list[str] = []
    done = 0
    for span in spans:
        pieces += (escape(text[done : span.start]), opening(span), escape(text[span.start : span.end]), closing(span))
        done = span.end
    return "".join([*pieces, escape(text[done:])])


def _distinct(spans: Iterable[Span]) -> list[Span]:
    """Leave out a style inside the same style. A heading counts as bold, because it is shown so."""
    ends: dict[str, int] = {}
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end, _RANK[span.kind])):
        name = "bold" if span.kind == "heading" else span.kind
        if span.end > ends.get(name, -1):
            ends[name] = span.end
            kept.append(span)
    return kept


_RENDERERS: dict[Format, Callable[[str], Rendered]] = {
    "telegram": _telegram,
    "discord": _discord,
    "slack": _slack,
    "whatsapp": _whatsapp,
    "signal": _signal,
    "matrix": _matrix,
    "irc": _irc,
    "plain": _plain,
}
