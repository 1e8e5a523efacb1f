"""Hides what an address gives away: the password before its host, and keys, tokens and signatures behind it."""

from __future__ import annotations

import re

MASK = "***"
_ADDRESS = re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{0,30}://)([^\s\"'<>`]+)", re.IGNORECASE)
_SECRET = re.compile(
    r"token|key|secret|passw|pwd|^pass$|auth|credential|^sig$|signature|^code$|jwt|^session|^x-(?:amz|goog)-",
    re.IGNORECASE,
)
"""The names of parameters with a secret. Signed addresses of storage services have a whole family of them."""
_NOT_SECRET = re.compile(r"^(?:sessionkey|session_key|session)$", re.IGNORECASE)
"""OpenClaw's own addresses name a session, which opens nothing."""
_LONGEST_USER = 12
"""A longer name before the host is a token, as in ``https://ghp_…@github.com``."""


def redact_urls(text: str) -> str:
    """The text with the secrets of all addresses masked. It runs in linear time."""
    return _ADDRESS.sub(lambda found: found[1] + _shown(found[2]), text) if "://" in text else text


def has_secret(address: str) -> bool:
    return redact_urls(address) != address


def _shown(rest: str) -> str:
    size = next((place for place, char in enumerate(rest) if char in "/?#"), len(rest))
    user, at, host = rest[:size].rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        name = name if len(name) <= _LONGEST_USER else MASK
        rest = f"{name}{colon}{MASK if colon else ''}@{host}{rest[size:]}"
    path, question, query = rest.partition("?")
    if question:
        query, mark, fragment = query.partition("#")
        return f"{path}?{_parameters(query)}{mark}{_parameters(fragment)}"
    path, mark, fragment = rest.partition("#")
    return f"{path}{mark}{_parameters(fragment)}"


def _parameters(query: str) -> str:
    if "=" not in query:
        return query
    return "&".join(_parameter(part) for part in query.split("&"))


def _parameter(part: str) -> str:
    from urllib.parse import unquote  # The command line starts faster without it.

    name, equals, value = part.partition("=")
    plain = unquote(name[:200])
    secret = value and _SECRET.search(plain) is not None and _NOT_SECRET.match(plain) is None
    return f"{name}{equals}{MASK}" if secret else part
