"""``openclaw plugins``: the extensions, whether they are loaded, and what they add."""

from __future__ import annotations

from openclaw.cli.command import Flag, Group, UserError, nearest, query

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

_SIGNS = {"loaded": "✓", "failed": "✗", "off": "-"}


def _show_list(report: dict[str, Any], _args: argparse.Namespace) -> Iterator[str]:
    rows = report["plugins"]
    if not rows:
        yield "No extensions are installed. docs/extensions.md says how to write or install one."
    for row in rows:
        yield _head(row)
        if row["problem"]:
            yield f"    {row['problem']}"


def _head(row: dict[str, Any]) -> str:
    failures = f", failed {row['failures']} times" if row["failures"] else ""
    return f"{_SIGNS.get(row['state'], '?')} {row['id']}: {row['state']}{failures} ({row['source']})"


def _named(report: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    rows = {row["id"]: row for row in report["plugins"]}
    if args.id in rows:
        return rows[args.id]
    guess = nearest(args.id, rows)
    hint = f"Did you mean {guess}?" if guess else "`openclaw plugins list` names them all."
    raise UserError(f"No extension is called {args.id!r}. {hint}")


def _show_one(row: dict[str, Any], _args: argparse.Namespace) -> Iterator[str]:
    yield _head(row)
    if row["problem"]:
        yield f"Problem: {row['problem']}"
    if row["lastFailure"]:
        yield f"Last failure: {row['lastFailure']}"
    if row["adds"]:
        yield "Adds:"
        yield from (f"  {one}" for one in row["adds"])


COMMANDS: dict[str, Group] = {
    "plugins": Group(
        {
            "list": query(
                "List the extensions that are installed or named",
                "plugins.list",
                show=_show_list,
                example="openclaw plugins list",
            ),
            "info": query(
                "Show what one extension adds, and what failed",
                "plugins.list",
                (Flag("id ID", "its name, as the list shows it"),),
                shape=_named,
                show=_show_one,
                failed=lambda row, _: row["state"] == "failed",
                example="openclaw plugins info dice",
            ),
        },
        default="list",
    )
}
