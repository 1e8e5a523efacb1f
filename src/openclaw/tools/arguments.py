"""The arguments of a tool: the record that declares them, its JSON Schema, and the validation of what a model sent.

A built-in tool is a ``RecordTool``. Its record is the only declaration of its arguments: the schema that models see is
generated from it once, when the class is made, because a schema that changed between turns would empty the provider's
prompt cache.

``validate_arguments`` checks the arguments of a call against the schema and repairs common small mistakes. Extensions
and MCP servers bring schemas of their own, so it works on schemas and not on records. It understands the subset of JSON
Schema that tools use. Other keywords accept anything.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec
from msgspec import Meta

from openclaw.messages import ToolSpec
from openclaw.text import shortened
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult


class ToolArguments(msgspec.Struct, rename="camel", omit_defaults=True):
    """Arguments of a tool. ``Meta`` on a field gives its description and its bounds.

    A field that may be missing has a default, and None where the tool must know that it is missing.
    """


Number: TypeAlias = int | float
"""A JSON number. The value keeps the form in which it was sent."""
Hidden: TypeAlias = Annotated[Any, Meta(extra={"hidden": True})]
"""An argument that is accepted but not offered to models, such as a name that other agents use. It is not validated."""
ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


class RecordTool(ABC, Generic[ArgumentsT]):
    """A tool whose arguments are the record ``ArgumentsT``. Subclasses declare the texts and ``execute``."""

    name: str
    summary: str
    """One line for the tool list of the system prompt."""
    description: str
    """What the model reads about the tool, besides its arguments."""
    spec: ToolSpec
    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Minimal valid arguments, one for each ``action`` that needs others. A model that got them wrong reads one."""
    parallel: bool = False
    """Whether calls may run at the same time as others, because they change nothing."""
    _record: ClassVar[type[ToolArguments]]

    def __init_subclass__(cls) -> None:
        cls._record = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        cls.spec = ToolSpec(name=cls.name, description=cls.description, parameters=schema_of(cls._record))

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return await self.execute(self.decode(arguments), context)

    @classmethod
    def decode(cls, arguments: dict[str, Any]) -> ArgumentsT:
        """Read JSON values into the record. Raises ``InvalidArguments``."""
        try:
            record = msgspec.convert(arguments, cls._record)
        except msgspec.ValidationError:
            # Arguments that were not validated, for example because a hook replaced them.
            arguments = validate_arguments(cls.spec, arguments)
            try:
                record = msgspec.convert(arguments, cls._record)
            except msgspec.ValidationError as error:
                raise InvalidArguments(_report(cls.name, [str(error)], arguments)) from None
        return cast("ArgumentsT", record)

    @abstractmethod
    async def execute(self, arguments: ArgumentsT, context: ToolContext) -> ToolResult:
        """Run the call. Cancellation must stop everything that the call started in the foreground."""


# The schema of a record

_TYPES: Mapping[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_NESTED = ("additionalProperties", "required", "properties")


def schema_of(record: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a record, with its fields and keywords always in the same order."""
    fields = [field for field in msgspec.structs.fields(record) if not _is_hidden(field.type)]
    schema: dict[str, Any] = {"type": "object"}
    if required := [field.encode_name for field in fields if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _schema(field.type) for field in fields}
    if record.__struct_config__.forbid_unknown_fields:
        schema["additionalProperties"] = False
    return schema


def _is_hidden(hint: Any) -> bool:
    metas: tuple[Meta, ...] = getattr(hint, "__metadata__", ())
    return any((meta.extra or {}).get("hidden") for meta in metas)


def _schema(hint: Any) -> dict[str, Any]:
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part not in (type(None), msgspec.UnsetType)]
    if origin is Annotated:
        return _with_meta(_schema(parts[0]), parts[1])
    if origin in (Union, types.UnionType):
        return {"type": "number"} if set(parts) == {int, float} else _schema(parts[0])
    if origin is Literal:
        return {"type": "string", "enum": parts}
    if origin is list:
        return {"type": "array", "items": _schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(parts[1]) or True}
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        schema = schema_of(hint)
        return schema if schema["properties"] else {"type": "object"}
    return {}


def _with_meta(schema: dict[str, Any], meta: Meta) -> dict[str, Any]:
    size = "Length" if schema["type"] == "string" else "Items"
    bounds = {"minimum": meta.ge, "maximum": meta.le, f"min{size}": meta.min_length, f"max{size}": meta.max_length}
    nested = {name: schema.pop(name) for name in _NESTED if name in schema}
    if schema.get("items", {}).get("type") in ("array", "object"):
        nested["items"] = schema.pop("items")
    schema |= {name: bound for name, bound in bounds.items() if bound is not None}
    # A long nested schema comes after the description.
    return schema | ({"description": meta.description} if meta.description else {}) | nested


# Validation

ALIASES: Mapping[str, tuple[str, ...]] = {
    "path": ("file_path",),
    "oldText": ("old_string",),
    "newText": ("new_string",),
    "replaceAll": ("replace_all",),
    "command": ("cmd",),
}
"""Names that other agents use for the same parameter. Models that were trained on those use them by mistake."""

MAX_DEPTH = 32
MAX_ECHO_CHARS = 4000
_INVALID = object()


class InvalidArguments(ToolError):
    """The arguments do not fit the schema or the action. The message tells the model what is wrong.

    The loop adds an example of valid arguments, see ``example_of``.
    """


def validate_arguments(spec: ToolSpec, arguments: dict[str, Any]) -> dict[str, Any]:
    """A copy of the arguments with aliases renamed and types repaired. Raises ``InvalidArguments``."""
    problems: list[str] = []
    checked = _check(spec.parameters, arguments, "", problems, 0)
    if problems or not isinstance(checked, dict):
        raise InvalidArguments(_report(spec.name, problems, arguments))
    return cast("dict[str, Any]", checked)


def rename_aliases(schema: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Renames an alias only if the schema has the proper name and not the alias."""
    properties = _properties(schema)
    renamed = dict(arguments)
    for name, aliases in ALIASES.items():
        for alias in aliases:
            if name in properties and alias not in properties and alias in renamed:
                value = renamed.pop(alias)
                renamed.setdefault(name, value)
    return renamed


def required_text(text: str, name: str) -> str:
    """Return a text that must not be blank. Raises ``InvalidArguments`` if it is."""
    if not text.strip():
        raise InvalidArguments(missing_parameter(name))
    return text


# What a model reads after a call that was wrong

_PLACEHOLDERS: Mapping[str, Any] = {"boolean": True, "integer": 1, "number": 1, "array": [], "object": {}}
OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("bash", "shell", "terminal", "run", "run_command", "execute", "command"), "exec"),
    **dict.fromkeys(("cat", "read_file", "view", "open_file", "ls", "list_directory", "list_dir"), "read"),
    **dict.fromkeys(("grep", "glob", "find", "rg", "ripgrep", "search_files"), "search"),
    **dict.fromkeys(("str_replace", "replace", "edit_file", "multi_edit", "str_replace_editor"), "edit"),
    **dict.fromkeys(("write_file", "create_file", "save_file"), "write"),
    **dict.fromkeys(("fetch", "webfetch", "http_get", "open_url"), "web_fetch"),
    **dict.fromkeys(("websearch", "google", "search_web"), "web_search"),
    **dict.fromkeys(("send_message", "send"), "message"),
    **dict.fromkeys(("task", "spawn", "subagent", "delegate"), "sessions_spawn"),
    **dict.fromkeys(("schedule", "reminder", "remind"), "cron"),
}
"""What other agents call the tools that do the same. Models that were trained on those call them by mistake."""
LONGEST_NAME = 64
"""Providers allow no longer name. A search for a similar one takes a time that grows with its length."""
NEAREST_NAMES = 3
LISTED_NAMES = 20


def unknown_tool(name: str, available: Collection[str]) -> str:
    """The result of a call to a tool that does not exist: the nearest names, or all names if none is near."""
    lowered = name.strip().lower()[:LONGEST_NAME]
    names = sorted(available)
    other = OTHER_NAMES.get(lowered)
    same = [other] if other is not None and other in available else []
    near = difflib.get_close_matches(lowered, names, n=NEAREST_NAMES, cutoff=0.6)
    near = list(dict.fromkeys([*same, *near]))[:NEAREST_NAMES]
    text = f"Tool {shortened(name, 80)} not found."
    if near:
        return f"{text} Did you mean {' or '.join(near)}?"
    if not names:
        return f"{text} No tools are available here."
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return f"{text} Available tools: {', '.join(names[:LISTED_NAMES])}{more}."


def example_of(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return minimal valid arguments as JSON: the tool's own for the action that was meant, or made from its schema."""
    examples: Sequence[Mapping[str, Any]] = getattr(tool, "examples", ())
    action = arguments.get("action")
    example = next((one for one in examples if one.get("action") == action), examples[0] if examples else None)
    return json.dumps(_minimal(tool.spec.parameters, 0) if example is None else example, ensure_ascii=False)


def with_example(problem: str, tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The text for a model whose arguments were wrong: the problem, and arguments that are valid."""
    return f"{problem}\n\nValid arguments, for example: {example_of(tool, arguments)}"


def _minimal(schema: Mapping[str, Any], depth: int) -> Any:
    """The smallest value that fits a schema, with the names of the parameters as their texts."""
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[0])
    types = _types(schema)
    kind = types[0] if types else "object" if "properties" in schema else "string"
    if kind == "object" and depth < MAX_DEPTH:
        properties = _properties(schema)
        required = cast("list[str]", schema.get("required", []))
        return {
            name: f"<{name}>"[: properties[name].get("maxLength")]
            if _types(properties[name])[:1] in ([], ["string"]) and not properties[name].get("enum")
            else _minimal(properties[name], depth + 1)
            for name in properties
            if name in required
        }
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return _PLACEHOLDERS.get(kind, "<text>")


def missing_parameter(name: str) -> str:
    names = (name, *ALIASES.get(name, ()))
    return f"Missing required parameter: {name} ({' or '.join(names)})" if len(names) > 1 else f"{name} required"


def _report(tool: str, problems: list[str], arguments: dict[str, Any]) -> str:
    lines = "\n".join(f"  - {problem}" for problem in problems) or "  - root: must be an object"
    echo = json.dumps(arguments, indent=2, ensure_ascii=False, default=str)
    if len(echo) > MAX_ECHO_CHARS:
        echo = f"{echo[:MAX_ECHO_CHARS]}\n… ({len(echo) - MAX_ECHO_CHARS} more characters)"
    return f'Validation failed for tool "{tool}":\n{lines}\n\nReceived arguments:\n{echo}'


def _check(schema: Any, value: Any, path: str, problems: list[str], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return value
    schema = cast("dict[str, Any]", schema)
    where = path or "root"
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        for alternative in alternatives:
            attempt: list[str] = []
            checked = _check(alternative, value, path, attempt, depth + 1)
            if not attempt:
                return checked
        problems.append(f"{where}: matches none of the allowed forms")
        return value
    if types := _types(schema):
        if any(_has_type(name, value) for name in types):
            value = int(value) if "integer" in types and isinstance(value, float) else value
        else:
            value = next((made for name in types if (made := _coerce(name, value)) is not _INVALID), _INVALID)
        if value is _INVALID:
            problems.append(f"{where}: must be {' or '.join(types)}")
            return value
    if "enum" in schema and value not in schema["enum"]:
        problems.append(f"{where}: must be one of {', '.join(json.dumps(option) for option in schema['enum'])}")
    if "const" in schema and value != schema["const"]:
        problems.append(f"{where}: must be {json.dumps(schema['const'])}")
    problems.extend(f"{where}: {problem}" for problem in _out_of_bounds(schema, value))
    if isinstance(value, dict):
        return _check_object(schema, cast("dict[str, Any]", value), path, problems, depth)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_check(schema.get("items"), item, f"{path}[{i}]", problems, depth + 1) for i, item in enumerate(items)]
    return value


def _check_object(
    schema: dict[str, Any], value: dict[str, Any], path: str, problems: list[str], depth: int
) -> dict[str, Any]:
    properties = _properties(schema)
    required = set(cast("list[str]", schema.get("required", [])))
    extra = schema.get("additionalProperties", True)
    checked: dict[str, Any] = {}
    for name, item in rename_aliases(schema, value).items():
        inner = f"{path}.{name}" if path else name
        if name in properties:
            # Models that must fill in every field send null for an argument they do not give.
            if item is not None or "null" in _types(properties[name]):
                checked[name] = _check(properties[name], item, inner, problems, depth + 1)
        elif extra is False:
            problems.append(f"{inner}: is not a parameter of this tool")
        else:
            checked[name] = _check(extra, item, inner, problems, depth + 1)
    for name in properties:
        if name in required and name not in checked:
            problems.append(f"{f'{path}.{name}' if path else name}: {missing_parameter(name)}")
    return checked


def _out_of_bounds(schema: dict[str, Any], value: Any) -> list[str]:
    problems: list[str] = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", -math.inf):
            problems.append(f"must be >= {schema['minimum']}")
        if value > schema.get("maximum", math.inf):
            problems.append(f"must be <= {schema['maximum']}")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            problems.append(f"must have at least {schema['minLength']} characters")
        if len(value) > schema.get("maxLength", math.inf):
            problems.append(f"must have at most {schema['maxLength']} characters")
    if isinstance(value, list) and len(cast("list[Any]", value)) > schema.get("maxItems", math.inf):
        problems.append(f"must have at most {schema['maxItems']} items")
    return problems


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}


def _types(schema: Any) -> list[str]:
    """The types that a schema names. Empty if it names none."""
    declared = cast("dict[str, Any]", schema).get("type") if isinstance(schema, dict) else None
    if isinstance(declared, str):
        return [declared]
    return [str(item) for item in cast("list[Any]", declared)] if isinstance(declared, list) else []


def _has_type(name: str, value: Any) -> bool:
    match name:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, float) and value.is_integer()
            return not isinstance(value, bool) and (isinstance(value, int) or whole)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "null":
            return value is None
        case _:
            return True


def _coerce(name: str, value: Any) -> Any:
    match name, value:
        case "string", bool():
            return "true" if value else "false"
        case "string", int() | float():
            return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
        case (("integer" | "number"), str()):
            return _parse_number(name, value)
        case "boolean", str():
            return {"true": True, "false": False}.get(value.strip().lower(), _INVALID)
        case "boolean", 0 | 1:
            return bool(value)
        case (("array" | "object"), str()):
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                parsed = msgspec.json.decode(value)
                return parsed if _has_type(name, parsed) else _INVALID
            return _INVALID
        case _:
            return _INVALID


def _parse_number(name: str, text: str) -> Any:
    try:
        number = float(text.strip())
    except ValueError:
        return _INVALID
    if not math.isfinite(number) or "_" in text:
        return _INVALID
    if number.is_integer():
        return int(number)
    return number if name == "number" else _INVALID
