"""Reads the marks inside a paragraph where they nest plainly: styles, code, links, pictures, addresses and entities.

It gives the tokens that markdown-it gives, without empty text, in about a third of the time. Where marks overlap, or
where a link has anything unusual in it, it gives up, and markdown-it reads the paragraph.

This file imports markdown-it, so it is imported where a text is read and not before.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Literal

from markdown_it.common.entities import entities
from markdown_it.common.utils import fromCodePoint, isMdAsciiPunct, isPunctChar, isValidEntityCode, isWhiteSpace
from markdown_it.token import Token

from openclaw.outbound.markdown import BARE

_URL_REST = re.compile(r"://[^\s<>\"`\\^{}|]+")
_URL_SCHEME = re.compile(r"\bhttps?$", re.IGNORECASE)
_SCHEME_ROOM = 6
"""The longest scheme of a bare address, and the character before it."""
_ADDRESS = r"https?://[a-z0-9]{1,60}(?:[.-][a-z0-9]{1,60}){0,9}(?:/[a-zA-Z0-9_./?=&#+,@~-]{0,2000})?"
_MARK = re.compile(
    r"(?P<before>[^\n\\`~*_\[<&!:]*+)(?:"
    r"(?P<run>\*+|_+|~+)"
    r"|(?P<ticks>`+)(?P<code>[^`]+)(?P=ticks)(?!`)"
    r"|(?P<line>\n[ \t]*+)"
    rf"|\[(?P<label>[^\[\]*_~`\\<&\n]++)\]\((?P<href>{_ADDRESS})\)"
    r"|(?P<bracket>\[(?=[^\[\]`\\<!:]*+\](?!\()))"
    rf"|!\[(?P<alt>[^\[\]*_~`\\<&\n:]++)\]\((?P<src>{_ADDRESS})\)"
    r"|(?P<bare>:)(?=//)"
    rf"|<(?P<auto>{_ADDRESS})>"
    r"|(?P<less><)(?![^<>\s:@]*+[:@])"
    r"|(?P<entity>&(?:#(?:[xX][0-9a-fA-F]{1,6}|[0-9]{1,7})|[a-zA-Z][a-zA-Z0-9]{1,31});)"
    r"|\\(?:(?P<hard>\n[ \t]*+)|(?P<escaped>[^\n]))"
    r"|(?P<other>[`\[<]|!(?=\[))"
    r"|(?P<plain>[&!:])"
    r")"
)
"""Plain text and the mark behind it, if that can be read by itself. ``other`` is one that can not."""
_ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_STYLES = {"**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "s"}
_SPACE, _PUNCTUATION, _LETTER = range(3)


class QuickToken(Token):
    """A token that is made quickly."""

    __slots__ = ()

    def __init__(
        self, type: str, tag: str, nesting: Literal[-1, 0, 1], level: int, content: str = "", markup: str = ""
    ) -> None:
        self.type, self.tag, self.nesting, self.level = type, tag, nesting, level
        self.content, self.markup = content, markup
        self.attrs, self.meta = {}, {}
        self.map = self.children = None
        self.info = ""
        self.block = self.hidden = False


class _Kinds(dict[str, int]):
    """Whether a character counts as white space, punctuation or anything else beside a mark."""

    def __missing__(self, char: str) -> int:
        code = ord(char)
        kind = _LETTER
        if isWhiteSpace(code):
            kind = _SPACE
        elif isMdAsciiPunct(code) or isPunctChar(char):
            kind = _PUNCTUATION
        if code < 0x3000:
            self[char] = kind
        return kind


_KINDS = _Kinds()


def read_plain_marks(text: str, autolinks: bool) -> list[Token] | None:
    """The tokens of a paragraph. None: its marks do not nest plainly, so it has to be read in full."""
    reader = _Reader(text, autolinks)
    return reader.tokens if reader.read() else None


def address_before(before: str, text: str, place: int, end: int) -> tuple[str, str] | None:
    """The scheme and the address around the ``://`` at a place, if there is one. ``before`` is the text up to it."""
    scheme = _URL_SCHEME.search(before[-_SCHEME_ROOM:])
    rest = _URL_REST.match(text, place, end) if scheme else None
    if scheme is None or rest is None:
        return None
    url = _without_end(scheme[0] + rest[0])
    return (scheme[0], url) if len(url) > len(scheme[0]) + 3 else None


def _without_end(url: str) -> str:
    """Takes off the punctuation and brackets behind an address."""
    missing = {")": url.count(")") - url.count("("), "]": url.count("]") - url.count("[")}
    end = len(url)
    while end and (url[end - 1] in ".,;:!?'*_~|" or missing.get(url[end - 1], 0) > 0):
        end -= 1
        if url[end] in missing:
            missing[url[end]] -= 1
    return url[:end]


def _decoded(entity: str) -> str:
    """The character of an entity. A name that nobody knows stands for itself."""
    if entity[1] != "#":
        return entities.get(entity[1:-1], entity)
    code = int(entity[3:-1], 16) if entity[2] in "xX" else int(entity[2:-1])
    return fromCodePoint(code if isValidEntityCode(code) else 0xFFFD)


class _Reader:
    def __init__(self, text: str, autolinks: bool) -> None:
        self.tokens: list[Token] = []
        self._text = text
        self._autolinks = autolinks
        self._done = 0
        """Behind what was read. The text from here on is not in ``_pieces`` yet."""
        self._start = 0
        """Where the mark that is being read begins."""
        self._pieces: list[str] = []
        """Text that goes into the next token."""
        self._level = 0
        self._open: list[tuple[str, int]] = []
        """The styles that are open: their marks, and the places of their tokens."""
        self._counts = {"*": 0, "_": 0, "~": 0}
        """How many of them begin with each mark."""
        self._last: dict[str, int] = {}
        """The last place at which each mark may close a style. It is looked for when it is asked for."""

    def read(self) -> bool:
        text, place = self._text, 0
        while (mark := _MARK.match(text, place)) is not None:
            kind = mark.lastgroup
            self._start, place = mark.end("before"), mark.end()
            if kind == "run":
                if not self._run(mark):
                    return False
            elif kind == "code":
                self._push("code_inline", "code", 0, mark).markup = mark["ticks"]
                self.tokens[-1].content = _unpadded(mark["code"].replace("\n", " "))
            elif kind == "line":
                self._line_end(mark)
            elif kind == "hard":
                self._push("hardbreak", "br", 0, mark)
            elif kind == "href":
                self._link(mark, mark["label"], mark["href"])
            elif kind == "src":
                image = self._push("image", "img", 0, mark)
                image.attrs, image.content = {"src": mark["src"], "alt": ""}, mark["alt"]
                image.children = [QuickToken("text", "", 0, 0, mark["alt"])]
            elif kind == "bare":
                place = self._bare(self._start) or place
            elif kind == "entity" or kind == "escaped":
                self._special(mark)
            elif kind == "auto" and self._autolinks:
                self._link(mark, mark["auto"], mark["auto"], "autolink")
            elif kind == "auto" or (kind == "other" and mark["other"] == "<" and not self._autolinks):
                place = self._start + 1
            elif kind == "other":
                return False
        self._flush(len(text))
        if self._open:
            self._join()
        return True

    # Text

    def _flush(self, end: int) -> None:
        """Makes a token of the text before ``end``."""
        content = self._text[self._done : end]
        if self._pieces:
            content = "".join([*self._pieces, content])
            self._pieces.clear()
        if content:
            self.tokens.append(QuickToken("text", "", 0, self._level, content))

    def _push(self, type: str, tag: str, nesting: Literal[-1, 0, 1], mark: re.Match[str]) -> Token:
        self._flush(self._start)
        self._done = mark.end()
        token = QuickToken(type, tag, nesting, self._level)
        self.tokens.append(token)
        return token

    def _special(self, mark: re.Match[str]) -> None:
        char, entity = mark["escaped"], mark["entity"]
        shown = _decoded(entity) if char is None else char if char in _ESCAPABLE else f"\\{char}"
        if shown != entity:
            self._pieces += (self._text[self._done : self._start], shown)
            self._done = mark.end()

    def _line_end(self, mark: re.Match[str]) -> None:
        """A line end. Two blanks before it ask for one."""
        content = self._text[self._done : self._start]
        kind = "softbreak"
        if content[-1:] == " ":
            kind = "hardbreak" if content[-2:] == "  " else kind
            content = content.rstrip(" ")
        if self._pieces:
            content = "".join([*self._pieces, content])
            self._pieces.clear()
        if content:
            self.tokens.append(QuickToken("text", "", 0, self._level, content))
        self.tokens.append(QuickToken(kind, "br", 0, self._level))
        self._done = mark.end()

    # Links

    def _link(self, mark: re.Match[str], label: str, href: str, markup: str = "") -> None:
        self._flush(self._start)
        self._done = mark.end()
        self._link_tokens(label, href, markup)
        if markup:
            self.tokens[-3].info = self.tokens[-1].info = "auto"
            self.tokens[-1].markup = markup

    def _link_tokens(self, label: str, href: str, markup: str) -> None:
        level = self._level
        opening = QuickToken("link_open", "a", 1, level, "", markup)
        opening.attrs["href"] = href
        self.tokens += (opening, QuickToken("text", "", 0, level + 1, label), QuickToken("link_close", "a", -1, level))

    def _bare(self, place: int) -> int:
        """Reads an address around ``://`` and returns its end. 0: there is none."""
        before = self._text[max(self._done, place - _SCHEME_ROOM) : place]
        found = address_before(before, self._text, place, len(self._text))
        if found is None:
            return 0
        scheme, url = found
        self._flush(place - len(scheme))
        self._done = place + len(url) - len(scheme)
        self._link_tokens(url, url, BARE)
        return self._done

    # Styles

    def _run(self, mark: re.Match[str]) -> bool:
        """Marks of a style open it, close it or are text. False: they may do several of this, or some of it partly."""
        run, text = mark["run"], self._text
        if run == "~":
            return True
        if run not in _STYLES:
            return False
        start, end = self._start, mark.end()
        before = _KINDS[text[start - 1]] if start else _SPACE
        after = _KINDS[text[end]] if end < len(text) else _SPACE
        opens = after == _LETTER or (after == _PUNCTUATION and before != _LETTER)
        closes = before == _LETTER or (before == _PUNCTUATION and after != _LETTER)
        if run[0] == "_" and opens and closes:
            opens, closes = before == _PUNCTUATION, after == _PUNCTUATION
        if closes and self._open and self._open[-1][0] == run:
            self._close(mark, run)
        elif closes and self._counts[run[0]]:
            return False
        elif opens and self._closes_behind(run[0], end):
            self._push("text", "", 0, mark).content = run
            self._open.append((run, len(self.tokens) - 1))
            self._counts[run[0]] += 1
            self._level += 1
        else:
            self._pieces.append(text[self._done : end])
            self._done = end
        return True

    def _closes_behind(self, char: str, place: int) -> bool:
        """Whether a style that is opened here may be closed. Otherwise its marks are text."""
        if char not in self._last:
            last = self._text.rfind(char)
            while last > 0 and _KINDS[self._text[last - 1]] == _SPACE:
                last = self._text.rfind(char, 0, last)
            self._last[char] = last
        return self._last[char] >= place

    def _close(self, mark: re.Match[str], run: str) -> None:
        style = _STYLES[run]
        self._counts[run[0]] -= 1
        opening = self.tokens[self._open.pop()[1]]
        opening.type, opening.tag, opening.nesting = f"{style}_open", style, 1
        opening.content, opening.markup = "", run
        self._flush(self._start)
        self._done = mark.end()
        self._level -= 1
        self.tokens.append(QuickToken(f"{style}_close", style, -1, self._level, "", run))

    def _join(self) -> None:
        """Joins the marks that opened nothing with the text around them."""
        kept: list[Token] = []
        level = 0
        for is_text, tokens in groupby(self.tokens, lambda token: token.type == "text"):
            if is_text:
                kept.append(QuickToken("text", "", 0, level, "".join(token.content for token in tokens)))
                continue
            for token in tokens:
                level -= token.nesting < 0
                token.level = level
                level += token.nesting > 0
                kept.append(token)
        self.tokens = kept


def _unpadded(code: str) -> str:
    """Code without the blank on both its sides that people write beside backticks."""
    return code[1:-1] if code[0] == " " == code[-1] and code.strip(" ") else code
