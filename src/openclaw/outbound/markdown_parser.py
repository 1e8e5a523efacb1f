"""The parser of Markdown: markdown-it with its own rules, each asked only where it can begin.

markdown-it asks every rule at every mark and at every line. Almost every rule begins with one of a few characters, so
the tables here name them. The result is the same, and a text is read in about two thirds of the time.

This file imports markdown-it, so it is imported where a text is read and not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from markdown_it import MarkdownIt
from markdown_it.common.utils import mdTrim
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
    lheading,
    list_block,
    paragraph,
    table,
)
from markdown_it.rules_core import StateCore, text_join
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

from openclaw.outbound.markdown_inline import QuickToken, read_plain_marks

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
_UNDERLINE = re.compile(r"(?m)[-=][ \t]{0,200}$")
_LINE_BELOW = "has_underline"
_DEEP = 4
"""Lines with so many blanks more than their block are code."""
EMPTY_CELLS = 500
"""So many cells of a table may have been left out in the text, besides what its length allows."""
_RULE_LINE = re.compile(r"[-*_ \t]+$")
_BAR = re.compile(r"(?<!\\)\|")
_PLAIN_ITEM = re.compile(
    r"(?P<indent> {0,20})(?:(?P<number>[0-9]{1,9})(?=[.)]))?(?P<marker>(?<=[0-9])[.)]|(?<![0-9])[-+*]) "
    r"(?=[^\s\-+*_#>`~\d]|[-+*_]{1,2}[^\s\-+*_]|`(?!``)|~(?!~~)|\d(?!\d{0,8}[.)](?:\s|$)))(?P<text>[^\n]*)"
)
"""An item of a list that is one line of text, in which no other block begins."""
_MOST_LISTS = 5
"""Lists that lie deeper in each other are left to the library, which has a limit for them."""
_PLAIN_ADDRESS = re.compile(r"(?a)https?://[a-z0-9]{1,60}(?:[.-][a-z0-9]{1,60}){0,9}(?:/[\w./?=&#+,@;~-]{0,2000})?")


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
        self.block.ruler.at("lheading", _underlined)
        self.core.ruler.at("text_join", _join_text)

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
            ruler.push(rule.name, REPLACED.get(rule.fn, rule.fn), {"alt": rule.alt})
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
            rules = sorted(super().getRules(chainName), key=lambda rule: rule is _rule_line)
            self._ends[chainName] = [_ending(_Starts(rules))]
        return self._ends[chainName]


def _ending(starts: _Starts) -> BlockRule:
    def ends(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
        place = state.bMarks[startLine] + state.tShift[startLine]
        rules = starts.at(state.src[place : place + 1])
        return bool(rules) and any(rule(state, startLine, endLine, silent) for rule in rules)

    return ends


def _underlined(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """A heading with a line below it. Most texts have no such line."""
    if _LINE_BELOW not in state.env:
        state.env[_LINE_BELOW] = _UNDERLINE.search(state.src) is not None
    return bool(state.env[_LINE_BELOW]) and lheading(state, startLine, endLine, silent)


def _short_paragraph(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """A paragraph. Most are one line before a blank one."""
    following = startLine + 1
    if following < state.lineMax and not state.isEmpty(following):
        return paragraph(state, startLine, endLine, silent)
    state.line = following
    content = mdTrim(state.src[state.bMarks[startLine] + state.tShift[startLine] : state.eMarks[startLine]])
    state.tokens += _paragraph_tokens(content, startLine, state.level)
    return True


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


def _rule_line(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """A line across the page. Most lines that begin like one are items of lists."""
    place = state.bMarks[startLine] + state.tShift[startLine]
    found = _RULE_LINE.match(state.src, place, state.eMarks[startLine])
    return found is not None and hr(state, startLine, endLine, silent)


REPLACED: dict[BlockRule, BlockRule] = {list_block: _list, paragraph: _short_paragraph, hr: _rule_line}
"""Rules of the library with a shorter way for what is most frequent."""
BLOCK_STARTS: dict[BlockRule, str] = {
    fence: "`~",
    blockquote: ">",
    _rule_line: "*-_",
    _list: "*-+0123456789",
    heading: "#",
    code: "",
    html_block: "",
}
"""What the first line of a block begins with. Code begins with blanks, and HTML is not read. Others: with anything."""


# Inside paragraphs


def _join_text(state: StateCore) -> None:
    """Only escapes and entities leave pieces of text to join."""
    if "\\" in state.src or "&" in state.src:
        text_join(state)


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
