"""Reads the text of a web page: HTML becomes Markdown or plain text.

The page is read once from front to back, and nothing is looked at twice, so that no page can hold the Gateway up.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple
from urllib.parse import urljoin

Mode = Literal["markdown", "text"]
LONGEST_TAG = 8192
LONGEST_LINK = 2000
LEAST_MAIN_CHARS = 200
"""A main part that is shorter than this is not taken for the page."""

_NAME = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9:-]{0,40})")
_TAG_END = re.compile(r"""(?:[^"'>]|"[^"]*"|'[^']*')*>""")
_ATTRIBUTE = re.compile(r"""([a-zA-Z-]{1,40})\s{0,8}=\s{0,8}("[^"]*"|'[^']*'|[^\s"'>]+)""")
_INVISIBLE = re.compile(
    r"""\shidden(?:[\s=/>]|$)|aria-hidden\s?=\s?["']?true|display\s?:\s?none|visibility\s?:\s?hidden"""
)
_SPACE = re.compile(r"\s+")
_MANY_LINES = re.compile(r"\n{3,}")
_RAW = {"script", "style", "textarea", "title", "xmp", "noembed", "noframes"}
"""What stands in these is no markup."""
_DROPPED = {"noscript", "template", "svg", "iframe", "object", "canvas", "select", "button", "audio", "video", "math"}
_AROUND = {"nav", "footer", "aside", "form", "dialog", "menu"}
"""What stands around the main part of a page."""
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_OPEN_ENDED = {"p", "li", "dt", "dd", "tr", "td", "th", "option"}
"""Elements whose end may be left out. The next of the same kind ends them."""
_BLOCKS = {
    *("address", "article", "blockquote", "body", "caption", "dd", "details", "div", "dl", "dt", "figcaption"),
    *("figure", "footer", "form", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "summary", "table"),
    *("tbody", "thead", "ul", "h1", "h2", "h3", "h4", "h5", "h6"),
}
_MAIN = {"main", "article"}
_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in _RAW}


class Page(NamedTuple):
    title: str
    text: str


class _Tag(NamedTuple):
    name: str
    ends: bool
    inside: str


def read_page(source: str, url: str, mode: Mode = "markdown", *, main_part: bool = True) -> Page:
    """The title and the text of a page. ``main_part``: without menus and footers, where the page marks them."""
    reader = _Reader(url, mode, main_part)
    for token in _tokens(source):
        reader.take(token)
    return reader.page()


def _tokens(source: str) -> Iterator[str | _Tag | tuple[str, str]]:
    """Texts, tags, and the raw content of elements that hold no markup."""
    place, end = 0, len(source)
    while place < end:
        opening = source.find("<", place)
        if opening < 0:
            yield source[place:]
            return
        if opening > place:
            yield source[place:opening]
        if source.startswith("<!--", opening):
            closing = source.find("-->", opening + 4)
            place = end if closing < 0 else closing + 3
            continue
        found = _NAME.match(source, opening)
        if found is None and source[opening + 1 : opening + 2] not in ("!", "?", "/"):
            yield "<"
            place = opening + 1
            continue
        begin = found.end() if found else opening + 2
        closed = _TAG_END.match(source, begin, begin + LONGEST_TAG)
        place = closed.end() if closed else begin + LONGEST_TAG
        if found is None:
            continue
        name = found[2].lower()
        yield _Tag(name, bool(found[1]), source[begin : place - 1])
        if name in _RAW and not found[1]:
            finish = _ENDS[name].search(source, place)
            stop = finish.start() if finish else end
            yield name, source[place:stop]
            place = stop


class _Reader:
    def __init__(self, url: str, mode: Mode, main_part: bool) -> None:
        self._url = url
        self._markdown = mode == "markdown"
        self._dropped = _DROPPED | _AROUND if main_part else _DROPPED
        self._main_part = main_part
        self._title = ""
        self._out: list[str] = []
        self._skipping = ""
        self._depth = 0
        self._pre = False
        self._links: list[tuple[int, str]] = []
        self._main_depth = 0
        self._main_from = 0
        self._mains: list[tuple[int, int]] = []

    def take(self, token: str | _Tag | tuple[str, str]) -> None:
        if isinstance(token, _Tag):
            self._tag(token)
        elif isinstance(token, tuple):
            if token[0] == "title" and not self._title:
                self._title = _SPACE.sub(" ", _unescaped(token[1])).strip()[:500]
        elif not self._skipping:
            text = _unescaped(token)
            self._out.append(text if self._pre else _SPACE.sub(" ", text))

    def _tag(self, tag: _Tag) -> None:
        if self._skipping:
            self._skip(tag)
        elif tag.ends:
            self._end(tag.name)
        elif tag.name not in _VOID and (tag.name in self._dropped or _is_invisible(tag.inside)):
            self._skipping, self._depth = tag.name, 1
        else:
            self._begin(tag)

    def _skip(self, tag: _Tag) -> None:
        if tag.name != self._skipping or (not tag.ends and tag.inside.endswith("/")):
            return
        if tag.ends or tag.name in _OPEN_ENDED:
            self._depth -= 1
            if self._depth <= 0:
                self._skipping = ""
                if not tag.ends:
                    self._tag(tag)
        else:
            self._depth += 1

    def _begin(self, tag: _Tag) -> None:
        name, out = tag.name, self._out
        if name in _MAIN:
            if self._main_depth == 0:
                self._main_from = len(out)
            self._main_depth += 1
        if name in ("br", "tr"):
            out.append("\n")
        elif name in ("td", "th"):
            out.append(" | " if self._markdown else " ")
        elif name == "li":
            out.append("\n- ")
        elif name in _BLOCKS:
            out.append("\n\n")
        if not self._markdown:
            self._pre = self._pre or name == "pre"
        elif name == "pre":
            self._pre = True
            out.append("```\n")
        elif len(name) == 2 and name[0] == "h" and name[1] in "123456":
            out.append("#" * int(name[1]) + " ")
        elif name == "a" and len(self._links) < 16:
            self._links.append((len(out), _attribute(tag.inside, "href")))
        elif name in ("code", "strong", "b") and not self._pre:
            out.append("`" if name == "code" else "**")

    def _end(self, name: str) -> None:
        out = self._out
        if name in _MAIN and self._main_depth:
            self._main_depth -= 1
            if self._main_depth == 0:
                self._mains.append((self._main_from, len(out)))
        if name == "pre" and self._pre:
            self._pre = False
            out.append("\n```" if self._markdown else "")
        elif self._markdown and name == "a" and self._links:
            self._end_link(*self._links.pop())
        elif self._markdown and name in ("code", "strong", "b") and not self._pre:
            out.append("`" if name == "code" else "**")
        if name in _BLOCKS:
            out.append("\n\n")

    def _end_link(self, begin: int, href: str) -> None:
        text = _SPACE.sub(" ", "".join(self._out[begin:])).strip()
        if not text or not href or href.startswith(("#", "javascript:", "data:")):
            return
        try:
            target = urljoin(self._url, href)
        except ValueError:
            return
        # Only the pieces of the link are replaced; their number stays, because places in the list are remembered.
        self._out[begin:] = [f"[{text}]({target})", *[""] * (len(self._out) - begin - 1)]

    def page(self) -> Page:
        whole = _tidy("".join(self._out))
        if self._main_part and self._mains:
            main = _tidy("\n\n".join("".join(self._out[begin:end]) for begin, end in self._mains))
            if len(main) >= min(LEAST_MAIN_CHARS, len(whole)):
                return Page(self._title, main)
        return Page(self._title, whole)


def _tidy(text: str) -> str:
    # One space before a line is what is left of the page's own layout; more are the indentation of a program.
    lines = [line.rstrip() if line.startswith("  ") else line.strip(" \t") for line in text.split("\n")]
    return _MANY_LINES.sub("\n\n", "\n".join(lines)).strip()


def _is_invisible(inside: str) -> bool:
    return _INVISIBLE.search(inside.lower()) is not None


def _attribute(inside: str, name: str) -> str:
    for found in _ATTRIBUTE.finditer(inside):
        if found[1].lower() == name:
            return _unescaped(found[2].strip("\"'")).strip()[:LONGEST_LINK]
    return ""


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:
        return text  # A number in it is longer than Python reads.
