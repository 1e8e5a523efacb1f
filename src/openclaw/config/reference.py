"""Documentation of the schema for people and forms: tables of keys, its JSON Schema, hints for forms.

The tables are those of ``docs/configuration.md`` and ``openclaw config docs``. ``make docs`` writes them into the page;
a test compares the two.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from openclaw.config.schema import Config
from openclaw.config.unsupported import SAFETY, UNSUPPORTED, UNSUPPORTED_VALUES
from openclaw.config.validate import FieldShape, Shape, fields_of, free_keys, record_in

_SPANISH = Path(__file__).with_name("descriptions.es.json")
"""The Spanish of each description, by its English text."""
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
    return _rows(Config, "")


def _rows(record: type[msgspec.Struct], prefix: str) -> Iterator[KeyDoc]:
    docs = docs_of(record)
    for field in fields_of(record).values():
        path = f"{prefix}{field.key}"
        inner, mark = record_in(field.shape)
        yield KeyDoc(path, field.default, docs.get(field.name, ""), inner is not None)
        if inner is not None:
            yield from _rows(inner, f"{path}{mark}.")
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
    """Return the page with its generated parts replaced. ``parts`` has a function for each name that the page marks."""
    return _PART.sub(lambda part: part[1] + "\n".join(parts[part[2]]()) + "\n" + part[3], page)


# The JSON Schema and the hints


def config_schema() -> dict[str, Any]:
    """Returns the JSON Schema without references, because simple form builders do not follow them."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "OpenClaw configuration",
        **_record(Config),
    }


def ui_hints() -> dict[str, dict[str, Any]]:
    """Returns label and help per key path. ``*`` stands for a free key; a list adds no segment to the path."""
    hints: dict[str, dict[str, Any]] = {}
    for order, field in enumerate(fields_of(Config).values()):
        _add_hints(field, docs_of(Config), "", _label(field.key), (order + 1) * 10, hints)
    return hints


def in_spanish(described: Any) -> Any:
    """The schema or the hints with Spanish descriptions. One that has no translation stays English."""
    return _translated(described, msgspec.json.decode(_SPANISH.read_bytes(), type=dict[str, str]))


def _translated(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_translated(one, words) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = {name: _translated(inner, words) for name, inner in cast("dict[str, Any]", value).items()}
    # A setting may itself be called "description"; then its value is not text.
    return fields | {
        name: words.get(fields[name], fields[name])
        for name in ("description", "help")
        if isinstance(fields.get(name), str)
    }


def docs_of(record: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the strings under the fields of a record and its bases, by the fields' Python names."""
    docs: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        docs |= _module_docs(owner.__module__).get(owner.__name__, {})
    return docs


@functools.cache
def _module_docs(module: str) -> dict[str, dict[str, str]]:
    """Return the field docs of each class of a module of ours. Empty if its source is missing."""
    if not module.startswith("openclaw."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(node.body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = text
            case _:
                pass
    return docs


def _record(record: type[msgspec.Struct]) -> dict[str, Any]:
    docs, free = docs_of(record), free_keys(record)
    properties = {field.key: _property(field, docs.get(field.name)) for field in fields_of(record).values()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if free and free.shape.values:
        schema["additionalProperties"] = _shape(free.shape.values)
    if required := [field.key for field in fields_of(record).values() if field.required]:
        schema["required"] = required
    return schema


def _property(field: FieldShape, doc: str | None) -> dict[str, Any]:
    schema = _shape(field.shape)
    if doc:
        schema["description"] = doc
    # An empty default says nothing, and the fields of a section document its default.
    if field.default not in (msgspec.UNSET, None, []) and not isinstance(field.default, dict | msgspec.Struct):
        schema["default"] = field.default
    return schema


def _shape(shape: Shape) -> dict[str, Any]:
    schema = msgspec.json.schema(shape.type)
    if shape.record is None and shape.items is None and shape.values is None:
        if "anyOf" in schema:
            kept = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
            schema = kept[0] if len(kept) == 1 else {**schema, "anyOf": kept}
        if None in schema.get("enum", ()):
            schema["enum"] = [item for item in schema["enum"] if item is not None]
        return schema
    # The first branch of a union that is not a record, list or mapping stays as msgspec describes it.
    plain_kinds: list[dict[str, Any]] = [
        branch
        for branch in schema.get("anyOf", ())
        if "$ref" not in branch and branch.get("type") not in ("object", "array", "null")
    ]
    branches: list[dict[str, Any]] = plain_kinds[:1]
    if shape.record:
        branches.append(_record(shape.record))
    if shape.items:
        branches.append({"type": "array", "items": _shape(shape.items)})
    if shape.values:
        # Form builders draw a mapping to anything when it has an empty schema, and not when it says "true".
        branches.append({"type": "object", "additionalProperties": _shape(shape.values)})
    if len(branches) == 1:
        return branches[0]
    if len(branches) == 2 and plain_kinds and "type" in plain_kinds[0]:
        # Form builders cannot draw a union. They take the first of several types: a secret's text, else the object.
        plain, other = branches
        types = [plain["type"], other["type"]] if shape.sensitive else [other["type"], plain["type"]]
        return {**other, **plain, "type": types}
    if len(branches) == 2 and shape.items and shape.values:
        return branches[0]  # Of a list or a map of the same names, the list can be drawn.
    return {"anyOf": branches}


def _add_hints(
    field: FieldShape, docs: dict[str, str], prefix: str, group: str, order: int, hints: dict[str, dict[str, Any]]
) -> None:
    path = f"{prefix}{field.key}"
    hint: dict[str, Any] = {"label": _label(field.key), "group": group, "order": order}
    if help_text := docs.get(field.name):
        hint["help"] = help_text
    if field.shape.sensitive:
        hint["sensitive"] = True
    if field.key.startswith("dangerously") or field.shape.type is Any:
        hint["advanced"] = True
    hints[path] = hint
    _descend(field.shape, path, group, order, hints)


def _descend(shape: Shape, path: str, group: str, order: int, hints: dict[str, dict[str, Any]]) -> None:
    if shape.record:
        docs = docs_of(shape.record)
        for position, field in enumerate(fields_of(shape.record).values()):
            _add_hints(field, docs, f"{path}.", group, order * 100 + position, hints)
    if shape.items:
        _descend(shape.items, path, group, order, hints)
    if shape.values:
        if shape.values.sensitive:
            hints[f"{path}.*"] = {"group": group, "order": order, "sensitive": True}
        _descend(shape.values, f"{path}.*", group, order, hints)


def _label(key: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", key.lstrip("$")).split()
    return " ".join(words[:1]).capitalize() + "".join(f" {word.lower()}" for word in words[1:])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(generated(page.read_text("utf-8")), "utf-8")
