"""Reads a provider's failure: its kind, whether a retry can help, how long to wait, and the text for a person."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from openclaw.config.schema.system import Retry
from openclaw.messages import AssistantMessage, ThinkingLevel
from openclaw.models.base import ErrorKind, ModelError
from openclaw.models.thinking import LEVELS


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
    r"input token count is \d+ but model only supports up to",  # Vertex AI
    r"range of input length should be",  # DashScope
    r"input tokens exceeded|number of input tokens exceeds",  # Bedrock
    r"`?inputs`? must have less than \d+ tokens",  # text-generation-inference
    r"maximum prompt length is \d+",
    r"reduce the length of the messages",
    r"maximum context length",
    r"exceeds the limit of \d+",
    r"exceeds the available context size",
    r"greater than the context length",
    r"context window exceeds limit",
    r"exceeds? (?:the )?(?:model'?s? )?(?:maximum )?context (?:window|length|limit|size)",
    r"exceed_context_size",
    r"exceeded max context length",
    r"prompt too long",
    r"prompt exceeds max length",
    r"context the overflows",
    r"too large for model with \d",
    r"tokens? in the prompt cannot exceed",
    r"max_new_tokens`? must be <=",
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
_TRANSIENT = _any_of(
    r"\b(?:500|502|503)\b",
    r"service[_ ]?unavailable", r"server[_ ]?error", r"internal[_ ]?error", r"connection[_ ]?(?:error|refused|reset)",
    r"other side closed", r"fetch failed", r"upstream connect", r"reset before headers", r"terminated",
    r"retry delay",
)  # fmt: skip
_PASSING_QUOTA = _any_of(r"resource[_ ](?:has been )?exhausted", r"quota exceeded", r'"retryDelay"')
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


UNKNOWN_REFUSALS = (400, 413, 422)
"""A provider refuses a prompt that is too large with one of these. So it does with malformed requests."""


def is_unknown_refusal(error: ModelError) -> bool:
    """Whether a request was refused with words that say nothing we know. It may have been too large."""
    return error.kind == "format" and error.status in UNKNOWN_REFUSALS and _classify_words(str(error)).kind == "other"


def is_overflow(text: str) -> bool:
    """Whether the text says that the prompt does not fit the model. Limits per minute use similar words."""
    return bool(_OVERFLOW.search(text)) and not _RATE_LIMIT.search(text)


_N = r"(\d[\d,_]*)"
_NAMED_LIMIT = (
    rf"exceed context limit:\s*{_N.replace('(', '(?:')}\s*\+\s*{_N.replace('(', '(?:')}\s*>\s*{_N}",
    rf"\d\s*tokens?\s*>\s*{_N}",
    rf"maximum (?:context|prompt) length (?:is|of)\s*{_N}",
    rf"maximum number of (?:input )?tokens(?: allowed)?\s*(?:is|of|:)?\s*\(?{_N}",
    rf"exceeds the limit of {_N}",
    rf"available context size\s*(?:of\s*)?\(?{_N}",
    rf"context length of (?:only )?{_N}",
    rf"model token limit:?\s*{_N}",
    rf"with {_N} maximum context length",
    rf"prompt cannot exceed {_N}",
    rf"max_new_tokens`? must be <= {_N}",
    rf"model only supports up to {_N}",
    rf"input length should be \[\d+,\s*{_N}\]",
    rf"must have less than {_N} tokens",
)
_NAMED_PROMPT = (
    rf"exceed context limit:\s*{_N}\s*\+",
    rf"{_N}\s*tokens?\s*>\s*\d",
    rf"{_N} input tokens",
    rf"token count\s*(?:of\s*|is\s*)?\(?{_N}",
    rf"given:\s*{_N} `?inputs",
    rf"must have less than {_N.replace('(', '(?:')} tokens\. given:\s*{_N}",
    rf"keep the first {_N} tokens",
    rf"(?:resulted in|contains?|requested:?|received|request \()\s*(?:about )?{_N}",
)
_BREAKDOWN = re.compile(rf"requested (?:about )?{_N} tokens \(([^)]*)\)", re.IGNORECASE)
_PART = re.compile(rf"{_N} ([^,;\d]+)")


class NamedCounts(msgspec.Struct, frozen=True):
    """What a refusal of a prompt as too large says in numbers. None: it does not say."""

    prompt: int | None = None
    """The tokens of the prompt, without the room for its answer where the provider tells them apart."""
    limit: int | None = None
    """The tokens that the model takes."""


def named_counts(text: str) -> NamedCounts:
    """The numbers in an overflow error, e.g. ``prompt is too long: 210000 tokens > 200000 maximum``."""
    return NamedCounts(_breakdown(text) or _first(_NAMED_PROMPT, text), _first(_NAMED_LIMIT, text))


def _breakdown(text: str) -> int | None:
    """The prompt in ``you requested 9000 tokens (7000 in the messages, 2000 in the completion)``."""
    match = _BREAKDOWN.search(text)
    if match is None:
        return None
    parts = [(_plain_number(number), words.lower()) for number, words in _PART.findall(match.group(2))]
    return sum(tokens for tokens, words in parts if "completion" not in words and "output" not in words) or None


def _first(patterns: tuple[str, ...], text: str) -> int | None:
    matches = (match for pattern in patterns if (match := re.search(pattern, text, re.IGNORECASE)))
    return next((_plain_number(match.group(1)) for match in matches), None) or None


def _plain_number(digits: str) -> int:
    return int(digits.replace(",", "").replace("_", ""))


def is_silent_overflow(message: AssistantMessage, context_window: int) -> bool:
    """Whether the provider cut the prompt without an error. Its usage numbers show this."""
    return message.stop_reason == "stop" and message.usage.input + message.usage.cache_read > context_window > 0


def supported_thinking_levels(text: str) -> tuple[ThinkingLevel, ...]:
    """The thinking levels that a provider names when it refuses one. Empty when it names none."""
    match = _SUPPORTED_LEVELS.search(text)
    if match is None:
        return ()
    named = set(re.findall(r"[a-z]+", match.group(1).lower()))
    if "none" in named:
        named.add("off")
    return tuple(level for level in LEVELS if level in named)


def classify(status: int | None, text: str) -> Classified:
    """The kind of a failed call, from its status and the provider's text."""
    if status != 429 and (is_overflow(text) or is_overflow(f"{status} {text}")):
        return Classified("overflow", False)
    if status is None:
        return _classify_words(text)
    if status in (400, 404, 422):
        # Several servers answer 400 to a wrong key or an empty account.
        kind = _classify_words(text)
        return kind if kind.kind in ("auth", "billing") else Classified("format", False)
    if status == 429 and _is_quota_used_up(text):
        return Classified("billing", False)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return Classified("overloaded" if status == 503 or _OVERLOADED.search(text) else "other", True)
    return Classified("format", False)


def _is_quota_used_up(text: str) -> bool:
    """Whether the account is empty. Google says the same of a limit per minute, but adds how long to wait."""
    if "insufficient_quota" in text.lower():
        return True
    return "exceeded your current quota" in text.lower() and not (
        _PASSING_QUOTA.search(text) or _TRY_AGAIN.search(text)
    )


def _classify_words(text: str) -> Classified:
    if _is_quota_used_up(text):
        return Classified("billing", False)
    table: tuple[tuple[ErrorKind, re.Pattern[str], bool], ...] = (
        ("overloaded", _OVERLOADED, True), ("rate_limit", _RATE_LIMIT, True), ("billing", _BILLING, False),
        ("timeout", _TIMEOUT, True), ("auth", _AUTH, False), ("format", _FORMAT, False),
    )  # fmt: skip
    for kind, pattern, retryable in table:
        if pattern.search(text):
            return Classified(kind, retryable)
    return Classified("other", bool(_TRANSIENT.search(text)))


MAX_ERROR_TEXT = 2048
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|xai|gsk|sess)-[A-Za-z0-9_-]{16,}")
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(ms|h|m|s)")
_TRY_AGAIN = re.compile(r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|h|m|s)\s*)+)", re.IGNORECASE)
_RETRY_DELAY = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?s)"')
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_EPOCH_FROM = 1_000_000_000
"""A reset header above this is a time since 1970. Below, it is a number of seconds from now."""


def status_error(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, secrets: Iterable[str]
) -> ModelError:
    """A refused call, e.g. ``429 rate_limit_error: slow down``."""
    if 300 <= status < 400:
        where = headers.get("location", "elsewhere")
        return ModelError(
            f"{status} {provider} redirects to {where}; set that as baseUrl.", kind="other", status=status
        )
    raw = body.decode("utf-8", "replace")
    message = vendor_message(raw)
    text = redact(f"{status} {message}" if message else f"{status} status code (no body)", secrets)
    kind = classify(status, f"{message} {raw[:MAX_ERROR_TEXT]}" if message else "status code (no body)")
    return ModelError(
        text[:MAX_ERROR_TEXT],
        kind=kind.kind,
        status=status,
        retry_after_s=retry_after_s(headers, raw, status=status),
        retryable=kind.retryable,
    )


def vendor_message(raw: str) -> str:
    """The readable message in a vendor's error body, or the body itself when it is not JSON."""
    try:
        data: Any = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return re.sub(r"\s+", " ", re.sub(r"<[^<>]*>", " ", raw)).strip()[:MAX_ERROR_TEXT]
    return describe_error(data)[:MAX_ERROR_TEXT]


def describe_error(data: Any) -> str:
    """``type: message`` from any of the shapes vendors use."""
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return str(data)
    error = data.get("error", data)
    if not isinstance(error, dict):
        return str(error)
    message = error.get("message") or error.get("detail") or data.get("message") or data.get("detail")
    if message is None:
        return msgspec.json.encode(error).decode()
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    code = error.get("code")
    label = error.get("type") if isinstance(error.get("type"), str) and error.get("type") != "error" else None
    if isinstance(code, str) and code not in (label or "") and code not in message:
        label = f"{label} ({code})" if label else code
    return f"{label}: {message}" if label and label not in message else message


def redact(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "[redacted]")
    return _KEY_LIKE.sub("[redacted]", text)


def retry_after_s(
    headers: Mapping[str, str], body: str = "", *, status: int = 429, now_s: float | None = None
) -> float | None:
    """The seconds that the server asks us to wait. The most exact source comes first."""
    now = time.time() if now_s is None else now_s
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return max(0.0, milliseconds / 1000)
    if (value := headers.get("retry-after")) is not None and (seconds := _seconds(value, now)) is not None:
        return seconds
    if status not in (429, 503, 529):
        return None
    for pattern in (_TRY_AGAIN, _RETRY_DELAY):
        if match := pattern.search(body):
            return _duration(match.group(1))
    return _reset_s(headers, now)


def _reset_s(headers: Mapping[str, str], now: float) -> float | None:
    """The latest reset of the limits that are used up. Limits with room left are ignored."""
    waits: list[float] = []
    for name, value in headers.items():
        lowered = name.lower()
        if "ratelimit" not in lowered or "reset" not in lowered:
            continue
        remaining = _number(headers.get(lowered.replace("reset", "remaining")))
        seconds = _seconds(value, now)
        if seconds is not None and (remaining is None or remaining <= 0):
            waits.append(seconds)
    return max(waits, default=None)


def _seconds(value: str, now: float) -> float | None:
    """Seconds from now: a number, an epoch moment, a duration (``6m0s``), an HTTP date or an ISO time."""
    value = value.strip()
    number = _number(value)
    if number is not None:
        if number > _EPOCH_FROM * 1000:
            number /= 1000
        return max(0.0, number - now if number > _EPOCH_FROM else number)
    if _DURATION.match(value):
        return _duration(value)
    moment = _moment(value)
    return None if moment is None else max(0.0, moment.timestamp() - now)


def _moment(value: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, TypeError):
            return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _duration(value: str) -> float:
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION.findall(value))


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and number == number and abs(number) != float("inf") else None


_ELSE = "choose another model with /model"
_LATER = f"Write again in a while, or {_ELSE}."
_WORDS = {
    "auth": f"The model's provider does not accept the key. Check it with `openclaw models status`, or {_ELSE}.",
    "billing": f"The account at the model's provider has nothing left to pay with. Settle it there, or {_ELSE}.",
    "rate_limit": f"The model's provider takes no more requests from this account for now. {_LATER}",
    "overloaded": f"The model's provider has too much to do at the moment. {_LATER}",
    "timeout": f"The model took too long to answer. {_LATER}",
    "network": f"The model could not be reached. Check the network and the provider's address, or {_ELSE}.",
    "format": f"The model's provider refused the request. The model may have another name there: {_ELSE}.",
    "other": f"Something went wrong at the model's provider. {_LATER}",
}


def error_text(failure: ModelError) -> str:
    """Return the text about a failed call for people: the problem, the remedy and the provider's own words.

    Texts that were not made from a provider's answer are already plain and stay as they are.
    """
    words = _WORDS.get(failure.kind)
    refused = failure.status is not None and failure.status >= 400
    if words is None or not (refused or failure.kind == "network"):
        return str(failure)
    prefix = "The provider said: " if refused else ""
    return f"{words} ({prefix}{str(failure).rstrip('.')})"


_SHORT_WORDS: dict[str, str] = {
    "auth": "its key is not accepted",
    "billing": "its account has nothing left to pay with",
    "rate_limit": "its account may send no more requests for now",
    "overloaded": "its provider has too much to do",
    "timeout": "it took too long to answer",
    "network": "it could not be reached",
    "format": "its provider refused the request",
    "unknown": "no model of this name is configured",
}


def failure_text(kind: str) -> str:
    """A few words on why a model did not answer, to follow its name."""
    return _SHORT_WORDS.get(kind, "something went wrong at its provider")


def switch_text(chosen: str, active: str, kind: str) -> str:
    """Tells people that another model answers than the chosen one, or that the chosen one is back."""
    if active == chosen:
        return f"↩️ {chosen} answers again."
    return f"↪️ {chosen} cannot answer now: {failure_text(kind)}. {active} answers until it can."


def demo_text(name: str) -> str:
    """Tells people what to expect of the embedded model."""
    return (
        f"{name} answers: a demo that shows how the chat works. It knows little, speaks simple English, makes "
        "mistakes and cannot use tools. `openclaw onboard` connects a real model."
    )


def all_failed_text(models: Sequence[str], failure: ModelError) -> str:
    """Tells people that none of several models answered a run. ``failure`` is that of the last one."""
    return f"None of the models could answer ({', '.join(models)}). The last failure: {error_text(failure)}"


def next_retry_ms(error: ModelError, attempt: int, settings: Retry) -> int | None:
    """The wait before retry number ``attempt`` (from 1), or None when none is left or a retry would not help.

    A longer wait that the server asked for is honoured, up to the maximum.
    """
    if not error.retryable or error.kind == "overflow":
        return None
    if not settings.enabled or attempt < 1 or attempt > settings.max_retries:
        return None
    # The exponent is bounded so that a large max_retries cannot build a huge number first.
    delay = settings.base_delay_ms * 2 ** min(attempt - 1, 32)
    if error.retry_after_s is not None:
        delay = max(delay, round(error.retry_after_s * 1000))
    return min(delay, settings.max_delay_ms)
