"""Prints a turn while it happens: text to stdout, tool calls to stderr, Ctrl-C stops the run."""

from __future__ import annotations

import os
import sys

from openclaw.cli import turn as turns
from openclaw.cli.client import Client, Lost
from openclaw.cli.errors import EXIT_FAILURE, EXIT_INTERRUPTED, UserError
from openclaw.cli.terminal import note, paint, printable, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_ALLOWANCE_S = 30


class Printer:
    """Writes text as it comes and keeps notices on lines of their own."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._clean = sys.stdout.isatty()
        self._open_line = False

    def show(self, kind: str, text: str) -> None:
        if self._quiet:
            return
        if kind == turns.TEXT:
            self._write(text)
        elif kind == turns.BREAK:
            self.end_line()
        elif kind == turns.TOOL:
            self.end_line()
            note(paint(f"⚙ {text}", "dim", sys.stderr))
        elif kind == turns.RESULT:
            for line in turns.short_result(text):
                note(paint(f"  {line}", "dim", sys.stderr))
        elif kind == turns.FAILED:
            self.end_line()
            note(paint(f"✗ {shorten(printable(text), 200)}", "red", sys.stderr))
        elif kind == turns.NOTE:
            self.end_line()
            note(paint(text, "dim", sys.stderr))

    def plain(self, text: str) -> None:
        """Words of the Gateway's own, lines as they are."""
        self.show(turns.TEXT, text)

    def end_line(self) -> None:
        if self._open_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        sys.stdout.write(printable(text) if self._clean else text)
        sys.stdout.flush()
        self._open_line = not text.endswith("\n")


class RenderedPrinter(Printer):
    """On a terminal: Markdown as it is meant to look, block by block as they come."""

    def __init__(self) -> None:
        # Here, because a pipe never needs it and it takes a while to import.
        from openclaw.cli.render import Renderer

        super().__init__()
        self._renderer = Renderer()

    def show(self, kind: str, text: str) -> None:
        self._renderer.show(kind, text)

    def plain(self, text: str) -> None:
        self._renderer.plain(text)

    def end_line(self) -> None:
        self._renderer.flush()


def printer_for(*, quiet: bool) -> Printer:
    """Into a pipe or a file goes what was said, word for word."""
    plain = quiet or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    return Printer(quiet=quiet) if plain else RenderedPrinter()


def run_turn(client: Client, method: str, params: dict[str, Any], *, quiet: bool, timeout_s: int) -> turns.Turn:
    """Streams one call to its end; raises ``UserError`` when it failed, exits 130 when interrupted."""
    turn = turns.Turn(params["idempotencyKey"], str(params.get("sessionKey") or ""))
    printer = printer_for(quiet=quiet)
    idle_ms = (timeout_s + IDLE_ALLOWANCE_S) * 1000 if timeout_s else None
    try:
        for frame in client.stream(method, params, idle_ms=idle_ms):
            for kind, text in turn.digest(frame):
                printer.show(kind, text)
    except KeyboardInterrupt:
        printer.end_line()
        _abort(client, turn, str(params.get("agentId") or "main"))
        raise SystemExit(EXIT_INTERRUPTED) from None
    except Lost as error:
        printer.end_line()
        raise _unfinished(turn, str(error)) from error
    close_turn(turn, printer)
    return turn


def close_turn(turn: turns.Turn, printer: Printer) -> None:
    """Prints what is missing of the final text; raises ``UserError`` when the turn did not end well."""
    # What a stopped run has said was shown while it said it.
    if turn.final_text is None and turn.state != "aborted" and (texts := turns.reply_texts(turn.payload)):
        turn.final_text = "\n\n".join(texts)
    rest = turn.rest()
    if turn.from_gateway and rest:
        printer.plain(rest)
    elif rest is None:
        # What was streamed is not what was said in the end; the end counts.
        printer.end_line()
        printer.show(turns.TEXT, f"\n{turn.final_text}")
    else:
        printer.show(turns.TEXT, rest)
    printer.end_line()
    if turn.state == "aborted":
        raise UserError("The run was stopped before it finished.", EXIT_FAILURE)
    if turn.error:
        raise UserError(f"The agent could not answer: {turn.error}")
    if turn.accepted is None or not (turn.state or (turn.payload or {}).get("status") not in ("accepted", "started")):
        raise _unfinished(turn, "The connection to the Gateway ended before the reply did.")


def _unfinished(turn: turns.Turn, reason: str) -> UserError:
    if turn.accepted is None:
        return UserError(reason)
    return UserError(
        f"{reason}\nThe message was accepted as run {turn.run_id}; the Gateway finishes it when it can. "
        "`openclaw chat` shows the reply."
    )


def _abort(client: Client, turn: turns.Turn, agent_id: str) -> None:
    key = turn.session_key or f"agent:{agent_id}:main"
    try:
        client.call("chat.abort", {"sessionKey": key, "runId": turn.run_id}, timeout_ms=5000)
        note("Stopped.")
    except UserError as error:
        note(f"Could not stop the run {turn.run_id}: {error}")
