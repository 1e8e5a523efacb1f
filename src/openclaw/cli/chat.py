"""``openclaw chat``: a conversation with the agent in this terminal, or line by line through a pipe."""

from __future__ import annotations

import sys

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.client import Client, new_id
from openclaw.cli.command import EXIT_FAILURE, EXIT_INTERRUPTED, GATEWAY, Action, Flag, UserError
from openclaw.cli.message import check_agent, find_session
from openclaw.cli.target import resolve
from openclaw.cli.terminal import note
from openclaw.cli.turn import Printer, Turn, close_turn, message_text
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

LEAVE = ("/exit", "/quit")
HISTORY = 10
REMEMBERED_RUNS = 200


class Conversation:
    def __init__(self, client: Client, session: str | None, agent: str | None) -> None:
        self.client = client
        self.agent = agent or ""
        if agent:
            check_agent(client, agent)
        self.switch(session)
        self.running: dict[str, Turn] = {}
        """Our own runs that have not ended, by run id."""
        self.ours: dict[str, None] = {}
        """The ids of the last runs that this chat began, oldest first."""

    def switch(self, session: str | None) -> None:
        if not session or session == "main":
            self.key = f"agent:{self.agent}:main" if self.agent else "main"
            return
        # A chat may begin a new session, because the person sees that it is empty. A script may not.
        new = session if session.startswith("agent:") else f"agent:{self.agent or 'main'}:{session}"
        self.key = find_session(self.client, session, self.agent or None) or new

    def history(self, limit: int = HISTORY) -> list[dict[str, Any]]:
        answer = self.client.call("chat.history", {"sessionKey": self.key, "limit": limit})
        return [message for message in answer.get("messages") or [] if isinstance(message, dict)]

    def send(self, text: str) -> tuple[Turn, Iterator[tuple[str, str]]]:
        """Returns the turn, and an iterator of what to show; consuming it sends the message."""
        run_id = new_id()
        turn = Turn(run_id, self.key)
        self.ours[run_id] = None
        while len(self.ours) > REMEMBERED_RUNS:
            del self.ours[next(iter(self.ours))]
        self.running[run_id] = turn
        params = {"sessionKey": self.key, "message": text, "deliver": False, "idempotencyKey": run_id}
        return turn, self._updates(turn, params)

    def _updates(self, turn: Turn, params: dict[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            for frame in self.client.stream("chat.send", params):
                yield from turn.digest(frame)
            waiting = (turn.payload or {}).get("status") in ("started", "in_flight")
            if turn.accepted is None or (waiting and not turn.state):
                raise UserError("The connection to the Gateway ended before the reply did; it comes when it is ready.")
        finally:
            self.running.pop(turn.run_id, None)

    def abort(self) -> list[str]:
        """Stops everything that runs in this session, and returns the ids of the runs."""
        answer = self.client.call("chat.abort", {"sessionKey": self.key}, timeout_ms=5000)
        return list(answer.get("runIds") or [])


def foreign_reply(conversation: Conversation, frame: dict[str, Any]) -> str | None:
    """Returns the final text of a frame that ends a run of another client, a channel or a queue; else ``None``."""
    payload = frame.get("payload")
    if frame.get("event") != "chat" or not isinstance(payload, dict) or payload.get("state") != "final":
        return None
    if payload.get("runId") in conversation.ours or not isinstance(payload.get("message"), dict):
        return None
    return message_text(payload["message"]) or None


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.history <= 1000:
        raise UserError("--history must be between 0 and 1000")
    conversation = Conversation(service.connect(args), args.session, args.agent)
    return open_chat(conversation, args.history)


def open_chat(conversation: Conversation, history: int) -> int:
    if sys.stdin.isatty() and sys.stdout.isatty():
        from openclaw.cli.screen import Screen

        return Screen(conversation, history).run()
    return _lines(conversation)


def _lines(conversation: Conversation) -> int:
    """Sends one message per line of input, and reads the next line when the reply is complete."""
    code = 0
    for line in sys.stdin:
        text = line.strip()
        if text in LEAVE:
            break
        if text and not _plain_turn(conversation, text):
            code = EXIT_FAILURE
    return code


def _plain_turn(conversation: Conversation, text: str) -> bool:
    printer = Printer()
    turn, updates = conversation.send(text)
    try:
        for kind, shown in updates:
            printer.show(kind, shown)
        close_turn(turn, printer)
    except KeyboardInterrupt:
        printer.end_line()
        conversation.abort()
        raise SystemExit(EXIT_INTERRUPTED) from None
    except UserError as error:
        printer.end_line()
        note(str(error))
        return False
    return True


def welcome() -> int:
    """``openclaw`` alone: starts a Gateway if none runs, makes sure that a model answers, and opens a chat."""
    client = Client(resolve())
    if client.target.local:
        service.ensure_running(client)
    defaults: dict[str, Any] = client.call("sessions.list", {"limit": 1}).get("defaults") or {}
    _ensure_model(str(defaults.get("modelProvider") or ""), local=client.target.local)
    name = "/".join(str(defaults[key]) for key in ("modelProvider", "model") if defaults.get(key))
    note(printable(f"{name or 'No model'} answers. `openclaw models list` shows others."))
    return open_chat(Conversation(client, None, None), HISTORY)


def _ensure_model(provider: str, *, local: bool) -> None:
    """Offers to fetch the embedded model when it would answer and is not installed yet."""
    if provider != "local" or not local:
        return
    from openclaw.models.local.install import is_installed

    if is_installed(paths.state_dir()):
        return
    note(
        "No model key was found (for example ANTHROPIC_API_KEY or OPENAI_API_KEY) and no local Ollama.\n"
        "A small model can run on this computer; it is good for trying things out."
    )
    if input("Fetch it now (about 98 MB)? [Y/n] ").strip().lower() in ("", "y", "yes"):
        from openclaw.cli.models import fetch_local

        fetch_local()
    else:
        note("Later: `openclaw models install local`, or set a key and restart the Gateway.")


COMMANDS = {
    "chat": Action(
        "Talk with the agent in this terminal",
        run,
        (
            Flag("--session KEY", "session key, id or label (default: the main session)"),
            Flag("--agent ID", "agent to talk with (default: the default agent)"),
            Flag("--history N", "messages to show on opening (10)", type=int, default=10),
            *GATEWAY,
        ),
        example="openclaw chat --session main",
    )
}
