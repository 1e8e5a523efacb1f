"""Makes the reference pages from the code: ``python -m scripts.reference``. ``make docs`` runs it.

A page marks its generated parts with ``<!-- generated: name -->`` and ``<!-- end -->``; the words around them are
written by hand. ``tests/test_docs.py`` fails when a part is not what the code says.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from openclaw.cli.command import GATEWAY, Action, Flag, Group
from openclaw.cli.main import ALIASES, TABLE, find_command
from openclaw.config.reference import cell, docs_of, generated
from openclaw.gateway.assemble import METHOD_FAMILIES
from openclaw.gateway.auth.authorise import EVENT_RIGHTS, METHOD_RIGHTS
from openclaw.gateway.server.frames import OLDEST_PROTOCOL
from openclaw.gateway.server.registry import ADVERTISED, Method, MethodTable
from openclaw.inbound.commands.registry import CATEGORIES, COMMANDS, Command
from openclaw.rights import Right, scope_for

DOCS = Path(__file__).parent.parent / "docs"


def command_index() -> Iterator[str]:
    yield "| command | what it does |"
    yield "| --- | --- |"
    for name, _, help_ in TABLE:
        yield f"| [`{name}`](#{name}) | {cell(help_)} |"


def commands() -> Iterator[str]:
    """Every command of the terminal, with its options and an example."""
    other_names = {real: alias for alias, real in ALIASES.items()}
    for name, _, help_ in TABLE:
        command = find_command(name)
        assert command is not None
        yield f"\n## {name}\n\n{_sentence(help_)}"
        if name in other_names:
            yield f"`openclaw {other_names[name]}` is the same."
        if isinstance(command, Group):
            yield from _group(f"openclaw {name}", command)
        else:
            yield from _about(command)
            yield from _options(command)


def _group(prog: str, group: Group) -> Iterator[str]:
    if group.default is not None:
        yield f"`{prog}` alone is `{prog} {group.default}`."
    names: dict[int, list[str]] = {}
    for name, action in group.actions.items():
        names.setdefault(id(action), []).append(name)
    for name, action in group.actions.items():
        same = names[id(action)]
        if name == same[0]:
            yield f"\n### {prog.removeprefix('openclaw ')} {name}\n\n{_sentence(action.help)}"
            if len(same) > 1:
                yield f"Also {', '.join(f'`{other}`' for other in same[1:])}."
            yield from _about(action)
            yield from _options(action)


def _about(action: Action) -> Iterator[str]:
    if action.about:
        yield f"\n{action.about}"


def _options(action: Action) -> Iterator[str]:
    own = [flag for flag in action.flags if flag not in GATEWAY]
    if own:
        yield "\n| option | meaning |\n| --- | --- |"
        for flag in own:
            yield f"| `{cell(_form(flag))}` | {cell(_meaning(flag))} |"
    if any(flag in GATEWAY for flag in action.flags):
        yield "\nAsks the Gateway: [its options](#which-gateway) work too."
    examples = "\n".join(line.strip() for line in action.example.splitlines())
    yield f"\n```sh\n{examples}\n```"


def _form(flag: Flag) -> str:
    """The option as one writes it: ``-t, --target TO``."""
    value = flag.options.get("metavar")
    if value is None and "choices" in flag.options:
        value = "|".join(str(choice) for choice in flag.options["choices"])
    shown = " ".join(value) if isinstance(value, tuple) else str(value or "")
    if not flag.names[0].startswith("-"):
        word = shown or flag.names[0].upper()
        many = flag.options.get("nargs") in ("*", "+")
        optional = flag.options.get("nargs") in ("?", "*")
        word += " …" if many else ""
        return f"[{word}]" if optional else word
    return f"{', '.join(flag.names)} {shown}".strip()


def _meaning(flag: Flag) -> str:
    text = str(flag.options.get("help") or "")
    if "%(default)s" in text:
        text = text.replace("%(default)s", str(flag.options.get("default")))
    # A word in angle brackets would be taken as HTML.
    text = re.sub(r"[\w-]*<\w+>", r"`\g<0>`", text.replace("%%", "%"))
    return f"{text} (required)".strip() if flag.options.get("required") else text


def chat_commands() -> Iterator[str]:
    """Every command of a chat, by category."""
    for category in CATEGORIES:
        yield f"\n### {category}\n\n| command | what it does | right |\n| --- | --- | --- |"
        for command in COMMANDS:
            if command.category == category:
                yield f"| `{cell(_chat_form(command))}` | {_chat_meaning(command)} | {_chat_rights(command)} |"


def _chat_form(command: Command) -> str:
    return f"/{command.name} {command.usage}".strip()


def _chat_meaning(command: Command) -> str:
    parts = [cell(command.help)]
    if command.aliases:
        parts.append(f"Also {', '.join(f'`/{alias}`' for alias in command.aliases)}.")
    if command.group_only:
        parts.append("In groups only.")
    if command.switch:
        parts.append(f"Only with `commands.{command.switch}: true`.")
    if command.directive:
        parts.append("May stand inside other text.")
    elif command.shortcut:
        parts.append("Also answered inside other text.")
    return " ".join(parts)


def _chat_rights(command: Command) -> str:
    others = {word: right for word, right in command.words.items() if right != command.right}
    shown = [command.right, *(f"`{word}`: {right}" for word, right in others.items())]
    return ", ".join(shown)


def _methods(protocol: int = OLDEST_PROTOCOL) -> dict[str, Method]:
    """The methods of a version by name: those that came with it, in the form that it gave them."""
    table = MethodTable(*(family.methods for family in METHOD_FAMILIES))
    return {method.name: method for method in table.registered() if method.since == protocol}


def protocol_4() -> Iterator[str]:
    """Every method that protocol 4 adds, and those to which it gives another form."""
    older = _methods()
    yield "| method | protocol 3 | right | parameters | result | answers |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, method in sorted(_methods(4).items()):
        form = "another form" if name in older else "unknown"
        result = cell(_type_text(method.result, "an object"))
        right = f"`{scope_for(METHOD_RIGHTS[name])}`"
        yield f"| `{name}` | {form} | {right} | {_params(method)} | {result} | {_first_sentence(method)} |"


def methods() -> Iterator[str]:
    """Every method of the Gateway that answers, by the right it needs."""
    found = _methods()
    rights: list[Right] = ["read", "write", "pairing", "approvals", "admin", "node"]
    for right in rights:
        names = sorted(name for name, needed in METHOD_RIGHTS.items() if needed == right and name in found)
        who = "the role `node`" if right == "node" else f"the scope `{scope_for(right)}`"
        yield f"\n## {right}\n\nThey need {who}.\n\n| method | parameters | result | answers |"
        yield "| --- | --- | --- | --- |"
        for name in names:
            method = found[name]
            result = cell(_type_text(method.result, "an object"))
            yield f"| `{name}` | {_params(method)} | {result} | {_first_sentence(method)} |"


def results() -> Iterator[str]:
    """Every record that a method answers with, and those inside it, by name."""
    records: dict[str, type[msgspec.Struct]] = {}
    for method in [*_methods().values(), *_methods(4).values()]:
        _collect_records(method.result, records)
    for name in sorted(records):
        record = records[name]
        docs = docs_of(record)
        yield f"\n### {name}\n\n{_docstring(record)}\n"
        for field in msgspec.structs.fields(record):
            mark = "" if field.required else "?"
            meaning = docs.get(field.name, "").replace("``", "`")
            yield " ".join(f"- `{field.encode_name}{mark}`: {_type_text(field.type)}. {meaning}".split())


def _collect_records(kind: Any, records: dict[str, type[msgspec.Struct]]) -> None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind.__name__ not in records:
            records[kind.__name__] = kind
            for field in msgspec.structs.fields(kind):
                _collect_records(field.type, records)
    else:
        for part in get_args(kind):
            _collect_records(part, records)


_TYPE_NAMES: Mapping[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    msgspec.Raw: "JSON",
    Any: "JSON",
}


def _type_text(kind: Any, any_text: str = "JSON") -> str:
    """Name a type for people: ``list of [`SessionRow`](#sessionrow)``, ``text or null``."""
    if kind is Any:
        return any_text
    if kind in _TYPE_NAMES:
        return _TYPE_NAMES[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[`{kind.__name__}`](#{kind.__name__.lower()})"
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_text(parts[0])
    if origin is Literal:
        return " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(part) for part in parts if part is not msgspec.UnsetType)
    if origin is not None and issubclass(origin, dict):
        return "object" if parts[1] is Any else f"object of {_type_text(parts[1])}"
    if origin is not None:
        return f"list of {_type_text(parts[0])}"
    return "object" if isinstance(kind, type) and issubclass(kind, dict) else "JSON"


def _docstring(record: type) -> str:
    return " ".join((inspect.getdoc(record) or "").replace("``", "`").split())


def _params(method: Method) -> str:
    record = method.params
    if not (isinstance(record, type) and issubclass(record, msgspec.Struct)):
        return "an object"
    fields = msgspec.structs.fields(record)
    shown = [f"`{field.encode_name}`" if field.required else f"`{field.encode_name}?`" for field in fields]
    return ", ".join(shown) or "none"


def _first_sentence(method: Method) -> str:
    text = " ".join((inspect.getdoc(method.handler) or "").split("\n\n")[0].split()).replace("``", "`")
    return cell(re.split(r"(?<=\.)\s", text)[0])


def absent_methods() -> Iterator[str]:
    known = _methods()
    yield ", ".join(f"`{name}`" for name in ADVERTISED if name not in known and name != "connect") + "."


def events() -> Iterator[str]:
    yield "| event | who gets it |"
    yield "| --- | --- |"
    for name, right in EVENT_RIGHTS.items():
        yield f"| `{name}` | {'everyone' if right == 'everyone' else f'`{_who(right)}`'} |"


def _who(right: Right) -> str:
    return "node" if right == "node" else scope_for(right)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


PAGES: Mapping[str, Mapping[str, Callable[[], Iterable[str]]]] = {
    "commands.md": {"list of commands": command_index, "commands": commands},
    "chat-commands.md": {"chat commands": chat_commands},
    "methods.md": {
        "methods": methods,
        "results": results,
        "absent methods": absent_methods,
        "events": events,
        "protocol 4": protocol_4,
    },
}


def made(name: str) -> tuple[str, str]:
    """A page as it stands, and as the code says it should."""
    text = (DOCS / name).read_text("utf-8")
    return text, generated(text, PAGES[name])


def main() -> None:
    for name in PAGES:
        old, new = made(name)
        if new != old:
            (DOCS / name).write_text(new, "utf-8")


if __name__ == "__main__":
    main()
