"""The parser of Markdown: markdown-it with its own rules, each asked only where it can begin.

markdown-it asks every rule at every mark and at every line. Almost every rule begins with one of a few characters, so
the tables here name them. Two frequent things are read in a shorter way that gives the same tokens: paragraphs whose
marks nest plainly (``_Reader``), and lists whose items are one line each (``_list``). Where anything is unusual, the
shorter way gives up and markdown-it reads it.

This file imports markdown-it, so it is imported where a text is read and not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Literal, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.common.entities import entities
from markdown_it.common.utils import fromCodePoint, isMdAsciiPunct, isPunctChar, isValidEntityCode, isWhiteSpace, mdTrim
from markdown_it.parser_block import ParserBlock
from markdown_it.parser_inline import ParserInline
from markdown_it.ruler import Ruler
from markdown_it.rules_block import (
    StateBlock,
    blockquote,
    code,
    fence,
    heading,
    hr,
    html_block,
    list_block,
    table,
)
from markdown_it.rules_inline import (
    StateInline,
    autolink,
    backtick,
    emphasis,
    entity,
    escape,
    html_inline,
    image,
    link,
    newline,
    strikethrough,
    text,
)
from markdown_it.token import Token
from markdown_it.utils import EnvType

from openclaw.outbound.markdown import BARE

BlockRule: TypeAlias = Callable[[StateBlock, int, int, bool], bool]
InlineRule: TypeAlias = Callable[[StateInline, bool], bool]
INLINE_STARTS: dict[InlineRule, str] = {
    text: "",
    newline: "\n",
    escape: "\\",
    backtick: "`",
    strikethrough.tokenize: "~",
    emphasis.tokenize: "*_",
    link: "[",
    image: "!",
    autolink: "<",
    html_inline: "",
    entity: "&",
}
_STOPS = re.compile(r"[\n\\`~*_\[\]<&]|!(?=\[)|:(?=//)")
"""Where a rule may begin inside a paragraph, and the end of a link's label."""
_PAIRED = re.compile(r"[*_~]")
_DEEP = 4
"""Lines with so many blanks more than their block are code."""
EMPTY_CELLS = 500
"""So many cells of a table may have been left out in the text, besides what its length allows."""
_BAR = re.compile(r"(?<!\\)\|")
_PLAIN_ITEM = re.compile(
    r"(?P<indent> {0,20})(?:(?P<number>[0-9]{1,9})(?=[.)]))?(?P<marker>(?<=[0-9])[.)]|(?<![0-9])[-+*]) "
    r"(?=[^\s\-+*_#>`~\d]|[-+*_]{1,2}[^\s\-+*_]|`(?!``)|~(?!~~)|\d(?!\d{0,8}[.)](?:\s|$)))(?P<text>[^\n]*)"
)
"""An item of a list that is one line of text, in which no other block begins."""
_MOST_LISTS = 5
"""Lists that lie deeper in each other are left to the library, which has a limit for them."""
_PLAIN_ADDRESS = re.compile(r"(?a)https?://[a-z0-9]{1,60}(?:[.-][a-z0-9]{1,60}){0,9}(?:/[\w./?=&#+,@;~-]{0,2000})?")
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


class MarkdownParser(MarkdownIt):
    """CommonMark without HTML. ``address`` is one more rule inside paragraphs, which begins at ``://``.

    Enable and disable rules before the first text is read.
    """

    def __init__(self, name: str, address: InlineRule) -> None:
        super().__init__("commonmark", {"html": False})
        active = self.get_active_rules()
        self.inline, self.block = _Inlines({**INLINE_STARTS, address: ":"}), _Blocks()
        self.inline.ruler.before("linkify", name, address)
        self.inline.ruler.enableOnly([*active["inline"], name])
        self.inline.ruler2.enableOnly(active["inline2"])
        self.block.ruler.enableOnly(active["block"])

    def normalizeLink(self, url: str) -> str:
        """Most addresses have nothing to encode."""
        return url if _PLAIN_ADDRESS.fullmatch(url) else super().normalizeLink(url)


# Blocks


class _Starts:
    """Rules of blocks by the characters that they begin with."""

    def __init__(self, rules: Sequence[BlockRule]) -> None:
        characters = {character for rule in rules for character in BLOCK_STARTS.get(rule, "")}
        self._others = tuple(rule for rule in rules if rule not in BLOCK_STARTS)
        self._at = {
            character: tuple(rule for rule in rules if character in BLOCK_STARTS.get(rule, character))
            for character in characters
        }

    def at(self, character: str) -> tuple[BlockRule, ...]:
        """The rules that may begin with this character, in their order."""
        return self._at.get(character, self._others)


class _BlockState(StateBlock):
    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        if nesting < 0:
            self.level -= 1
        token = QuickToken(ttype, tag, nesting, self.level)
        token.block = True
        if nesting > 0:
            self.level += 1
        self.tokens.append(token)
        return token


class _Blocks(ParserBlock):
    def __init__(self) -> None:
        super().__init__()
        ruler = _BlockRuler()
        for rule in self.ruler.__rules__:
            ruler.push(rule.name, _list if rule.fn is list_block else rule.fn, {"alt": rule.alt})
        self.ruler = ruler

    def parse(self, src: str, md: MarkdownIt, env: EnvType, outTokens: list[Token]) -> list[Token] | None:
        if src:
            state = _BlockState(src, md, env, outTokens)
            self.tokenize(state, state.line, state.lineMax)
        return outTokens

    @cached_property
    def _starts(self) -> _Starts:
        return _Starts(self.ruler.getRules())

    def tokenize(self, state: StateBlock, startLine: int, endLine: int) -> None:
        """As in the library, with the rules for the first character of each line."""
        deepest = state.md.options.maxNesting
        line, blank = startLine, False
        while line < endLine:
            state.line = line = state.skipEmptyLines(line)
            if line >= endLine or state.sCount[line] < state.blkIndent:
                break
            if state.level >= deepest:
                state.line = endLine
                break
            deep = state.sCount[line] - state.blkIndent >= _DEEP
            first = state.src[state.bMarks[line] + state.tShift[line]]
            for rule in self.ruler.getRules() if deep else self._starts.at(first):
                if rule(state, line, endLine, False):
                    break
            state.tight = not blank
            line = state.line
            if line - 1 < endLine and state.isEmpty(line - 1):
                blank = True
            if line < endLine and state.isEmpty(line):
                blank = True
                state.line = line = line + 1


class _BlockRuler(Ruler[BlockRule]):
    """The rules that may end a paragraph, a list or a quote are one rule each, which looks at the first character."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[str, list[BlockRule]] = {}

    def getRules(self, chainName: str = "") -> list[BlockRule]:
        if not chainName:
            return super().getRules()
        if chainName not in self._ends:
            # A list is recognised sooner than a line across the page, which often begins in the same way.
            rules = sorted(super().getRules(chainName), key=lambda rule: rule is hr)
            self._ends[chainName] = [_ending(_Starts(rules))]
        return self._ends[chainName]


def _ending(starts: _Starts) -> BlockRule:
    def ends(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
        place = state.bMarks[startLine] + state.tShift[startLine]
        rules = starts.at(state.src[place : place + 1])
        return bool(rules) and any(rule(state, startLine, endLine, silent) for rule in rules)

    return ends


def _paragraph_tokens(content: str, line: int, level: int) -> tuple[Token, Token, Token]:
    opening = _block_token("paragraph_open", "p", 1, level)
    inline = _block_token("inline", "", 0, level + 1)
    inline.content = content
    opening.map, inline.map, inline.children = [line, line + 1], [line, line + 1], []
    return opening, inline, _block_token("paragraph_close", "p", -1, level)


def _block_token(type: str, tag: str, nesting: Literal[-1, 0, 1], level: int, markup: str = "") -> Token:
    token = QuickToken(type, tag, nesting, level, "", markup)
    token.block = True
    return token


def _list(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """A list. One whose items are a line each is read here, if nothing or a blank line and ordinary text follow."""
    if silent or state.level or state.sCount[startLine] or state.blkIndent:
        return list_block(state, startLine, endLine, silent)
    items = _plain_items(state, startLine, endLine)
    end = startLine + len(items)
    following = state.skipEmptyLines(end)
    ends = following >= endLine or (
        following > end and not state.sCount[following] and state.src[state.bMarks[following]] not in "-+*0123456789"
    )
    tokens = _list_tokens(items, startLine, following) if items and ends else None
    if tokens is None:
        return list_block(state, startLine, endLine, silent)
    state.tokens += tokens
    state.line = following
    return True


def _plain_items(state: StateBlock, startLine: int, endLine: int) -> list[re.Match[str]]:
    """The items of a list and of the lists in it, from a line on, that are one line of text each."""
    found: list[re.Match[str]] = []
    for line in range(startLine, endLine):
        item = _PLAIN_ITEM.match(state.src, state.bMarks[line])
        if item is None:
            break
        found.append(item)
    return found


class _OpenList:
    def __init__(self, base: int, item: re.Match[str], line: int, level: int) -> None:
        ordered = item["number"]
        self.base, self.level = base, level
        self.marker = item["marker"]
        self.names = ("ordered_list", "ol") if ordered else ("bullet_list", "ul")
        self.opening = _block_token(f"{self.names[0]}_open", self.names[1], 1, level, self.marker)
        self.opening.map = [line, line]
        if ordered and int(ordered) != 1:
            self.opening.attrs = {"start": int(ordered)}
        self.item_close = _block_token("list_item_close", "li", -1, level + 1, self.marker)

    def begin_item(self, item: re.Match[str], line: int) -> tuple[Token, ...]:
        self.content = item.start("text") - item.start()
        """The column in which the text of the item begins. What is inside the item is indented as far."""
        self.item_open = _block_token("list_item_open", "li", 1, self.level + 1, self.marker)
        self.item_open.map, self.item_open.info = [line, line], item["number"] or ""
        paragraph = _paragraph_tokens(mdTrim(item["text"]), line, self.level + 2)
        paragraph[0].hidden = paragraph[2].hidden = True
        return (self.item_open, *paragraph)

    def end_item(self, line: int) -> Token:
        self.item_open.map = [self.item_open.map[0] if self.item_open.map else line, line]
        return self.item_close

    def end(self, line: int) -> tuple[Token, Token]:
        if self.opening.map:
            self.opening.map[1] = line
        return self.end_item(line), _block_token(f"{self.names[0]}_close", self.names[1], -1, self.level, self.marker)


def _list_tokens(items: Sequence[re.Match[str]], startLine: int, following: int) -> list[Token] | None:
    """The tokens of a list by the indentation of its items. None: they do not simply lie in or below each other."""
    tokens: list[Token] = []
    lists: list[_OpenList] = []
    for line, item in enumerate(items, startLine):
        indent = len(item["indent"])
        while lists and indent < lists[-1].base:
            tokens += lists.pop().end(line)
        if lists and indent < lists[-1].content:
            if indent - lists[-1].base >= _DEEP or lists[-1].marker != item["marker"]:
                return None
            tokens.append(lists[-1].end_item(line))
        else:
            base = lists[-1].content if lists else 0
            # A number that is not 1 goes on with the text of the line above.
            if indent - base >= _DEEP or len(lists) >= _MOST_LISTS or (lists and item["number"] not in (None, "1")):
                return None
            lists.append(_OpenList(base, item, line, 2 * len(lists)))
            tokens.append(lists[-1].opening)
        tokens += lists[-1].begin_item(item, line)
    while lists:
        tokens += lists.pop().end(following)
    return tokens


def table_rows(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """A table as one token with the cells of its rows. Cells that are left out are empty, or missing if many are."""
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
    text = mdTrim(state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]])
    cells = [mdTrim(cell.replace("\\|", "|")) for cell in _BAR.split(text)] if "\\" in text else text.split("|")
    first, last = text.startswith("|"), len(cells) - (not cells[-1] and len(cells) > 1)
    return list(map(mdTrim, cells[first:last]))


BLOCK_STARTS: dict[BlockRule, str] = {
    fence: "`~",
    blockquote: ">",
    hr: "*-_",
    _list: "*-+0123456789",
    heading: "#",
    code: "",
    html_block: "",
}
"""What the first line of a block begins with. Code begins with blanks, and HTML is not read. Others: with anything."""


# Inside paragraphs


class _Inlines(ParserInline):
    def __init__(self, starts: Mapping[InlineRule, str]) -> None:
        super().__init__()
        self._starts = starts

    @cached_property
    def _rules(self) -> dict[str, InlineRule]:
        """The rule for each character that one can begin with."""
        return {character: rule for rule in self.ruler.getRules() for character in self._starts[rule]}

    def tokenize(self, state: StateInline) -> None:
        text, end, rules = state.src, state.posMax, self._rules
        deepest = state.md.options.maxNesting
        while state.pos < end:
            found = _STOPS.search(text, state.pos, end)
            stop = found.start() if found else end
            if stop > state.pos:
                state.append_pending(text[state.pos : stop])
                state.pos = stop
                continue
            rule = rules.get(text[stop]) if state.level < deepest else None
            if rule is None or not rule(state, False):
                state.append_pending(text[stop])
                state.pos = stop + 1
        if state.pending:
            state.pushPending()

    def skipToken(self, state: StateInline) -> None:
        place = state.pos
        if place in state.cache:
            state.pos = state.cache[place]
            return
        found = _STOPS.search(state.src, place, state.posMax)
        stop = found.start() if found else state.posMax
        if state.level >= state.md.options.maxNesting:
            state.pos = state.posMax + 1
        elif stop > place:
            state.pos = stop
        else:
            rule = self._rules.get(state.src[place])
            state.level += 1
            if rule is None or not rule(state, True):
                state.pos = place + 1
            state.level -= 1
        state.cache[place] = state.pos

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        read = read_plain_marks(src, "<" in self._rules)
        if read is not None:
            tokens += read
            return tokens
        state = StateInline(src, md, env, tokens)
        self.tokenize(state)
        if _PAIRED.search(src):
            for rule in self.ruler2.getRules():
                rule(state)
        return state.tokens


# Paragraphs whose marks nest plainly


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
