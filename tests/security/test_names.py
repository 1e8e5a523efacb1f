"""Channel × name/id: only an id admits. A listed name stands for the id that it was resolved to once.

The events of each platform are walked, not listed: whatever text of an event a stranger fills with a listed id, the
message is admitted only where the platform itself puts the id. Each channel of the product has a row here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openclaw.channels.base import BUILT_IN
from openclaw.channels.signal import channel as signal
from openclaw.inbound.access import Allow, channel_settings, decide_access, names_of_people
from openclaw.inbound.message import ClaimedName, Inbound, Sender
from openclaw.inbound.names import ResolvedNames
from openclaw.storage.files.disk import FileDocuments
from tests.inbound.support import configured, message
from tests.security.test_channel_texts import PLATFORMS, inbounds, places, value_at, with_value

Place = tuple[Any, ...]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    listed: dict[str, Any]
    """Settings of the channel that admit one id and nobody else."""
    id: str | int
    """The listed id."""
    ids: frozenset[str]
    """The keys under which the platform gives this id. Nobody can fill them with an id that is not theirs."""
    names: frozenset[str] = frozenset()
    """The kinds of names that the channel may resolve."""


def rule(listed: dict[str, Any], id: str | int, ids: str, names: str = "") -> Rule:
    return Rule(listed=listed, id=id, ids=frozenset(ids.split()), names=frozenset(names.split()))


OPEN: dict[str, Any] = {"groupPolicy": "open", "groups": {}}
SERVER, CHANNEL, PERSON = "900000000000000001", "700000000000000001", "900000000000000042"
RULES: dict[str, list[Rule]] = {
    "telegram": [
        rule({"allowFrom": ["777"], "groupPolicy": "allowlist"}, 777, "from.id user.id chat.id", "person"),
        rule({"groupPolicy": "open", "groups": {"-777": {}}}, -777, "chat.id", "person"),
    ],
    "discord": [
        rule({"guilds": {SERVER: {}}}, SERVER, "guild_id", "space room"),
        rule({"guilds": {"3": {"channels": {CHANNEL: {}}}}}, CHANNEL, "channel_id room.parent_id", "space room"),
        rule({"guilds": {"3": {"users": [PERSON]}}}, PERSON, "author.id user.id user_id", "space room"),
    ],
    "slack": [
        rule({"channels": {"C0PRIVATE": {}}}, "C0PRIVATE", "channel item.channel", "room"),
        rule({"channels": {"c0private": {}}}, "c0private", "channel item.channel", "room"),
        rule({"channels": {"C1": {"users": ["U0OWNER"]}}}, "U0OWNER", "user", "room"),
    ],
    "whatsapp": [rule({"allowFrom": ["+15550000777"], "groupPolicy": "allowlist"}, "15550000777", "from")],
    "signal": [
        rule({"allowFrom": ["+15550000777"]}, "+15550000777", "source sourceNumber sourceUuid"),
        rule({"allowFrom": ["uuid:abc"], "groupPolicy": "allowlist"}, "abc", "sourceUuid"),
        rule({"groupPolicy": "open", "groups": {"GROUP": {}}}, "GROUP", "groupId"),
    ],
    "bluebubbles": [
        rule({"allowFrom": ["own@er.org"], "groupPolicy": "allowlist"}, "own@er.org", "handle.address"),
        rule({"groupPolicy": "open", "groups": {"chat;7": {}}}, "chat;7", "guid"),
    ],
    "matrix": [
        rule({"groupPolicy": "allowlist", "allowFrom": ["@own:er"]}, "@own:er", "sender", "room"),
        rule({"groupPolicy": "open", "groups": {"!r:own": {}}}, "!r:own", "room.id", "room"),
    ],
    "irc": [
        rule({"groupPolicy": "allowlist", "allowFrom": ["o!~o@er"]}, "o!~o@er", ""),
        rule({"groupPolicy": "open", "groups": {"#own": {}}}, "#own", "channel"),
    ],
}  # fmt: skip
RULES["imessage"] = RULES["bluebubbles"]
SIGNAL: dict[str, Any] = {
    "source": "+15550000042", "sourceNumber": "+15550000042", "sourceUuid": "u", "sourceName": "Eve", "timestamp": 5,
    "dataMessage": {
        "message": "hi \ufffc", "timestamp": 5, "groupInfo": {"groupId": "G", "groupName": "Family"},
        "mentions": [{"start": 3, "length": 1, "name": "Bob", "number": "+15550000043", "uuid": "v"}],
        "quote": {"id": 5, "author": "+15550000043", "authorNumber": "+15550000043", "authorUuid": "v", "text": "q"},
    },
}  # fmt: skip
"""An event of Signal. The other events are those of ``test_channel_texts``."""


def read_signal(_: str, event: Any) -> Any:
    own = signal.OwnIdentity("+15550000001")
    return signal.interpret(msgspec.convert({"envelope": event}, signal.ReceiveEvent), own, "default")


READERS = {
    **PLATFORMS,
    "signal": (read_signal, {"message": SIGNAL}),
    "imessage": PLATFORMS["bluebubbles"],
}


def test_every_channel_has_a_rule() -> None:
    assert set(RULES) == set(READERS) == set(BUILT_IN)


def key_of(path: Place) -> str:
    return ".".join(str(key) for key in path)


def read(channel: str, kind: str, event: Any) -> list[Inbound]:
    try:
        found = inbounds(READERS[channel][0](kind, copy.deepcopy(event)))
    except (msgspec.MsgspecError, ValueError, KeyError):
        return []
    return [msgspec.structs.replace(one, channel=channel) for one in found]


async def admitted(names: ResolvedNames, inbound: Inbound, section: dict[str, Any]) -> bool:
    config = configured({"channels": {inbound.channel: {"dmPolicy": "allowlist", **section}}})
    settings = channel_settings(config, inbound.channel)
    inbound = await names.recognise(inbound, settings, names_of_people(config, inbound.channel))
    return isinstance(decide_access(inbound, settings, ()), Allow)


def cases() -> Iterator[Any]:
    for channel, rules in RULES.items():
        for number, listed in enumerate(rules):
            for kind in READERS[channel][1]:
                yield pytest.param(channel, listed, kind, id=f"{channel} {number} {kind}")


@pytest.fixture
def names(tmp_path: Path) -> ResolvedNames:
    return ResolvedNames(FileDocuments(tmp_path))


@pytest.mark.parametrize(("channel", "listed", "kind"), list(cases()))
async def test_no_text_of_a_stranger_stands_for_a_listed_id(
    names: ResolvedNames, channel: str, listed: Rule, kind: str
) -> None:
    event = READERS[channel][1][kind]
    for path in places(event):
        if isinstance(value_at(event, path), dict | list):
            continue
        for value in {listed.id, str(listed.id), f"#{listed.id}", f"@{listed.id}"}:
            for inbound in read(channel, kind, with_value(event, path, value)):
                assert {name.kind for name in inbound.names} <= listed.names
                if await admitted(names, inbound, listed.listed):
                    assert any(f".{key_of(path)}".endswith(f".{key}") for key in listed.ids), (key_of(path), value)


@pytest.mark.parametrize("channel", RULES)
async def test_the_ids_of_these_tests_admit(names: ResolvedNames, channel: str) -> None:
    """Otherwise the test above could not fail."""
    for listed in RULES[channel]:
        events = [
            (kind, with_value(event, path, listed.id))
            for kind, event in READERS[channel][1].items()
            for path in places(event)
            if any(f".{key_of(path)}".endswith(f".{key}") for key in listed.ids)
        ]
        if not listed.ids:  # The id of IRC is made of three parts.
            events = [("message", {**READERS[channel][1]["message"], "nick": "o", "user": "~o", "host": "er"})]
        found = [inbound for kind, event in events for inbound in read(channel, kind, event)]
        assert [inbound for inbound in found if await admitted(names, inbound, listed.listed)], listed


# Names that a list may hold


def claim(kind: Any, name: str, id: str, **more: Any) -> ClaimedName:
    return ClaimedName(kind=kind, name=name, id=id, **more)


def person(id: str, name: str) -> Inbound:
    claimed = (claim("person", name, id),) if name else ()
    return message(channel="telegram", peer=id, sender=Sender(id=id), names=claimed)


def room(channel: str) -> Any:
    return lambda id, name: message(
        channel=channel, kind="channel", peer=id, names=(claim("room", name, id),) if name else ()
    )


def guild(id: str, name: str) -> Inbound:
    claimed = (claim("space", name, id),) if name else ()
    return message(channel="discord", kind="channel", peer="7", guild_id=id, names=claimed)


def guild_room(id: str, name: str) -> Inbound:
    claimed = (claim("room", name, id, space="3"),) if name else ()
    return message(channel="discord", kind="channel", peer=id, guild_id="3", names=claimed)


NAMED = {
    "telegram person": (person, {"allowFrom": ["@Ann"]}, "@ann"),
    "slack room": (room("slack"), {"channels": {"#ops": {}}}, "#ops"),
    "matrix room": (room("matrix"), {"groupPolicy": "open", "groups": {"#ops:test": {}}}, "#ops:test"),
    "discord space": (guild, {"guilds": {"friends": {}}}, "friends"),
    "discord room": (guild_room, {"guilds": {"3": {"channels": {"ops": {}}}}}, "ops"),
}


def test_every_kind_of_name_is_tested() -> None:
    kinds = {f"{channel} {kind}" for channel, rules in RULES.items() for rule in rules for kind in rule.names}
    assert kinds == set(NAMED)


@pytest.mark.parametrize("which", NAMED)
async def test_a_listed_name_stands_for_the_id_that_had_it_first(tmp_path: Path, which: str) -> None:
    make, section, name = NAMED[which]
    names = ResolvedNames(FileDocuments(tmp_path))
    assert not await admitted(names, make("11", "other"), section)
    assert await admitted(names, make("12", name), section)
    assert not await admitted(names, make("13", name), section), "somebody else takes the name"
    again = ResolvedNames(FileDocuments(tmp_path))
    assert not await admitted(again, make("13", name), section), "also after a restart"
    assert await admitted(again, make("12", ""), section), "the id keeps its place under any name"
    channel = which.split()[0]
    assert await again.of(channel, "default") == {name: "12"}
