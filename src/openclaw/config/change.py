"""The text a change of the configuration results in. Nothing here touches the disk."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from openclaw.config.edit import merge_patch, merge_text, set_value
from openclaw.config.issues import ConfigInvalid, Issue
from openclaw.config.json5text import Json5Error
from openclaw.config.keypath import KeyPath
from openclaw.config.load import Snapshot
from openclaw.config.redact import SENTINEL, UnknownSecret, restored
from openclaw.config.source import parse_source

TOKEN_BYTES = 24


def generated_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def minimal_text(environ: Mapping[str, str]) -> str:
    """What a first start writes: local, with a generated token unless the environment has the secret."""
    if environ.get("OPENCLAW_GATEWAY_TOKEN"):
        auth = ['mode: "token",']
    elif environ.get("OPENCLAW_GATEWAY_PASSWORD"):
        auth = ['mode: "password",']
    else:
        auth = ['mode: "token",', f'token: "{generated_token()}",']
    lines = ["{", "  gateway: {", '    mode: "local",', "    auth: {", *(f"      {line}" for line in auth)]
    return "\n".join([*lines, "    },", "  },", "}", ""])


def improves(before: Snapshot, after: Snapshot) -> bool:
    """Whether some faults are gone and none came."""
    faults = {(issue.path, issue.message) for issue in before.issues}
    return {(issue.path, issue.message) for issue in after.issues} < faults


def new_mistakes(before: Snapshot, after: Snapshot) -> list[Issue]:
    """What the change would make wrong; what was wrong before may stay, so that other keys can be changed."""
    known = {(issue.path, issue.message) for issue in before.mistakes}
    return [issue for issue in after.mistakes if (issue.path, issue.message) not in known]


def editable(before: Snapshot) -> str:
    """The text to edit; ConfigInvalid when it is not even JSON5, so that nothing unreadable is overwritten."""
    if not before.valid and not before.parsed:
        raise ConfigInvalid(before.issues)
    return before.raw if before.raw and before.raw.strip() else "{\n}\n"


def merged_text(before: Snapshot, patch: dict[str, Any]) -> str:
    """The text after a merge; written afresh where an edit would not come out right (duplicate keys, for example)."""
    wanted = merge_patch(before.parsed, patch)
    try:
        text = merge_text(editable(before), patch)
        if parse_source(text)[0] == wanted:
            return text
    except Json5Error:
        pass
    return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"


def filled_in(value: Any, stored: Any, path: KeyPath = ()) -> Any:
    """The value with stored secrets in place of sentinels; ConfigInvalid where none is stored."""
    try:
        return restored(value, stored, path)
    except UnknownSecret as error:
        raise ConfigInvalid([Issue(path=str(error).partition(":")[0], message=str(error).partition(": ")[2])]) from None


def with_secrets(raw: str, stored: dict[str, Any]) -> str:
    """The text with each sentinel replaced where it stands."""
    if SENTINEL not in raw:
        return raw
    try:
        parsed, _ = parse_source(raw)
    except Json5Error:
        return raw
    for path, value in _sentinels(parsed, filled_in(parsed, stored), ()):
        raw = set_value(raw, path, value)
    return raw


def _sentinels(redacted: Any, full: Any, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(redacted, dict):
        return [found for key in redacted for found in _sentinels(redacted[key], full[key], (*path, key))]
    if isinstance(redacted, list):
        return [found for i, item in enumerate(redacted) for found in _sentinels(item, full[i], (*path, i))]
    return [(path, full)] if redacted != full else []
