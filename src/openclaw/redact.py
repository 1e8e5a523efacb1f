"""The one redactor: it masks secrets in text that is about to be logged or shown.

Strangers choose much of that text, so the time must be linear in its length: every expression begins at a fixed place
(a quote, a word's first character, a prefix of a key) and repeats a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from openclaw.patterns import PatternRefused, redact_pattern
from openclaw.text import redact_urls

MIN_SHOWN = 18
"""A shorter secret is hidden whole. A longer one keeps its ends, so that two secrets can be told apart."""
MASK = "***"
MAX_KNOWN = 1000
SHORTEST_KNOWN = 8
"""Shorter secrets are not looked for by their value: they would match ordinary words."""

_NAMES = r"(?:(?:api|access|private|secret|auth|signing|encryption)[_-]?key|token|secret|passwd|password)"
_PREFIX = r"[a-z0-9_-]{0,60}?"
_VALUE = r"""["']?(?P<secret>[^\s"'\\,;&)}\]]{1,4096})"""
_BLANKS = r"\s{0,20}"
_DEFAULTS: tuple[str, ...] = (
    rf"(?-i:\b[A-Z0-9_]{{0,100}}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD))\b{_BLANKS}[=:]{_BLANKS}{_VALUE}",
    rf"(?<![a-z0-9_-]){_PREFIX}{_NAMES}\b{_BLANKS}[=:]{_BLANKS}{_VALUE}",
    # The text may have been cut, so a secret may end with it.
    rf'"{_PREFIX}{_NAMES}"{_BLANKS}:{_BLANKS}"(?P<secret>(?:[^"\\]|\\.){{1,4096}})(?:"|\\?\Z)',
    rf"--{_PREFIX}{_NAMES}(?:\s{{1,20}}|=){_VALUE}",
    rf"\bauthorization{_BLANKS}[:=]{_BLANKS}(?:bearer|basic|token)\s{{1,20}}(?P<secret>[A-Za-z0-9._~+/=-]{{1,4096}})",
    r"\bbearer\s{1,20}(?P<secret>[A-Za-z0-9._~+/=-]{18,4096})",
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
_PEM = re.compile(r"-----BEGIN ([A-Z ]{0,40}PRIVATE KEY)-----")
_BOT_TOKEN = re.compile(r"\d{6}:")


def mask(secret: str) -> str:
    return MASK if len(secret) < MIN_SHOWN else f"{secret[:6]}…{secret[-4:]}"


class Redactor:
    """Masks secrets. Own ``patterns`` replace the built-in ones: ``/re/flags``, or an expression that ignores case.

    It raises ``PatternRefused`` for an own expression that is not valid or may be slow.
    """

    def __init__(self, patterns: Sequence[str] | None = None) -> None:
        self._own = None if patterns is None else [redact_pattern(pattern) for pattern in patterns]

    def __call__(self, text: str) -> str:
        text = redact_urls(text)
        lowered = text.lower()
        if self._own is None and not any(hint in lowered for hint in _HINTS) and not _BOT_TOKEN.search(text):
            return text  # Ordinary text does not pay for the expressions.
        text = _without_private_keys(text)
        for pattern in _built_in() if self._own is None else self._own:
            text = pattern.sub(_hidden, text)
        return text


@cache
def _built_in() -> list[re.Pattern[str]]:
    """Return the compiled patterns. They are compiled on first use, because most commands never need them."""
    return [re.compile(pattern, re.IGNORECASE) for pattern in _DEFAULTS]


def _without_private_keys(text: str) -> str:
    """Leave the lines around each private key. A key whose end is missing is taken out to the end of the text."""
    parts: list[str] = []
    at = 0
    while begin := _PEM.search(text, at):
        end = f"-----END {begin[1]}-----"
        parts += [text[at : begin.end()], "…redacted…"]
        at = text.find(end, begin.end())
        if at < 0:
            return "".join(parts)
        parts.append(end)
        at += len(end)
    return "".join([*parts, text[at:]]) if parts else text


def _hidden(found: re.Match[str]) -> str:
    """Return the match with its secret masked: the group named ``secret``, else the last group, else all of it."""
    whole = found[0]
    group: str | int = "secret" if "secret" in found.re.groupindex else found.re.groups
    secret = found[group]
    if not secret:
        return MASK
    begin = found.start(group) - found.start()
    return whole[:begin] + mask(secret) + whole[begin + len(secret) :]


def configure(patterns: Sequence[str] | None, *, enabled: bool = True) -> list[str]:
    """Choose the patterns for the process, and say which of them cannot be used.

    Then the built-in ones count besides the others, so that a mistake never leaves secrets readable.
    """
    global _current
    usable: list[str] = []
    refused: list[str] = []
    for pattern in patterns or ():
        try:
            redact_pattern(pattern)
            usable.append(pattern)
        except PatternRefused as problem:
            refused.append(f"logging.redactPatterns: {pattern[:200]!r} is not used: {problem}")
    own = Redactor(None if patterns is None else usable)
    _current = str if not enabled else (lambda text: own(_built_in_redactor(text))) if refused else own
    return refused


_built_in_redactor = Redactor()
_current: Callable[[str], str] = _built_in_redactor
_known: dict[str, None] = {}
"""The process's own secrets, the newest last. A change makes a new dict: other threads read it."""


def register(secrets: Iterable[str]) -> None:
    """Register secrets by their value. From then on they are masked wherever they stand, whatever they look like."""
    global _known
    if added := {secret: None for secret in secrets if len(secret) >= SHORTEST_KNOWN and secret not in _known}:
        _known = dict(list({**_known, **added}.items())[-MAX_KNOWN:])


def redact(text: str) -> str:
    if _current is str:
        return text
    for secret in _known:
        if secret in text:
            text = text.replace(secret, mask(secret))
    return _current(text)
