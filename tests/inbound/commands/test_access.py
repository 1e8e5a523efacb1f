"""Who may give commands, and what strangers get to see: nothing."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.inbound.incoming import Continue, Handled
from tests.inbound.commands.desk import Desk

STRANGER: dict[str, Any] = {"authorised": False, "owner": False}


@pytest.mark.parametrize(
    "text",
    ["/status", "/reset", "/new hi there", "/stop", "/send off", "/id", "/queue list", "/t high", "/t high\n/v on"],
)
async def test_a_strangers_command_is_met_with_silence(desk: Desk, text: str) -> None:
    assert await desk.say(text, **STRANGER) == Handled()
    assert desk.done == [] and await desk.stored() == {}


@pytest.mark.parametrize(
    "text",
    ["please /status now", "stop", "wait", "/think high what is love", "hey /swift do it", "hi /model deep", "x"],
)
async def test_inside_a_strangers_text_the_words_stay_words(desk: Desk, text: str) -> None:
    assert await desk.say(text, **STRANGER) == Continue(text=text)
    assert desk.done == []


@pytest.mark.parametrize("text", ["/send off", "/activation always", "/config show", "/restart"])
async def test_what_only_owners_may_is_silence_for_others(desk: Desk, text: str) -> None:
    facts = {"chat_type": "group", "channel": "signal"}
    assert await desk.say(text, owner=False, **facts) == Handled()
    assert await desk.stored() == {}
    assert (await desk.reply(text, owner=True, **facts)) is not None


async def test_in_a_direct_chat_a_guest_is_told_whose_command_it_is(desk: Desk) -> None:
    for text in ("/config show", "/approve 1 deny", "/exec security=full ask=off", "/elevated full"):
        reply = await desk.reply(text, owner=False)
        assert reply is not None and "is for the owner" in reply
    assert await desk.stored() == {}


async def test_an_owner_who_is_not_authorised_may_nothing(desk: Desk) -> None:
    assert await desk.say("/send off", authorised=False, owner=True) == Handled()


# Shortcuts inside text


async def test_a_shortcut_inside_text_is_answered_at_once_and_taken_out(desk: Desk) -> None:
    outcome = await desk.say("here we go /status now")
    assert isinstance(outcome, Continue)
    assert outcome.text == "here we go now"
    assert len(outcome.side_replies) == 1 and outcome.side_replies[0].startswith("🦞 OpenClaw")


async def test_the_list_of_commands_inside_text(desk: Desk) -> None:
    outcome = await desk.say("please /commands now\nand  then")
    assert isinstance(outcome, Continue)
    assert outcome.text == "please now\nand  then"
    assert outcome.side_replies[0].startswith("ℹ️ Commands")


async def test_several_shortcuts_and_nothing_else_are_all_answered(desk: Desk) -> None:
    reply = await desk.reply("/help\n/whoami")
    assert "ℹ️" in (reply or "") and "🧭 Identity" in (reply or "")


async def test_other_commands_inside_text_are_text(desk: Desk) -> None:
    text = "should I /send off or /restart or\n/new thing?"
    assert await desk.say(text) == Continue(text=text)
    assert desk.done == []


async def test_a_command_with_words_it_does_not_take_is_a_shortcut_in_text(desk: Desk) -> None:
    outcome = await desk.say("/status please")
    assert isinstance(outcome, Continue)
    assert outcome.text == "please" and len(outcome.side_replies) == 1
