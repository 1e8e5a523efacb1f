"""What a tool is: the ``Tool`` protocol, the context of a call, its arguments, its result and its error.

``validate_arguments`` checks what a model gave against the tool's JSON Schema and repairs common small mistakes. It
understands the subset of JSON Schema that tools use. Other keywords accept anything.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from openclaw.memory.embedders import Pay, unpaid
from openclaw.messages import TextBlock, ToolSpec, UserBlock
from openclaw.path_opener import PathGuard, PathOpener
from openclaw.rights import GUEST_CALLER, Caller

if TYPE_CHECKING:
    from openclaw.tools.exec.settings import ExecOverrides
    from openclaw.tools.sandbox.boundary import Boundary


LONGEST_RESULT = 100_000
"""The text of a longer result is stored as a blob, and the message has only its beginning and its end."""
FAILED_STATUSES = ("error", "failed", "timeout", "forbidden")


class ToolResult(msgspec.Struct, kw_only=True):
    content: list[UserBlock]
    details: Any = msgspec.UNSET
    """Facts for UIs and logs, as JSON values. A ``details["status"]`` of ``FAILED_STATUSES`` marks a failure."""

    @property
    def failed(self) -> bool:
        return reports_failure(self.details)


def reports_failure(details: Any) -> bool:
    """Whether the details of a tool's result say that the tool failed."""
    return isinstance(details, dict) and details.get("status") in FAILED_STATUSES


class ToolError(Exception):
    """A failure that the model should read. It becomes a tool result and does not end the run.

    A tool may let ``PathRefused`` of the opener through. It counts as the same.
    """


class ToolContext(msgspec.Struct, kw_only=True):
    """What a tool call knows about its run."""

    agent_id: str
    session_key: str
    workspace: Path
    run_id: str = ""
    call_id: str = ""
    model_sees_images: bool = True
    result_chars: int = LONGEST_RESULT
    """A result of at most this many characters reaches the model whole."""
    caller: Caller = GUEST_CALLER
    """Whose run the call belongs to. It decides what the tool may reach."""
    owner_files: PathGuard | None = None
    """Refuses the files that are the owner's. None in the runs of those who may open them."""
    env: Mapping[str, str] = {}
    """Extra variables for commands. The Gateway's own environment takes precedence."""
    update: Callable[[ToolResult], None] | None = None
    """Reports progress of a long call to clients. It is not stored."""
    notify: Callable[[str], None] | None = None
    """Queues a line for the session's next turn, for example when a background process exits."""
    wake: Callable[[str], None] | None = None
    """Like ``notify``, but starts the next turn at once, so that the person is told."""
    pay: Pay = unpaid
    """Makes the calls of an embedder and charges them to the session."""
    exec_overrides: Callable[[], Awaitable[ExecOverrides | None]] | None = None
    """Returns the present ``/exec`` and ``/elevated`` settings. A change counts for a run that is under way, too."""

    sandbox: Boundary | None = None
    """The session's sandbox. A tool that opens a file which the call names opens it with the sandbox's opener."""
    why_missing: Callable[[str], str | None] | None = None
    """Says why a tool that the model called is not there, if there is more to say than that."""

    @property
    def process_scope(self) -> str:
        """Names whose background commands the call sees: those of its own session, also after a reset.

        Others must not see what runs for the owner, nor write to it, even where they share a session.
        """
        others = "" if self.caller.trusted else "|others"
        return f"{self.agent_id}|{self.session_key}{others}"

    @property
    def opener(self) -> PathOpener:
        """Opens files that a call names: those that the agent's file tools can open, or fewer."""
        return self.guarded(self.sandbox.opener if self.sandbox else PathOpener(self.workspace, confine=True))

    def guarded(self, opener: PathOpener) -> PathOpener:
        """Returns the opener for this call: in the runs of others it does not open what is the owner's."""
        return opener if self.owner_files is None else opener.guarded(self.owner_files)

    def note(self, text: str) -> None:
        """Tells the session at its next turn, if there is a session to tell."""
        if self.notify is not None:
            self.notify(text)

    def announce(self, text: str) -> None:
        """Tells the session at once, if that is possible, otherwise at its next turn."""
        (self.wake or self.note)(text)


class Tool(Protocol):
    @property
    def spec(self) -> ToolSpec: ...

    @property
    def summary(self) -> str:
        """One line for the tool list of the system prompt."""
        ...

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """Runs the call. Cancellation must stop everything the call started in the foreground."""
        ...


Run = Callable[[dict[str, Any], ToolContext], Awaitable[ToolResult]]


def text_result(text: str, details: Any = msgspec.UNSET) -> ToolResult:
    return ToolResult(content=[TextBlock(text=text)], details=details)


def json_result(details: Any) -> ToolResult:
    """A result that says the same to the model, as JSON text, and to clients."""
    return text_result(indented(details), details)


def indented(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


# Arguments

ALIASES: Mapping[str, tuple[str, ...]] = {
    "path": ("file_path",),
    "oldText": ("old_string",),
    "newText": ("new_string",),
    "command": ("cmd",),
}
"""Names that other agents use for the same parameter. Models that were trained on those use them by mistake."""

MAX_DEPTH = 32
MAX_ECHO_CHARS = 4000
_INVALID = object()


class InvalidArguments(Exception):
    """The arguments are not valid. The message tells the model which values are wrong and what was received."""


def validate_arguments(spec: ToolSpec, arguments: dict[str, Any]) -> dict[str, Any]:
    """A copy of the arguments with aliases renamed and types repaired. Raises ``InvalidArguments``."""
    problems: list[str] = []
    renamed = rename_aliases(spec.parameters, arguments)
    checked = _check(spec.parameters, renamed, "", problems, 0)
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


def required_text(arguments: Mapping[str, Any], name: str, *, allow_blank: bool = False) -> str:
    """A text argument under its proper name or an alias. Raises ``ToolError`` if it is missing."""
    for key in (name, *ALIASES.get(name, ())):
        value = arguments.get(key)
        if isinstance(value, str) and (allow_blank or value.strip()):
            return value
    raise ToolError(missing_parameter(name))


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
            found: list[str] = []
            checked = _check(alternative, value, path, found, depth + 1)
            if not found:
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
    for name, item in value.items():
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
    found: list[str] = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", -math.inf):
            found.append(f"must be >= {schema['minimum']}")
        if value > schema.get("maximum", math.inf):
            found.append(f"must be <= {schema['maximum']}")
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            found.append(f"must have at least {schema['minLength']} characters")
        if len(value) > schema.get("maxLength", math.inf):
            found.append(f"must have at most {schema['maxLength']} characters")
    if isinstance(value, list) and len(cast("list[Any]", value)) > schema.get("maxItems", math.inf):
        found.append(f"must have at most {schema['maxItems']} items")
    return found


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
