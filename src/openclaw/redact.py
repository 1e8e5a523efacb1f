"""The one redactor: it masks secrets in text that is about to be logged or shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from openclaw.url_text import redact_urls

MIN_SHOWN = 18
"""A shorter secret is hidden whole. A longer one keeps its ends, so that two secrets can be told apart."""
MASK = "***"

_NAMES = r"(?:api|access|private|secret|auth|signing|encryption)[_-]?key|(?:[a-z]+[_-]?)?token|secret|passwd|password"
_VALUE = r"""["']?(?P<secret>[^\s"'\\,;&)}\]]{1,4096})"""
_DEFAULTS: tuple[str, ...] = (
    rf"(?-i:\b[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))\b\s*[=:]\s*{_VALUE}",
    rf"\b(?:[a-z0-9]+[_-])*(?:{_NAMES})\b\s*[=:]\s*{_VALUE}",
    rf'"(?:[a-z0-9]+[_-]?)*?(?:{_NAMES})"\s*:\s*"(?P<secret>(?:[^"\\]|\\.){{1,4096}})"',
    rf"--(?:[a-z0-9]+-)*(?:{_NAMES})(?:\s+|=){_VALUE}",
    r"\bauthorization\s*[:=]\s*(?:bearer|basic|token)\s+(?P<secret>[A-Za-z0-9._~+/=-]{1,4096})",
    r"\bbearer\s+(?P<secret>[A-Za-z0-9._~+/=-]{18,4096})",
    r"\b(?P<secret>sk-[A-Za-z0-9_-]{8,512})",
    r"\b(?P<secret>gh[opsu]_[A-Za-z0-9]{20,512})",
    r"\b(?P<secret>github_pat_[A-Za-z0-9_]{20,512})",
    r"\b(?P<secret>xox[a-z]-[A-Za-z0-9-]{10,512})",
    r"\b(?P<secret>xapp-[A-Za-z0-9-]{10,512})",
    r"\b(?P<secret>gsk_[A-Za-z0-9_-]{10,512})",
    r"\b(?P<secret>AIza[0-9A-Za-z_-]{20,512})",
    r"\b(?P<secret>pplx-[A-Za-z0-9_-]{10,512})",
    r"\b(?P<secret>npm_[A-Za-z0-9]{10,512})",
    r"(?<!\d)(?P<secret>\d{6,12}:[A-Za-z0-9_-]{20,512})",
)
_HINTS = (
    *("key", "token", "secret", "passw", "bearer", "authorization", "sk-", "ghp_", "gho_", "ghs_", "ghu_"),
    *("github_pat_", "xox", "xapp-", "gsk_", "aiza", "pplx-", "npm_"),
)
_PEM = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.{1,20000}?-----END \1-----", re.DOTALL)
_BOT_TOKEN = re.compile(r"\d{6}:")
_SLASHED = re.compile(r"/(?P<body>.+)/(?P<flags>[a-z]*)", re.DOTALL)


def mask(secret: str) -> str:
    return MASK if len(secret) < MIN_SHOWN else f"{secret[:6]}…{secret[-4:]}"


class Redactor:
    """Masks secrets. Own ``patterns`` replace the built-in ones: ``/re/flags``, or an expression that ignores case."""

    def __init__(self, patterns: Sequence[str] | None = None) -> None:
        self._own = None if patterns is None else [_compiled(pattern) for pattern in patterns]

    def __call__(self, text: str) -> str:
        text = redact_urls(text)
        lowered = text.lower()
        if self._own is None and not any(hint in lowered for hint in _HINTS) and not _BOT_TOKEN.search(text):
            return text  # Ordinary text does not pay for the expressions.
        text = _PEM.sub(r"-----BEGIN \1-----…redacted…-----END \1-----", text)
        for pattern in _built_in() if self._own is None else self._own:
            text = pattern.sub(_hidden, text)
        return text


@cache
def _built_in() -> list[re.Pattern[str]]:
    """The compiled patterns. They are compiled on first use, because most commands never need them."""
    return [_compiled(pattern) for pattern in _DEFAULTS]


def _compiled(pattern: str) -> re.Pattern[str]:
    found = _SLASHED.fullmatch(pattern)
    if found is None:
        return re.compile(pattern, re.IGNORECASE)
    flags = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}
    return re.compile(found["body"], sum(flags.get(flag, 0) for flag in set(found["flags"])))


def _hidden(found: re.Match[str]) -> str:
    """The match with its secret masked: the group named ``secret``, else the last group, else all of it."""
    whole = found[0]
    group: str | int = "secret" if "secret" in found.re.groupindex else found.re.groups
    secret = found[group]
    if not secret:
        return MASK
    begin = found.start(group) - found.start()
    return whole[:begin] + mask(secret) + whole[begin + len(secret) :]


_current: Callable[[str], str] = Redactor()


def configure(patterns: Sequence[str] | None, *, enabled: bool = True) -> None:
    """Chooses the patterns for the process. An expression that does not compile raises ``re.error``."""
    global _current
    _current = Redactor(patterns) if enabled else str


def redact(text: str) -> str:
    return _current(text)
