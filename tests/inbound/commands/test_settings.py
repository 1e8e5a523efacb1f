"""Directives on their own are stored and acknowledged; inside other text they are wishes for one run."""

from __future__ import annotations

import re
from typing import Any

import pytest

from openclaw.inbound.directives import Listening
from openclaw.inbound.incoming import Continue, Handled
from openclaw.runs.queue_settings import QueueOverrides
from openclaw.storage.message_ledger import MessageBody
from tests.inbound.commands.desk import SESSION, Desk, MakeDesk

DEEP = {"providerOverride": "acme", "modelOverride": "deep-thinker-2"}
ELEVATED = {"tools": {"elevated": {"allowFrom": {"webchat": ["+1555"]}}}}
GROUP = {
    "chat_type": "group",
    "channel": "signal",
    "listening": Listening(group=True, channel="signal", mentions=(re.compile("@?clawd", re.IGNORECASE),)),
}
DIRECT_NOTE = "⚙️ Runtime is direct; sandboxing does not apply."


@pytest.mark.parametrize(
    ("text", "reply", "fields"),
    [
        ("/think high", "Thinking level set to high.", {"thinkingLevel": "high"}),
        ("/think off", "Thinking disabled.", {}),
        (
            "/think off /model deep",
            "Thinking disabled. Model set to deep (acme/deep-thinker-2).",
            {**DEEP, "thinkingLevel": "off"},
        ),
        ("/t:off", "Thinking disabled.", {}),
        ("/verbose on", "⚙️ Verbose logging enabled.", {"verboseLevel": "on"}),
        ("/verbose full", "⚙️ Verbose logging set to full.", {"verboseLevel": "full"}),
        ("/v off", "⚙️ Verbose logging disabled.", {"verboseLevel": "off"}),
        ("/reasoning on", "⚙️ Reasoning visibility enabled.", {"reasoningLevel": "on"}),
        ("/reasoning stream", "⚙️ Reasoning stream enabled (Telegram only).", {"reasoningLevel": "stream"}),
        ("/reasoning off", "⚙️ Reasoning visibility disabled.", {}),
        ("/exec host=node", "⚙️ Exec defaults set (host=node).", {"execHost": "node"}),
        (
            "/queue collect debounce:2s cap:5 drop:old",
            "⚙️ Queue mode set to collect. ⚙️ Queue debounce set to 2000ms. ⚙️ Queue cap set to 5. "
            "⚙️ Queue drop set to old.",
            {"queueMode": "collect", "queueDebounceMs": 2000, "queueCap": 5, "queueDrop": "old"},
        ),
        (
            "/model deep",
            "Model set to deep (acme/deep-thinker-2).",
            DEEP,
        ),
        ("/deep", "Model set to deep (acme/deep-thinker-2).", DEEP),
        ("/model thinker", "Model set to acme/deep-thinker-2.", DEEP),
        ("/model acme/swift-1", "Model reset to default (acme/swift-1).", {}),
        (
            "/model deep@acme:work",
            "Model set to deep (acme/deep-thinker-2) with the credential acme:work.",
            {
                "providerOverride": "acme",
                "modelOverride": "deep-thinker-2",
                "authProfileOverride": "acme:work",
                "authProfileOverrideSource": "user",
            },
        ),
        (
            "/think low\n/verbose on",
            "Thinking level set to low. ⚙️ Verbose logging enabled.",
            {"thinkingLevel": "low", "verboseLevel": "on"},
        ),
    ],
)  # fmt: skip
async def test_alone_it_is_stored_and_acknowledged(desk: Desk, text: str, reply: str, fields: dict[str, Any]) -> None:
    assert await desk.reply(text) == reply
    assert await desk.stored() == fields


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("/think", "Current thinking level: off.\nOptions: off, minimal, low, medium, high."),
        ("/think big", 'Unrecognized thinking level "big". Valid levels: off, minimal, low, medium, high.'),
        ("/verbose", "Current verbose level: off.\nOptions: off, on, full."),
        ("/verbose loud", 'Unrecognized verbose level "loud". Valid levels: off, on, full.'),
        ("/reasoning", "Current reasoning level: off.\nOptions: on, off, stream."),
        ("/elevated", "Current elevated level: off.\nOptions: on, off, ask, full."),
        ("/elevated up", 'Unrecognized elevated level "up". Valid levels: on, off, ask, full.'),
        ("/exec host=spaceship", 'Unrecognized exec host "spaceship". Valid: sandbox, gateway, node.'),
        (
            "/exec",
            "Current exec defaults: host=sandbox, security=default, ask=on-miss, node=default.\n"
            "Options: host=sandbox|gateway|node, security=deny|allowlist|full, ask=off|on-miss|always, node=<id>.",
        ),
        (
            "/queue debounce:soon cap:none drop:some",
            'Invalid debounce "soon". Write a time such as 1500ms, 2s or 1m. Invalid cap "none". Write a whole number '
            'of at least 1. Invalid drop policy "some". Write old, new or summarize.',
        ),
        (
            "/model 3",
            'Models have no numbers, so "3" names none. /models shows the names; then write /model <name>.',
        ),
        (
            "/model deep@acme:other",
            'Auth profile "acme:other" is not stored for acme (stored are: acme:work). The model is unchanged.',
        ),
        (
            "/think xhigh",
            'Thinking level "xhigh" is not available with acme/swift-1; high is the most it offers.',
        ),
        (
            "/model",
            "Current: acme/swift-1\n\nSwitch: /model <name>\nBrowse: /models\nDetails: /model status",
        ),
        # The first that cannot be done decides, and then nothing is done.
        ("/verbose on /think big", 'Unrecognized thinking level "big". Valid levels: off, minimal, low, medium, high.'),
        ("/think high /exec ask=maybe", 'Unrecognized exec ask "maybe". Valid: off, on-miss, always.'),
    ],
)
async def test_a_question_or_a_mistake_stores_nothing(desk: Desk, text: str, reply: str) -> None:
    assert await desk.reply(text) == reply
    assert await desk.stored() == {}


async def test_an_unknown_model_is_refused_with_what_is_on_offer(desk: Desk) -> None:
    assert (await desk.reply("/model nosuch") or "").startswith("Unknown model 'nosuch'. Near it: acme/")
    assert await desk.stored() == {}


async def test_a_model_off_the_list_is_refused(make_desk: MakeDesk) -> None:
    desk = await make_desk({"agents": {"defaults": {"model": "acme/swift-1", "models": {"acme/swift-1": {}}}}})
    assert "not on the list agents.defaults.models. On offer: acme/swift-1." in (
        await desk.reply("/model acme/deep-thinker-2") or ""
    )


async def test_xhigh_is_offered_where_the_model_has_it(make_desk: MakeDesk) -> None:
    models = [{"id": "gpt-5.2", "reasoning": True}]
    desk = await make_desk(
        {"models": {"providers": {"openai": {"baseUrl": "http://127.0.0.1:9/v1", "models": models}}}, "agents": {}},
    )
    assert (
        await desk.reply("/think") == "Current thinking level: low.\nOptions: off, minimal, low, medium, high, xhigh."
    )
    assert await desk.reply("/think extra-high") == "Thinking level set to xhigh."


async def test_queue_shows_its_settings_and_what_waits(desk: Desk) -> None:
    lines = (await desk.reply("/queue") or "").splitlines()
    assert lines[0] == "Current queue settings: mode=collect, debounce=1000ms, cap=20, drop=summarize."
    assert lines[1].startswith("Options: modes steer, followup, collect")
    assert lines[2:] == ["Nothing is waiting."]


async def test_queue_reset_forgets_all_four_settings(desk: Desk) -> None:
    await desk.reply("/queue collect debounce:2s cap:5 drop:old")
    assert await desk.reply("/queue reset") == "⚙️ Queue mode reset to default."
    assert await desk.stored() == {}


async def test_off_clears_what_was_set(desk: Desk) -> None:
    await desk.reply("/think high /reasoning on")
    assert (await desk.stored())["thinkingLevel"] == "high"
    assert await desk.reply("/think off /reasoning off") == "Thinking disabled. ⚙️ Reasoning visibility disabled."
    assert await desk.stored() == {}


async def test_status_beside_a_setting_is_answered_after_the_acknowledgement(desk: Desk) -> None:
    reply = await desk.reply("/verbose on\n/status")
    assert (reply or "").startswith("⚙️ Verbose logging enabled.\n🦞 OpenClaw ")
    assert "· verbose" in (reply or "")


async def test_changes_the_agent_must_know_of_are_noted_for_its_next_turn(make_desk: MakeDesk) -> None:
    desk = await make_desk(ELEVATED)
    await desk.reply("/model deep")
    await desk.reply("/reasoning on")
    await desk.reply("/elevated ask")
    await desk.reply("/think high")
    assert desk.runtime.notes.peek(SESSION.key) == [
        "Model switched to acme/deep-thinker-2.",
        "Reasoning visibility is now on.",
        "Elevated mode is now ask.",
    ]


# Elevated


@pytest.mark.parametrize(
    ("text", "reply", "level"),
    [
        ("/elevated on", "⚙️ Elevated mode set to ask (approvals may still apply).", "on"),
        ("/elevated ask", "⚙️ Elevated mode set to ask (approvals may still apply).", "ask"),
        ("/elev full", "⚙️ Elevated mode set to full (auto-approve).", "full"),
        ("/elevated off", "⚙️ Elevated mode disabled.", "off"),
    ],
)
async def test_elevated_for_a_listed_sender(make_desk: MakeDesk, text: str, reply: str, level: str) -> None:
    desk = await make_desk(ELEVATED)
    assert await desk.reply(text) == f"{reply} {DIRECT_NOTE}"
    assert await desk.stored() == {"elevatedLevel": level}


@pytest.mark.parametrize(
    ("config", "gate"),
    [
        ({}, "tools.elevated.allowFrom.webchat"),
        ({"tools": {"elevated": {"enabled": False, "allowFrom": {"webchat": ["*"]}}}}, "tools.elevated.enabled"),
        (
            {**ELEVATED, "agents": {"list": [{"id": "main", "tools": {"elevated": {"enabled": False}}}]}},
            "agents.list[main].tools.elevated.enabled",
        ),
        (
            {**ELEVATED, "agents": {"list": [{"id": "main", "tools": {"elevated": {"allowFrom": {"webchat": []}}}}]}},
            "agents.list[main].tools.elevated.allowFrom.webchat",
        ),
    ],
)
async def test_elevated_says_which_gate_is_closed(make_desk: MakeDesk, config: dict[str, Any], gate: str) -> None:
    desk = await make_desk(config)
    reply = await desk.reply("/elevated full")
    assert (reply or "").startswith("elevated is not available right now (runtime=direct)")
    assert f"Closed by: {gate}." in (reply or "")
    assert await desk.stored() == {}


async def test_in_a_group_loosening_needs_a_mention_and_tightening_does_not(make_desk: MakeDesk) -> None:
    desk = await make_desk({"tools": {"elevated": {"allowFrom": {"signal": ["*"]}}}})
    assert await desk.say("/elevated full", **GROUP) == Handled()
    assert await desk.say("/exec security=full", **GROUP) == Handled()
    assert await desk.stored() == {}
    assert "disabled" in (await desk.reply("/elevated off", **GROUP) or "")
    assert "security=deny" in (await desk.reply("/exec security=deny", **GROUP) or "")
    assert "full" in (await desk.reply("@clawd /elevated full", **GROUP, mentioned=True) or "")


# Inside other text


async def test_inline_settings_count_for_one_run_and_nothing_is_stored(desk: Desk) -> None:
    text = "/think high first line /verbose full\n\n  second /deep line\n/queue followup cap:3"
    assert await desk.say(text) == Continue(
        text="first line\n\n  second line",
        wishes=MessageBody(thinking="high", verbose="full", model="acme/deep-thinker-2"),
        queue=QueueOverrides(mode="followup", cap=3),
    )
    assert await desk.entry() is None
    assert desk.runtime.notes.peek(SESSION.key) == []


async def test_a_picture_with_only_settings_goes_to_the_model_with_them(desk: Desk) -> None:
    assert await desk.say("/think high", has_media=True) == Continue(text="", wishes=MessageBody(thinking="high"))


@pytest.mark.parametrize(
    ("text", "seen", "error"),
    [
        ("/think about it", "about it", 'Unrecognized thinking level "about". Valid levels: '),
        ("hola /reasoning onírico ya", "hola onírico ya", 'Unrecognized reasoning level "onírico". Valid levels: '),
        ("go /verbose loudly, please", "go loudly, please", 'Unrecognized verbose level "loudly". Valid levels: '),
        ("/elevated very much", "very much", 'Unrecognized elevated level "very". Valid levels: '),
        ("/exec ls -l", "ls -l", 'Unrecognized exec option "ls". Valid: host=…, '),
        ("run /exec host=moon now", "run now", 'Unrecognized exec host "moon". Valid: '),
        ("the /queue feature", "the feature", 'Unrecognized queue option "feature".'),
        ("now /queue cap:none ok", "now ok", 'Invalid cap "none".'),
    ],
)
async def test_an_unknown_value_inside_a_message_is_reported_and_stays_text(
    desk: Desk, text: str, seen: str, error: str
) -> None:
    outcome = await desk.say(text)
    assert isinstance(outcome, Continue)
    assert outcome.text == seen and outcome.wishes == MessageBody()
    assert len(outcome.side_replies) == 1 and outcome.side_replies[0].startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("/reasoning onírico", 'Unrecognized reasoning level "onírico". Valid levels: on, off, stream.'),
        ("/think highest!?", None),
        ("/think alto.", 'Unrecognized thinking level "alto". Valid levels: off, minimal, low, medium, high.'),
        ("/verbose 1", 'Unrecognized verbose level "1". Valid levels: off, on, full.'),
        ("/elev yess", 'Unrecognized elevated level "yess". Valid levels: on, off, ask, full.'),
        ("/exec now", 'Unrecognized exec option "now". Valid: host=…, security=…, ask=…, node=….'),
    ],
)
async def test_an_unknown_level_alone_is_an_error_and_changes_nothing(desk: Desk, text: str, error: str | None) -> None:
    before = await desk.stored()
    reply = await desk.reply(text)
    if error is None:
        assert reply == "Thinking level set to high."
    else:
        assert (reply, await desk.stored()) == (error, before)


async def test_a_question_inside_a_message_changes_nothing(desk: Desk) -> None:
    assert await desk.say("what /model list means") == Continue(text="what list means")


async def test_an_inline_model_that_does_not_exist_is_reported_and_stays_text(desk: Desk) -> None:
    outcome = await desk.say("is /model nosuch any good?")
    assert isinstance(outcome, Continue)
    assert outcome.text == "is nosuch any good?"
    assert outcome.wishes == MessageBody()
    assert len(outcome.side_replies) == 1 and outcome.side_replies[0].startswith("Unknown model 'nosuch'.")


async def test_an_inline_elevated_wish_that_is_not_allowed_is_dropped_and_reported(desk: Desk) -> None:
    outcome = await desk.say("please /elevated full run it")
    assert isinstance(outcome, Continue)
    assert outcome.text == "please run it" and outcome.wishes == MessageBody()
    assert outcome.side_replies[0].startswith("elevated is not available right now")


async def test_a_mention_beside_a_setting_is_not_text(desk: Desk) -> None:
    assert await desk.reply("@Clawd /think low", **GROUP) == "Thinking level set to low."


async def test_only_the_owner_chooses_a_program_that_has_tools_of_its_own(make_desk: MakeDesk) -> None:
    program = {"my-cli": {"command": "/nowhere/my-cli"}}
    desk = await make_desk({"agents": {"defaults": {"model": "acme/swift-1", "cliBackends": program}}})
    assert "Only the owner" in str(await desk.reply("/model my-cli/large", owner=False))
    assert "agents.defaults.models" in str(await desk.reply("/model codex-cli/gpt-5.4", owner=False))
    await desk.say("/new my-cli/large hello", owner=False)
    outcome = await desk.say("Look /model my-cli/large around", owner=False)
    assert isinstance(outcome, Handled) or not outcome.wishes.model
    assert "providerOverride" not in await desk.stored()
    assert "my-cli/large" in str(await desk.reply("/model my-cli/large"))
    assert (await desk.stored())["providerOverride"] == "my-cli"
