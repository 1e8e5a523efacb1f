"""A page as text: its accessibility tree with a ref for each element that can be acted on.

The text is the page's, so a name cannot leave its quotes: it stands in one line, with quotes and backslashes escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

MOST_CHARS = 80_000
EFFICIENT_CHARS = 10_000
EFFICIENT_DEPTH = 6
MOST_NODES = 20_000
MOST_REFS = 2000
MOST_DEPTH = 100
LONGEST_NAME = 900
LONGEST_URL = 300

INTERACTIVE = frozenset(
    {
        *("button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio"),
        *("option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"),
        *("date", "datetime", "inputtime", "colorwell"),
    }
)
_WHOLE = frozenset({"date", "datetime", "inputtime"})
"""Fields of several parts. A value is given to the whole."""
CONTENT = frozenset(
    {
        *("article", "cell", "columnheader", "gridcell", "heading", "iframe", "img", "listitem", "main"),
        *("navigation", "region", "rowheader"),
    }
)
"""Roles that get a ref when they have a name."""
_DROPPED = frozenset(
    {
        *("inlinetextbox", "linebreak", "none", "generic", "presentation", "statictext", "text", "labeltext"),
        "menulistpopup",
    }
)
_STATES = (
    *("checked", "pressed", "expanded", "selected", "disabled", "required", "focused", "invalid", "readonly"),
    "level",
)
_ROLES = {"rootwebarea": "document", "statictext": "text", "textfield": "textbox", "image": "img", "iframe": "iframe"}


Element: TypeAlias = tuple[str, int]
"""The session that knows an element, and its number there. Numbers repeat from process to process."""


class ListedElement(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An element of a page in a list of the format ``aria``."""

    ref: str
    role: str = ""
    name: str
    value: str = ""
    backend_id: int = msgspec.field(name="backendDOMNodeId")
    depth: int


class RefNode(NamedTuple):
    """What a ref stands for."""

    backend_id: int
    frame_id: str
    role: str
    name: str
    session: str = ""
    """The session of the frame, if it is of another site and runs in a process of its own."""


class SnapshotOptions(msgspec.Struct, frozen=True, kw_only=True):
    interactive: bool = False
    """Only elements that can be acted on, as a flat list."""
    compact: bool = False
    """Without containers that say nothing."""
    depth: int = MOST_DEPTH
    max_chars: int = MOST_CHARS


class PageSnapshot(NamedTuple):
    text: str
    refs: dict[str, RefNode]
    truncated: bool
    lines: int


class _Node(NamedTuple):
    role: str
    name: str
    value: str
    states: tuple[str, ...]
    url: str
    backend_id: int
    frame_id: str
    session: str
    children: list[str]
    ignored: bool

    @property
    def ref(self) -> RefNode:
        return RefNode(self.backend_id, self.frame_id, self.role, self.name, self.session)


class _Line(NamedTuple):
    depth: int
    text: str
    container: bool
    """It says nothing by itself and can be left out if nothing stands below it."""
    ref: str = ""
    said: str = ""
    """The text itself, if the line is nothing else."""


class AccessibilityTree:
    """The nodes of a page and of the frames in it, joined where a frame stands in its parent."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._by_element: dict[Element, str] = {}
        self.roots: list[str] = []
        self.count = 0

    def add_frame(
        self, frame_id: str, nodes: Sequence[Mapping[str, Any]], owner: Element | None, session: str = ""
    ) -> None:
        """Adds the nodes of a frame. ``owner`` is the element that shows it, None for the page itself."""
        first = ""
        for raw in nodes[: max(0, MOST_NODES - self.count)]:
            key = f"{frame_id}/{raw.get('nodeId')}"
            first = first or key
            made = _node(raw, frame_id, session)
            self._nodes[key] = made
            if made.backend_id:
                self._by_element.setdefault((session, made.backend_id), key)
            self.count += 1
        if not first:
            return
        shown_in = self._by_element.get(owner) if owner is not None else None
        if shown_in is None:
            self.roots.append(first)
        else:
            self._nodes[shown_in].children.append(first)

    def below(self, element: Element) -> AccessibilityTree:
        """The part of the tree below one element. It is empty if the element is not in the tree."""
        part = AccessibilityTree()
        part._nodes, part._by_element = self._nodes, self._by_element
        part.roots = [key] if (key := self._by_element.get(element)) else []
        return part

    def render(self, options: SnapshotOptions) -> PageSnapshot:
        refs: dict[str, RefNode] = {}
        lines: list[_Line] = []
        seen: set[str] = set()
        stack = [(key, 0, "") for key in reversed(self.roots)]
        while stack:
            key, depth, above = stack.pop()
            node = self._nodes.get(key)
            if node is None or key in seen:
                continue
            seen.add(key)
            if node.role == "text":
                if node.name and not node.ignored and not options.interactive and node.name not in above:
                    _add_text(lines, depth, node.name)
                continue
            line = None if node.ignored else _line(node, depth, refs, options)
            if line is not None:
                lines.append(line)
                if node.role in _WHOLE or (node.role in INTERACTIVE and not _has_interactive(self._nodes, node)):
                    continue  # The name already says what stands below.
            below = depth if line is None or options.interactive else depth + 1
            if below <= min(options.depth, MOST_DEPTH):
                # A text that the name of its element has already said is left out.
                name = above if line is None else node.name
                stack.extend((child, below, name) for child in reversed(node.children))
        return _cut(_without_empty(lines) if options.compact else lines, refs, options.max_chars)

    def listed(self, limit: int) -> tuple[list[ListedElement], dict[str, RefNode]]:
        """The nodes as records, in the order of the page, with refs ``ax1``, ``ax2``…"""
        rows: list[ListedElement] = []
        refs: dict[str, RefNode] = {}
        stack = [(key, 0) for key in reversed(self.roots)]
        while stack and len(rows) < limit:
            key, depth = stack.pop()
            node = self._nodes.get(key)
            if node is None:
                continue
            if not node.ignored and (node.name or node.role not in _DROPPED):
                ref = f"ax{len(rows) + 1}"
                element = ListedElement(
                    ref=ref, role=node.role, name=node.name, value=node.value, backend_id=node.backend_id, depth=depth
                )
                rows.append(element)
                refs[ref] = node.ref
            stack.extend((child, depth + 1) for child in reversed(node.children[:MOST_NODES]))
        return rows, refs


def _node(raw: Mapping[str, Any], frame_id: str, session: str) -> _Node:
    role = _text(raw.get("role")).lower()
    properties = {str(row.get("name")): _value(row) for row in _dicts(raw.get("properties"))}
    states = tuple(
        word if value is True or value == "true" else f"{word}={value}"
        for word in _STATES
        if (value := properties.get(word)) not in (None, False, "false", "")
    )
    return _Node(
        role=_ROLES.get(role, role),
        name=_one_line(_text(raw.get("name")), LONGEST_NAME),
        value=_one_line(_text(raw.get("value")), LONGEST_NAME),
        states=states,
        url=_one_line(str(properties.get("url") or ""), LONGEST_URL),
        backend_id=int(raw.get("backendDOMNodeId") or 0),
        frame_id=frame_id,
        session=session,
        children=[f"{frame_id}/{child}" for child in raw.get("childIds") or []],
        ignored=bool(raw.get("ignored")),
    )


def _line(node: _Node, depth: int, refs: dict[str, RefNode], options: SnapshotOptions) -> _Line | None:
    role = node.role
    acts = role in INTERACTIVE
    if options.interactive and not acts:
        return None
    if role in _DROPPED or (role == "document" and not node.name and not depth):
        return None
    words = [role]
    if node.name:
        words.append(quoted(node.name))
    words += [f"[{state}]" for state in node.states]
    ref = ""
    if node.backend_id and len(refs) < MOST_REFS and (acts or (node.name and role in CONTENT)):
        ref = f"e{len(refs) + 1}"
        refs[ref] = node.ref
        words.append(f"[ref={ref}]")
    if node.value and node.value != node.name:
        words.append(f"value={quoted(node.value)}")
    if node.url and role == "link":
        words.append(f"url={quoted(node.url)}")
    bare = not node.name and not acts and not node.value
    return _Line(0 if options.interactive else depth, f"- {' '.join(words)}", bare, ref)


def _add_text(lines: list[_Line], depth: int, text: str) -> None:
    """Adds a text to the line of the text before it, if they stand side by side."""
    if lines and lines[-1].depth == depth and lines[-1].said and len(lines[-1].said) < LONGEST_NAME:
        text = f"{lines.pop().said} {text}"
    lines.append(_Line(depth, f"- text: {quoted(text)}", container=False, said=text))


def _has_interactive(nodes: Mapping[str, _Node], node: _Node) -> bool:
    """Whether something else to act on stands inside, such as the options of a list."""
    stack, looked_at = list(node.children), 0
    while stack and looked_at < 200:
        looked_at += 1
        inner = nodes.get(stack.pop())
        if inner is None:
            continue
        if inner.role in INTERACTIVE and not inner.ignored:
            return True
        stack.extend(inner.children)
    return False


def _without_empty(lines: Sequence[_Line]) -> list[_Line]:
    lines_left: list[_Line] = []
    for line in reversed(lines):
        if line.container and not (lines_left and lines_left[-1].depth > line.depth):
            continue
        lines_left.append(line)
    return lines_left[::-1]


def _cut(lines: Sequence[_Line], refs: dict[str, RefNode], most: int) -> PageSnapshot:
    shown: list[str] = []
    refs_left: dict[str, RefNode] = {}
    size = 0
    for line in lines:
        text = f"{'  ' * line.depth}{line.text}"
        size += len(text) + 1
        if size > most:
            left = f"[{len(lines) - len(shown)} more lines; raise maxChars, or use selector, depth or interactive]"
            return PageSnapshot("\n".join([*shown, left]), refs_left, True, len(shown))
        shown.append(text)
        if line.ref:
            refs_left[line.ref] = refs[line.ref]
    return PageSnapshot("\n".join(shown) or "(nothing to see)", refs_left, False, len(shown))


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _one_line(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _text(field: Any) -> str:
    value = field.get("value") if isinstance(field, dict) else None
    return "" if value is None or isinstance(value, bool) else str(value)[: LONGEST_NAME * 4]


def _value(field: Mapping[str, Any]) -> Any:
    inner = field.get("value")
    return inner.get("value") if isinstance(inner, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    items: list[Any] = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict)]
