"""Cuts a reply into messages that a channel takes: the one place that knows where to cut, within the channel's limits.

A part is Markdown that can be rendered by itself. It is measured as its channel shows it. Joined together, the parts
give the text back, except for white space at the cuts and the indentation of the lines behind them. A
cut adds a closing and a reopened code fence, or the marks of a style that is open there (``**``), or one backslash. A
block of code whose fences do not fit within the limit is sent without them.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from typing import Literal, TypeAlias

import msgspec

from openclaw.config.channels import account_settings, default_settings
from openclaw.config.schema import Config
from openclaw.config.schema.channels import DiscordAccount
from openclaw.outbound.channel_formats import CONTROLS, TABLES, Format, measure, utf16_length
from openclaw.outbound.markdown import (
    TableMode,
    all_closed,
    convert_tables,
    count_marks,
    may_have_tables,
    open_marks,
    parse_blocks,
)

HARD_LIMITS = {"discord": 2000, "slack": 4000, "matrix": 4000}
"""The platform refuses longer messages, whatever the configuration says."""
CHANNEL_FORMATS: dict[str, Format] = {
    "telegram": "telegram",
    "discord": "discord",
    "slack": "slack",
    "whatsapp": "whatsapp",
    "signal": "signal",
    "matrix": "matrix",
    "irc": "irc",
}
"""The form in which a channel renders a message. All other channels send plain text."""
ChunkMode: TypeAlias = Literal["length", "newline"]

LOOK_AHEAD, NEAR = 2000, 200
"""How far behind a cut the end of an open style is looked for, and how far behind a very short part."""
MOST_MARKS = 50_000
"""In a text with more marks, no style is taken over a cut, and long lines fill their parts less."""
SHRINKS = 24
"""How often a part that turns out too long is tried shorter."""
GROWTHS = 10
_GROWN = 0.75
"""A part of one long line that fills less than this is tried longer, because its marks take no room."""
_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n)+")
_NEW_BLOCK = re.compile(r"[ \t]*(?:[-+*] |\d{1,9}[.)] |#{1,6} |>|```|~~~)")
_NESTED_MARKER = re.compile(r"(?m)^[ \t>]{0,40}(?:[-+*]|\d{1,9}[.)]) {1,4}(?:[-+*>]|\d{1,9}[.)])")
_ODD = r"\"%\\^`{|}\[\]<&\x00-\x08\x0b-\x1f\x7f-\U0010ffff"
_ODD_ADDRESS = re.compile(rf"(?:\]\(|<[a-zA-Z][a-zA-Z0-9+.-]{{1,31}}:)[^){_ODD}]*+[{_ODD}]")
"""An address that becomes longer because it is encoded behind its label. It also finds some that stay as they are."""
_ODD_QUOTE = re.compile(r"\n(?:[ \t]+>|>(?! [^>\s]| ?(?:\n|$))|>[^\n]*\n(?!>)[ \t]*+[^ \t\n])")
"""A line of a quote that gets more marks than it has."""
_NO_PREFIX = re.compile(r"[^>\s]")
_SPACE_OR_BRACKET = re.compile(r"[()]|\s+")
_SETEXT = re.compile(r"\n(?<=[^\n]\n)[ \t]*+[-=][-= \t]*(?:$|\n)")
_INDENTED_CODE = re.compile(r"\n(?:[-+*>_=\d.) \t]*|[-+*>\d.) \t]*#[^\n]*)\n {4}|[-+*>] {5}|\d[.)] {5}")
"""Code without fences, which gets some. It does not begin behind a line of text."""
_LABEL_LINE = re.compile(r"\n[^\n\[]*+\[[^\n]*(?=\n[^\n])")
_BRACKET = re.compile(r"[\[\]]")
_STYLE = re.compile(r"[*_~]")
_STYLED_LINE = re.compile(r"\n([^\n*_~]*+[*_~][^\n]*)(?=\n[^\n])")
_LONG_ENTITY = re.compile(r"&n[GL][a-z];")
"""An entity that stands for more bytes than its name has."""
_NUMBERED = re.compile(r"\n[ \t>*+-]*+(\d{1,9})[.)]")
POSES_AS_BLOCK = re.compile(r"(?:`{3}|~{3}|#{1,6}(?:\s|$)|>|[-+*](?:\s|$)|\d{1,9}[.)](?:\s|$)|={1,200}$)")
"""What begins a block at the start of a line, and is only text inside one."""


class Limits(msgspec.Struct, frozen=True):
    """What a message of one account may be."""

    text: int = 4000
    """The longest text, in the unit that the platform counts. 0 or less means no limit."""
    mode: ChunkMode = "length"
    format: Format = "plain"
    tables: TableMode | None = None
    """How tables are shown. None is the default of the format."""
    lines: int = 0
    """The most lines. 0 means no limit."""

    def cut(self, text: str) -> list[str]:
        """Return the text in parts that fit, with fences closed and opened again."""
        return chunk(text, self)


def limits_for(config: Config, channel: str, account_id: str | None = None) -> Limits:
    """The limits that are configured for the account, or else the defaults of its channel, within ``HARD_LIMITS``.

    The defaults stand in ``config/schema/channels.py``, those of other packages in ``config/channels.py``.
    """
    account = account_settings(config, channel, account_id) or default_settings(channel)
    return Limits(
        min(account.text_chunk_limit, HARD_LIMITS.get(channel, account.text_chunk_limit)),
        account.chunk_mode,
        CHANNEL_FORMATS.get(channel, "plain"),
        account.markdown.tables,
        account.max_lines_per_message if isinstance(account, DiscordAccount) else 0,
    )


def chunk(text: str, limits: Limits) -> list[str]:
    """Cut a text into parts within the limits. Blank text yields none.

    With the mode ``newline`` each paragraph is a part, and long paragraphs are cut like all others.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        return []
    if limits.text <= 0 and limits.mode == "length":
        return [text]
    tables = limits.tables or TABLES.get(limits.format, "code")
    if limits.mode == "length":
        return _chunked(text, convert_tables(text, tables), limits)
    return [part for one in _paragraphs(convert_tables(text, tables)) for part in _chunked(one, one, limits)]


def _chunked(source: str, text: str, limits: Limits) -> list[str]:
    """``source`` is returned as it is if it fits. ``text`` is the same with its tables converted."""
    if limits.text <= 0:
        return [source]
    if len(text) <= 4 * limits.text and (not limits.lines or text.count("\n") < limits.lines):
        weight = _weigh(text, limits.format) + _longer_numbers(text, limits.format)
        if (weight <= limits.text and not _may_grow(text, limits.format)) or _size(text, limits) <= limits.text:
            return [source]
    return _Cutter(text, limits).parts()


# Sizes


def _weigh(text: str, format: Format) -> int:
    """The length of source text in the unit of the format. Rendered text is hardly ever longer (``_may_grow``)."""
    if format == "irc":
        return len(text.encode("utf-8", "replace"))
    size = utf16_length(text)
    if format == "slack":
        size += 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
    return size


def _size(text: str, limits: Limits) -> int:
    """Return the exact length of a part as its channel counts it."""
    return measure(text, limits.format, tables=limits.tables)


def _may_grow(text: str, format: Format) -> bool:
    """Return whether rendering may make a text longer than ``_longer_numbers`` says. It errs on the side of yes."""
    if may_have_tables(text):
        return True
    if format == "discord":
        return False
    if "\t" in text or _NESTED_MARKER.search(text):
        return True
    if ("](" in text or "<" in text) and _ODD_ADDRESS.search(text):
        return True
    if format == "telegram":
        return False
    if format == "irc" and (CONTROLS.search(text) or ("&n" in text and _LONG_ENTITY.search(text))):
        return True
    if ">" in text and _ODD_QUOTE.search(f"\n{text}"):
        return True
    # The address of a link that goes on over a line end may be written on both lines.
    if "](" in text and any(_opens_label(line[0]) for line in _LABEL_LINE.finditer(f"\n{text}")):
        return True
    return format in ("slack", "whatsapp", "irc") and _marks_grow(text, format)


def _opens_label(line: str) -> bool:
    depth = 0
    for bracket in _BRACKET.findall(line):
        depth = depth + 1 if bracket == "[" else max(0, depth - 1)
    return depth > 0


def _marks_grow(text: str, format: Format) -> bool:
    """Whether marks may be repeated: those of a style or heading that goes on over a line end are, on each line."""
    if "~~~" in text or "````" in text or _SETEXT.search(text):
        return True
    if "```" not in text:
        if "    " in text and format != "irc" and _INDENTED_CODE.search(f"\n\n{text}"):
            return True
        # A style that is open at the end of a line goes on, if the next line is not blank.
        return any(not all_closed(f"{line[1]}\n") for line in _STYLED_LINE.finditer(f"\n{text}"))
    fenced = False
    lines = text.split("\n")
    for line, following in zip(lines, (*lines[1:], ""), strict=True):
        if line.lstrip(" ").startswith("```") and (not fenced or line.strip() == "```"):
            fenced = not fenced
        elif not fenced and ("    " in line or (following and _STYLE.search(line) and not all_closed(f"{line}\n"))):
            return True
    return fenced


def _longer_numbers(text: str, format: Format) -> int:
    """How much longer the numbers of numbered lists may get. Items are counted from the first number of a list on."""
    if format == "discord" or ("." not in text and ")" not in text):
        return 0
    number = more = 0
    for item in _NUMBERED.finditer(f"\n{text}"):
        number = max(number + 1, int(item[1]))
        more += max(0, len(str(number)) - len(item[1]))
    return more


# Fences


class Fence(msgspec.Struct, frozen=True):
    """A fenced block of code, by its places in the text."""

    start: int
    content: int
    """The start of the first line of code."""
    close: int
    """The start of the closing line. It is ``end`` if the block is not closed."""
    end: int
    """The end of the closing line, before its line end."""
    open_line: str
    close_line: str
    dedent: int = 0
    """The indentation that a list gives to the lines. A part that begins inside the block does without it."""


def find_fences(text: str) -> list[Fence]:
    """Return the fenced blocks of a text, also those inside lists and quotes, by the rules of CommonMark."""
    if "```" not in text and "~~~" not in text:
        return []
    offsets = [0]
    for line in text.split("\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    fences: list[Fence] = []
    for token in parse_blocks(text):
        if token.type == "fence" and token.map is not None:
            first, last = token.map
            start, end = offsets[first], min(offsets[last] - 1, len(text))
            fences.append(_fence(text, start, end, min(offsets[first + 1], len(text)), offsets[last - 1], token.markup))
    return fences


def _fence(text: str, start: int, end: int, content: int, last_line: int, markup: str) -> Fence:
    line = text[start : min(end, content)].rstrip("\n")
    lead, _, info = line.partition(markup)
    prefix = _NO_PREFIX.sub(" ", lead) if lead else ""
    closing = text[last_line:end].strip(" \t>")
    closed = last_line > start and len(closing) >= len(markup) and not closing.strip(markup[0])
    nested = lead != prefix or len(prefix) > 3
    dedent = len(prefix) if nested and ">" not in prefix else 0
    shown = "" if dedent else prefix.lstrip(" ") if nested else prefix
    return Fence(
        start=start,
        content=content,
        close=last_line if closed else end,
        end=end,
        open_line=f"{shown}{markup}{info}".rstrip(),
        close_line=shown + markup,
        dedent=dedent,
    )


def _paragraphs(text: str) -> list[str]:
    """Return the text between blank lines. Blank lines inside a block of code do not count."""
    fences = find_fences(text)
    starts = [fence.start for fence in fences]
    paragraphs: list[str] = []
    done = 0
    for gap in _BLANK_LINES.finditer(text):
        index = bisect_right(starts, gap.start()) - 1
        if index < 0 or gap.start() >= fences[index].end:
            paragraphs.append(text[done : gap.start()])
            done = gap.end()
    return [shown for one in (*paragraphs, text[done:]) if (shown := one.rstrip())]


# Cutting


class _Piece(msgspec.Struct, frozen=True):
    part: str
    next: int
    """Where the rest begins."""
    head: str = ""
    """The text to put before the rest: a reopened fence or style."""
    fence: Fence | None = None
    """The block that the rest begins in."""


class _Cutter:
    """Cuts one text. Every step moves on by at least one character, whatever the limit."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._limits = limits
        self._format: Format = limits.format
        self._text, self._fences = self._with_room(text)
        self._starts = [fence.start for fence in self._fences]
        self._head = ""
        self._fence: Fence | None = None
        self._dense = count_marks(text) > MOST_MARKS
        self._sizes: dict[str, int] = {}
        """The exact sizes of what was tried for this part. Several tries often end at the same line."""

    def parts(self) -> list[str]:
        parts: list[str] = []
        place = self._past_blank(0)
        while place < len(self._text):
            self._sizes.clear()
            piece = self._whole_rest(place) or self._next(place)
            if piece.part.strip():
                parts.append(piece.part)
            self._head, self._fence = piece.head, piece.fence
            place = piece.next
        return parts

    def _with_room(self, text: str) -> tuple[str, list[Fence]]:
        """Return the text without the fences that are too long for the limit, and the fences that stay."""
        fences = find_fences(text)
        if not fences:
            return text, fences
        kept: list[str] = []
        done = 0
        lines_fit = not self._limits.lines or self._limits.lines > 2
        known: set[tuple[str, str]] = set()
        for fence in fences:
            if lines_fit and self._weigh(f"{fence.open_line}\n\n{fence.close_line}") + 4 <= self._limits.text:
                known.add((fence.open_line, fence.close_line))
                continue
            kept += (text[done : fence.start], text[fence.content : fence.close])
            done = fence.end
        if not done:
            return text, fences
        rest = "".join([*kept, text[done:]])
        # Without their fences, lines of code may look like fences. Those are kept if others of their kind are.
        again = find_fences(rest)
        return (rest, again) if all((one.open_line, one.close_line) in known for one in again) else (rest, [])

    def _weigh(self, text: str) -> int:
        return _weigh(text, self._format)

    def _fits(self, part: str) -> bool:
        return self._excess(part) <= 0

    def _excess(self, part: str) -> int:
        weight = self._weigh(part) + _longer_numbers(part, self._format)
        if weight > self._limits.text or _may_grow(part, self._format):
            weight = self._size(part)
        return weight - self._limits.text

    def _size(self, part: str) -> int:
        if part not in self._sizes:
            self._sizes[part] = _size(part, self._limits)
        return self._sizes[part]

    def _whole_rest(self, place: int) -> _Piece | None:
        """Return the last part, if everything that is left fits into it."""
        length = len(self._text) - place
        if length > 2 * self._limits.text + 200:
            return None
        part = self._composed(place, len(self._text))
        lines = self._limits.lines
        if (lines and part.count("\n") >= lines) or not self._fits(part):
            return None
        return _Piece(part, len(self._text))

    def _next(self, place: int) -> _Piece:
        end = self._window(place, self._limits.text - self._weigh(self._head), self._most_lines(0))
        for attempt in range(SHRINKS):
            piece = self._piece(place, end)
            excess = self._excess(piece.part)
            if excess <= 0:
                return piece
            if end - place <= 1:
                break
            size = self._limits.text + excess
            smaller = (end - place) * self._limits.text // (size + 1) if attempt < 3 else (end - place) // 2
            end = place + max(1, min(smaller, end - place - 1))
        return _Piece(self._text[place : place + 1], place + 1)  # Not even the marks fit.

    def _piece(self, place: int, end: int) -> _Piece:
        if (cut := self._line_cut(place, end)) > place:
            closing, opening = self._marks_at(place, cut)
            part = self._composed(place, cut) + closing
            return _Piece(part, self._past_blank(cut), opening)
        fence = self._fence_around(place)
        if fence is not None and end > fence.start:
            return self._fence_piece(place, end, fence)
        return self._long_line(place, end)

    # Where to cut

    def _window(self, place: int, room: int, lines: int) -> int:
        """Return the place behind the longest text that has room. At least one character has."""
        text, room = self._text, max(1, room)
        end = min(len(text), place + room)
        if self._weigh(text[place:end]) > room:
            low, high = place + 1, end
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._weigh(text[place:middle]) <= room else (low, middle - 1)
            end = low
        if lines:
            newline = place - 1
            for _ in range(lines):
                newline = text.find("\n", newline + 1, end)
                if newline < 0:
                    break
            else:
                end = min(end, newline + 1)
        return end

    def _most_lines(self, more: int) -> int:
        """Return how many lines of the text fit next to ``more`` added ones, or 0 if the lines are not limited."""
        lines = self._limits.lines
        return max(1, lines - more - self._head.count("\n")) if lines else 0

    def _line_cut(self, place: int, end: int) -> int:
        """Return the last line end before ``end`` that is in no block of code. -1: there is none."""
        if self._text[end : end + 1] == "\n" and self._limits.lines:
            end += 1
        cut = self._text.rfind("\n", place + 1, end)
        while cut > place:
            fence = self._fence_around(cut)
            if fence is None:
                return cut
            cut = self._text.rfind("\n", place + 1, fence.start)
        return -1

    def _fence_around(self, place: int) -> Fence | None:
        index = bisect_right(self._starts, place) - 1
        return self._fences[index] if index >= 0 and place < self._fences[index].end else None

    def _past_blank(self, place: int) -> int:
        """Return the start of the next line that is not blank."""
        text = self._text
        while place < len(text):
            end = text.find("\n", place)
            end = len(text) if end < 0 else end
            if text[place:end].strip():
                break
            place = end + 1
        return place

    def _composed(self, place: int, cut: int) -> str:
        """The part from one place to another, with what was reopened, and without the indentation of a list."""
        return f"{self._head}{self._body(place, cut)}".rstrip()

    def _body(self, place: int, cut: int) -> str:
        body = self._text[place:cut]
        if self._fence is not None:
            return _dedented(body, self._fence.dedent)
        return _dedented(body, len(body) - len(body.lstrip(" \t"))) if place else body

    # Inside a block of code

    def _fence_piece(self, place: int, end: int, fence: Fence) -> _Piece:
        """Cut a block of code at a line end, or else anywhere, and closes it. The closing line itself is never cut."""
        text = self._text
        room = self._limits.text - self._weigh(self._head) - self._weigh(fence.close_line)
        end = min(end, self._window(place, room, self._most_lines(1)))
        first = max(place, fence.content)
        if end >= fence.close:
            cut = fence.close
        elif (newline := text.rfind("\n", first, end)) >= first:
            cut = newline + 1
        else:
            tail = self._window(place, room - 1, self._most_lines(1))
            cut = min(max(first + 1, _character_end(text, first, min(end, tail))), fence.close)
        body = self._body(place, cut)
        line_end = "" if body.endswith("\n") else "\n"
        part = f"{self._head}{body}{line_end}{fence.close_line}"
        if cut == fence.close:
            return _Piece(part, self._past_blank(fence.end))
        return _Piece(part, cut, f"{fence.open_line}\n", fence)

    # Inside a line

    def _long_line(self, place: int, end: int) -> _Piece:
        """Cut a line that is too long: between words, or else anywhere."""
        far = place + 4 * self._limits.text + 2
        line_end = self._text.find("\n", place, far)
        line_end = min(len(self._text), far) if line_end < 0 else line_end
        best: _Piece | None = None
        good, bad = place, line_end + 1
        for _ in range(1 if self._dense else GROWTHS):
            end = min(end, line_end)
            piece = self._piece_of_line(place, end if end == line_end else self._word_cut(place, end))
            size = self._size_of_line(piece.part)
            if size > self._limits.text:
                if best is None:
                    return piece
                bad = end
            else:
                best, good = piece, end
                hidden = self._weigh(piece.part) - size
                full = size >= _GROWN * self._limits.text or end == line_end
                if full or hidden <= 0 or line_end - place > 4 * self._limits.text:
                    break
            if bad - good < 2:
                break
            end = (good + bad) // 2 if bad <= line_end else good + max(1, self._limits.text - size)
        assert best is not None
        return best

    def _size_of_line(self, part: str) -> int:
        """Return the size, or a little more if the part is full enough even without its marks."""
        weight = self._weigh(part) + _longer_numbers(part, self._format)
        if weight > self._limits.text or "](" in part or "<" in part or _may_grow(part, self._format):
            return self._size(part)
        shown = weight - sum(map(part.count, "*_~`|\\"))
        return weight if shown >= _GROWN * self._limits.text else self._size(part)

    def _piece_of_line(self, place: int, cut: int) -> _Piece:
        text = self._text
        closing, opening = self._marks_at(place, cut)
        part = self._composed(place, cut)
        rest = cut
        while rest < len(text) and text[rest].isspace():
            rest += 1
        if "\n" in text[cut:rest]:
            rest = self._past_blank(cut)
        elif not opening and POSES_AS_BLOCK.match(text, rest, min(len(text), rest + 210)):
            opening = "\\"  # What stood inside a line may not begin a block now.
        return _Piece(part + closing, rest, opening)

    def _word_cut(self, place: int, end: int) -> int:
        """Return the last white space outside of parentheses, or else the end of the last whole character."""
        text, depth, space = self._text, 0, -1
        for found in _SPACE_OR_BRACKET.finditer(text, place, end):
            char = found[0]
            if char == "(":
                depth += 1
            elif char == ")":
                depth = max(0, depth - 1)
            elif depth == 0:
                space = found.end() - 1
        return space if space > place else _character_end(text, place, end)

    def _marks_at(self, place: int, cut: int) -> tuple[str, str]:
        """Return the marks that close the styles which are open at a cut, and those that open them again behind it."""
        text = self._text
        if self._dense:
            return "", ""
        rest = text[cut : cut + 80]
        if rest[:1] == "\n" and (not rest[1:].split("\n", 1)[0].strip() or _NEW_BLOCK.match(rest, 1)):
            return "", ""
        start = max(place, text.rfind("\n\n", place, cut) + 2) if "\n\n" in text[place:cut] else place
        before = (self._head if start == place else "") + text[start:cut]
        if not any(mark in before for mark in "*_~`["):
            return "", ""
        ahead = min(LOOK_AHEAD, NEAR + 4 * (cut - place))
        after = text[cut : cut + ahead].split("\n\n", 1)[0]
        # Where the address of a link is shown, it is not repeated if it takes much of the room.
        longest = self._limits.text // (1 if self._format == "telegram" else 4)
        return open_marks(before, after, longest)


def _dedented(body: str, width: int) -> str:
    """Take up to ``width`` blanks off the start of each line, until a line has fewer."""
    if width <= 0:
        return body
    lines = body.split("\n")
    for index, line in enumerate(lines):
        blanks = len(line) - len(line.lstrip(" \t"))
        if line.strip() and blanks < width:
            break
        lines[index] = line[min(width, blanks) :]
    return "\n".join(lines)


def _character_end(text: str, place: int, end: int) -> int:
    """``end``, or a little before it if a style mark or a joined character lies there."""
    cut = end
    for _ in range(8):
        if cut - place < 2 or cut >= len(text):
            break
        around = text[cut - 1 : cut + 1]
        joined = unicodedata.combining(around[1]) or around[1] in "\u200d\ufe0f" or around[0] == "\u200d"
        if not (joined or around[1] in "*_~`\\" or around[0] == "\\"):
            return cut
        cut -= 1
    return end
