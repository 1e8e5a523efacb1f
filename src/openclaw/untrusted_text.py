"""Disarms text from outside before a model reads it, so that it can speak neither as the Gateway nor as somebody else.

The Gateway marks what it says in a prompt: ``System:`` lines, the heading ``[Signal Ann id:+1 Sun 2026-01-18 08:19]``,
``[message_id: 5]``, ``<openclaw-facts>``, and words such as ``NO_REPLY`` by which the model stays silent. ``disarmed``
changes such a mark in other people's text, so that everybody can still read it and nobody takes it for ours:
``(message_id: 5)``, ``System (untrusted):``, ``NO-REPLY``. Marks are also found in look-alike letters, behind invisible
characters and after any kind of line end. All other text stays as it is.

``disarmed_message`` is for what people write in a chat. It leaves code as written: a mark in code is quoted, not used.
Text that the owner writes in a direct chat is not changed at all. ``text_changes`` tells people what was changed.

Every text that somebody other than the Gateway wrote goes through ``disarmed``, ``disarmed_message`` or
``disarmed_name`` on its way into a prompt. Names, file names, ids and reactions have bounded rules of their own:
``short_name`` and the like. ``tests/security/test_text_sources.py`` lists the ways.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import TypeAlias

import msgspec

from openclaw.code_spans import code_ranges
from openclaw.text import shortened

LONGEST_NAME = 2000
MOST_CHANGES = 10
"""How many changes ``text_changes`` returns."""
LONGEST_CHANGE = 120
_AROUND = 24
"""How many characters of the line are shown before and after a change."""

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U000e0100-\U000e01ef"
)
_TAG_CHARACTERS = "\U000e0000-\U000e007f"
"""A second, invisible ASCII. Models read it, people do not."""
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_LINE_ENDS = "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
_COMPATIBLE = (
    (0x1D2C, 0x1D6A), (0x2070, 0x209C), (0x2100, 0x214F), (0x2460, 0x24FF), (0xFE10, 0xFE6B), (0xFF01, 0xFF5E),
    (0x1D400, 0x1D7FF), (0x1F110, 0x1F189),
)  # fmt: skip
"""Ranges with forms of ASCII characters: small, full-width, circled, mathematical, superscript."""
_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_LOOK_ALIKES = {
    "[": "⁅【〔〖〘〚⟦❲⎡⎣⦋⦍⦏⁽",
    "]": "⁆】〕〗〙〛⟧❳⎤⎦⦌⦎⦐",
    "<": "‹〈⟨❬❮ᐸ˂",
    ">": "›〉⟩❭❯ᐳ˃",
    ":": "ː˸։׃܃܄᛬⁚∶⁝ꓽ꞉ꛮ፥፡",
    "_": "‗ˍ̲",
    "-": "‐‑‒–—―−⁃",
    "|": "∣│ǀ",
    "/": "⁄∕",
}
_SIGNS = "".join(_LOOK_ALIKES.values())
_LETTERS = {
    "a": "аɑα", "b": "ЬƄ", "c": "сϲⅽ", "d": "ԁⅾ", "e": "еҽє", "f": "ϝ", "g": "ɡց", "h": "һ", "i": "іıӏι", "j": "јϳ",
    "k": "κк", "l": "ӏⅼ", "m": "мⅿ", "n": "ոп", "o": "оοօ", "p": "рρ", "q": "ԛ", "r": "гᴦ", "s": "ѕꜱ", "t": "тτ",
    "u": "υս", "v": "ѵν", "w": "ԝω", "x": "хχ", "y": "уүγ", "z": "ᴢ",
    "A": "АΑᴀ", "B": "ВΒʙ", "C": "СϹᴄ", "D": "ᴅ", "E": "ЕΕᴇ", "F": "Ϝ", "G": "Ԍɢ", "H": "НΗʜ", "I": "ІΙӀİ", "J": "Јᴊ",
    "K": "КΚᴋ", "L": "ʟ", "M": "МΜᴍ", "N": "Νɴ", "O": "ОΟᴏ", "P": "РΡᴘ", "R": "ʀ", "S": "Ѕ", "T": "ТΤᴛ", "U": "Սᴜ",
    "V": "Ѵᴠ", "W": "Ԝᴡ", "X": "ХΧ", "Y": "ҮΥʏ", "Z": "Ζ",
}  # fmt: skip
_compatible = "".join(f"{chr(first)}-{chr(last)}" for first, last in _COMPATIBLE)
_look_alike = "".join(dict.fromkeys("".join(_LETTERS.values())))
_signs = f"{_CONTROLS}{_LINE_ENDS}{_INVISIBLE}{_TAG_CHARACTERS}{_SPACES}{_compatible}{re.escape(_SIGNS)}"
_PLAIN_SUSPECT = re.compile("[\\[<\x00-\x08\x0b-\x1f\x7f]")
_SUSPECT = re.compile(f"[\\[<{_signs}{_look_alike}]")
"""A text without any of these characters is plain, unless it has one of ``_WORDS``."""
_WORDS = ("system", "_reply", "_ok", "_skip", "media:", "queued #", "):", "new session was started")
_LOOK_ALIKE = re.compile(f"[{_look_alike}]")
_MIXED = re.compile(f"[A-Za-z][{_look_alike}]|[{_look_alike}][A-Za-z]")
"""A word in two scripts. A word of ours cannot be written with look-alike letters only."""
_SIGN = re.compile(f"[{_signs}]")
_PLAIN_SIGN = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_SHORT = 2000

_ANSI = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c\x9d]{0,2000}(?:\x07|\x1b\\\\|\x9c)"
)
_HIDDEN = re.compile(f"[{_TAG_CHARACTERS}]+")
_UNPRINTED = re.compile(f"[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f{_TAG_CHARACTERS}]")
_UNSHOWN = re.compile(f"[{_CONTROLS}{_INVISIBLE}{_TAG_CHARACTERS}\u2028\u2029]")
_CODE_SIGNS = re.compile("`+|~{3,}")
_BRACKET = re.compile(r"\[\[{0,2}([^\[\]\n]{0,400})(\]{0,3})")
_BRACKET_HINTS = (
    "message", "id:", "from", "media", "thread", "replying", "quoting", "forwarded", "queue", "session", "system",
    "user", "human", "assistant", "developer", "tool", "reply", "voice", "inst", "chat", "signal", "whatsapp",
    "telegram", "discord", "slack", "teams", "bluebubbles", "mattermost", "talk", "pinned", "cut", "earlier", "mon",
    "tue", "wed", "thu", "fri", "sat", "sun", "irc", "matrix", "agent", "late",
)  # fmt: skip
"""Words of which every mark in brackets has one. Most texts with brackets have none, and are not looked at further."""
_MARKS = (
    r"current message|chat messages? since|message id\s{0,4}:|id\s{0,4}:|from\s{0,4}:|media attached|thread starter|"
    r"/?replying|/?quoting|forwarded from|queued messages?|queue overflow|inter session message|system\b|reply to|"
    r"audio as voice|pinned by|no longer pinned|cut off by|earlier messages of|the sub agent|late reply from|/?inst\Z|"
    r"(?:user|human|assistant|developer|tool)(?: result| tool calls| thinking)?\s{0,4}\Z|"
    r"(?:signal|whatsapp|telegram|discord|slack|imessage|webchat|google chat|microsoft teams|msteams|bluebubbles|"
    r"mattermost|nextcloud talk|irc|matrix)\s"
)
_MARK = re.compile(r"[\s*_]{0,8}(?:" + _MARKS.replace(" ", r"[\W_]{0,8}") + ")", re.IGNORECASE)
_HEADING = re.compile(r"\d{4}-\d\d-\d\d|\sid:\S", re.IGNORECASE)
_WEEKDAY = re.compile(r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6},?\s{1,4}\Z", re.IGNORECASE)
_LONGEST_HEADING = 400
_TAG = re.compile(
    r"<<{0,2}[\s/]{0,8}(?:(?:final|think|thinking|thought|antthinking|system|system[-_ ](?:reminder|message|prompt)|"
    r"openclaw[-_]facts|conversation|previous[-_]summary|external_untrusted_content|end_external_untrusted_content|sys|"
    r"function_calls|function_results|tool_result|antml)\b|media:|\|)[^<>\n]{0,200}(>{0,3})",
    re.IGNORECASE,
)
_TAG_LINE = re.compile(
    r"^[ \t]{0,8}(<)/?(?:summary|pinned|read-files|modified-files)[ \t]{0,8}(>)[ \t]{0,8}$",
    re.MULTILINE | re.IGNORECASE,
)
_SPEAKER = re.compile(
    r"system(?:[ _-]{0,4}(?:message|event|note|prompt|notice|reminder))?[*_`\s]{0,4}(:)|media(:)", re.IGNORECASE
)
_LINE_START = re.compile(r"[^\w\n]{0,24}\Z")
_PERSON = r"\+\d{4,15}|[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}|@[\w.=/+-]{1,64}:[\w.-]{1,100}(?::\d{1,5})?"
"""A telephone number, a mail address or a Matrix id. A person without a name is called so."""
_SENDER = re.compile(
    rf"^[^\n:]{{1,80}}\((?:{_PERSON}|-?\d{{5,20}}|(?:uuid:)?[0-9a-f]{{8}}-[0-9a-f-]{{27}}|(?-i:[UWB][A-Z0-9]{{7,12}})|"
    r"[^\s()!]{1,64}![^\s()]{1,120}|account:[^\s()]{1,64})\)(:)",
    re.MULTILINE | re.IGNORECASE,
)
"""How a line of a group begins: a name with the id that one of the platforms gives people."""
_NAMELESS = re.compile(rf"^[^\w\n+@]{{0,8}}(?:{_PERSON})(:)(?=\s)", re.MULTILINE)
_ANSWER_MARK = re.compile(r"[\s*_]{0,8}(?:reply[\W_]{0,8}to|audio[\W_]{0,8}as)", re.IGNORECASE)
_ANSWER_TAG = re.compile(r"<<{0,2}[\s/]{0,8}(?:final|think|thinking|thought|antthinking)\b", re.IGNORECASE)
_SENTINELS = ("NO_REPLY", "HEARTBEAT_OK", "REPLY_SKIP", "ANNOUNCE_SKIP")
_SENTINEL = re.compile(rf"(?<![A-Za-z0-9])(?<![A-Za-z0-9]_)(?:{'|'.join(_SENTINELS)})(?!_?[A-Za-z0-9])")
_QUEUED = re.compile(r"^[^\w\n]{0,24}queued (#)\d", re.MULTILINE | re.IGNORECASE)
_GREETING = re.compile(r"\W{0,24}()a new session was started via", re.IGNORECASE)
UNTRUSTED = " (untrusted)"

_Edit: TypeAlias = tuple[int, int, str]
"""From where to where the text is replaced, and by what."""


def disarmed(text: str, *, of_owner: bool = False) -> str:
    """The text without anything that could be taken for a mark of the Gateway. Ordinary text is returned as it is.

    ``of_owner``: the owner wrote it in a chat of the Gateway. There the words that only a model's answer obeys
    (``NO_REPLY``, ``[[reply_to:5]]``, ``<think>``, ``MEDIA:``) stay, so that the owner can speak about them.
    """
    return text if _is_plain(text) else _disarmed(text, of_owner=of_owner)


def disarmed_message(text: str) -> str:
    """Return what a person wrote in a chat without marks of the Gateway, except in code.

    Code is a span or a block between backticks or tildes. Indented and quoted lines do not count, because nothing
    around them tells the model that they are code.
    """
    return text if _is_plain(text) else _disarmed(text, keep_code=True)


class TextChange(msgspec.Struct, frozen=True):
    """A piece of text before and after it was disarmed."""

    before: str
    after: str


def text_changes(texts: Iterable[str], disarm: Callable[[str], str] = disarmed_message) -> list[TextChange]:
    """Return what disarming changes in these texts, line by line, and at most ``MOST_CHANGES``."""
    changes: list[TextChange] = []
    for text in texts:
        if (after := disarm(text)) is not text:
            lines, changed = text.split("\n"), after.split("\n")
            if len(lines) != len(changed):  # An escape sequence for a terminal went over several lines.
                lines, changed = [text], [after]
            pairs = [(line, new) for line, new in zip(lines, changed, strict=True) if line != new]
            changes += [_change(line, new) for line, new in pairs[: MOST_CHANGES - len(changes)]]
    return changes


def _change(line: str, new: str) -> TextChange:
    """Return the part of a line that was changed, with a few characters around it."""
    shorter = min(len(line), len(new))
    same = next((position for position in range(shorter) if line[position] != new[position]), shorter)
    rest = shorter - same
    tail = next((position for position in range(rest) if line[-1 - position] != new[-1 - position]), rest)
    begin, end = max(0, same - _AROUND), max(0, tail - _AROUND)
    return TextChange(
        *(shortened(_visible(item[begin : len(item) - end]), LONGEST_CHANGE) for item in (line, new)),
    )


def _visible(text: str) -> str:
    """Return the text with a mark in place of each character that cannot be seen."""
    return _UNSHOWN.sub(lambda result: f"\\u{{{ord(result[0]):x}}}", text)


def _is_plain(text: str) -> bool:
    """Return whether the text has nothing that the marks of the Gateway are made of."""
    seen = text if text.isascii() else text.replace("\ufe0f", "").replace("\u200d", "")  # They are in most emoji.
    if (_PLAIN_SUSPECT if text.isascii() else _SUSPECT).search(seen) is None:
        lowered = seen.lower()
        return not any(word in lowered for word in _WORDS) and (":" not in seen or _NAMELESS.search(seen) is None)
    return False


def _disarmed(text: str, *, of_owner: bool = False, keep_code: bool = False) -> str:
    if _UNPRINTED.search(text) is not None:
        text = _UNPRINTED.sub("", _HIDDEN.sub("\ufffd", _ANSI.sub("", text)))
    folded = _folded(text)
    edits = _edits(folded, of_owner)
    if not edits:
        return text
    places = None
    if len(folded) != len(text):
        # An invisible character is in the text and not in the folded one, so the places differ.
        fold = _fold()
        places = [index for index, char in enumerate(text) if fold.get(ord(char), char) is not None]
        places.append(len(text))
    code = _closed_code(text)[::-1] if keep_code else []
    pieces: list[str] = []
    position = 0
    for begin, end, instead in sorted(set(edits)):
        if places is not None:
            begin, end = places[begin], places[end - 1] + 1 if end > begin else places[begin]
        while code and code[-1][1] <= begin:
            code.pop()
        if begin < position or (code and code[-1][0] <= begin):
            continue
        pieces += [text[position:begin], instead]
        position = end
    return "".join([*pieces, text[position:]])


def _closed_code(text: str) -> list[tuple[int, int]]:
    """Return where code begins and ends that signs on both sides show as code, in order."""
    closed: list[tuple[int, int]] = []
    for begin, end in code_ranges(text):
        piece = text[begin:end].strip()
        signs = _CODE_SIGNS.match(piece)
        if signs is not None and len(piece) > 2 * len(signs[0]) and piece.endswith(signs[0]):
            closed.append((begin, end))
    return closed


def _folded(text: str) -> str:
    """Return the text as it looks: each character is an ASCII character or itself, each line ends with a line feed."""
    if text.isascii() and _PLAIN_SIGN.search(text) is None:
        return text
    if len(text) > _SHORT or (_LOOK_ALIKE.search(text) is not None and _MIXED.search(text) is not None):
        return text.translate(_fold())
    return _SIGN.sub(_look, text)


def _look(found: re.Match[str]) -> str:
    return found[0].translate(_fold())


def _edits(folded: str, of_owner: bool) -> list[_Edit]:
    edits: list[_Edit] = []
    lowered = folded.lower()
    if "[" in folded and any(hint in lowered for hint in _BRACKET_HINTS):
        for found in _BRACKET.finditer(folded):
            if _MARK.match(found[1]) and not (of_owner and _ANSWER_MARK.match(found[1])):
                edits += _in_parentheses((found.start(), found.start(1)), found.span(2))
        edits += _headings(folded)
    if "<" in folded:
        for found in _TAG.finditer(folded):
            if of_owner and _ANSWER_TAG.match(found[0]):
                continue
            opening = found.start() + len(found[0]) - len(found[0].lstrip("<"))
            edits += _in_parentheses((found.start(), opening), found.span(1))
        for found in _TAG_LINE.finditer(folded):
            edits += _in_parentheses(found.span(1), found.span(2))
    if "system" in lowered or "media:" in lowered:
        edits += _speakers(folded, of_owner)
    if "):" in folded:
        edits += [(found.start(1), found.start(1), UNTRUSTED) for found in _SENDER.finditer(folded)]
    if ":" in folded:
        edits += [(found.start(1), found.start(1), UNTRUSTED) for found in _NAMELESS.finditer(folded)]
    if not of_owner and any(word in folded for word in _SENTINELS):
        for found in _SENTINEL.finditer(folded):
            position = folded.index("_", found.start())
            edits.append((position, position + 1, "-"))
    if "queued #" in lowered:
        edits += [(*found.span(1), "no. ") for found in _QUEUED.finditer(folded)]
    if (greeting := _GREETING.match(folded)) is not None:
        edits.append((*greeting.span(1), f"{UNTRUSTED.strip()} "))
    return edits


def _in_parentheses(opening: tuple[int, int], closing: tuple[int, int]) -> list[_Edit]:
    spans = ((*opening, "("), (*closing, ")"))
    return [(position, position + 1, sign) for begin, end, sign in spans for position in range(begin, end)]


def _headings(folded: str) -> list[_Edit]:
    """All brackets around what only a heading of the Gateway holds: a weekday with a date, or the id of a sender."""
    edits: list[_Edit] = []
    done = 0
    for sign in _HEADING.finditer(folded):
        if sign[0][0].isdigit() and not _WEEKDAY.search(folded, max(0, sign.start() - 16), sign.start()):
            continue
        line = folded.rfind("\n", max(0, sign.start() - _LONGEST_HEADING), sign.start() + 1) + 1
        opening = folded.find("[", max(done, line, sign.start() - _LONGEST_HEADING), sign.start() + 1)
        if opening < 0:
            continue
        done = folded.find("]", sign.end() - 1, sign.end() + _LONGEST_HEADING) + 1 or sign.end()
        for position in range(opening, done):
            if folded[position] in "[]":
                edits.append((position, position + 1, "(" if folded[position] == "[" else ")"))
    return edits


def _speakers(folded: str, of_owner: bool) -> list[_Edit]:
    """Mark ``System:`` and ``MEDIA:`` at the beginning of a line, and ``System: [`` anywhere."""
    edits: list[_Edit] = []
    for found in _SPEAKER.finditer(folded):
        floor = max(0, found.start() - 64)
        line = folded.rfind("\n", floor, found.start()) + 1 or floor
        begins = _LINE_START.match(folded, line, found.start()) is not None
        if found[2]:
            begins = begins and found[0].isupper() and not of_owner
        elif folded[found.end() : found.end() + 16].lstrip(" \t*_`")[:1] == "[":
            begins = True
        if begins:
            position = found.end() - 1
            edits.append((position, position, UNTRUSTED))
    return edits


@cache
def _fold() -> dict[int, str | None]:
    """What a character looks like: an ASCII character, a line feed, or nothing. It is made when it is first needed."""
    fold: dict[int, str | None] = {}
    for first, last in _COMPATIBLE:
        for code in range(first, last + 1):
            plain = unicodedata.normalize("NFKC", chr(code))
            if len(plain) == 1 and plain.isascii():
                fold[code] = plain
            elif len(plain) == 3 and plain[0] == "(" and plain[1].isascii():
                fold[code] = plain[1]
    for table in (_LOOK_ALIKES, _LETTERS):
        for plain, others in table.items():
            fold.update({ord(other): plain for other in others})
    fold.update({ord(char): "\n" for char in _LINE_ENDS})
    fold.update({0x1F130 + position: chr(ord("A") + position) for position in range(26)})
    fold.update(dict.fromkeys(_codes(_INVISIBLE)))
    fold.update(dict.fromkeys(_codes(_SPACES), " "))
    return fold


def _codes(characters: str) -> list[int]:
    """Return the codes in the inside of a character class: single characters and ranges."""
    codes: list[int] = []
    for match in re.finditer(r"(.)-(.)|(.)", characters, re.DOTALL):
        codes += range(ord(match[1]), ord(match[2]) + 1) if match[1] else [ord(match[3])]
    return codes


_BREAKS = re.compile(f"[\\s{_CONTROLS}\u2028\u2029]+")
_UNSEEN = re.compile(f"[{_INVISIBLE}]")
_JOINS_EMOJI = ("\u200d", "\ufe0f")


def disarmed_name(text: str) -> str:
    """Make a name from outside safe for a heading: one line, limited length, nothing invisible, no brackets."""
    return _disarmed_name(text[:LONGEST_NAME])


@lru_cache(maxsize=1024)
def _disarmed_name(text: str) -> str:
    if not text.isascii():
        text = _UNSEEN.sub(lambda result: result[0] if result[0] in _JOINS_EMOJI else "", text)
    return _BREAKS.sub(" ", disarmed(text).translate(_name_brackets())).strip()


@cache
def _name_brackets() -> dict[int, str]:
    # A backtick in a name would turn what is code in the text behind it into text, and text into code.
    signs = {"[": "(", "]": ")", "`": "'"}
    return {ord(sign): instead for sign, instead in signs.items()} | {
        code: signs[plain] for code, plain in _fold().items() if plain in signs
    }


# Short texts: names, file names, ids, reactions

LONGEST_LABEL = 100
"""How many characters of the name of a person, a group or a file a prompt holds."""
LONGEST_ID = 160
AN_EMOJI = "an emoji"
_QUOTES = re.compile(
    r"[\"`\u00ab\u00bb\u2018\u201a-\u201f\u2039\u203a\u2033\u2036\u301d-\u301f\uff02\uff40]+"
    r"|(?<!\w)['\u2019]+|['\u2019]+(?!\w)"
)
"""Quotation marks. An apostrophe inside of a word stays: ``Ann's``."""
_ID = re.compile(rf"[\w$!#@:;.,/=+~|-]{{1,{LONGEST_ID}}}", re.ASCII)
_PICTURE = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f18e\U0001f191-\U0001f19a\U0001f200-\U0001f2ff\U0001f300-\U0001faff]"
)
_EMOJI = re.compile(
    rf"{_PICTURE}[\ufe0e\ufe0f]?[\U0001f3fb-\U0001f3ff]?(?:\u200d{_PICTURE}\ufe0f?[\U0001f3fb-\U0001f3ff]?){{0,4}}"
    r"|[\U0001f1e6-\U0001f1ff]{2}|[0-9#*]\ufe0f?\u20e3|[\U0001f170\U0001f171\U0001f17e\U0001f17f]\ufe0f?"
)
"""One emoji: a picture with its colours and companions, a flag, a keycap or a blood group."""
_SHORT_NAME = re.compile(r":([a-z0-9_+-]{1,40}):(?::?skin-tone-[2-6]:)?")
_EVERYBODYS_EMOJI = """
    +1 -1 100 1234 airplane alarm_clock alien angel anger angry apple arrow_down arrow_left arrow_right arrow_up art
    astonished baby balloon bangbang bar_chart battery bear beer beers bell bird birthday blue_heart blush boat bomb
    book bookmark books boom bow broken_heart bug bulb bus cake calendar call_me_hand camera car cat
    chart_with_upwards_trend checkered_flag cherry_blossom christmas_tree clap clinking_glasses clipboard clock1
    cloud clown_face coffee cold_sweat confetti_ball confounded confused construction cookie cool cop crab
    credit_card crossed_fingers crown cry crying_cat_face dancer dancing_women dart dash date disappointed dizzy
    dizzy_face dog dollar doughnut dove_of_peace droplet ear earth_africa earth_americas earth_asia egg email
    exclamation exploding_head expressionless eye eyes face_palm face_with_cowboy_hat face_with_monocle
    face_with_raised_eyebrow face_with_rolling_eyes facepunch fearful female-technologist file_folder fire fireworks
    fish fist flag-es flushed footprints four_leaf_clover fox_face frowning game_die gear gem ghost gift gift_heart
    globe_with_meridians goat grapes green_heart grey_exclamation grey_question grimacing grin grinning guitar
    hamburger hammer hammer_and_wrench hand hand_with_index_and_middle_fingers_crossed handshake hankey
    hatching_chick headphones hear_no_evil heart heart_eyes heart_eyes_cat heartbeat heartpulse heavy_check_mark
    heavy_division_sign heavy_dollar_sign heavy_minus_sign heavy_multiplication_x heavy_plus_sign herb hibiscus
    hocho horse hot_pepper hotdog hourglass hourglass_flowing_sand house hugging_face hushed i_love_you_hand_sign
    ice_cream imp inbox_tray innocent interrobang jack_o_lantern joy joy_cat key kiss kissing kissing_heart label
    laughing leaves lemon link lion_face lock loud_sound loudspeaker love_letter mag mag_right mailbox
    male-technologist mask medal mega memo microphone microscope money_mouth_face money_with_wings moneybag monkey
    monkey_face moon mortar_board mountain mouse moyai muscle mushroom musical_note nerd_face neutral_face new
    newspaper no_entry no_entry_sign no_good no_mouth notes ok ok_hand older_man open_file_folder open_hands
    open_mouth orange_heart package page_facing_up palm_tree panda_face paperclip partly_sunny partying_face pencil
    pencil2 penguin pensive persevere phone pie pig pill pizza pleading_face point_down point_left point_right
    point_up point_up_2 poop popcorn pouting_cat pray purple_heart pushpin question rabbit racehorse rage rainbow
    raised_hand raised_hands raising_hand recycle red_circle relaxed relieved repeat revolving_hearts ribbon ring
    robot_face rocket rolling_on_the_floor_laughing rose rotating_light runner sandwich santa satisfied
    saluting_face school scissors scream scream_cat see_no_evil seedling shamrock sheep shield ship shirt shrug sick
    skull skull_and_crossbones sleeping sleepy slightly_frowning_face slightly_smiling_face sloth smile smile_cat
    smiley smiley_cat smiling_imp smirk smoking snail snake sneezing_face snowflake snowman sob soccer space_invader
    sparkle sparkles sparkling_heart speak_no_evil speaker speech_balloon spiral_calendar_pad spock-hand star
    star-struck star2 stars stopwatch stuck_out_tongue stuck_out_tongue_closed_eyes stuck_out_tongue_winking_eye
    sun_with_face sunflower sunglasses sunny sunrise sushi sweat sweat_drops sweat_smile sweet_potato taco tada
    tangerine tea telephone telescope tent thinking_face thought_balloon three thumbsdown thumbsup
    thunder_cloud_and_rain ticket tiger tired_face tomato tongue tools tractor traffic_light train
    triangular_flag_on_post triumph trophy tropical_drink truck tulip turtle two two_hearts umbrella unamused
    unicorn_face unlock upside_down_face v video_game violin volcano walking warning wastebasket watch watermelon
    wave waving_white_flag weary whale white_check_mark white_heart wilted_flower wine_glass wink wolf
    woman-shrugging man-shrugging woman-facepalming man-facepalming wrench writing_hand x yawning_face yellow_heart
    yum zany_face zap zipper_mouth_face zzz one four five six seven eight nine zero keycap_ten black_heart brain
    technologist large_green_circle large_red_circle large_blue_circle large_yellow_circle white_circle black_circle
    ballot_box_with_check negative_squared_cross_mark
"""
SHORT_NAMES = frozenset(_EVERYBODYS_EMOJI.split())
"""Names of emoji that everybody has. Other names are chosen by people of the workspace, and may be sentences."""


def short_name(text: str) -> str:
    """Return the name of a person, a group or a place: one line, at most ``LONGEST_LABEL`` characters, no quotes."""
    return _QUOTES.sub("", disarmed_name(text))[:LONGEST_LABEL].strip()


def short_file_name(text: str) -> str:
    """Return the name of a file like ``short_name``. A long one keeps its beginning and its ending."""
    name = _QUOTES.sub("", disarmed_name(text)).strip()
    if len(name) <= LONGEST_LABEL:
        return name
    stem, dot, ending = name.rpartition(".")
    remaining = f"{dot}{ending}" if stem and len(ending) <= 16 else ""
    return f"{name[: LONGEST_LABEL - len(remaining) - 1]}…{remaining}"


def short_id(text: str) -> str:
    """Return an id that a platform gave. Empty if it is too long for one or holds blanks, as sentences do."""
    return text if _ID.fullmatch(text) else ""


def reaction_sign(text: str) -> str:
    """Return the emoji of a reaction, or the words ``an emoji``: a platform may let people react with any text."""
    if _EMOJI.fullmatch(text):
        return text
    name = _SHORT_NAME.fullmatch(text)
    return text if name is not None and name[1] in SHORT_NAMES else AN_EMOJI
