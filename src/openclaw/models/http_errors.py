"""Reading an HTTP failure: the vendor's message, how long to wait, and nothing secret."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from openclaw.models.base import ModelError
from openclaw.models.errors import classify

MAX_ERROR_TEXT = 2048
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|xai|gsk|sess)-[A-Za-z0-9_-]{16,}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_TRY_AGAIN = re.compile(r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|h|m|s)\s*)+)", re.IGNORECASE)
_RETRY_DELAY = re.compile(r'"retryDelay":\s*"(\d+(?:\.\d+)?s)"')
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_EPOCH_FROM = 1_000_000_000
"""A reset header above this is a moment, below it a number of seconds."""


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
    found = classify(status, f"{message} {raw[:MAX_ERROR_TEXT]}" if message else "status code (no body)")
    return ModelError(
        text[:MAX_ERROR_TEXT],
        kind=found.kind,
        status=status,
        retry_after_s=retry_after_s(headers, raw, status=status),
        retryable=found.retryable,
    )


def vendor_message(raw: str) -> str:
    """The sentence meant for people out of a vendor's error body; the body itself when it is not JSON."""
    try:
        data: Any = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", raw)).strip()[:MAX_ERROR_TEXT]
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
    """Seconds the server asks us to wait, from the most to the least exact way of saying it."""
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
    """The latest reset among the limits that are used up; limits with room left do not hold us back."""
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
