"""``openclaw browser``: look at and drive the browser that the agent uses."""

from __future__ import annotations

from openclaw.cli.command import EXIT_USAGE, Flag, Group, UserError, query
from openclaw.text import clipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from openclaw.cli.answers import BrowserAnswer
    from openclaw.cli.client import GatewayClient
    from openclaw.cli.command import Action

TIMEOUT_MS = 150_000
"""Longer than any action of the browser may take, with its start."""
_PROFILE = Flag("--browser-profile NAME", "browser profile (default: browser.defaultProfile)", param="profile")
_TAB = Flag("--target-id ID", "tab, as `openclaw browser tabs` names it (default: the last one used)", param="targetId")
_REF = Flag("ref REF", "element, as the last snapshot names it (e1, e2 …)", param="ref")
_URL = Flag("address URL", "http(s) address", param="url")


def _ask(
    help: str,
    request: str,
    flags: tuple[Flag, ...] = (),
    *,
    example: str,
    kind: str = "",
    params: Callable[[argparse.Namespace], dict[str, object]] | None = None,
    show: Callable[[Any, argparse.Namespace], Any] | None = None,
    tab: bool = True,
    shape: Callable[[Any, argparse.Namespace], Any] | None = None,
) -> Action:
    """A command that makes one ``browser.request``, such as ``POST /act``. ``kind`` is the kind of such an act."""
    method, path = request.split()

    def call(client: GatewayClient, wanted: dict[str, object]) -> Any:
        given = {"kind": kind, **wanted}
        place = path.format(id=given.pop("id", ""))
        sent = {name: value for name, value in given.items() if value not in (None, False, "")}
        wire: dict[str, object] = {"method": method, "path": place, "query" if method == "GET" else "body": sent}
        return client.call("browser.request", wire, TIMEOUT_MS)

    return query(
        help,
        "browser.request",
        (*flags, *((_TAB,) if tab else ()), _PROFILE),
        show=show or _show_done,
        example=f"openclaw browser {example}",
        params=params,
        shape=shape,
        call=call,
    )


# What is printed


def _show_done(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield f"Done.  {answer.get('url') or ''}".rstrip()
    if error := answer.get("pageError"):
        yield f"The page is not there: {error}"
    if "result" in answer:
        import json

        yield from json.dumps(answer["result"], ensure_ascii=False, indent=2).split("\n")


def _show_status(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    state = "running" if answer.get("running") else "not running"
    yield f"Browser {answer.get('profile')}: {state}{'' if answer.get('enabled') else ' (switched off)'}"
    names = {"product": "Version", "pid": "Process", "tabs": "Tabs", "detectedExecutablePath": "Program"}
    names |= {"cdpUrl": "Address", "userDataDir": "Data", "detectError": "Problem"}
    for name, label in names.items():
        if answer.get(name) is not None:
            yield f"  {label}: {answer[name]}"
    if "headless" in answer:
        yield f"  Window: {'none' if answer['headless'] else 'yes'}"


def _show_profiles(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    for profile in answer.get("profiles") or []:
        words = [str(profile.get("name")), "running" if profile.get("running") else "not running"]
        words += ["default"] if profile.get("isDefault") else []
        words += ["remote"] if profile.get("isRemote") else []
        yield "  ".join(words)


def _show_tabs(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    tabs = answer.get("tabs") or []
    if not tabs:
        yield "No tabs." if answer.get("running") else "The browser is not running."
    for tab in tabs:
        yield f"{tab.get('targetId')}  {clipped(str(tab.get('title') or ''), 40)}  {tab.get('url')}"


def _show_tab(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield f"{answer.get('targetId')}  {answer.get('title') or ''}  {answer.get('url')}"


def _show_snapshot(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield str(answer.get("url"))
    yield from str(answer.get("snapshot") or "").splitlines()
    for node in answer.get("nodes") or []:
        yield f"{'  ' * int(node.get('depth') or 0)}{node.get('role')} {node.get('name')} [{node.get('ref')}]"


def _show_console(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    messages = answer.get("messages") or []
    if not messages:
        yield "Nothing was written to the console."
    for message in messages:
        yield f"{message.get('type')}: {message.get('text')}  {message.get('location') or ''}".rstrip()


def _show_file(answer: BrowserAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield str(answer.get("file") or answer.get("path") or "Nothing was saved.")


def _save_picture(answer: BrowserAnswer, args: argparse.Namespace) -> BrowserAnswer:
    """Writes the picture to the file that the command names. Otherwise it is only in the agent's workspace."""
    image = answer.pop("image", None)
    if args.out and image:
        import base64
        import os

        with open(args.out, "wb") as file:
            file.write(base64.b64decode(image["data"]))
        answer["file"] = os.path.abspath(args.out)
    return answer


# What the flags mean


def _fields(args: argparse.Namespace) -> dict[str, object]:
    import json

    try:
        fields = json.loads(args.fields)
    except ValueError as error:
        raise UserError(f"--fields is not JSON: {error}", EXIT_USAGE) from None
    return {"fields": fields}


def _dialog(args: argparse.Namespace) -> dict[str, object]:
    if args.accept == args.dismiss:
        raise UserError("choose one of --accept and --dismiss", EXIT_USAGE)
    # Written out, because what is false is not sent.
    return {"accept": "true" if args.accept else "false"}


_ACTIONS: dict[str, Action] = {
    "status": _ask(
        "Show whether the browser runs, and which it is", "GET /", show=_show_status, tab=False, example="status"
    ),
    "start": _ask("Start the browser", "POST /start", show=_show_status, tab=False, example="start"),
    "stop": _ask("End the browser", "POST /stop", show=_show_status, tab=False, example="stop"),
    "profiles": _ask("List the browser profiles", "GET /profiles", show=_show_profiles, tab=False, example="profiles"),
    "tabs": _ask("List the open tabs", "GET /tabs", show=_show_tabs, tab=False, example="tabs"),
    "open": _ask(
        "Open an address in a new tab",
        "POST /tabs/open",
        (_URL,),
        show=_show_tab,
        tab=False,
        example="open https://example.org",
    ),
    "navigate": _ask(
        "Open an address in a tab",
        "POST /navigate",
        (_URL,),
        show=_show_tab,
        example="navigate https://example.org",
    ),
    "focus": _ask(
        "Bring a tab to the front",
        "POST /tabs/focus",
        (Flag("id ID", "the tab", param="targetId"),),
        tab=False,
        example="focus 5F2A",
    ),
    "close": _ask(
        "Close a tab",
        "DELETE /tabs/{id}",
        (Flag("id ID", "the tab", param="id"),),
        tab=False,
        example="close 5F2A",
    ),
    "snapshot": _ask(
        "Show a page as text, with refs for its elements",
        "GET /snapshot",
        (
            Flag("--format", "form of the text", choices=("ai", "aria"), param="format"),
            Flag("--efficient", "short: only what can be acted on"),
            Flag("--interactive", "only what can be acted on", param="interactive"),
            Flag("--compact", "without empty containers", param="compact"),
            Flag("--depth N", "levels of the tree", type=int, param="depth"),
            Flag("--selector CSS", "only this part", param="selector"),
            Flag("--frame CSS", "only this frame", param="frame"),
            Flag("--max-chars N", "cut after so many characters", type=int, param="maxChars"),
        ),
        params=lambda args: {"mode": "efficient"} if args.efficient else {},
        show=_show_snapshot,
        example="snapshot --interactive",
    ),
    "screenshot": _ask(
        "Take a picture of a page",
        "POST /screenshot",
        (
            Flag("--full-page", "the whole page", param="fullPage"),
            Flag("--ref REF", "only this element", param="ref"),
            Flag("--element CSS", "only this element", param="element"),
            Flag("--type", "form of the picture", choices=("png", "jpeg"), param="type"),
            Flag("--out FILE", "also write it to this file"),
        ),
        show=_show_file,
        shape=_save_picture,
        example="screenshot --full-page --out page.png",
    ),
    "pdf": _ask("Save a page as PDF in the agent's workspace", "POST /pdf", show=_show_file, example="pdf"),
    "console": _ask(
        "Show what a page wrote to its console",
        "GET /console",
        (Flag("--level", "least severity", choices=("error", "warning", "info"), param="level"),),
        show=_show_console,
        example="console --level error",
    ),
    "click": _ask(
        "Click an element",
        "POST /act",
        (
            _REF,
            Flag("--double", "click twice", param="doubleClick"),
            Flag("--button", "mouse button", choices=("left", "right", "middle"), param="button"),
        ),
        kind="click",
        example="click e3",
    ),
    "type": _ask(
        "Put a text into a field",
        "POST /act",
        (
            _REF,
            Flag("text TEXT", "the text", param="text"),
            Flag("--submit", "press Enter after it", param="submit"),
            Flag("--slowly", "key by key", param="slowly"),
        ),
        kind="type",
        example='type e2 "Ann" --submit',
    ),
    "press": _ask(
        "Press a key",
        "POST /act",
        (Flag("key KEY", "such as Enter, Tab or Control+A", param="key"),),
        kind="press",
        example="press Enter",
    ),
    "hover": _ask("Move the mouse over an element", "POST /act", (_REF,), kind="hover", example="hover e4"),
    "drag": _ask(
        "Drag an element to another",
        "POST /act",
        (
            Flag("start REF", "element to take", param="startRef"),
            Flag("end REF", "element to drop it on", param="endRef"),
        ),
        kind="drag",
        example="drag e4 e7",
    ),
    "select": _ask(
        "Choose options of a list",
        "POST /act",
        (_REF, Flag("values VALUE", "value or label of an option", nargs="+", param="values")),
        kind="select",
        example='select e5 "Large"',
    ),
    "fill": _ask(
        "Fill several fields",
        "POST /act",
        (Flag("--fields JSON", 'a list such as [{"ref":"e1","value":"Ann"}]', required=True),),
        kind="fill",
        params=_fields,
        example="""fill --fields '[{"ref":"e1","value":"Ann"}]'""",
    ),
    "wait": _ask(
        "Wait for a text, an element or an address",
        "POST /act",
        (
            Flag("--time MS", "wait so long", type=int, param="timeMs"),
            Flag("--text TEXT", "until the page has this text", param="text"),
            Flag("--text-gone TEXT", "until it has it no more", param="textGone"),
            Flag("--selector CSS", "until there is such an element", param="selector"),
            Flag("--page-url TEXT", "until the address has this in it", param="url"),
            Flag("--limit MS", "give up after so long", type=int, param="timeoutMs"),
        ),
        kind="wait",
        example='wait --text "Thank you"',
    ),
    "evaluate": _ask(
        "Run a function in a page",
        "POST /act",
        (
            Flag("--fn CODE", "such as () => document.title", required=True, param="fn"),
            Flag("--ref REF", "element that it gets", param="ref"),
        ),
        kind="evaluate",
        example="evaluate --fn '() => document.title'",
    ),
    "resize": _ask(
        "Give a page another size",
        "POST /act",
        (
            Flag("width PIXELS", "width of the page", type=int, param="width"),
            Flag("height PIXELS", "its height", type=int, param="height"),
        ),
        kind="resize",
        example="resize 1280 720",
    ),
    "upload": _ask(
        "Give files of the agent's workspace to a page",
        "POST /hooks/file-chooser",
        (
            Flag("paths PATH", "files of the workspace", nargs="+", param="paths"),
            Flag("--ref REF", "click this to be asked for a file", param="ref"),
            Flag("--input-ref REF", "the file input", param="inputRef"),
            Flag("--element CSS", "the file input", param="element"),
        ),
        example="upload report.pdf --input-ref e6",
    ),
    "dialog": _ask(
        "Say how the next dialog of a page is answered",
        "POST /hooks/dialog",
        (
            Flag("--accept", "say yes to it"),
            Flag("--dismiss", "say no to it"),
            Flag("--prompt-text TEXT", "what is written into it", param="promptText"),
        ),
        params=_dialog,
        example="dialog --accept",
    ),
}
COMMANDS = {"browser": Group(_ACTIONS, default="status")}
