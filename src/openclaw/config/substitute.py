"""``${NAME}`` in text values stands for an environment variable; ``$${NAME}`` stays ``${NAME}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openclaw.config.issues import Report
from openclaw.config.keypath import KeyPath

_REFERENCE = re.compile(r"\$(\$?)\{([A-Z_][A-Z0-9_]*)\}")


def substituted(value: Any, environ: Mapping[str, str], path: KeyPath, report: Report) -> Any:
    if isinstance(value, dict):
        return {key: substituted(item, environ, (*path, key), report) for key, item in value.items()}
    if isinstance(value, list):
        return [substituted(item, environ, (*path, index), report) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replaced(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match[0][1:]
        if found := environ.get(name):
            return found
        report.issue(path, f"the environment variable {name} is not set; set it, or write $${{{name}}} for the text")
        return match[0]

    return _REFERENCE.sub(replaced, value)


def is_reference(value: str) -> bool:
    """Whether the text is nothing but one reference, and so not itself a secret."""
    match = _REFERENCE.fullmatch(value)
    return bool(match and not match[1])


def with_config_env(environ: Mapping[str, str], config: Any) -> dict[str, str]:
    """The environment plus what the configuration's ``env`` adds; the real environment wins."""
    section: Any = config.get("env") if isinstance(config, dict) else None
    added: dict[str, str] = {}
    if isinstance(section, dict):
        added = {key: value for key, value in section.items() if isinstance(value, str)}
        if isinstance(variables := section.get("vars"), dict):
            added |= {key: value for key, value in variables.items() if isinstance(value, str)}
    usable = {key: value for key, value in added.items() if "${" not in value}
    return {**usable, **{key: value for key, value in environ.items() if value}}
