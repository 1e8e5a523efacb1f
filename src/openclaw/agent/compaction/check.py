"""What a summary must not lose, and whether it did. Pure functions; no model is asked.

Names a person will need again (ids, paths, addresses), open tasks and decisions are found in what is about to leave the
prompt. A summary that lost some of them is mended by carrying their lines over word for word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from openclaw.agent.window.tokens import text_tokens
from openclaw.messages import AssistantMessage, Message, UserMessage, user_text

CARRIED_HEADING = "## Kept word for word"
_CARRIED = CARRIED_HEADING.strip("# ").lower()
MOST_NEEDS = 400
LONGEST_LINE = 300
LONGEST_TEXT = 20_000
LONGEST_PARAGRAPH = 4000
SHORTEST_SUMMARY = 24
"""Characters below which a text tells next to nothing: the beginnings of what was said are put beside it."""
_LOST_SHARE = 0.5
"""A summary that lost more than this of what was to be kept is asked for again before it is mended."""

_MARKS = re.compile(
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
"""What a person says of themselves and their things; questions are not facts."""
_HEADING = re.compile(r"^#{1,4}\s")
_WRAPPER = re.compile(
    r"^\[message_id: [^\]]*\]$|^System: \[[^\]]*\]|^\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} [^\]]*\]\s*", re.MULTILINE
)
_WORD = re.compile(r"[^\W_]{4,}")


class Need(msgspec.Struct, frozen=True):
    """One line that must survive: its marks, or most of its words, have to be in the summary."""

    text: str
    marks: tuple[str, ...] = ()


def needs_of(previous_summary: str, messages: Sequence[Message]) -> list[Need]:
    """Oldest first, each line once; the newest are kept when there are too many. For a thread: it may take a while."""
    found: dict[str, Need] = {}
    for source in (*(_of_message(message) for message in reversed(messages)), _of_summary(previous_summary)):
        for need in reversed(list(source)):
            found.setdefault(need.text, need)
        if len(found) >= MOST_NEEDS:
            break
    return list(found.values())[MOST_NEEDS - 1 :: -1]


def _of_summary(summary: str) -> Iterable[Need]:
    """What an earlier summary held: carried lines and open tasks, decisions, and every line with a mark."""
    section = ""
    for line in summary.splitlines():
        if _HEADING.match(line):
            section = line.strip("# ").lower()
            continue
        if not line.strip() or _DONE.match(line) or line.startswith("<"):
            continue
        text = _bare(line)
        marks = marks_in(text)
        listed = line.lstrip().startswith(("-", "*")) or line.lstrip()[:1].isdigit()
        if marks or _TASK.match(line) or (listed and ("decision" in section or section == _CARRIED)):
            yield Need(text, marks)


def _of_message(message: Message) -> Iterable[Need]:
    if isinstance(message, UserMessage):
        yield from _of_text(_WRAPPER.sub("", _ends(user_text(message))), with_marks=True)
    elif isinstance(message, AssistantMessage) and message.stop_reason not in ("error", "aborted"):
        # An answer may quote a whole file: only its tasks and decisions are looked for.
        yield from _of_text(_ends(message.text), with_marks=False)


def _ends(text: str) -> str:
    """Of a long paste only what stands around it: a log is not a list of things to remember."""
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT // 2]}\n{text[-LONGEST_TEXT // 2 :]}"


def _of_text(text: str, *, with_marks: bool) -> Iterable[Need]:
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced or not line.strip():
            continue
        for sentence in _sentences(line):
            marks = marks_in(sentence) if with_marks else ()
            told = with_marks and not sentence.rstrip().endswith("?") and _FACT.search(sentence)
            if marks or told or _TASK.match(sentence) or _DECISION.search(sentence):
                yield Need(_bare(sentence), marks)


def _sentences(line: str) -> list[str]:
    if len(line) <= LONGEST_LINE:
        return [line]
    if len(line) > LONGEST_PARAGRAPH:
        # A dump rather than prose: people put what matters before or after it.
        line = f"{line[: LONGEST_PARAGRAPH // 4]}\n{line[-LONGEST_PARAGRAPH // 4 :]}"
    return [part for part in re.split(r"(?<=[.!?])\s+|\n", line) if part.strip()]


def _bare(line: str) -> str:
    text = re.sub(r"^\s*(?:[-*]|\d+\.)\s+(?:\[ \]\s*)?", "", line).strip()
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1].rstrip() + "…"


def marks_in(text: str) -> tuple[str, ...]:
    """Looks closely only at words that are not plain words: that is twenty times faster."""
    found: dict[str, None] = {}
    for word in text.split():
        bare = word.strip("\"'`()<>[]{}.,;:!?*")
        if not bare.isalpha() and (match := _MARKS.search(bare)) is not None:
            found[match.group().rstrip(".,;:")] = None
    for number in _PHONE.finditer(text):
        found[number.group()] = None
    return tuple(found)


# Judging


def fault_of(summary: str, replaced_tokens: int, most_tokens: int) -> str | None:
    """Why a text cannot be taken as a summary at all; None when it can."""
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
    words = frozenset(word.casefold() for word in _WORD.findall(summary))
    return [need for need in needs if not _covered(need, summary, words)]


def lost_too_much(missing: Sequence[Need], needs: Sequence[Need]) -> bool:
    return len(missing) >= 3 and len(missing) > len(needs) * _LOST_SHARE


def _covered(need: Need, summary: str, words: frozenset[str]) -> bool:
    if need.text in summary:
        return True
    own = {word.casefold() for word in _WORD.findall(need.text)}
    share = len(own & words) / len(own) if own else 1.0
    if need.marks:
        # The name alone says nothing: some of what was said about it must be there as well.
        return all(mark in summary for mark in need.marks) and share >= 0.5
    return share >= 0.7


def mended(summary: str, missing: Sequence[Need], most_chars: int) -> str:
    """The summary with the lost lines under a heading of their own; the newest when there is not room for all."""
    if not missing:
        return summary
    lines: list[str] = []
    left = most_chars - len(CARRIED_HEADING) - 80
    for need in reversed(missing):
        line = f"- {need.text}"
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    if not lines:
        return summary
    if len(lines) < len(missing):
        lines.append(f"- ({len(missing) - len(lines)} older lines are only in the transcript)")
    return f"{summary.rstrip()}\n\n{CARRIED_HEADING}\n" + "\n".join(reversed(lines))
