"""Persisted messages that wait to be accepted: for more text of their sender, or for the disk."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from openclaw import json_text
from openclaw.agent.runtime import Runtime
from openclaw.clock import Backoff, wait_within
from openclaw.config.agents import default_agent_id, main_session_key
from openclaw.inbound.debounce import AcceptTurn
from openclaw.inbound.dedupe import dedupe_key
from openclaw.inbound.message import Inbound
from openclaw.inbound.notices import Notices
from openclaw.messages import Route
from openclaw.runs.reasons import reason_text
from openclaw.storage.disk_errors import is_storage_failure
from openclaw.storage.message_ledger import Accept, HeldMessage, MessageBody, Reason, ReasonCode

log = logging.getLogger("openclaw.inbound.held")

AGAIN = Backoff(initial_s=0.5, max_s=30.0, jitter=0.0)
MOST_ATTEMPTS = 5
"""A message is given up after so many attempts, of one Gateway or of as many that died over it."""
_GIVEN_UP = uuid.UUID("5e4b3d62-7f0c-4d59-9d0e-0f6a9b1c2d3e")


class Waiting(msgspec.Struct, frozen=True):
    """A message that waits to be accepted."""

    held: HeldMessage
    inbound: Inbound | None
    """None when what was stored cannot be read."""
    problem: str
    """Why it could not be accepted yet. Empty if it waits for more text of its sender."""

    @property
    def message_id(self) -> str:
        return self.inbound.message_id if self.inbound else _id_in(self.held.key)

    @property
    def channel(self) -> str:
        return self.held.key.partition("|")[0]

    def words(self) -> str:
        if self.problem:
            return f"it could not be handed on yet and is tried again: {self.problem}"
        return "it waits for more words of its sender" if self.inbound else "what was stored of it cannot be read"


class Held:
    """Retries messages held in the ledger until they are accepted or have failed too often.

    It waits for a failing disk without a limit. ``accept_turn`` accepts the messages of one turn.
    """

    def __init__(self, runtime: Runtime, notices: Notices, accept_turn: AcceptTurn) -> None:
        self._runtime = runtime
        self._notices = notices
        self._accept_turn = accept_turn
        self._closing = asyncio.Event()
        self._problems: dict[str, str] = {}
        """Why messages could not be accepted yet, by their keys."""

    async def persist(self, inbound: Inbound) -> None:
        """Persist a message before it waits. Returns when it is on disk."""
        await self._runtime.stores.ledger.hold(held_key(inbound), msgspec.json.encode(inbound))

    async def change(self, inbound: Inbound) -> None:
        """Persist the new text of a waiting message. Returns when it is on disk."""
        await self._runtime.stores.ledger.update_held(held_key(inbound), msgspec.json.encode(inbound))

    async def release(self, items: Sequence[Inbound]) -> None:
        """Delete messages that were accepted or rejected."""
        await self._runtime.stores.ledger.release_held([held_key(item) for item in items])

    async def retry_until_accepted(self, items: list[Inbound]) -> None:
        """Accept the messages of one turn, or notify their sender after giving up."""
        keys, attempt = [held_key(item) for item in items], 0
        while not (attempt and self._closing.is_set()):
            attempt += 1
            try:
                await self._accept_turn(items)
                await self.release(items)
                break
            except Exception as error:
                problem = str(error) or type(error).__name__
                self._problems |= dict.fromkeys(keys, problem)
                if attempt == 1:
                    log.warning("%s message cannot be accepted yet: %s", items[0].channel, problem, exc_info=error)
                if (
                    not is_storage_failure(error)
                    and attempt >= MOST_ATTEMPTS
                    and await self._give_up(keys, items, problem)
                ):
                    break
            await wait_within(self._closing, AGAIN.delay_s(attempt, lambda: 0.0), self._runtime.clock)
        for key in keys:
            self._problems.pop(key, None)

    async def resume(
        self, start: Callable[[Inbound], asyncio.Task[None]], account: tuple[str, str] | None = None
    ) -> list[asyncio.Task[None]]:
        """Resume the messages that an earlier process held. Gives up unreadable ones and those that failed too often.

        ``account`` is the channel and the account whose messages are resumed, or None for all.
        """
        tasks: list[asyncio.Task[None]] = []
        for held in await self._rows():
            if account is not None and tuple(held.key.split("|")[:2]) != account:
                continue
            try:
                inbound = read(held)
                problem = "the Gateway stopped each time it tried" if held.attempts >= MOST_ATTEMPTS else ""
            except ValueError as error:
                inbound, problem = None, f"what was stored of it is damaged: {error}"
            if inbound is None or problem:
                give_up = self._give_up_at_last([held.key], [inbound] if inbound else [], problem)
                tasks.append(asyncio.create_task(give_up, name="give up a message"))
                continue
            try:
                await self._runtime.stores.ledger.count_held_attempt(held.key)
            except Exception as error:
                log.warning("an attempt to accept %s could not be counted: %s", held.key, error)
            tasks.append(start(inbound))
        return tasks

    async def waiting(self) -> list[Waiting]:
        """Return the messages that wait, oldest first."""
        return [Waiting(held, _read_or_none(held), self._problems.get(held.key, "")) for held in await self._rows()]

    async def _rows(self) -> list[HeldMessage]:
        return await self._runtime.stores.ledger.held()

    def close(self) -> None:
        """End the attempts. The next start resumes the rest."""
        self._closing.set()

    async def _give_up_at_last(self, keys: Sequence[str], items: Sequence[Inbound], problem: str) -> None:
        attempt = 0
        while not await self._give_up(keys, items, problem) and not self._closing.is_set():
            attempt += 1
            await wait_within(self._closing, AGAIN.delay_s(attempt, lambda: 0.0), self._runtime.clock)

    async def _give_up(self, keys: Sequence[str], items: Sequence[Inbound], problem: str) -> bool:
        """End the messages and notify their sender. Returns False if the ledger could not be written."""
        channel, account, to = (*keys[0].split("|"), "", "", "")[:3]
        config = self._runtime.config.current
        agent = default_agent_id(config)
        reason = Reason(ReasonCode.NOT_TAKEN, problem)
        text = "\n".join(item.text for item in items)
        try:
            entry = await self._runtime.stores.sessions.get(agent, main_session_key(config, agent))
        except Exception as error:
            log.error("message %s cannot be given up yet: %s", ", ".join(keys), error)
            return False
        accept = Accept(
            run_id=str(uuid.uuid5(_GIVEN_UP, keys[0])),
            dedupe_key="",
            agent_id=agent,
            session_key=main_session_key(config, agent),
            session_id=entry["sessionId"] if entry else "",
            source=channel,
            route=Route(channel=channel, to=items[-1].to if items else to, account_id=account),
            body=MessageBody(
                prompt=text or None, message_ids=[item.message_id for item in items] or [_id_in(key) for key in keys]
            ),
            dedupe_keys=tuple(keys),
        )
        log.error("message %s is given up: %s", ", ".join(keys), problem)
        try:
            await self._notices.post(accept, [f"⚠️ {reason_text(reason)}"], state="failed", reason=reason)
            await self._runtime.stores.ledger.release_held(keys)
        except Exception as error:
            log.error("that could not be written down; it is tried again: %s", error)
            return False
        return True


def _id_in(key: str) -> str:
    """Return the channel's id of a message that cannot be read. The key of an edit ends with its revision instead."""
    return key.rpartition("|")[2]


def held_key(inbound: Inbound) -> str:
    """Return the key under which a message waits in the ledger for more words of its sender."""
    return dedupe_key(inbound) or f"{inbound.channel}|{inbound.account_id}|{inbound.peer.id}|{inbound.timestamp_ms}"


def read(held: HeldMessage) -> Inbound:
    """Decode a held message, also one with broken text. Raises ``ValueError``."""
    try:
        return msgspec.json.decode(held.message, type=Inbound)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        fields: Any = json_text.decode_loosely(held.message)
        return msgspec.convert(fields, Inbound)  # A ValidationError is a ValueError.


def _read_or_none(held: HeldMessage) -> Inbound | None:
    try:
        return read(held)
    except ValueError:
        return None
