"""Reading a provider's failure: what kind it is, whether trying again can help, what the outer run should do."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from openclaw.messages import AssistantMessage, ThinkingLevel
from openclaw.models.thinking import LEVELS

ErrorKind: TypeAlias = Literal[
    "overflow", "rate_limit", "overloaded", "auth", "billing", "format", "timeout", "network", "other"
]
FailoverReason: TypeAlias = Literal["rate_limit", "format", "billing", "timeout", "auth"]


class Classified(msgspec.Struct, frozen=True):
    kind: ErrorKind
    retryable: bool


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


_OVERFLOW = _any_of(
    r"prompt is too long",
    r"input is too long for requested model",
    r"exceeds the context window",
    r"exceeds model context window",
    r"input token count.*exceeds the maximum",
    r"maximum prompt length is \d+",
    r"reduce the length of the messages",
    r"maximum context length",
    r"exceeds the limit of \d+",
    r"exceeds the available context size",
    r"greater than the context length",
    r"context window exceeds limit",
    r"exceeded model token limit",
    r"context[_ ]length[_ ]exceeded",
    r"context overflow:",
    r"too many tokens",
    r"token limit exceeded",
    r"request_too_large",
    r"request exceeds the maximum size",
    r"request size exceeds.*context (?:window|length)",
    r"\b413\b.*too large",
    r"^\s*(?:400|413)\s*(?:status code)?\s*\(no body\)",
)
_RATE_LIMIT = _any_of(
    r"rate[_ -]?limit",
    r"too many requests",
    r"\b429\b",
    r"(?:tokens|requests) per (?:min|hour|day|second)",
    r"\bper[- ]minute\b",
    r"resource[_ ](?:has been )?exhausted",
    r"exceeded your current quota",
    r"quota exceeded",
    r"usage limit",
)
_OVERLOADED = _any_of(r"overloaded", r"\b529\b", r"over capacity", r"model is (?:currently )?(?:busy|loading)")
_BILLING = _any_of(
    r"\b402\b", r"payment required", r"insufficient (?:credits|quota|balance|funds)", r"insufficient_quota",
    r"credit balance", r"plans? & billing", r"billing", r"out of credits",
)  # fmt: skip
_TIMEOUT = _any_of(
    r"time[d]?[ -]?out", r"\btimeout\b", r"deadline exceeded", r"context deadline", r"\b(?:408|504)\b",
)  # fmt: skip
_AUTH = _any_of(
    r"\b(?:401|403)\b", r"invalid[_ ]?api[_ ]?key", r"incorrect api key", r"invalid x-api-key", r"unauthori[sz]ed",
    r"authentication", r"permission[_ ]?(?:denied|error)", r"access denied", r"forbidden",
    r"token (?:has )?expired", r"expired (?:token|key|credential)", r"no (?:credentials|api key) found",
    r"re-?authenticate",
)  # fmt: skip
_FORMAT = _any_of(
    r"string should match pattern", r"tool_use\.id", r"tool_use_id", r"messages\.\d+\.content\.\d+\.tool_use\.id",
    r"invalid request format", r"tool_call_id",
)  # fmt: skip
_IMAGE = _any_of(
    r"image exceeds \d+", r"image dimensions exceed", r"at least one of the image dimensions", r"image.*too large",
    r"could not process image",
)  # fmt: skip
_IMAGE_SIZE = _any_of(r"image exceeds \d", r"image.*too large", r"image dimensions exceed")
_ROLE_ORDER = _any_of(
    r"incorrect role information", r"roles must alternate", r"first message must use the .?user.? role",
    r"unexpected role",
)  # fmt: skip
_TRANSIENT = _any_of(
    r"overloaded", r"rate[_ -]?limit", r"too many requests", r"\b(?:429|500|502|503|504|529)\b",
    r"service[_ ]?unavailable", r"server[_ ]?error", r"internal[_ ]?error", r"connection[_ ]?(?:error|refused|reset)",
    r"other side closed", r"fetch failed", r"upstream connect", r"reset before headers", r"terminated",
    r"retry delay",
)  # fmt: skip
_SUPPORTED_LEVELS = re.compile(r"supported values are:?\s*([^\n.]+)", re.IGNORECASE)
_BY_STATUS: dict[int, Classified] = {
    401: Classified("auth", False),
    402: Classified("billing", False),
    403: Classified("auth", False),
    408: Classified("timeout", True),
    413: Classified("overflow", False),
    429: Classified("rate_limit", True),
    504: Classified("timeout", True),
    529: Classified("overloaded", True),
}


def is_rate_limit(text: str) -> bool:
    return bool(_RATE_LIMIT.search(text))


def is_overflow(text: str) -> bool:
    """The prompt did not fit the model. Limits per minute use the same words and are not meant."""
    return bool(_OVERFLOW.search(text)) and not is_rate_limit(text)


def is_silent_overflow(message: AssistantMessage, context_window: int) -> bool:
    """Some providers cut the prompt without a word; the usage tells."""
    return message.stop_reason == "stop" and message.usage.input + message.usage.cache_read > context_window > 0


def is_compaction_failure(text: str) -> bool:
    """A summary request that itself did not fit: compacting again cannot help."""
    lowered = text.lower()
    return is_overflow(text) and any(word in lowered for word in ("compaction", "summarization", "summarisation"))


def is_role_ordering(text: str) -> bool:
    return bool(_ROLE_ORDER.search(text))


def is_image_size(text: str) -> bool:
    return bool(_IMAGE_SIZE.search(text))


def is_transient(text: str) -> bool:
    """Whether the words of an error promise that the same request may succeed later."""
    return not is_overflow(text) and bool(_TRANSIENT.search(text))


def supported_thinking_levels(text: str) -> tuple[ThinkingLevel, ...]:
    """The levels a provider names when it refuses the one it was asked for; empty when it names none."""
    match = _SUPPORTED_LEVELS.search(text)
    if match is None:
        return ()
    named = set(re.findall(r"[a-z]+", match.group(1).lower()))
    if "none" in named:
        named.add("off")
    return tuple(level for level in LEVELS if level in named)


def failover_reason(text: str, status: int | None = None) -> FailoverReason | None:
    """Why another key or model should be tried, or None when that would not help. The first match counts."""
    if _IMAGE.search(text):
        return None
    described = f"{status} {text}" if status else text
    # "Insufficient quota" is a bill to pay, not a limit that passes with time.
    if "insufficient_quota" in text.lower():
        return "billing"
    if _RATE_LIMIT.search(described) or _OVERLOADED.search(described) or "quota" in text.lower():
        return "rate_limit"
    table: tuple[tuple[FailoverReason, re.Pattern[str]], ...] = (
        ("format", _FORMAT), ("billing", _BILLING), ("timeout", _TIMEOUT), ("auth", _AUTH),
    )  # fmt: skip
    for reason, pattern in table:
        if pattern.search(described):
            return reason
    return None


def classify(status: int | None, text: str) -> Classified:
    """The kind of a failed call from its status and the provider's words."""
    if status != 429 and (is_overflow(text) or is_overflow(f"{status} {text}")):
        return Classified("overflow", False)
    if status is None:
        return _classify_words(text)
    if status in (400, 404, 422):
        # Several servers answer 400 to a wrong key or an empty account.
        found = _classify_words(text)
        return found if found.kind in ("auth", "billing") else Classified("format", False)
    if status == 429 and "insufficient_quota" in text.lower():
        return Classified("billing", False)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return Classified("overloaded" if status == 503 or _OVERLOADED.search(text) else "other", True)
    return Classified("format", False)


def _classify_words(text: str) -> Classified:
    if "insufficient_quota" in text.lower():
        return Classified("billing", False)
    table: tuple[tuple[ErrorKind, re.Pattern[str], bool], ...] = (
        ("overloaded", _OVERLOADED, True), ("rate_limit", _RATE_LIMIT, True), ("billing", _BILLING, False),
        ("timeout", _TIMEOUT, True), ("auth", _AUTH, False), ("format", _FORMAT, False),
    )  # fmt: skip
    for kind, pattern, retryable in table:
        if pattern.search(text):
            return Classified(kind, retryable)
    return Classified("other", is_transient(text))
