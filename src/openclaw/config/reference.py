"""Makes the tables of ``docs/configuration.md`` and ``openclaw config docs`` from the schema: keys, defaults, meaning.

``make docs`` writes them into the page; a test compares the two.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from openclaw.config.jsonschema import docs_of
from openclaw.config.schema import Config
from openclaw.config.shape import fields_of, free_keys, record_in
from openclaw.config.unsupported import SAFETY, UNSUPPORTED, UNSUPPORTED_VALUES

# fmt: off
MAIN_KEYS = (
    "gateway.port", "gateway.bind", "gateway.customBindHost", "gateway.auth.mode", "gateway.auth.token",
    "gateway.auth.password", "gateway.auth.rateLimit.maxAttempts", "gateway.trustedProxies",
    "gateway.http.endpoints.chatCompletions.enabled", "gateway.http.endpoints.responses.enabled", "gateway.reload.mode",
    "agents.defaults.model", "agents.defaults.models", "agents.defaults.workspace", "agents.defaults.thinkingDefault",
    "agents.defaults.timeoutSeconds", "agents.defaults.maxConcurrent", "agents.defaults.contextTokens",
    "agents.defaults.compaction.mode", "agents.defaults.compaction.reserveTokensFloor",
    "agents.defaults.compaction.memoryFlush.enabled", "agents.defaults.contextPruning.mode", "agents.defaults.budget",
    "agents.list[].id", "agents.list[].model", "agents.list[].workspace", "bindings", "models.mode", "models.providers",
    "session.scope", "session.mainKey", "session.dmScope", "session.reset", "session.resetByType",
    "session.resetByChannel", "session.sendPolicy.default", "session.archive.afterDays", "storage.url",
    "storage.schema", "storage.poolSize", "messages.queue.mode", "messages.queue.debounceMs", "messages.queue.cap",
    "messages.queue.drop", "messages.inbound.debounceMs",
    "channels.defaults.groupPolicy", "channels.signal", "tools.profile", "tools.allow", "tools.deny", "tools.exec.host",
    "tools.exec.security", "tools.exec.ask", "tools.exec.timeoutSec", "tools.exec.backgroundMs",
    "tools.fs.workspaceOnly", "tools.elevated.enabled", "commands.text", "commands.config", "commands.restart",
    "logging.level", "logging.file", "logging.redactSensitive", "retry.maxRetries", "retry.baseDelayMs",
    "compaction.enabled", "compaction.reserveTokens", "compaction.keepRecentTokens", "env.vars",
)
# fmt: on
"""The keys of the first table of the page, in its order."""


class KeyDoc(NamedTuple):
    path: str
    """``[]`` is an item of a list, ``*`` any key."""
    default: Any
    meaning: str
    section: bool
    """It holds keys that have rows of their own."""


def all_keys() -> Iterator[KeyDoc]:
    return _record(Config, "")


def _record(record: type[msgspec.Struct], prefix: str) -> Iterator[KeyDoc]:
    docs = docs_of(record)
    for field in fields_of(record).values():
        path = f"{prefix}{field.key}"
        inner, mark = record_in(field.shape)
        yield KeyDoc(path, field.default, docs.get(field.name, ""), inner is not None)
        if inner is not None:
            yield from _record(inner, f"{path}{mark}.")
    if free := free_keys(record):
        yield KeyDoc(f"{prefix}*", free.default, docs.get(free.name, ""), False)


def default_text(default: Any) -> str:
    """The default as it would stand in the file."""
    if default is msgspec.UNSET:
        return "required"
    if default is None or isinstance(default, dict | msgspec.Struct):
        return "–"
    return f"`{msgspec.json.encode(default).decode()}`"


def key_rows(keys: list[KeyDoc]) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "| --- | --- | --- |"
    for key in keys:
        yield f"| `{key.path}` | {default_text(key.default)} | {cell(key.meaning)} |"


def cell(text: str) -> str:
    """The text as it may stand in a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def _by_reason(table: dict[str, str], head: str) -> Iterator[str]:
    yield f"| {head} | why |"
    yield "| --- | --- |"
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for path, reason in table.items():
        paths[reason].append(path)
    for reason, named in paths.items():
        yield f"| {', '.join(f'`{path}`' for path in named)} | {cell(reason)} |"


def _main_keys() -> Iterator[str]:
    known = {key.path: key for key in all_keys()}
    return key_rows([known[path] for path in MAIN_KEYS])


PARTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "main keys": _main_keys,
    "refused": lambda: _by_reason({path: rule.reason for path, rule in SAFETY.items()}, "key"),
    "values without effect": lambda: _by_reason({path: r.reason for path, r in UNSUPPORTED_VALUES.items()}, "key"),
    "keys without effect": lambda: _by_reason(UNSUPPORTED, "key"),
}
_PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def generated(page: str, parts: Mapping[str, Callable[[], Iterable[str]]] = PARTS) -> str:
    """The page with its generated parts made anew. ``parts`` has a function for each name that the page marks."""
    return _PART.sub(lambda part: part[1] + "\n".join(parts[part[2]]()) + "\n" + part[3], page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(generated(page.read_text("utf-8")), "utf-8")
