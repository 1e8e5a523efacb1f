"""Changes to the text of a configuration that leave every other byte, comments included, as it is.

Nothing here touches the disk.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw.config.keypath import MISSING, KeyPath, KeyPathError, format_path
from openclaw.config.load import KEY as INCLUDE
from openclaw.config.load import Json5Error, Member, Node, Outline, Snapshot, merge_patch, parse_source
from openclaw.config.schema import Config
from openclaw.config.schema.agents import ModelChoice
from openclaw.config.secrets import SENTINEL, inside, partners, redacted, restored
from openclaw.config.validate import ConfigInvalid, Issue, Shape, shape_of

_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_INDENT = re.compile(r"[ \t]*")
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*(?:(?!\*/)[^\n\r])*\*/)*(?://[^\n\r]*)?")
_INLINE_WIDTH = 80
TOKEN_BYTES = 24
MOST_EDITS = 200
"""How many places of a text are changed one after the other. Each change reads the whole text."""


class TooManyEdits(Exception):
    """The text would take too long to change in place."""


class _Style:
    """How a text is laid out, so that what is added looks the same."""

    def __init__(self, outline: Outline) -> None:
        text, first = outline.text, outline.root.members[:1]
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.multiline = "\n" in text or not first
        self.quoted = bool(first) and text[first[0].start] in "\"'"
        self.unit = "  "
        if first and starts_line(text, first[0].start):
            self.unit = indent_at(text, first[0].start) or self.unit

    def key(self, name: str) -> str:
        if not self.quoted and _IDENTIFIER.fullmatch(name):
            return name
        return json.dumps(name, ensure_ascii=False)

    def value(self, value: Any, indent: str) -> str:
        """Returns the value as text. ``indent`` is the indent of the line it begins on."""
        if isinstance(value, dict) and value:
            parts = [f"{self.key(str(key))}: {self.value(item, indent + self.unit)}" for key, item in value.items()]
            return self._enclosed("{}", parts, indent)
        if isinstance(value, list) and value:
            parts = [self.value(item, indent + self.unit) for item in value]
            return self._enclosed("[]", parts, indent)
        return json.dumps(value, ensure_ascii=False)

    def _enclosed(self, brackets: str, parts: list[str], indent: str) -> str:
        inline = ", ".join(parts)
        short = brackets == "[]" and len(inline) <= _INLINE_WIDTH and "\n" not in inline
        if short or not self.multiline:
            return brackets[0] + inline + brackets[1]
        lines = f",{self.newline}".join(indent + self.unit + part for part in parts)
        return f"{brackets[0]}{self.newline}{lines}{self.newline}{indent}{brackets[1]}"


def set_value(text: str, path: Sequence[str | int], value: Any) -> str:
    """Returns the text with the value at the path. Objects that are missing on the way are added."""
    outline = Outline(text)
    style = _Style(outline)
    depth, member = outline.find(path)
    node = member.value if member else outline.root
    if depth == len(path):
        rendered = style.value(value, indent_at(text, member.start if member else 0))
        return text[: node.start] + rendered + text[node.end :]
    segment = path[depth]
    if node.kind == "scalar":
        raise KeyPathError(f"{format_path(path[:depth]) or 'the file'} is a plain value: nothing can be set below it")
    for name in reversed(path[depth + 1 :]):
        if isinstance(name, int) and name != 0:
            raise KeyPathError(f"{format_path(path)}: the list does not exist yet, its first index is 0")
        value = [value] if isinstance(name, int) else {name: value}
    if node.kind == "array":
        if str(segment) != str(len(node.members)):
            raise KeyPathError(
                f"{format_path(path[: depth + 1])}: the list has {len(node.members)} items; "
                f"the next one is [{len(node.members)}]"
            )
        return _insert(text, node, [(None, value)], style)
    return _insert(text, node, [(str(segment), value)], style)


def remove_value(text: str, path: Sequence[str | int]) -> str:
    """Returns the text without the key or list item. It raises KeyError when there is none."""
    outline = Outline(text)
    depth, member = outline.find(path)
    if member is None or depth < len(path):
        raise KeyError(format_path(path))
    _, parent = outline.find(path[:-1])
    node = parent.value if parent else outline.root
    index = next(position for position, other in enumerate(node.members) if other is member)
    previous = node.members[index - 1] if index else None
    start, end = member.start, member.value.end if member.comma is None else member.comma + 1
    drop_comma = previous.comma if previous and member.comma is None else None
    rest_end = _line_end(text, end)
    if starts_line(text, start) and text[rest_end : rest_end + 1] in ("\n", "\r", ""):
        end = rest_end
        start -= len(indent_at(text, start))
        start -= 2 if text[start - 2 : start] == "\r\n" else 1
    else:
        while start > 0 and text[start - 1] in " \t":
            start -= 1
    if drop_comma is None:
        return text[:start] + text[end:]
    return text[:drop_comma] + text[drop_comma + 1 : start] + text[end:]


def merge_text(text: str, patch: dict[str, Any]) -> str:
    """Returns the text after an RFC 7386 merge: null removes, objects merge, everything else replaces.

    Raises ``TooManyEdits`` if the text would have to be read more than ``MOST_EDITS`` times.
    """
    outline = Outline(text)
    if outline.root.kind != "object":
        raise KeyPathError("the file holds a plain value or a list: nothing can be set below it")
    edits = _Edits(outline)
    edits.compare(outline.root, patch, ())
    if len(edits.removed) + len(edits.added) > MOST_EDITS:
        raise TooManyEdits(f"more than {MOST_EDITS} places of the file change")
    text = _replaced(text, edits.replaced)
    for where in edits.removed:
        text = remove_value(text, where)
    for where, values in edits.added:
        outline = Outline(text)
        _, member = outline.find(where)
        text = _insert(text, member.value if member else outline.root, list(values.items()), _Style(outline))
    return text


class _Edits:
    """What a merge changes in a text: each value in place, and what is removed from and added to each object."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._style = _Style(outline)
        self.replaced: list[tuple[Node, str]] = []
        self.removed: list[KeyPath] = []
        self.added: list[tuple[KeyPath, dict[str, Any]]] = []

    def compare(self, node: Node, patch: dict[str, Any], path: KeyPath) -> None:
        members = {member.key: member for member in node.members}
        new: dict[str, Any] = {}
        for key, value in patch.items():
            member = members.get(key)
            if value is None:
                if member is not None:
                    self.removed.append((*path, key))
            elif member is None:
                new[key] = merge_patch(None, value)
            elif isinstance(value, dict) and member.value.kind == "object":
                self.compare(member.value, value, (*path, key))
            else:
                self.replace(member, merge_patch(None, value))
        if new:
            self.added.append((path, new))

    def replace(self, member: Member, value: Any) -> None:
        indent = indent_at(self._outline.text, member.start)
        self.replaced.append((member.value, self._style.value(value, indent)))


def _replaced(text: str, replaced: list[tuple[Node, str]]) -> str:
    """Returns the text with other values in place. The nodes are of one outline of it, and none holds another."""
    pieces: list[str] = []
    position = 0
    for node, value in sorted(replaced, key=lambda one: one[0].start):
        pieces += [text[position : node.start], value]
        position = node.end
    return "".join([*pieces, text[position:]])


def _insert(text: str, node: Node, values: Sequence[tuple[str | None, Any]], style: _Style) -> str:
    """Returns the text with new members at the end of an object or a list, whose items have no keys."""
    last = node.members[-1] if node.members else None
    closing = node.end - 1
    own_lines = starts_line(text, last.start) if last else "\n" in text[node.start : closing]
    if own_lines:
        outer = indent_at(text, closing if starts_line(text, closing) else node.start)
        indent = indent_at(text, last.start) if last else outer + style.unit
    else:
        indent = indent_at(text, node.start)
    rendered = [f"{'' if key is None else f'{style.key(key)}: '}{style.value(value, indent)}" for key, value in values]
    entry = (f",{style.newline}{indent}" if own_lines else ", ").join(rendered)
    if last is None:
        lead = style.newline + indent if own_lines else ""
        spaced = not own_lines and text[node.start + 1] in " \t"
        return text[: node.start + 1] + lead + (" " if spaced else "") + entry + text[node.start + 1 :]
    after = last.value.end if last.comma is None else last.comma + 1
    tail = "," if last.comma is not None else ""
    if not own_lines:
        return text[:after] + ("" if tail else ",") + " " + entry + tail + text[after:]
    line_end = _line_end(text, after)
    added = style.newline + indent + entry + tail
    return text[:after] + ("" if tail else ",") + text[after:line_end] + added + text[line_end:]


def starts_line(text: str, offset: int) -> bool:
    """Whether only blanks stand before the offset on its line."""
    before = text[:offset].rstrip(" \t")
    return before.endswith(("\n", "\r"))


def indent_at(text: str, offset: int) -> str:
    """The blanks at the beginning of the offset's line."""
    begin = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1
    match = _INDENT.match(text, begin)
    return match[0] if match else ""


def _line_end(text: str, offset: int) -> int:
    """Returns the end of the line when only blanks and comments follow the offset, else the offset."""
    match = _REST_OF_LINE.match(text, offset)
    return match.end() if match and text[match.end() : match.end() + 1] in ("\n", "\r", "") else offset


def generated_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def minimal_text(environ: Mapping[str, str]) -> str:
    """The file that a first start writes: local mode, with a generated token unless the environment has a secret."""
    if environ.get("OPENCLAW_GATEWAY_TOKEN"):
        auth = ['mode: "token",']
    elif environ.get("OPENCLAW_GATEWAY_PASSWORD"):
        auth = ['mode: "password",']
    else:
        auth = ['mode: "token",', f'token: "{generated_token()}",']
    lines = ["{", "  gateway: {", '    mode: "local",', "    auth: {", *(f"      {line}" for line in auth)]
    return "\n".join([*lines, "    },", "  },", "}", ""])


def added(before: list[Issue], after: list[Issue]) -> list[Issue]:
    """Returns the findings that a change adds. Older ones may stay, so that other keys can be changed."""
    known = {(issue.path, issue.message) for issue in before}
    return [issue for issue in after if (issue.path, issue.message) not in known]


def editable(before: Snapshot) -> str:
    """Returns the text to edit. It raises ConfigInvalid if the file is not JSON5, so that it is not overwritten."""
    if not before.valid and not before.parsed:
        raise ConfigInvalid(before.issues)
    return before.raw if before.raw and before.raw.strip() else "{\n}\n"


def merged_text(before: Snapshot, patch: dict[str, Any]) -> str:
    """Return the text after a merge. It is rewritten where an edit would go wrong, as with duplicate keys."""
    wanted = merge_patch(before.parsed, patch)
    try:
        text = merge_text(editable(before), patch)
        if parse_source(text)[0] == wanted:
            return text
    except (Json5Error, TooManyEdits):
        pass
    return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"


def shown_values(snapshot: Snapshot) -> dict[str, Any]:
    """Returns what clients see of the file: its values with includes and variables, without secrets and defaults.

    Defaults are in the schema; a form would write them to the file. A model that is given by its name alone is shown
    as the object that the schema describes, because a form draws and changes only that.
    """
    return _long_form(redacted(snapshot.resolved, snapshot.merged), shape_of(Config))


def _long_form(value: Any, shape: Shape | None) -> Any:
    if shape is None:
        return value
    if isinstance(value, str) and shape.record is ModelChoice:
        return {"primary": value}
    if isinstance(value, dict):
        return {key: _long_form(item, inside(shape, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_long_form(item, shape.items) for item in value]
    return value


def saved_text(raw: str, before: Snapshot) -> str:
    """Returns the text to write when a client hands back, changed or not, what it was shown of the file.

    What equals the shown value stays as the file has it: a secret, a ``${NAME}``, the content of an included file. A
    form hands back plain JSON, so the file keeps its comments and its layout. Any other text takes the file's place.
    """
    try:
        incoming, _ = parse_source(raw)
        if not isinstance(incoming, dict):
            return raw
        wanted = restored(_taken_over(incoming, shown_values(before), before.parsed), before.parsed)
        text = with_secrets(raw, before.parsed)
    except Json5Error:
        return raw
    from_form = raw.rstrip() == json.dumps(incoming, indent=2, ensure_ascii=False)
    plain_over = _is_json(raw) and (wanted == before.parsed or not _is_json(before.raw or ""))
    if parse_source(text)[0] == wanted and not (before.parsed and (from_form or plain_over)):
        return text
    return merged_text(before, _difference(before.parsed, wanted))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _taken_over(incoming: Any, shown: Any, own: Any) -> Any:
    """Returns the incoming value with the file's own value wherever it equals what was shown.

    It is MISSING when the file has no such value of its own because an included file has it.
    """
    if incoming == shown:
        return own
    if isinstance(incoming, dict) and (own is MISSING or isinstance(own, dict)):
        told: dict[str, Any] = shown if isinstance(shown, dict) else {}
        stored: dict[str, Any] = {} if own is MISSING else own
        parts = {
            key: _taken_over(value, told.get(key, MISSING), stored.get(key, MISSING)) for key, value in incoming.items()
        }
        # What was shown has the keys of an included file in place of its name.
        if INCLUDE in stored and any(key in told and key not in stored for key in incoming):
            parts.setdefault(INCLUDE, stored[INCLUDE])
        return {key: part for key, part in parts.items() if part is not MISSING}
    if isinstance(incoming, list) and isinstance(shown, list) and isinstance(own, list) and len(shown) == len(own):
        pairs = partners(incoming, list(zip(shown, own, strict=True)), key=lambda pair: pair[0])
        return [
            item if pair is MISSING else _taken_over(item, *pair) for item, pair in zip(incoming, pairs, strict=True)
        ]
    return incoming


def _difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the RFC 7386 patch that makes the old values the new ones."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key, MISSING)
        if isinstance(value, dict) and isinstance(before, dict):
            if below := _difference(before, value):
                patch[key] = below
        elif value != before:
            patch[key] = value
    return patch


def with_secrets(raw: str, stored: dict[str, Any]) -> str:
    """Returns the text with each sentinel replaced by the stored secret."""
    if SENTINEL not in raw:
        return raw
    try:
        parsed, outline = parse_source(raw)
    except Json5Error:
        return raw
    edits = _Edits(outline)
    for path, value in _sentinels(parsed, restored(parsed, stored), ()):
        _, member = outline.find(path)
        if member is not None:
            edits.replace(member, value)
    return _replaced(raw, edits.replaced)


def _sentinels(redacted: Any, full: Any, path: KeyPath) -> list[tuple[KeyPath, str]]:
    if isinstance(redacted, dict):
        return [found for key in redacted for found in _sentinels(redacted[key], full[key], (*path, key))]
    if isinstance(redacted, list):
        return [found for i, item in enumerate(redacted) for found in _sentinels(item, full[i], (*path, i))]
    return [(path, full)] if redacted != full else []
