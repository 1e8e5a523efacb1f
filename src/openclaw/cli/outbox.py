"""``openclaw outbox``: the replies that wait for their delivery, and those that were given up."""

from __future__ import annotations

from openclaw.cli.command import Flag, Group, UserError, query

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

WIDTH = 60


def _show(payload: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    from openclaw.text import duration

    if not payload["parts"]:
        yield "Nothing waits, and nothing was given up." if args.state == "open" else "None."
        return
    for part in payload["parts"]:
        age = duration(max(0, payload["ts"] - part["createdAt"]))
        text = " ".join(part["text"].split()) or (f"[{part['media']} files]" if part["media"] else f"[{part['act']}]")
        shown = text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
        yield f"{part['id']:>5}  {part['state']:<8} {part['channel']} to {part['to']}, {age} old: {shown}"
        if part["error"]:
            yield f"       {part['error']}"
    if any(part["state"] == "dead" for part in payload["parts"]):
        yield "Given up: `openclaw outbox retry ID` tries again, `openclaw why <message>` tells more."


def _choice(args: argparse.Namespace) -> dict[str, Any]:
    if bool(args.ids) == args.all:
        raise UserError("name the parts by their numbers (see `openclaw outbox`), or give --all")
    return {"all": True} if args.all else {"ids": args.ids}


def _number(payload: dict[str, Any], name: str, words: str) -> Iterator[str]:
    number = payload[name]
    yield f"{number} {'part' if number == 1 else 'parts'} {words}."


_CHOICE = (Flag("ids", "numbers of parts", nargs="*", type=int, metavar="ID"), Flag("--all", "every one"))
_ACTIONS = {
    "list": query(
        "Show what waits for its delivery and what was given up",
        "outbox.list",
        (
            Flag(
                "--state",
                "which ones (default: open, which are those that wait or were given up)",
                choices=("open", "waiting", "dead", "sent"),
                default="open",
                param="state",
            ),
            Flag("--channel NAME", "of this channel only", param="channel"),
            Flag("--limit N", "at most so many", type=int, default=100, param="limit"),
        ),
        show=_show,
        example="openclaw outbox list --state dead",
    ),
    "retry": query(
        "Try parts anew that were given up",
        "outbox.retry",
        _CHOICE,
        params=_choice,
        show=lambda payload, _: _number(payload, "retried", "will be tried again"),
        example="openclaw outbox retry 17",
    ),
    "drop": query(
        "Give up parts that wait",
        "outbox.drop",
        _CHOICE,
        params=_choice,
        show=lambda payload, _: _number(payload, "dropped", "will not be sent"),
        example="openclaw outbox drop --all",
    ),
}
COMMANDS = {"outbox": Group(_ACTIONS, default="list")}
