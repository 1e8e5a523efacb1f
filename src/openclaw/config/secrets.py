"""The secrets of a configuration: fetched from where they are kept, hidden on the way out, put back on the way in.

A configuration that leaves the process holds ``SENTINEL`` in place of each secret. When it comes back with the sentinel
in it, the stored secret takes its place again.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from openclaw.config.keypath import MISSING, KeyPath, format_path
from openclaw.config.load import REFERENCE, Json5Error, Member, Node, Outline, is_reference
from openclaw.config.schema import Config
from openclaw.config.schema.base import SecretRef
from openclaw.config.validate import ConfigInvalid, Issue, Shape, fields_of, free_keys, shape_of
from openclaw.redact import Redactor, register
from openclaw.text import has_secret

COMMAND_TIMEOUT_S = 10
MAX_BYTES = 64 * 1024
SENTINEL = "__OPENCLAW_REDACTED__"
SHORTEST_REPLACED = 8
"""Shorter secrets are not looked for in comments, where they would match ordinary words."""
# Open maps have no schema that marks secrets, so the name of the key decides. maxTokens does not match.
_SECRET_NAME = re.compile(
    r"(token|password|passwd|passphrase|passcode|secret|credentials?|cookie|authorization|(api|private|signing|access)[_-]?key)$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(
    r"(token|password|passwd|pass|passphrase|secret|key|credentials?|cookie|(\b|_)pat)$", re.IGNORECASE
)
_COMMAND_LINES = ("command", "args", "argv")
# What is not closed goes on to the end, so that a second look for its end is never needed.
_STRING_OR_COMMENT = re.compile(
    r"\"(?:[^\"\\]|\\.)*(?:\"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|//[^\n\r]*|/\*.*?(?:\*/|\Z)", re.DOTALL
)
_QUOTED_SECRET = re.compile(
    r"((?:token|password|passwd|secret|api[_-]?key)[\"']?\s*:\s*)(\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?)",
    re.IGNORECASE,
)
_VARIABLE_MAPS = ("env", "vars", "inline")
_mask_secrets = Redactor()


class SecretUnavailable(Exception):
    """A secret could not be fetched. The message says which one and why, and never the secret."""


def resolve_secret(secret: str | SecretRef | None, environ: Mapping[str, str], what: str = "the secret") -> str | None:
    """Returns the secret, or None when none is configured. It reads files and runs commands: call it in a thread."""
    if secret is None or isinstance(secret, str):
        return secret or None
    if secret.env:
        if value := environ.get(secret.env):
            return value
        raise SecretUnavailable(f"{what}: the environment variable {secret.env} is not set")
    value = _from_file(secret.file, what) if secret.file else _from_command(secret.command or [], what)
    if not value:
        raise SecretUnavailable(f"{what}: {secret.file or 'the command'} gave nothing")
    register([value])
    return value


def _from_file(name: str, what: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            return file.read(MAX_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise SecretUnavailable(f"{what}: cannot read {name}: {error}") from None


def _from_command(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise SecretUnavailable(f"{what}: {command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        raise SecretUnavailable(f"{what}: {command[0]} ended with code {done.returncode}")
    return done.stdout[:MAX_BYTES].decode(errors="replace").strip()


def redacted(parsed: dict[str, Any], written: Any = None) -> dict[str, Any]:
    """Returns a copy with the sentinel in place of every secret. References such as ``${NAME}`` are no secrets.

    ``written`` are the same values before variables were put in. Where they name a variable that holds a secret, the
    value is hidden too, whatever its key is called.
    """
    return _replaced(parsed, (), {*dict(secret_values(parsed)), *_filled_in(written, ())})


def _filled_in(written: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yields the key paths of values that a variable with a secret's name is put into."""
    if isinstance(written, str):
        if any(_SECRET_VARIABLE.search(name) for escaped, name in REFERENCE.findall(written) if not escaped):
            yield path
    elif isinstance(written, list):
        for index, item in enumerate(written):
            yield from _filled_in(item, (*path, index))
    elif isinstance(written, dict):
        for key, item in written.items():
            yield from _filled_in(item, (*path, str(key)))


def redact_raw(raw: str, parsed: dict[str, Any]) -> str:
    """Returns the text with the sentinel in place of every secret, also in comments.

    A comment may hold a secret that the file no longer has: what looks like one is masked.
    """
    try:
        outline = Outline(raw)
    except Json5Error:
        # The text cannot be parsed, so everything after a key with a secret's name is hidden.
        return _without_named(raw)
    found: dict[int, tuple[int, str]] = {}
    secrets = dict(secret_values(parsed))
    for path in secrets:
        depth, member = outline.find(path)
        if member and depth == len(path):
            quote = raw[member.value.start]
            found[member.value.start] = (member.value.end, f"{quote}{SENTINEL}{quote}")
    for member in _overridden(outline.root):
        # The values do not hold it, so its text is looked at, as that of a file which cannot be parsed.
        found[member.start] = (member.value.end, _without_named(raw[member.start : member.value.end]))
    for start in sorted(found, reverse=True):
        end, text = found[start]
        raw = raw[:start] + text + raw[end:]
    long = sorted({value for value in secrets.values() if len(value) >= SHORTEST_REPLACED}, key=len, reverse=True)
    return _STRING_OR_COMMENT.sub(lambda match: _without(long, match[0]) if match[0][0] == "/" else match[0], raw)


def _without_named(raw: str) -> str:
    return _mask_secrets(_QUOTED_SECRET.sub(lambda match: f'{match[1]}"{SENTINEL}"', raw))


def _overridden(node: Node) -> Iterator[Member]:
    """Yields the members that do not count, because their key is written once more after them."""
    last = {member.key: member for member in node.members}
    for member in node.members:
        if last[member.key] is member:
            yield from _overridden(member.value)
        else:
            yield member


def restored(incoming: Any, stored: Any, path: KeyPath = ()) -> Any:
    """Returns the values with stored secrets in place of sentinels. It raises ConfigInvalid where none is stored."""
    if incoming == SENTINEL:
        if isinstance(stored, str):
            return stored
        problem = "no secret is stored here; write the secret itself"
        raise ConfigInvalid([Issue(path=format_path(path), message=problem)])
    if isinstance(incoming, dict):
        below: dict[str, Any] = stored if isinstance(stored, dict) else {}
        return {key: restored(value, below.get(key, MISSING), (*path, key)) for key, value in incoming.items()}
    if isinstance(incoming, list):
        matched = partners(incoming, stored if isinstance(stored, list) else [])
        return [restored(value, matched[i], (*path, i)) for i, value in enumerate(incoming)]
    return incoming


def secret_values(parsed: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yields every secret that is written out in the values, with its key path."""
    return _secrets(parsed, shape_of(Config), ())


def known_secrets(resolved: Any, environ: Mapping[str, str]) -> list[str]:
    """Returns the secrets that a process knows from its configuration and from its environment."""
    # A variable such as SSH_KEY often names a file, which is not a secret.
    variables = [value for name, value in environ.items() if _SECRET_VARIABLE.search(name) and value[:1] not in "/~"]
    return [*(value for _, value in secret_values(resolved)), *variables]


def _secrets(value: Any, shape: Shape | None, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        if value and not is_reference(value) and (_is_secret(shape, path) or _looks_secret(value, path)):
            yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            before = str(value[index - 1]) if index else ""
            option = before.startswith("-") and "=" not in before
            if isinstance(item, str) and option and _SECRET_NAME.search(before):  # Such as ``--api-key``.
                yield (*path, index), item
                continue
            yield from _secrets(item, shape.items if shape else None, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _secrets(item, inside(shape, str(key)), (*path, str(key)))


def inside(shape: Shape | None, key: str) -> Shape | None:
    """Returns the shape of the value under the key."""
    if shape is None:
        return None
    if shape.record:
        if field := fields_of(shape.record).get(key):
            return field.shape
        free = free_keys(shape.record)
        return free.shape.values if free else None
    return shape.values


def _is_secret(shape: Shape | None, path: KeyPath) -> bool:
    if shape and shape.sensitive:
        return True
    name = next((segment for segment in reversed(path) if isinstance(segment, str)), "")
    above = [segment for segment in path[:-1] if isinstance(segment, str)]
    if above and above[-1] in _VARIABLE_MAPS:
        return bool(_SECRET_VARIABLE.search(name))
    if shape and shape.type is not Any:
        return False
    return bool(_SECRET_NAME.search(name)) or bool(above and above[-1] == "headers")


def _looks_secret(value: str, path: KeyPath) -> bool:
    """Whether the value has the form of a key, or is an address with one. Prose can still be read and edited."""
    if has_secret(value):
        return True
    if any(character.isspace() for character in value) and not any(part in _COMMAND_LINES for part in path):
        return False
    return _mask_secrets(value) != value


def _replaced(value: Any, path: KeyPath, secret: set[KeyPath]) -> Any:
    if path in secret:
        return SENTINEL
    if isinstance(value, dict):
        return {key: _replaced(item, (*path, str(key)), secret) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, (*path, index), secret) for index, item in enumerate(value)]
    return value


def partners(incoming: list[Any], stored: list[Any], key: Callable[[Any], Any] = lambda item: item) -> list[Any]:
    """Returns for each item the stored one whose ``key`` has the same id, else the one at its index, or MISSING."""
    by_id = {found["id"]: item for item in stored if isinstance(found := key(item), dict) and _has_id(found)}
    matched: list[Any] = []
    for index, item in enumerate(incoming):
        if isinstance(item, dict) and _has_id(item):
            matched.append(by_id.get(item["id"], MISSING))
        else:
            matched.append(stored[index] if index < len(stored) else MISSING)
    return matched


def _has_id(item: dict[str, Any]) -> bool:
    return isinstance(item.get("id"), str)


def _without(secrets: list[str], comment: str) -> str:
    for secret in secrets:
        comment = comment.replace(secret, SENTINEL)
    return _mask_secrets(comment)
