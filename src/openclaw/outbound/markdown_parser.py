"""The parser of Markdown: markdown-it with its own rules, each asked only where it can begin.

markdown-it asks every rule at every mark and at every line. Almost every rule begins with one of a few characters, so
the tables here name them. The result is the same, and a text is read in about two thirds of the time.

This file imports markdown-it, so it is imported where a text is read and not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

from markdown_it import MarkdownIt
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

BlockRule: TypeAlias = Callable[[StateBlock, int, int, bool], bool]
InlineRule: TypeAlias = Callable[[StateInline, bool], bool]
BLOCK_STARTS: dict[BlockRule, str] = {
    fence: "`~",
    blockquote: ">",
    hr: "*-_",
    list_block: "*-+0123456789",
    heading: "#",
    code: "",
    html_block: "",
}
"""What the first line of a block begins with. Code begins with blanks, and HTML is not read. Others: with anything."""
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


class _Blocks(ParserBlock):
    def __init__(self) -> None:
        super().__init__()
        ruler = _BlockRuler()
        for rule in self.ruler.__rules__:
            ruler.push(rule.name, rule.fn, {"alt": rule.alt})
        self.ruler = ruler

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


def _underlined(state: StateBlock, startLine: int, endLine: int, silent: bool) -> bool:
    """A heading with a line below it. Most texts have no such line."""
    if _LINE_BELOW not in state.env:
        state.env[_LINE_BELOW] = _UNDERLINE.search(state.src) is not None
    return bool(state.env[_LINE_BELOW]) and lheading(state, startLine, endLine, silent)


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
        state = StateInline(src, md, env, tokens)
        self.tokenize(state)
        if _PAIRED.search(src):
            for rule in self.ruler2.getRules():
                rule(state)
        return state.tokens
