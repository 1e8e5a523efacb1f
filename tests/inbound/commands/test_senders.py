"""Commands × senders: every command in every form, from everyone who can write to a Gateway.

The test knows the method that does the same as each command. A command that it does not know fails it.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.gateway.auth.authorise import right_of
from openclaw.inbound.commands.registry import COMMANDS
from openclaw.inbound.commands.settings import elevated_allowed
from openclaw.inbound.directives import KINDS, Listening
from openclaw.inbound.incoming import Continue, Facts, Handled, Outcome
from openclaw.rights import GUEST, NO_RIGHTS, OWNER, Right, rights_of_client
from openclaw.storage.message_ledger import MessageBody
from tests.inbound.commands.desk import SESSION as MAIN_SESSION
from tests.inbound.commands.desk import Desk, MakeDesk

SWITCHED_ON = {
    "commands": {"config": True, "restart": True},
    "tools": {"elevated": {"allowFrom": {"signal": ["*"], "webchat": ["*"]}}},
}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    """The method that does the same. A client needs its scope."""
    owner: bool = False
    """On a channel only the owner may give it."""
    inline_method: str | None = None
    """For a setting inside other text, if it is another one."""


SESSION = Rule(method="sessions.patch")
RULES: dict[str, Rule] = {
    "new": Rule(method="sessions.reset"),
    "new hello": Rule(method="sessions.reset"),
    "reset": Rule(method="sessions.reset"),
    "resume": Rule(method="sessions.resume"),
    "resume 1": Rule(method="sessions.resume"),
    "resume list": Rule(method="sessions.archived"),
    "stop": Rule(method="chat.abort"),
    "think high": Rule(method="sessions.patch", inline_method="chat.send"),
    "verbose full": SESSION,
    "reasoning on": SESSION,
    "elevated full": Rule(method="sessions.patch", owner=True),
    "exec security=full ask=off": Rule(method="sessions.patch", owner=True),
    "exec host=gateway": Rule(method="sessions.patch", owner=True),
    "exec": Rule(method="sessions.patch", owner=True),
    "model deep": SESSION,
    "queue interrupt": SESSION,
    "queue list": Rule(method="sessions.list"),
    "queue drop 1": Rule(method="chat.abort"),
    "queue now 1": Rule(method="chat.abort"),
    "usage full": SESSION,
    "usage": SESSION,
    "usage cost": Rule(method="usage.cost"),
    "help": Rule(method="health"),
    "commands": Rule(method="health"),
    "status": Rule(method="status"),
    "plan": Rule(method="chat.view"),
    "plan clear": SESSION,
    "whoami": Rule(method="health"),
    "models": Rule(method="models.list"),
    "why": Rule(method="messages.why"),
    "subagents": Rule(method="sessions.list"),
    "subagents send 1 hello": Rule(method="chat.send"),
    "subagents stop all": Rule(method="chat.abort"),
    "send off": Rule(method="sessions.patch", owner=True),
    "activation always": Rule(method="sessions.patch", owner=True),
    "approve 1 deny": Rule(method="exec.approval.resolve", owner=True),
    "answer 1 yes": Rule(method="chat.send"),
    "config show": Rule(method="config.get", owner=True),
    "config set ui.seamColor=red": Rule(method="config.set", owner=True),
    "config unset ui": Rule(method="config.set", owner=True),
    "restart": Rule(method="update.run", owner=True),
    "budget": Rule(method="config.get", owner=True),
    "budget override": Rule(method="sessions.patch", owner=True),
    "compact": Rule(method="sessions.compact"),
    "compact preview": Rule(method="sessions.compact"),
    "compact undo": Rule(method="sessions.compact"),
    "pin keep this": SESSION,
    "unpin 1": SESSION,
    "pins": Rule(method="chat.history"),
    "context list": Rule(method="sessions.list"),
}
"""A use of each command, without the slash, and its rule."""
LISTENING_IN_GROUP = Listening(group=True, channel="signal")


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    rights: frozenset[Right]
    facts: dict[str, Any]

    @property
    def is_client(self) -> bool:
        return bool(self.facts.get("client"))

    def may(self, rule: Rule, *, inline: bool = False) -> bool:
        if self.is_client:
            return right_of((inline and rule.inline_method) or rule.method) in self.rights
        return "admin" in self.rights if rule.owner else bool(self.rights)


def person(rights: frozenset[Right], **facts: Any) -> Sender:
    return Sender(rights=rights, facts={"channel": "signal", "sender_ids": ("+1555",), **facts})


def connected(*scopes: str, role: str = "operator") -> Sender:
    return Sender(rights=rights_of_client(role, scopes), facts={"client": True, "mentioned": True})


IN_GROUP: dict[str, Any] = {"chat_type": "group", "listening": LISTENING_IN_GROUP, "mentioned": True}
SENDERS = {
    "owner": person(OWNER),
    "owner in a group": person(OWNER, **IN_GROUP),
    "paired guest": person(GUEST),
    "group member who may command": person(GUEST, **IN_GROUP),
    "stranger": person(NO_RIGHTS),
    "stranger in a group": person(NO_RIGHTS, **IN_GROUP),
    "operator.read": connected("operator.read"),
    "operator.write": connected("operator.write"),
    "operator.write and approvals": connected("operator.write", "operator.approvals"),
    "operator.admin": connected("operator.admin"),
    "pairing-only device": connected("operator.pairing"),
    "client without scopes": connected(),
    "node": connected("operator.admin", role="node"),
}


def forms(use: str) -> list[str]:
    """The ways to write a command as a whole message."""
    name, _, args = use.partition(" ")
    command = next(each for each in COMMANDS if each.name == name)
    words = (command.name, *command.aliases, command.name.upper(), command.name.title())
    found = [f"/{word} {args}".strip() for word in words]
    found.append(f"  /{name} {args}  ")
    if args:
        found += [f"/{name}: {args}", f"/{name} : {args}", f"/{name}\t{args}"]
    return found


class State(msgspec.Struct, frozen=True):
    """Everything that a command could have changed."""

    entry: dict[str, Any]
    done: list[str]
    config: bytes
    notes: list[str]
    runs: list[str]


async def state(desk: Desk) -> State:
    entry = {name: value for name, value in dict(await desk.entry() or {}).items() if name != "updatedAt"}
    path = desk.runtime.config.snapshot.path
    with open(path, "rb") as file:
        return State(entry, [*desk.done], file.read(), desk.runtime.notes.peek("agent:main:main"), desk.runs)


async def said(desk: Desk, sender: Sender, text: str) -> tuple[Outcome, str | None]:
    """What became of the text, and the answer of a command, also of a slow one."""
    outcome = await desk.say(text, **{"rights": sender.rights, **sender.facts})
    if isinstance(outcome, Handled) and outcome.later is not None:
        return outcome, await outcome.later
    return outcome, outcome.reply if isinstance(outcome, Handled) else None


def is_refusal(outcome: Outcome, reply: str | None) -> bool:
    return isinstance(outcome, Handled) and (
        reply is None or ("❌ /" in reply and "this client" in reply) or "is for the owner" in reply
    )


def test_every_command_has_a_use_in_the_table() -> None:
    assert {use.partition(" ")[0] for use in RULES} == {command.name for command in COMMANDS}
    for command in COMMANDS:
        for word in command.words:
            assert any(use.startswith(f"{command.name} {word}") for use in RULES), (command.name, word)
    assert {*KINDS} == {command.name for command in COMMANDS if command.directive}


@pytest.mark.parametrize("kind", SENDERS)
async def test_a_whole_message_that_is_a_command(make_desk: MakeDesk, kind: str) -> None:
    desk, sender = await make_desk(SWITCHED_ON), SENDERS[kind]
    await desk.set({"thinkingLevel": "low"})
    for use, rule in RULES.items():
        for text in forms(use):
            before = await state(desk)
            outcome, reply = await said(desk, sender, text)
            if sender.may(rule):
                assert not is_refusal(outcome, reply), (text, reply)
                continue
            assert is_refusal(outcome, reply), (text, outcome)
            assert (reply is not None) == (
                sender.is_client or (bool(sender.rights) and not sender.facts.get("chat_type"))
            )
            assert await state(desk) == before, text


@pytest.mark.parametrize("kind", SENDERS)
async def test_settings_inside_other_text(make_desk: MakeDesk, kind: str) -> None:
    """Who may give a setting changes this run with it. For everyone else it is words, which the model reads."""
    desk, sender = await make_desk(SWITCHED_ON), SENDERS[kind]
    uses = [use for use in RULES if use.partition(" ")[0] in KINDS and " " in use and use not in EDITS]
    for use in uses:
        for text in (f"/{use} hello there", f"hello /{use} there", f"hello there /{use}", f"/{use}\nhello there"):
            before = await state(desk)
            outcome, _ = await said(desk, sender, text)
            assert isinstance(outcome, Continue), text
            changed = outcome.wishes != MessageBody() or outcome.queue is not None
            if sender.may(RULES[use], inline=True):
                assert changed and f"/{use}" not in outcome.text, text
            else:
                assert not changed and f"/{use}" in outcome.text, text
            assert await state(desk) == before, "a setting inside a message counts for that message only"


EDITS = ("queue list", "queue drop 1", "queue now 1")


@pytest.mark.parametrize("kind", ["paired guest", "operator.write", "stranger"])
async def test_a_forbidden_setting_does_not_ride_on_an_allowed_one(make_desk: MakeDesk, kind: str) -> None:
    desk, sender = await make_desk(SWITCHED_ON), SENDERS[kind]
    forbidden = [use for use, rule in RULES.items() if rule.owner and use.partition(" ")[0] in KINDS and " " in use]
    for bad, good in itertools.product(forbidden, ["/think high", "/t high", "/status", "/help", "/v on", ""]):
        for text in (
            f"{good} /{bad}",
            f"/{bad} {good}",
            f"{good}\n/{bad}",
            f"/new /{bad} {good} hello",
            f"/v on/{bad}",
        ):
            outcome, _ = await said(desk, sender, text)
            entry = await desk.entry() or {}
            assert not {"execHost", "execSecurity", "execAsk", "elevatedLevel"} & {*entry}, text
            if isinstance(outcome, Continue):
                assert not outcome.wishes.exec and outcome.wishes.elevated is None, text


@pytest.mark.parametrize("kind", SENDERS)
async def test_a_word_that_stops_and_a_trigger_of_ones_own(make_desk: MakeDesk, kind: str) -> None:
    desk, sender = await make_desk({"session": {"resetTriggers": ["start over"]}}), SENDERS[kind]
    for text in ("stop", "wait", "Abort", " Exit "):
        outcome, _ = await said(desk, sender, text)
        stopped = isinstance(outcome, Handled) and outcome.stopped is not None
        assert stopped == sender.may(RULES["stop"]), text
    await said(desk, sender, "start over")
    assert bool(desk.done) == sender.may(RULES["reset"])


async def test_elevated_commands_are_for_the_owner_even_where_everyone_is_listed(make_desk: MakeDesk) -> None:
    desk = await make_desk(SWITCHED_ON)
    for sender in SENDERS.values():
        facts = Facts(session=MAIN_SESSION, rights=sender.rights, channel="signal", sender_ids=("+1555",))
        assert elevated_allowed(desk.runtime.config.current, facts) == ("admin" in sender.rights)


PIECES = [
    *(f"/{use}" for use, rule in RULES.items() if rule.owner),
    *("/exec", "/elevated", "/config", "security=full", "ask=off", "host=gateway", "full", "on", ":", "set a=b"),
    *("hello", "/think high", "/status", "/new", "/swift", "/t", "`", "```", "[x]", "Ann:", "@bot", "stop", "/"),
    "[Current message - respond to this]",
]
SEPARATORS = [" ", "", "\n", "\t", "  ", ": ", "\u00a0", "\u200b", "\r\n"]
CASES = int(os.environ.get("OPENCLAW_COMMAND_CASES", "400"))


@pytest.mark.parametrize("kind", ["paired guest", "operator.write", "stranger", "group member who may command"])
async def test_no_mixture_of_words_gives_a_right(make_desk: MakeDesk, kind: str) -> None:
    desk, sender, dice = await make_desk(SWITCHED_ON), SENDERS[kind], random.Random(13)
    path = desk.runtime.config.snapshot.path
    config = Path(path).read_bytes()
    for _ in range(CASES):
        text = "".join(dice.choice(PIECES) + dice.choice(SEPARATORS) for _ in range(dice.randint(1, 6)))
        outcome, _ = await said(desk, sender, text)
        entry = await desk.entry() or {}
        loosened = {"execHost", "execSecurity", "execAsk", "execNode", "elevatedLevel", "sendPolicy", "groupActivation"}
        assert not loosened & {*entry} and Path(path).read_bytes() == config, text
        assert not [reason for reason in desk.done if reason.startswith("/restart")], text
        if isinstance(outcome, Continue):
            assert not outcome.wishes.exec and outcome.wishes.elevated is None, text
