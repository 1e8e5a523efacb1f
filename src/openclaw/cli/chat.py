"""``openclaw chat``: a conversation with the agent in this terminal, or line by line through a pipe."""

from __future__ import annotations

import os
import sys
import time

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.client import GatewayClient, GatewayError, Lost, Unreachable, new_id
from openclaw.cli.command import EXIT_FAILURE, EXIT_INTERRUPTED, GATEWAY, Action, Flag, UserError
from openclaw.cli.gateway_target import resolve, start_command
from openclaw.cli.questions import hint, question_lines
from openclaw.cli.session_lookup import check_agent, session_key
from openclaw.cli.terminal import note
from openclaw.cli.turn_stream import MOST_SHOWN, NOTE, QUESTION, VOID, PlainPrinter, Turn, close_turn, message_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from openclaw.cli.answers import ConversationAnswer, MessageAnswer, SessionDefaults, StreamFrame

LEAVE = ("/exit", "/quit")
HISTORY = 10
REMEMBERED_RUNS = 200
TRY_AGAIN_S = 1.0
MOST_TRIES = 600
"""How often a chat tries to attach to its run again when the Gateway went away."""
TRIES_BEFORE_ADVICE = 5
NOT_BACK = "The Gateway did not come back. It finishes the reply when it runs again; `openclaw chat` then shows it."


class Conversation:
    def __init__(self, client: GatewayClient, session: str | None, agent: str | None) -> None:
        self.client = client
        self.agent = agent or ""
        if agent:
            check_agent(client, agent)
        self.switch(session)
        self.ours: dict[str, None] = {}
        """The ids of the last runs that this chat began, oldest first."""

    def switch(self, session: str | None) -> None:
        self.target: dict[str, str] = {}
        """The parameters that name the session of a message. A session that does not exist has no full key yet."""
        if not session or session == "main":
            self.key = f"agent:{self.agent}:main" if self.agent else "main"
            return
        self.key, new = session_key(self.client, session, self.agent or None)
        if new:
            self.target = {"sessionKey": session, **({"agentId": self.agent} if self.agent else {})}

    def view(self, limit: int = HISTORY, run_id: str | None = None) -> ConversationAnswer:
        """The last messages, the run under way and what waits; with a run id also which message that run answers."""
        params = {
            "sessionKey": self.key,
            "limit": min(max(limit, 1), MOST_SHOWN),
            **({"runId": run_id} if run_id else {}),
        }
        return self.client.call("chat.view", params)

    def send(self, text: str) -> tuple[Turn, Iterator[tuple[str, str]]]:
        """Returns the turn, and an iterator of what to show; consuming it sends the message."""
        run_id = new_id()
        turn = Turn(run_id, self.key)
        self.ours[run_id] = None
        while len(self.ours) > REMEMBERED_RUNS:
            del self.ours[next(iter(self.ours))]
        target = self.target or {"sessionKey": self.key}
        params = {**target, "message": text, "deliver": False, "idempotencyKey": run_id}
        return turn, self._updates(turn, params)

    def _updates(self, turn: Turn, params: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """Sends the message and yields what to show until its run has ended, over as many connections as it takes.

        The run's id is the message's idempotency key. So sending it again begins nothing new: it attaches to the run.
        """
        tries = 0
        for _ in range(MOST_TRIES):
            try:
                for frame in self._frames(turn, params):
                    tries = 0
                    for kind, text in turn.digest(frame):
                        yield (NOTE, self._question(text)) if kind == QUESTION else (kind, text)
            except Lost:
                pass
            except (Unreachable, GatewayError) as error:
                # Once it has the message, a Gateway that is not there or not ready yet only means to wait.
                if not turn.attached_again or (isinstance(error, GatewayError) and error.error_code != "UNAVAILABLE"):
                    raise
            if not turn.unfinished:
                break
            turn.attach_again()
            tries += 1
            # Beside a message that waits, the one that it waits for tells this.
            if not turn.waiting:
                yield from self._absence(tries)
            time.sleep(TRY_AGAIN_S)
        else:
            raise UserError(NOT_BACK)
        if turn.attached_again and not turn.state:
            turn.final_text, turn.state = self._reply_of(turn.run_id), "final"

    def _frames(self, turn: Turn, params: Mapping[str, object]) -> Iterator[StreamFrame]:
        """The frames of one connection. A message that is new starts a Gateway on this computer if none runs."""
        try:
            yield from self.client.stream("chat.send", params)
        except Unreachable as error:
            if isinstance(error, Lost) or turn.attached_again or not self.client.target.local:
                raise
            service.ensure_running(self.client)
            yield from self.client.stream("chat.send", params)

    def _absence(self, tries: int) -> Iterator[tuple[str, str]]:
        """What to show while the Gateway is gone, after so many tries to reach it."""
        if tries == 1:
            yield VOID, ""
            yield NOTE, "The connection to the Gateway broke; the chat attaches to this message again."
        elif tries == TRIES_BEFORE_ADVICE and self.client.target.local and service.running_pid() is None:
            yield NOTE, f"No Gateway is running. Your next message starts one, and so does `{start_command()}`."

    def _reply_of(self, run_id: str) -> str | None:
        """Return the reply of a run of ours that ended while the connection was gone."""
        view = self.view(MOST_SHOWN, run_id)
        after = messages_after(view, str(view.get("asked")))
        return (
            "\n\n".join(text for one in after if one.get("role") == "assistant" and (text := message_text(one))) or None
        )

    def _question(self, id: str) -> str:
        """Show a question of the run, and what to type. The next line that names an answer answers it."""
        listed = self.client.call("question.list", {"id": id})["questions"]
        if not listed:
            return ""
        return "\n".join([*question_lines(listed[0]), f"Answer: {hint(listed[0])}"])

    def abort(self) -> list[str]:
        """Stops everything that runs in this session, and returns the ids of the runs."""
        answer = self.client.call("chat.abort", {"sessionKey": self.key}, timeout_ms=5000)
        return list(answer.get("runIds") or [])


def entry_of(message: MessageAnswer) -> str:
    return (message.get("__openclaw") or {}).get("id") or ""


def messages_after(view: ConversationAnswer, entry: str) -> list[MessageAnswer]:
    """The messages of a view that follow one entry, up to the next message of a person."""
    messages = view.get("messages") or []
    place = next((number for number, one in enumerate(messages) if entry_of(one) == entry), None)
    after = messages[place + 1 :] if place is not None else []
    end = next((number for number, one in enumerate(after) if one.get("role") == "user"), len(after))
    return after[:end]


def foreign_reply(conversation: Conversation, frame: StreamFrame) -> tuple[str, str] | None:
    """Returns the run and the final text of a frame that ends a run of another client or of the Gateway itself."""
    payload = frame.get("payload") or {}
    if frame.get("event") != "chat" or payload.get("state") != "final":
        return None
    run_id, message = str(payload.get("runId") or ""), payload.get("message")
    if run_id in conversation.ours or message is None:
        return None
    text = message_text(message)
    return (run_id, text) if text else None


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.history <= 1000:
        raise UserError("--history must be between 0 and 1000")
    conversation = Conversation(service.connect(args), args.session, args.agent)
    return open_chat(conversation, args.history)


def open_chat(conversation: Conversation, history: int) -> int:
    if sys.stdin.isatty() and sys.stdout.isatty():
        from openclaw.cli.chat_screen import ChatScreen

        return ChatScreen(conversation, history).run()
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
    printer = PlainPrinter()
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
    """``openclaw`` alone: starts a Gateway if none runs, makes sure that a model answers, and opens a chat.

    Where nothing is set up yet, or nothing can answer, it leads through that first.
    """
    from openclaw.cli.models import DEMO
    from openclaw.cli.onboard import guide

    client = GatewayClient(resolve())
    if client.target.local and not os.path.exists(paths.config_path()) and not client.alive():
        return guide()
    if client.target.local:
        service.ensure_running(client)
        _offer_keys(client)
    defaults: SessionDefaults = client.call("sessions.list", {"limit": 1}).get("defaults") or {}
    name = "/".join(name for name in (defaults.get("modelProvider"), defaults.get("model")) if name)
    if name == DEMO and client.target.local:
        from openclaw.models.local.install import is_installed

        if not is_installed(paths.state_dir()):
            return guide()
    note(f"{name or 'No model'} answers. `openclaw models list` shows others.")
    return open_chat(Conversation(client, None, None), HISTORY)


def _offer_keys(client: GatewayClient) -> None:
    """Says which keys of this terminal the Gateway lacks, and offers to store them for it."""
    from openclaw.cli.models import offer_keys, unknown_to_gateway

    try:
        told = client.call("models.status")
    except GatewayError:
        return  # An older Gateway does not know its keys.
    # Whoever chose a model with a key need not hear of other keys at every chat.
    if str(told.get("defaultModel") or "local/").startswith("local/"):
        offer_keys(unknown_to_gateway(told))


COMMANDS = {
    "chat": Action(
        "Talk with the agent in this terminal",
        run,
        (
            Flag("--session NAME", "session key, id or label; a new name begins a session (default: main)"),
            Flag("--agent ID", "agent to talk with (default: the default agent)"),
            Flag("--history N", "messages to show on opening (10)", type=int, default=10),
            *GATEWAY,
        ),
        about=(
            "A Gateway is started if none runs, and goes on when you leave. You can type while a reply comes; "
            "/help lists the commands and keys. Without a terminal each line of input is one message, answered in "
            "plain text; the exit code is 1 if one of them failed."
        ),
        example="openclaw chat --session main",
    )
}
