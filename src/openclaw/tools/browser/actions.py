"""Actions on a page: clicks, keys, forms and waiting. Each function is one kind of ``request``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from openclaw.tools.arguments import Hidden, Number, ToolArguments
from openclaw.tools.base import ToolError
from openclaw.tools.browser.snapshot import RefNode
from openclaw.tools.browser.tab import CdpError, CdpRefused, Tab

SETTLE_BEGIN_S, SHORTLY_S = 0.25, 0.05
"""How long it is waited for a navigation that an action may have begun."""
_MAY_NAVIGATE = ("click", "press", "drag", "select", "evaluate")

LONGEST_TEXT = 50_000
MOST_SLOW_CHARS = 500
MOST_FIELDS = 100
LONGEST_WAIT_MS = 60_000
MOST_RESULT_CHARS = 20_000
_KEY_DELAY_S = 0.05
_POLL_S = 0.1
_DRAG_STEPS = 8
_MODIFIERS = {"alt": 1, "control": 2, "ctrl": 2, "meta": 4, "command": 4, "shift": 8, "controlormeta": 2}


class KeyPress(NamedTuple):
    key: str
    code: str
    number: int
    text: str = ""


_KEYS: dict[str, KeyPress] = {
    key.key.lower(): key
    for key in (
        KeyPress("Enter", "Enter", 13, "\r"),
        KeyPress("Tab", "Tab", 9),
        KeyPress("Escape", "Escape", 27),
        KeyPress("Backspace", "Backspace", 8),
        KeyPress("Delete", "Delete", 46),
        KeyPress("ArrowLeft", "ArrowLeft", 37),
        KeyPress("ArrowUp", "ArrowUp", 38),
        KeyPress("ArrowRight", "ArrowRight", 39),
        KeyPress("ArrowDown", "ArrowDown", 40),
        KeyPress("Home", "Home", 36),
        KeyPress("End", "End", 35),
        KeyPress("PageUp", "PageUp", 33),
        KeyPress("PageDown", "PageDown", 34),
        KeyPress("Insert", "Insert", 45),
        *(KeyPress(f"F{number}", f"F{number}", 111 + number) for number in range(1, 13)),
    )
} | {
    "space": KeyPress(" ", "Space", 32, " "),
    "esc": KeyPress("Escape", "Escape", 27),
    "return": KeyPress("Enter", "Enter", 13, "\r"),
}

_COVERED = """function() {
  const box = this.getBoundingClientRect();
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  let hit = this.getRootNode().elementFromPoint ? this.getRootNode().elementFromPoint(x, y) : null;
  hit = hit || document.elementFromPoint(x, y);
  if (!hit || hit === this || this.contains(hit) || hit.contains(this)) return "";
  for (const label of this.labels || []) if (label.contains(hit)) return "";
  if (hit.shadowRoot || this.getRootNode() !== document) return "";
  const name = (hit.getAttribute("aria-label") || hit.id || hit.className || "").toString().slice(0, 60);
  return hit.tagName.toLowerCase() + (name ? " " + name : "");
}"""
"""What lies above the middle of an element and would get a click instead of it. Empty: nothing."""
_STATE = """function() {
  const tag = this.tagName.toLowerCase(), type = (this.type || "").toLowerCase();
  return {tag, type, disabled: !!this.disabled, readonly: !!this.readOnly, editable: this.isContentEditable,
          checked: !!this.checked || this.getAttribute("aria-checked") === "true"};
}"""
_SELECT_ALL = """function() {
  this.focus();
  if (this.isContentEditable) {
    const range = document.createRange(), chosen = getSelection();
    range.selectNodeContents(this); chosen.removeAllRanges(); chosen.addRange(range);
    return (this.textContent || "").length;
  }
  try { this.select(); } catch (e) { /* Not every kind of field has a selection. */ }
  return (this.value || "").length;
}"""
_SET_VALUE = """function(value) {
  const owner = Object.getPrototypeOf(this);
  const setter = Object.getOwnPropertyDescriptor(owner, "value");
  if (setter && setter.set) setter.set.call(this, value); else this.value = value;
  this.dispatchEvent(new Event("input", {bubbles: true}));
  this.dispatchEvent(new Event("change", {bubbles: true}));
  return this.value;
}"""
_CHOOSE = """function(wanted) {
  if (this.tagName.toLowerCase() !== "select") return {error: "the element is not a list of options"};
  const options = [...this.options], chosen = [];
  for (const word of wanted) {
    const option = options.find(o => o.value === word) || options.find(o => o.label.trim() === word.trim());
    if (!option) return {error: "unknown option " + JSON.stringify(word).slice(0, 80),
                         known: options.slice(0, 50).map(o => o.label.trim().slice(0, 60))};
    chosen.push(option);
  }
  if (!this.multiple && chosen.length > 1) return {error: "only one option can be chosen"};
  for (const option of options) option.selected = chosen.includes(option);
  this.dispatchEvent(new Event("input", {bubbles: true}));
  this.dispatchEvent(new Event("change", {bubbles: true}));
  return {values: chosen.map(o => o.value)};
}"""
_HAS_TEXT = "(text) => !!document.body && document.body.innerText.includes(text)"
_HAS_ELEMENT = """(selector) => {
  const found = document.querySelector(selector);
  return !!found && found.getClientRects().length > 0;
}"""
_NOT_TYPED = ("date", "datetime-local", "month", "week", "time", "color", "range")
"""Kinds of fields whose value is set, because it cannot be typed as it is written."""

_NO_TEXT = ("checkbox", "radio", "button", "submit", "reset", "image", "file", "hidden")

Kind: TypeAlias = Literal[
    "click", "type", "press", "hover", "drag", "select", "fill", "resize", "wait", "evaluate", "close"
]


class FieldValue(ToolArguments):
    """A field of a form, by its ref or CSS, and what to put into it."""

    ref: Hidden = None
    selector: Hidden = None
    value: Hidden = None


class PageAction(ToolArguments):
    """The ``request`` of the action ``act``."""

    kind: Kind
    target_id: str = ""
    ref: str = ""
    selector: str = ""
    double_click: bool = False
    button: Literal["left", "right", "middle"] = "left"
    modifiers: list[str] = []
    text: str = ""
    submit: bool = False
    slowly: bool = False
    key: Annotated[str, Meta(description="Enter, ArrowDown, Control+A…")] = ""
    start_ref: str = ""
    end_ref: str = ""
    values: list[str] = []
    fields: list[Annotated[FieldValue, Meta(description="{ref, value}")]] = []
    width: Number = 0
    height: Number = 0
    time_ms: Number | None = None
    text_gone: str = ""
    url: str = ""
    load_state: str = ""
    timeout_ms: Number = 20_000
    function: Annotated[str, Meta(description="evaluate: a function")] = msgspec.field(name="fn", default="")


class ActionResult(msgspec.Struct, omit_defaults=True, frozen=True):
    """The result of an action. A field that the kind of action does not have is unset."""

    filled: int | msgspec.UnsetType = msgspec.UNSET
    values: list[str] | msgspec.UnsetType = msgspec.UNSET
    width: int | msgspec.UnsetType = msgspec.UNSET
    height: int | msgspec.UnsetType = msgspec.UNSET
    result: Any = msgspec.UNSET
    """The value of the model's function, of any JSON type."""
    truncated: bool = False


_DONE = ActionResult()
Act = Callable[[Tab, PageAction], Awaitable[ActionResult]]


async def act(tab: Tab, request: PageAction, *, scripts: bool) -> ActionResult:
    """Perform the request and return its result. ``scripts`` says whether functions of the model may run."""
    kind = request.kind
    if (kind == "evaluate" or (kind == "wait" and request.function)) and not scripts:
        raise ToolError("scripts in pages are switched off (browser.evaluateEnabled)")
    result = await _KINDS[kind](tab, request)
    if kind in _MAY_NAVIGATE or request.submit:
        await tab.settle(SHORTLY_S if kind == "evaluate" else SETTLE_BEGIN_S)
    return result


async def _node(tab: Tab, element: PageAction | FieldValue) -> RefNode:
    if element.ref:
        return tab.node(str(element.ref))
    if element.selector:
        return await tab.find(str(element.selector))
    raise ToolError("request.ref required: a ref of the last snapshot")


def _node_of(tab: Tab, ref: str, name: str) -> RefNode:
    if not ref:
        raise ToolError(f"request.{name} required: a ref of the last snapshot")
    return tab.node(ref)


def _modifiers(names: Iterable[str]) -> int:
    total = 0
    for name in names:
        if name.lower() not in _MODIFIERS:
            raise ToolError(f"unknown modifier {name[:40]!r}; known: Alt, Control, Meta, Shift")
        total |= _MODIFIERS[name.lower()]
    return total


# The mouse


async def _middle(tab: Tab, node: RefNode) -> tuple[float, float]:
    left, top, width, height = await tab.box(node)
    if cover := await tab.run_on(node, _COVERED):
        raise ToolError(f"the element is covered by {str(cover)[:100]!r}; close that first, or scroll")
    return left + width / 2, top + height / 2


async def _mouse(tab: Tab, kind: str, x: float, y: float, **more: Any) -> None:
    await tab.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})


async def click(tab: Tab, request: PageAction) -> ActionResult:
    await _click(tab, await _node(tab, request), request)
    return _DONE


async def _click(tab: Tab, node: RefNode, request: PageAction) -> None:
    if node.role == "option":
        raise ToolError("an option is chosen with the kind select on its list")
    state = await tab.run_on(node, _STATE)
    if state["disabled"]:
        raise ToolError("the element is disabled")
    x, y = await _middle(tab, node)
    common: dict[str, Any] = {"button": request.button, "modifiers": _modifiers(request.modifiers)}
    await _mouse(tab, "mouseMoved", x, y)
    for count in range(1, 3 if request.double_click else 2):
        await _mouse(tab, "mousePressed", x, y, clickCount=count, **common)
        await _mouse(tab, "mouseReleased", x, y, clickCount=count, **common)


async def hover(tab: Tab, request: PageAction) -> ActionResult:
    await _mouse(tab, "mouseMoved", *await _middle(tab, await _node(tab, request)))
    return _DONE


async def drag(tab: Tab, request: PageAction) -> ActionResult:
    start, end = _node_of(tab, request.start_ref, "startRef"), _node_of(tab, request.end_ref, "endRef")
    x, y = await _middle(tab, start)
    left, top, width, height = await tab.box(end)
    await _mouse(tab, "mouseMoved", x, y)
    await _mouse(tab, "mousePressed", x, y, button="left", clickCount=1)
    across, down = left + width / 2 - x, top + height / 2 - y
    for step in range(1, _DRAG_STEPS + 1):
        part = step / _DRAG_STEPS
        await _mouse(tab, "mouseMoved", x + across * part, y + down * part, button="left", buttons=1)
    await _mouse(tab, "mouseReleased", x + across, y + down, button="left", clickCount=1)
    return _DONE


# Keys and forms


async def press(tab: Tab, request: PageAction) -> ActionResult:
    if request.ref:
        await _focus(tab, await _node(tab, request))
    await _press(tab, request.key)
    return _DONE


async def _press(tab: Tab, combination: str) -> None:
    """Presses a key such as ``Enter``, ``a`` or ``Control+Shift+A``."""
    *held, name = combination.split("+") if len(combination) > 1 else [combination]
    if combination.endswith("++"):
        held, name = combination[:-2].split("+"), "+"
    if not name:
        raise ToolError("request.key required, such as Enter or Control+A")
    modifiers = _modifiers(held)
    key = _KEYS.get(name.lower())
    if key is None:
        if len(name) != 1:
            raise ToolError(f"unknown key {name[:40]!r}; use a character or names such as Enter, Tab, ArrowDown, F5")
        code = f"Key{name.upper()}" if name.isascii() and name.isalpha() else f"Digit{name}" if name.isdigit() else ""
        key = KeyPress(name, code, ord(name.upper()) if name.isascii() and name.isalnum() else 0, name)
    event: dict[str, Any] = {"key": key.key, "code": key.code, "modifiers": modifiers}
    event |= {"windowsVirtualKeyCode": key.number, "nativeVirtualKeyCode": key.number}
    typed = key.text if not modifiers & ~8 else ""
    down = {**event, "type": "keyDown", "text": typed} if typed else {**event, "type": "rawKeyDown"}
    if modifiers & 2 and name.lower() in ("a", "c", "v", "x", "z"):
        words = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo"}
        down["commands"] = [words[name.lower()]]
    await tab.call("Input.dispatchKeyEvent", down)
    await tab.call("Input.dispatchKeyEvent", {**event, "type": "keyUp"})


async def _focus(tab: Tab, node: RefNode) -> None:
    try:
        element = {"backendNodeId": node.backend_id}
        await tab.call("DOM.scrollIntoViewIfNeeded", element, session=node.session)
        await tab.call("DOM.focus", element, session=node.session)
    except CdpError:
        await tab.run_on(node, "function() { this.focus(); }")


async def type_text(tab: Tab, request: PageAction) -> ActionResult:
    node, text = await _node(tab, request), _text_of(request.text)
    if request.slowly:
        if len(text) > MOST_SLOW_CHARS:
            raise ToolError(f"slowly is for at most {MOST_SLOW_CHARS} characters")
        await _focus(tab, node)
        for character in text:
            await _press(tab, "Enter" if character == "\n" else character)
            await asyncio.sleep(_KEY_DELAY_S * random.uniform(0.5, 1.5))
    else:
        await _fill(tab, node, text)
    if request.submit:
        await _press(tab, "Enter")
    return _DONE


def _text_of(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if len(text) > LONGEST_TEXT:
        raise ToolError(f"the text is longer than {LONGEST_TEXT} characters")
    return text


async def _fill(tab: Tab, node: RefNode, text: str) -> None:
    """Puts the text in place of what a field holds."""
    state = await tab.run_on(node, _STATE)
    if state["disabled"] or state["readonly"]:
        raise ToolError("the field cannot be changed")
    if state["type"] in _NOT_TYPED and state["tag"] == "input":
        accepted = await tab.run_on(node, _SET_VALUE, text)
        if accepted != text:
            raise ToolError(f"the field takes no {text[:40]!r} (it is of the kind {state['type']})")
        return
    written = state["tag"] == "textarea" or (state["tag"] == "input" and state["type"] not in _NO_TEXT)
    if not written and not state["editable"]:
        raise ToolError("the element is not a text field")
    await _focus(tab, node)
    held = await tab.run_on(node, _SELECT_ALL)
    if text:
        await tab.call("Input.insertText", {"text": text})
    elif held:
        await _press(tab, "Delete")


async def fill(tab: Tab, request: PageAction) -> ActionResult:
    if not request.fields:
        raise ToolError("request.fields required: a list of {ref, type, value}")
    # Every ref is checked before the first field is changed.
    values = [(await _node(tab, field), field.value) for field in request.fields[:MOST_FIELDS]]
    for node, value in values:
        state = await tab.run_on(node, _STATE)
        kind = state["type"] if state["tag"] == "input" else node.role
        if kind in ("checkbox", "radio", "switch"):
            if state["checked"] != (value in (True, "true", "on", "1", 1)):
                await _click(tab, node, PageAction(kind="click"))
        elif state["tag"] == "select":
            await _choose(tab, node, [str(option) for option in (value if isinstance(value, list) else [value])])
        else:
            await _fill(tab, node, _text_of(value))
    return ActionResult(filled=len(values))


async def select(tab: Tab, request: PageAction) -> ActionResult:
    if not request.values:
        raise ToolError("request.values required")
    return ActionResult(values=await _choose(tab, await _node(tab, request), request.values))


class _Choice(msgspec.Struct):
    """The answer of ``_CHOOSE``."""

    error: str = ""
    known: list[str] = []
    values: list[str] = []


async def _choose(tab: Tab, node: RefNode, values: list[str]) -> list[str]:
    choice = msgspec.convert(await tab.run_on(node, _CHOOSE, values), _Choice)
    if choice.error:
        options = f"; known: {', '.join(choice.known)}" if choice.known else ""
        raise ToolError(f"{choice.error}{options}")
    return choice.values


# The rest


async def resize(tab: Tab, request: PageAction) -> ActionResult:
    width, height = int(request.width), int(request.height)
    if not (100 <= width <= 4000 and 100 <= height <= 4000):
        raise ToolError("width and height must be between 100 and 4000")
    size = {"width": width, "height": height, "deviceScaleFactor": 0, "mobile": False}
    await tab.call("Emulation.setDeviceMetricsOverride", size)
    return ActionResult(width=width, height=height)


async def wait(tab: Tab, request: PageAction) -> ActionResult:
    """Waits for a time, a text, the end of a text, an element, an address, the load or a function that says true."""
    limit = min(max(int(request.timeout_ms or 20_000), 0), LONGEST_WAIT_MS) / 1000
    if request.time_ms is not None:
        await asyncio.sleep(min(max(int(request.time_ms), 0), LONGEST_WAIT_MS) / 1000)
    checks: list[tuple[str, Callable[[], Awaitable[bool]]]] = []
    if text := request.text:
        checks.append((f"the text {text[:60]!r}", lambda: tab.run(_HAS_TEXT, text)))
    if gone := request.text_gone:

        async def is_gone() -> bool:
            return not await tab.run(_HAS_TEXT, gone)

        checks.append((f"the end of the text {gone[:60]!r}", is_gone))
    if selector := request.selector:
        checks.append((f"{selector[:60]!r}", lambda: tab.run(_HAS_ELEMENT, selector)))
    if url := request.url:

        async def is_there() -> bool:
            return url.strip("*") in await tab.address()

        checks.append((f"the address {url[:100]!r}", is_there))
    if function := request.function:

        async def says_true() -> bool:
            return bool(await tab.run(function, own_world=False))

        checks.append(("the function", says_true))
    if request.load_state and not await tab.wait_loaded(limit):
        raise ToolError(f"the page was not loaded within {limit:g} s")
    for name, check in checks:
        await _wait_for(name, check, limit)
    if request.time_ms is None and not checks and not request.load_state:
        raise ToolError("wait needs one of timeMs, text, textGone, selector, url, loadState, fn")
    return _DONE


async def _wait_for(name: str, check: Callable[[], Awaitable[bool]], limit: float) -> None:
    try:
        async with asyncio.timeout(limit):
            while not await _holds(check):  # noqa: ASYNC110 - the page cannot set an event of ours
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise ToolError(f"{name} did not come within {limit:g} s") from None


async def _holds(check: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await check()
    except CdpRefused:
        return False  # The page is just being replaced by another.


async def evaluate(tab: Tab, request: PageAction) -> ActionResult:
    """Runs a function of the model in the page, with the rights of the page and no others."""
    function = request.function
    if not function.strip():
        raise ToolError("request.fn required: a function, such as () => document.title")
    if request.ref:
        node = await _node(tab, request)
        value = await tab.run_on(node, f"function() {{ return ({function})(this); }}", own_world=False)
    else:
        value = await tab.run(function, own_world=False)
    text = msgspec.json.encode(value).decode()
    if len(text) > MOST_RESULT_CHARS:
        return ActionResult(result=text[:MOST_RESULT_CHARS], truncated=True)
    return ActionResult(result=value)


_KINDS: dict[str, Act] = {
    "click": click,
    "type": type_text,
    "press": press,
    "hover": hover,
    "drag": drag,
    "select": select,
    "fill": fill,
    "resize": resize,
    "wait": wait,
    "evaluate": evaluate,
}
