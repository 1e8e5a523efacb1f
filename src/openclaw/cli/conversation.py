"""One conversation with the Gateway, as a chat client needs it: history, sending, stopping, listening."""

from __future__ import annotations

from openclaw.cli import turn as turns
from openclaw.cli.client import Client, GatewayError, new_id
from openclaw.cli.errors import UserError
from openclaw.cli.message import check_agent, find_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HISTORY = 10
REMEMBERED_RUNS = 200


class Conversation:
    def __init__(self, client: Client, session: str | None, agent: str | None) -> None:
        self.client = client
        self.agent = agent or ""
        if agent:
            check_agent(client, agent)
        self.key = self._key(session)
        self.running: dict[str, turns.Turn] = {}
        """Our own runs that have not ended, by run id."""
        self._ours: dict[str, None] = {}

    def _key(self, session: str | None) -> str:
        if not session or session == "main":
            return f"agent:{self.agent}:main" if self.agent else "main"
        try:
            return find_session(self.client, session, self.agent or None)
        except UserError as error:
            if isinstance(error, GatewayError):
                raise
        # A chat, unlike a script, may begin a session: the person sees at once that it is empty.
        return session if session.startswith("agent:") else f"agent:{self.agent or 'main'}:{session}"

    def switch(self, session: str) -> None:
        self.key = self._key(session)

    def history(self, limit: int = HISTORY) -> list[dict[str, Any]]:
        answer = self.client.call("chat.history", {"sessionKey": self.key, "limit": limit})
        return [message for message in answer.get("messages") or [] if isinstance(message, dict)]

    def sessions(self) -> list[dict[str, Any]]:
        listed = self.client.call("sessions.list", {"limit": 20, "includeDerivedTitles": True})
        return list(listed.get("sessions") or [])

    def send(self, text: str) -> tuple[turns.Turn, Iterator[tuple[str, str]]]:
        """The turn, and what to show while it is consumed."""
        run_id = new_id()
        turn = turns.Turn(run_id, self.key)
        self._remember(run_id)
        self.running[run_id] = turn
        params = {"sessionKey": self.key, "message": text, "deliver": False, "idempotencyKey": run_id}
        return turn, self._updates(turn, params)

    def _updates(self, turn: turns.Turn, params: dict[str, Any]) -> Iterator[tuple[str, str]]:
        try:
            for frame in self.client.stream("chat.send", params):
                yield from turn.digest(frame)
            waiting = (turn.payload or {}).get("status") in ("started", "in_flight")
            if turn.accepted is None or (waiting and not turn.state):
                raise UserError("The connection to the Gateway ended before the reply did; it comes when it is ready.")
        finally:
            self.running.pop(turn.run_id, None)

    def _remember(self, run_id: str) -> None:
        self._ours[run_id] = None
        while len(self._ours) > REMEMBERED_RUNS:
            del self._ours[next(iter(self._ours))]

    def is_ours(self, run_id: Any) -> bool:
        return run_id in self._ours

    def abort(self) -> list[str]:
        """Stops everything that runs in this session; the ids of the runs."""
        answer = self.client.call("chat.abort", {"sessionKey": self.key}, timeout_ms=5000)
        return list(answer.get("runIds") or [])


def foreign_reply(conversation: Conversation, frame: dict[str, Any]) -> str | None:
    """The final text in this frame, if it ends a run that another client, a channel or a queue started."""
    payload = frame.get("payload")
    if frame.get("event") != "chat" or not isinstance(payload, dict) or payload.get("state") != "final":
        return None
    if conversation.is_ours(payload.get("runId")) or not isinstance(payload.get("message"), dict):
        return None
    return turns.message_text(payload["message"]) or None
