"""Finds the lines that a summary must keep, and checks whether it did. These functions call no model.

The lines are those with an identifier (an id, a path, an address), open tasks, decisions, and facts that a person told.
Two lines that differ in one word are two. A line that a summary does not have word for word is appended to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from openclaw.agent.window.tokens import text_tokens
from openclaw.messages import AssistantMessage, Message, UserMessage, user_text

CARRIED_HEADING = "## Kept word for word"
EARLIER_HEADING = "## From the summary before"
MOST_NEEDS = 400
LONGEST_LINE = 300
"""A longer line is divided into its sentences."""
LONGEST_NEED = 2000
LONGEST_TEXT = 20_000
LONGEST_PARAGRAPH = 4000
SHORTEST_SUMMARY = 24
"""A summary with fewer characters says almost nothing. The beginnings of the messages are added to it."""
_LOST_SHARE = 0.5
"""The model is asked again if its summary lost a larger share of the needed lines."""

LONGEST_IDENTIFIER = 500
"""Of a longer word only the beginning is looked at."""
_IDENTIFIER = re.compile(
    r"""https?://[^\s<>"')\]]+
    | [\w.+-]+@[\w-]+\.[\w.-]+
    | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b
    | \b[A-Z][A-Z0-9]*-[A-Z0-9-]*\d[A-Z0-9-]*\b
    | \b(?=[a-z0-9-]*[A-Z])(?=[A-Za-z-]*\d)[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\b(?<=[\w-]{4})
    | (?<!\w)\#\d+\b
    | (?:~|\.{1,2})?/[\w.@-]+(?:/[\w.@-]+)+
    | \b[\w-]+(?:/[\w.-]+)*\.(?:py|md|js|ts|json|ya?ml|toml|txt|sql|sh|csv|go|rs|html)\b
    | \b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b
    | \b\d{4}-\d{2}-\d{2}\b
    """,
    re.VERBOSE,
)
_PHONE = re.compile(r"\+\d[\d ()-]{6,}\d\b|\b\d{6,}\b")
_TASK = re.compile(r"^\s*(?:[-*]|\d+\.)\s*\[ \]\s*\S|^\s*(?:TODO|FIXME|Open|Next)\b\s*[:\-]", re.IGNORECASE)
_DONE = re.compile(r"^\s*(?:[-*]|\d+\.)\s*\[[xX]\]")
_DECISION = re.compile(
    r"\b(?:we (?:decided|agreed|will use|chose)|(?:decided|decision|agreed)\b\s*[:\-]|let(?:'|’)s (?:go with|use)|"
    r"remember (?:that|this|to)|do not forget|don(?:'|’)t forget|keep in mind|from now on|always use|"
    r"never (?:use|touch)|call me|important:)",
    re.IGNORECASE,
)
_FACT = re.compile(
    r"\bmy [\w'’ -]{1,40}? (?:is|are|was|lives?|works?)\b"
    r"|\bi(?:['’]m| am| live| work| was born| like| love| hate| prefer| cannot eat| can['’]t eat)\b"
    r"|\b(?:facts?(?: ?(?:no\.?|number|\#)? ?\d+)?|note|fyi|for the record)\s*[:\-]"
    r"|\b(?:code(?: ?word| ?name)?|key|token|number|pass(?:word|phrase|code)|pin(?: code)?|secret|deadline|birthday|"
    r"anniversary|favou?rite|address|budget|account|licen[cs]e|serial|version|port)\b[^.?!]{0,60}?\b(?:is|are|was)\b"
    r"|\b(?:is|are) (?:called|named)\b|\bstands for\b|\ballergic\b"
    r"|\b(?:is|are|at|on|by|until|costs?)\b[^.?!]{0,30}?"
    r"(?:\d{1,2}:\d{2}\b|[$€£]\s?\d|\d\s?(?:€|eur|euros?|usd|dollars?)\b)",
    re.IGNORECASE,
)
"""Matches what people say about themselves and their things."""
_HEADING = re.compile(r"^#{1,4}\s")
_WRAPPER = re.compile(
    r"^\[message_id: [^\]]*\]$|^System: \[[^\]]*\]|^\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} [^\]]*\]\s*", re.MULTILINE
)
_LONG_WORD = re.compile(r"[^\W_]{4,}")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_NEGATIONS = frozenset(
    {"no", "not", "never", "none", "nor", "without", "cannot", "can't", "don't", "doesn't", "didn't", "won't", "isn't"}
    | {"aren't", "wasn't", "shouldn't", "mustn't", "stop", "instead", "except", "unless", "cancelled", "canceled"}
)
"""A line with one of these may say the opposite of the line that it contains."""


class Need(msgspec.Struct, frozen=True):
    """A line whose content must be in the summary."""

    text: str
    identifiers: tuple[str, ...] = ()
    """The identifiers in the line. If there are any, the summary must have all of them."""
    firm: bool = True
    """False for the other lines of the summary before. They are needed if the new summary dropped most of them."""


def needs_of(previous_summary: str, messages: Sequence[Message]) -> list[Need]:
    """The lines to keep, oldest first, each once. Of too many lines the newest are taken. Slow: call it in a thread."""
    firm: dict[str, Need] = {}
    other: dict[str, Need] = {}
    for source in (*(_of_message(message) for message in reversed(messages)), _of_summary(previous_summary)):
        for need in reversed(list(source)):
            (firm if need.firm else other).setdefault(need.text, need)
        if len(firm) >= MOST_NEEDS:
            break
    return [*list(other.values())[MOST_NEEDS - 1 :: -1], *list(firm.values())[MOST_NEEDS - 1 :: -1]]


def _of_summary(summary: str) -> Iterable[Need]:
    """The lines of an earlier summary, except what is done. Carried lines, tasks, decisions and names are firm."""
    section = ""
    for line in summary.splitlines():
        if _HEADING.match(line):
            section = line.strip("# ").lower()
            continue
        if not line.strip("-* ") or _DONE.match(line) or line.startswith("<"):
            continue
        text = _bare(line)
        identifiers = identifiers_in(text)
        listed = line.lstrip().startswith(("-", "*")) or line.lstrip()[:1].isdigit()
        firm = (
            identifiers
            or _TASK.match(line)
            or (listed and ("decision" in section or section == CARRIED_HEADING.strip("# ").lower()))
        )
        yield Need(text, identifiers, bool(firm))


def _of_message(message: Message) -> Iterable[Need]:
    if isinstance(message, UserMessage):
        yield from _of_text(_WRAPPER.sub("", _ends(user_text(message))), with_identifiers=True)
    elif isinstance(message, AssistantMessage) and message.stop_reason not in ("error", "aborted"):
        # An answer may quote a whole file, so that its identifiers are not collected.
        yield from _of_text(_ends(message.text), with_identifiers=False)


def _ends(text: str) -> str:
    """The beginning and the end of a long text. The middle is usually a pasted log and holds nothing to remember."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]}\n{text[-LONGEST_TEXT // 2 :]}"


def _of_text(text: str, *, with_identifiers: bool) -> Iterable[Need]:
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or not line.strip():
            continue
        for sentence in _sentences(line):
            identifiers = identifiers_in(sentence) if with_identifiers else ()
            told = with_identifiers and not sentence.rstrip().endswith("?") and _FACT.search(sentence)
            if identifiers or told or _TASK.match(sentence) or _DECISION.search(sentence):
                yield Need(_bare(sentence), identifiers)


def _sentences(line: str) -> list[str]:
    if len(line) <= LONGEST_LINE:
        return [line]
    if len(line) > LONGEST_PARAGRAPH:
        # A line as long as this is a dump. What matters stands before or after it.
        line = f"{line[: LONGEST_PARAGRAPH // 4]}\n{line[-LONGEST_PARAGRAPH // 4 :]}"
    return [part for part in re.split(r"(?<=[.!?])\s+|\n", line) if part.strip()]


def _bare(line: str) -> str:
    """The line without its list marker, cut to ``LONGEST_NEED``."""
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+(?:\[ \]\s*)?", "", line).strip()
    return text if len(text) <= LONGEST_NEED else text[: LONGEST_NEED - 1].rstrip() + "…"


def identifiers_in(text: str) -> tuple[str, ...]:
    """The ids, paths, addresses, dates and long numbers in a text, each once."""
    found: dict[str, None] = {}
    for word in text.split():
        bare = word.strip("\"'`()<>[]{}.,;:!?*")
        # The check for plain words makes this twenty times faster.
        if not bare.isalpha() and (match := _IDENTIFIER.search(bare[:LONGEST_IDENTIFIER])) is not None:
            found[match.group().rstrip(".,;:")] = None
    for number in _PHONE.finditer(text):
        found[number.group()] = None
    return tuple(found)


# Judging


def fault_of(summary: str, replaced_tokens: int, most_tokens: int) -> str | None:
    """Why a text cannot be used as a summary; None if it can."""
    text = summary.strip()
    if not text:
        return "it is empty"
    tokens = text_tokens(text)
    if tokens >= replaced_tokens:
        return f"it is not shorter than what it replaces ({tokens} tokens for {replaced_tokens})"
    if tokens > most_tokens:
        return f"it is too long ({tokens} tokens; there is room for {most_tokens})"
    return None


def lost(summary: str, needs: Sequence[Need]) -> list[Need]:
    """The needed lines whose content seems to be missing in the summary. Other words may say the same."""
    words = frozenset(word.casefold() for word in _LONG_WORD.findall(summary))
    return [need for need in needs if not _seems_covered(need, summary, words)]


def lost_too_much(summary: str, needs: Sequence[Need]) -> list[Need]:
    """The lost lines, if they are so many that the model should be asked for a better summary."""
    firm = [need for need in needs if need.firm]
    missing = lost(summary, firm)
    return missing if len(missing) >= 3 and len(missing) > len(firm) * _LOST_SHARE else []


def _seems_covered(need: Need, summary: str, words: frozenset[str]) -> bool:
    if need.text in summary:
        return True
    own = {word.casefold() for word in _LONG_WORD.findall(need.text)}
    share = len(own & words) / len(own) if own else 1.0
    if need.identifiers:
        # The identifier alone is not enough. Half of the words around it must be there too.
        return all(identifier in summary for identifier in need.identifiers) and share >= 0.5
    return share >= 0.7


def to_carry(summary: str, needs: Sequence[Need]) -> list[Need]:
    """The needed lines that the summary does not have word for word."""
    lines = [line for text in summary.split("\n") if (line := _normal(text))]
    everything = "\n".join(lines)
    other = [need for need in needs if not need.firm]
    dropped = len(lost(summary, other)) > len(other) * _LOST_SHARE
    return [need for need in needs if (need.firm or dropped) and not _has_line(need, summary, lines, everything)]


def _has_line(need: Need, summary: str, lines: Sequence[str], everything: str) -> bool:
    words = _normal(need.text)
    if not words:
        return need.text in summary
    if words not in everything:
        return False
    own = frozenset(words.split())
    return any(words in line and not (frozenset(line.split()) - own) & _NEGATIONS for line in lines)


def _normal(text: str) -> str:
    """The words of a line with one space before and after each; empty without words."""
    words = " ".join(word.casefold().replace("’", "'") for word in _WORD.findall(text))
    return f" {words} " if words else ""


def with_lost_lines(summary: str, missing: Sequence[Need], most_chars: int) -> str:
    """The summary with the lost lines under headings of their own. If not all fit, the newest are taken."""
    left = most_chars
    for heading, needs in (
        (CARRIED_HEADING, [need for need in missing if need.firm]),
        (EARLIER_HEADING, [need for need in missing if not need.firm]),
    ):
        block = _block(heading, needs, left)
        summary, left = (f"{summary.rstrip()}\n\n{block}" if block else summary), left - len(block)
    return summary


def _block(heading: str, needs: Sequence[Need], most_chars: int) -> str:
    lines: list[str] = []
    left = most_chars - len(heading) - 80
    for need in reversed(needs):
        line = f"- {need.text}"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    if not lines:
        return ""
    if len(lines) < len(needs):
        lines.append(f"- ({len(needs) - len(lines)} older lines are only in the transcript)")
    return f"{heading}\n" + "\n".join(reversed(lines))
