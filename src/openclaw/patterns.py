"""Regular expressions that people write into the configuration: checked when they are set, and run in bounded time.

Python's engine tries again and again where an expression can match the same text in several ways, and nothing
interrupts it. So an expression with which the tries multiply is refused (``slow_reason``). For the others the time
grows at most with the square of the text, and ``BoundedPattern`` gives them the text in short pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from re import _constants as ops  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, NamedTuple, TypeAlias

MAX_CHARS = 1000
"""The longest expression that is accepted."""
PIECE = 2000
OVERLAP = 200
"""A search sees this much of the piece before, so that a match across the border is found."""
_MOST_POSITIONS = 300
_MOST_COPIES = 64
_MOST_STEPS = 100_000
_SAMPLE = "".join(map(chr, range(256))) + "\u0130\u0131\u017f\u2003\u2028\u212a\u4e2d\U0001f600"

_TOO_LARGE = "it is too long or repeats too much"
_NESTED = "a repeated part can match the same text in several ways, such as (a+)+ or (a|a)*"
_ADJACENT = "two repeated parts behind each other can match the same text, such as .*.* or \\w+\\d*"


class PatternRefused(ValueError):
    """The expression is not valid, or may be slow. The text says why."""


class BoundedPattern:
    """An expression of an owner. It can only be run on text in pieces of ``PIECE`` characters."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        """Raise ``PatternRefused``."""
        if refused := _refusal(pattern, flags):
            raise PatternRefused(refused)
        self._compiled = re.compile(pattern, flags)
        self.pattern = pattern

    def found_in(self, text: str) -> bool:
        search = self._compiled.search
        return any(search(text, max(0, start - OVERLAP), end) for start, end in pieces(text))

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
        if len(text) <= PIECE:
            return self._compiled.sub(replacement, text)
        return "".join(self._compiled.sub(replacement, text[start:end]) for start, end in pieces(text))


def mention_pattern(pattern: str) -> BoundedPattern:
    """Return an entry of ``mentionPatterns``. Raises ``PatternRefused``."""
    # In JSON, "\b" with a single backslash is a backspace. The author meant a word boundary.
    return BoundedPattern(pattern.replace("\x08", r"\b"), re.IGNORECASE)


def redact_pattern(pattern: str) -> BoundedPattern:
    """Return an entry of ``logging.redactPatterns``: ``/re/flags``, or an expression that ignores case.

    Raises ``PatternRefused``.
    """
    slash = pattern.rfind("/")
    if not (pattern.startswith("/") and slash > 1 and (pattern[slash + 1 :] or "i").isalpha()):
        return BoundedPattern(pattern, re.IGNORECASE)
    flags = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
    value = set(pattern[slash + 1 :])
    return BoundedPattern(pattern[1:slash], sum(flags.get(flag, 0) for flag in value))


def pieces(text: str) -> Iterator[tuple[int, int]]:
    """Cut the text into parts of at most ``PIECE`` characters, between words where there are any."""
    start = 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        if end < len(text):
            blank = max(text.rfind(" ", start + PIECE // 2, end), text.rfind("\n", start + PIECE // 2, end))
            end = blank + 1 if blank > 0 else end
        yield start, end
        start = end


@lru_cache(maxsize=256)
def _refusal(pattern: str, flags: int) -> str | None:
    if len(pattern) > MAX_CHARS:
        return f"it is longer than {MAX_CHARS} characters"
    try:
        re.compile(pattern, flags)
        return slow_reason(pattern, flags)
    except (re.error, OverflowError, ValueError) as error:
        return f"it is not a regular expression ({error})"
    except RecursionError:
        return _TOO_LARGE


def slow_reason(pattern: str, flags: int = 0) -> str | None:
    """Explain why the time for this expression may grow faster than the square of the text, or returns None.

    It looks at the automaton of the expression and is careful: case, anchors and the limits of repeats are ignored, so
    it may refuse an expression that is never slow.
    """
    automaton = _Automaton(parser.parse(pattern, flags))
    return automaton.problem or automaton.nested_repeats() or automaton.adjacent_repeats()


def exponential_reason(pattern: str, flags: int = 0) -> str | None:
    """Explain why the time may grow exponentially, or returns None."""
    automaton = _Automaton(parser.parse(pattern, flags), most_positions=10 * _MOST_POSITIONS)
    return automaton.problem or automaton.nested_repeats()


class _Part(NamedTuple):
    """A part of an expression: the positions it can begin and end with, and whether it can be empty."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    empty: bool = True


_Pair: TypeAlias = tuple[int, int]


class _Automaton:
    """The positions of an expression and which position can follow which. An edge that arises twice is two ways."""

    def __init__(self, tree: Any, most_positions: int = _MOST_POSITIONS) -> None:
        self._most_positions = most_positions
        self.problem: str | None = None
        self._alphabet = _SAMPLE + "".join(set(_literals(tree)) - set(_SAMPLE))
        self._masks: list[int] = []
        self._next: list[dict[int, int]] = []
        self._alike = 1
        self._sequence(tree)
        if self._alike > most_positions:
            self.problem = _TOO_LARGE
        self._component = {} if self.problem else self._components()

    # Building

    def _sequence(self, items: Iterable[tuple[Any, Any]]) -> _Part:
        whole = _Part()
        for op, argument in items:
            if len(self._masks) > self._most_positions:
                self.problem = _TOO_LARGE
                return whole
            whole = self._joined(whole, self._part(op, argument))
        return whole

    def _part(self, op: Any, argument: Any) -> _Part:
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN):
            return self._position(self._mask(op, argument))
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            return self._repeat(*argument)
        if op is ops.SUBPATTERN:
            return self._sequence(argument[3])
        if op is ops.ATOMIC_GROUP:
            return self._sequence(argument)
        if op is ops.BRANCH:
            return self._either(self._sequence(branch) for branch in argument[1])
        if op is ops.GROUPREF:
            return self._looped(self._position(-1), empty=True)
        if op is ops.GROUPREF_EXISTS:
            return self._either(self._sequence(branch or ()) for branch in argument[1:])
        if op in (ops.ASSERT, ops.ASSERT_NOT) and argument[1].getwidth()[1] > _MOST_COPIES:
            self.problem = "an unlimited repeat inside a look-ahead may be slow"
        return _Part()

    def _position(self, mask: int) -> _Part:
        self._masks.append(mask)
        self._next.append({})
        position = len(self._masks) - 1
        return _Part((position,), (position,), empty=False)

    def _repeat(self, least: int, most: int, body: Any) -> _Part:
        if most == 0:
            return _Part()
        single = len(body) == 1 and body[0][0] in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN)
        if least == most and (most == 1 or (single and most <= _MOST_COPIES)):
            return self._sequence(list(body) * most)
        if most == 1 and not single:
            self._alike *= 2
            return self._sequence(body)._replace(empty=True)
        return self._looped(self._sequence(body), empty=least == 0)

    def _looped(self, part: _Part, *, empty: bool) -> _Part:
        self._connect(part.last, part.first)
        return part._replace(empty=empty or part.empty)

    def _joined(self, left: _Part, right: _Part) -> _Part:
        self._connect(left.last, right.first)
        first = left.first + right.first if left.empty else left.first
        last = left.last + right.last if right.empty else right.last
        return _Part(first, last, left.empty and right.empty)

    def _either(self, branches: Iterable[_Part]) -> _Part:
        whole, seen, alike = _Part(empty=False), 0, 1
        for branch in branches:
            begins = 0
            for position in branch.first:
                begins |= self._masks[position]
            alike += bool(begins & seen)
            seen |= begins
            whole = _Part(whole.first + branch.first, whole.last + branch.last, whole.empty or branch.empty)
        self._alike *= alike
        return whole

    def _connect(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        for left in before:
            for right in after:
                self._next[left][right] = self._next[left].get(right, 0) + 1

    def _mask(self, op: Any, argument: Any) -> int:
        if op is ops.ANY:
            return -1
        if op is ops.LITERAL:
            return self._chars(lambda char: char.lower() == chr(argument).lower())
        if op is ops.NOT_LITERAL:
            return self._chars(lambda char: char != chr(argument))
        negated = argument[0][0] is ops.NEGATE
        result = 0
        for kind, value in argument[1:] if negated else argument:
            if kind is ops.CATEGORY:
                test = re.compile(_CATEGORIES[value]).match
                result |= self._chars(lambda char, test=test: test(char) is not None)
                continue
            low, high = value if kind is ops.RANGE else (value, value)
            # Without regard to case, unless the class is negated: then fewer characters are excluded.
            forms = (str,) if negated else (str, str.lower, str.upper)
            result |= self._chars(lambda c, lo=low, hi=high, fs=forms: any(_within(f(c), lo, hi) for f in fs))
        return ~result if negated else result

    def _chars(self, holds: Callable[[str], bool]) -> int:
        return sum(1 << position for position, char in enumerate(self._alphabet) if holds(char))

    # Asking

    def nested_repeats(self) -> str | None:
        """Find a loop that reads the same text in two ways. Then the time doubles with every round."""
        component = self._component
        for position, following in enumerate(self._next):
            if any(ways > 1 and component[position] == component[other] for other, ways in following.items()):
                return _NESTED
        inside = [position for position in range(len(self._masks)) if self._loops(position)]
        apart = self._reachable((position, position) for position in inside)
        back = {pair: 0 for pair in apart if pair[0] == pair[1]}
        sources: dict[_Pair, list[_Pair]] = {}
        for pair in apart:
            for following in self._pairs(pair):
                sources.setdefault(following, []).append(pair)
        waiting = list(back)
        while waiting:
            for source in sources.get(waiting.pop(), ()):
                if source not in back:
                    back[source] = 0
                    waiting.append(source)
        return _NESTED if any(left != right for left, right in back) else None

    def _reachable(self, starts: Iterable[_Pair]) -> set[_Pair]:
        seen = set(starts)
        waiting = list(seen)
        while waiting:
            for pair in self._pairs(waiting.pop()):
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)
        return seen

    def _pairs(self, pair: _Pair) -> Iterator[_Pair]:
        """Return the pairs of positions of the same loop that the same character can lead to."""
        component, masks = self._component, self._masks
        left, right = pair
        for item in self._next[left]:
            if component[item] != component[left]:
                continue
            for other in self._next[right]:
                if component[other] == component[right] and masks[item] & masks[other]:
                    yield item, other

    def adjacent_repeats(self) -> str | None:
        """Find two loops, one behind the other, that read the same text: its parts can be shared out in many ways."""
        loops = [position for position in range(len(self._masks)) if self._loops(position)]
        steps = 0
        for start in loops:
            for end in loops:
                if self._component[start] == self._component[end] or not self._masks[start] & self._masks[end]:
                    continue
                goal = (start, end, end)
                seen = {(start, start, end)}
                waiting = list(seen)
                while waiting:
                    steps += 1
                    if steps > _MOST_STEPS:
                        return _TOO_LARGE
                    for triple in self._triples(*waiting.pop()):
                        if triple == goal:
                            return _ADJACENT
                        if triple not in seen:
                            seen.add(triple)
                            waiting.append(triple)
        return None

    def _triples(self, a: int, b: int, c: int) -> Iterator[tuple[int, int, int]]:
        component, masks = self._component, self._masks
        for item in self._next[a]:
            if component[item] != component[a]:
                continue
            for third in self._next[c]:
                shared = masks[item] & masks[third]
                if component[third] != component[c] or not shared:
                    continue
                for second in self._next[b]:
                    if masks[second] & shared:
                        yield item, second, third

    def _loops(self, place: int) -> bool:
        return any(self._component[other] == self._component[place] for other in self._next[place])

    def _components(self) -> dict[int, int]:
        """Numbers the loops: two positions have one number if each can follow the other."""
        reach = [self._after(position) for position in range(len(self._masks))]
        numbers: dict[int, int] = {}
        for position, after in enumerate(reach):
            if position not in numbers:
                for other in {position, *(item for item in after if position in reach[item])}:
                    numbers[other] = position
        return numbers

    def _after(self, place: int) -> set[int]:
        seen: set[int] = set()
        waiting = [place]
        while waiting:
            for other in self._next[waiting.pop()]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen


_CATEGORIES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}


def _within(char: str, low: int, high: int) -> bool:
    return len(char) == 1 and low <= ord(char) <= high


def _literals(tree: Any) -> Iterator[str]:
    """Return the characters that the expression names."""
    for op, argument in tree:
        if op in (ops.LITERAL, ops.NOT_LITERAL):
            yield chr(argument)
        elif op is ops.RANGE:
            yield from map(chr, argument)
        elif op is ops.IN:
            yield from _literals(argument)
        elif op is ops.BRANCH:
            for branch in argument[1]:
                yield from _literals(branch)
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            yield from _literals(argument[2])
        elif op is ops.SUBPATTERN:
            yield from _literals(argument[3])
        elif op is ops.ATOMIC_GROUP:
            yield from _literals(argument)
