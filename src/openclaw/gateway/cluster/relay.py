"""Events between nodes: what happens on one is told to the clients of all, as if it had happened there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from openclaw.gateway.auth.authorise import EVENT_RIGHTS
from openclaw.gateway.server.events import GrowingText, Payload, field_of, spoken
from openclaw.gateway.server.params import NotJson, decode_any, encode
from openclaw.runs.why_text import reason_text
from openclaw.sessions.keys import shown_key
from openclaw.storage.base import LedgerRow

if TYPE_CHECKING:
    from openclaw.cluster.links import Links
    from openclaw.gateway.gateway import Gateway

OWN_EVENTS = frozenset(
    {
        *("connect.challenge", "tick", "shutdown", "presence", "health", "talk.mode", "voicewake.changed"),
        *("node.invoke.request", "node.invoke.cancel"),
    }
)
"""Events that are about one node, or for a client of it."""
RELAYED = frozenset(EVENT_RIGHTS) - OWN_EVENTS
MOST_RUNS = 5_000
"""How many runs of other nodes, and of this one, are remembered at most."""
ENDED = "ended"


class ClusterRelay:
    """Sends the events of this node to the others, and publishes theirs here.

    A growing text is sent in increments. A node that missed one, or that was connected later, gets the whole text with
    the next. Ends and other events are not left out; a node that reads too slowly for them is connected anew.
    """

    def __init__(self, gateway: Gateway, links: Links) -> None:
        self._gateway = gateway
        self._links = links
        self._publishing = False
        """True while an event of another node is published here. It is not sent back."""
        self._sent: OrderedDict[tuple[str, str], int] = OrderedDict()
        """The state of the links when a text was last sent whole or in part, by event and run."""
        self._texts: OrderedDict[str, GrowingText] = OrderedDict()
        """What runs of other nodes have said in their present message."""
        self.active: OrderedDict[str, str] = OrderedDict()
        """The runs of other nodes that are under way, and their nodes."""
        self._followers: OrderedDict[str, Callable[[str, bool], None]] = OrderedDict()
        """Who wants the words of a run of another node, by run id."""

    # To the others

    def event(self, event: str, payload: Any, *, may_be_lost: bool) -> None:
        if not self._publishing and event in RELAYED and self._links.any:
            self._links.tell_all(f"event {event}", encode(payload), may_be_lost=may_be_lost)

    def growing(self, event: str, full: Payload, delta: Any) -> None:
        if self._publishing or not self._links.any:
            return
        key, opened = (event, str(field_of(delta, "runId"))), self._links.opened
        if self._sent.get(key) == opened:
            sent = self._links.tell_all(f"delta {event}", encode(delta), may_be_lost=True)
        else:
            payload = full() if callable(full) else full
            sent = self._links.tell_all(f"whole {event}", encode([delta, payload]), may_be_lost=True)
        if sent:
            _remember(self._sent, key, opened)
        else:
            self._sent.pop(key, None)

    def to(self, conn_ids: Sequence[str], event: str, payload: Any) -> None:
        if not self._publishing and self._links.any:
            self._links.tell_all(f"to {event}", encode([list(conn_ids), payload]), may_be_lost=True)

    def ended(self, run_id: str) -> None:
        """Tells those who wait on other nodes that the ledger has the end of a run."""
        if not self._publishing and self._links.any:
            self._links.tell_all(ENDED, run_id.encode())

    # From the others

    def hear(self, node: str, kind: str, data: bytes) -> None:
        if kind == ENDED:
            run_id = data.decode("utf-8", "replace")
            self.active.pop(run_id, None)
            self.wake(run_id)
            return
        form, _, event = kind.partition(" ")
        if event not in RELAYED:
            return
        try:
            payload = decode_any(data)
        except NotJson:
            return
        self._publishing = True
        try:
            match form:
                case "event":
                    self._note(node, event, payload)
                    self._gateway.broadcaster.publish(event, payload)
                case "delta":
                    self._grow(event, payload, None)
                case "whole":
                    self._grow(event, *payload)
                case "to":
                    self._gateway.broadcaster.send_to(payload[0], event, payload[1])
                case _:
                    pass
        finally:
            self._publishing = False

    def follow(self, run_id: str, heard: Callable[[str, bool], None]) -> None:
        """Calls ``heard`` with the words of a run of another node, and whether another message begins with them."""
        _remember(self._followers, run_id, heard)

    def unfollow(self, run_id: str) -> None:
        self._followers.pop(run_id, None)

    def wake(self, run_id: str) -> None:
        """Wakes those who wait here for a run of another node."""
        self._publishing = True
        try:
            self._gateway.dispatcher.wake_waiters(run_id)
        finally:
            self._publishing = False

    def tell_end(self, row: LedgerRow) -> None:
        """Tells the clients of this node the end of a run whose own node died before it could."""
        text, key = str((row.result or {}).get("text") or ""), shown_key(row.session_key)
        state = {"answered": "final", "silent": "final", "superseded": "aborted"}.get(row.state, "error")
        payload: dict[str, Any] = {"runId": row.run_id, "sessionKey": key, "seq": 0, "state": state}
        if state == "error":
            payload["errorMessage"] = reason_text(row.reason) or row.state
        elif text:
            payload["message"] = spoken(text, self._gateway.runtime.clock.now_ms())
        self._publishing = True
        try:
            self._gateway.broadcaster.publish("chat", payload)
        finally:
            self._publishing = False
        self._texts.pop(row.run_id, None)

    def _note(self, node: str, event: str, payload: Any) -> None:
        run_id = field_of(payload, "runId")
        if not isinstance(run_id, str):
            return
        if event == "agent" and field_of(payload, "stream") == "lifecycle":
            if field_of(field_of(payload, "data"), "phase") in ("end", "error"):
                self.active.pop(run_id, None)
                self._texts.pop(run_id, None)
            else:
                _remember(self.active, run_id, node)

    def _grow(self, event: str, delta: Any, full: Any) -> None:
        run_id = str(field_of(delta, "runId"))
        text = self._texts.get(run_id)
        if event != "agent":
            if text is None:
                return
            size, head = text.size, dict(delta)
            at = field_of(field_of(full, "message"), "timestamp") or self._gateway.runtime.clock.now_ms()
            self._gateway.broadcaster.publish_variants(
                event, lambda: {**head, "message": spoken(text.upto(size), at)}, delta, drop_if_slow=True
            )
            return
        data = dict(field_of(delta, "data") or {})
        said = str(data.get("delta", ""))
        if text is None or full is not None or "text" in data:
            text = GrowingText()
            whole = field_of(field_of(full, "data"), "text") if full is not None else None
            text.add(whole if isinstance(whole, str) else said)
        else:
            text.add(said)
        _remember(self._texts, run_id, text)
        size, grown = text.size, text
        self._gateway.broadcaster.publish_variants(
            event, lambda: {**delta, "data": {**data, "text": grown.upto(size)}}, delta
        )
        if (follower := self._followers.get(run_id)) is not None:
            follower(said, "text" in data)


def _remember(kept: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MOST_RUNS:
        kept.popitem(last=False)
