"""/new and /reset: the session is replaced; what else was written goes on, as it was written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openclaw.config.load import build
from openclaw.inbound.commands.session import find_reset
from openclaw.inbound.commands.settings import leading_model
from openclaw.inbound.directives import DIRECT_CHAT, Listening
from openclaw.inbound.incoming import Continue, Handled
from openclaw.models.catalogue import Catalogue
from tests.inbound.commands.desk import CONFIG, Desk, MakeDesk

STARTED = "✅ New session started · model: acme/swift-1"
GROUP = Listening(group=True, channel="discord", mentions=(re.compile("@clawd", re.IGNORECASE),))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/new", ("/new", "")),
        ("/RESET", ("/reset", "")),
        (" /new  Keep  Case ", ("/new", "Keep  Case")),
        ("/new: text", ("/new", "text")),
        ("/new\nfirst\n\n  [second]", ("/new", "first\n\n  [second]")),
        ("fresh start", ("fresh start", "")),
        ("Fresh Start now", ("fresh start", "now")),
        ("/newest", None),
        ("/new/thing", None),
        ("fresh starter", None),
        ("fresh start: no", None),
        ("say /new", None),
        ("[Dec 5 10:00] /new hi [there]", None),
        ("Jake: /new hi", None),
        ("Jake: fresh start", None),
        ("> /new", None),
        ("    /new", None),
        ("```\n/new\n```", None),
        ("look at this\n[Current message - respond to this]\n/new", None),
        ("[Current message - respond to this]\n/new", None),
        ("", None),
    ],
)
def test_which_messages_start_a_session_anew(text: str, found: tuple[str, str] | None) -> None:
    assert find_reset(text, ["fresh start", " "], DIRECT_CHAT) == found


@pytest.mark.parametrize("text", ["@clawd /new hi", "<@!12> @clawd: /new hi", "/new@clawd hi"])
def test_in_a_group_a_mention_may_stand_before_it(text: str) -> None:
    assert find_reset(text, [], GROUP) == ("/new", "hi")


def test_another_bots_command_is_not_ours() -> None:
    assert find_reset("/new@someone hi", [], GROUP) is None


@pytest.mark.parametrize(("text", "reason"), [("/new", "new"), ("/reset", "reset")])
async def test_alone_it_makes_the_agent_greet(desk: Desk, text: str, reason: str) -> None:
    outcome = await desk.say(text)
    assert isinstance(outcome, Continue)
    assert outcome.greeting
    assert outcome.text.startswith("A new session was started via /new or /reset")
    assert outcome.side_replies == [STARTED]
    assert desk.done == [reason]


async def test_with_text_the_text_is_the_first_message(desk: Desk) -> None:
    assert await desk.say("/new What is\n\n  [this]?") == Continue(text="What is\n\n  [this]?", side_replies=[STARTED])


async def test_a_configured_trigger_comes_beside_the_built_in_ones(make_desk: MakeDesk) -> None:
    desk = await make_desk({"session": {"resetTriggers": ["moin"]}})
    for text in ("moin", "/new", "/reset"):
        assert isinstance(await desk.say(text), Continue)
    assert desk.done == ["new", "new", "reset"]


async def test_settings_in_the_first_message_are_read_too(desk: Desk) -> None:
    outcome = await desk.say("/new /think high tell me")
    assert isinstance(outcome, Continue)
    assert outcome.text == "tell me"
    assert outcome.wishes.thinking == "high"


async def test_settings_alone_are_stored_with_the_new_session_and_the_agent_greets(desk: Desk) -> None:
    outcome = await desk.say("/new /think high")
    assert isinstance(outcome, Continue) and outcome.greeting
    assert outcome.side_replies == [STARTED, "Thinking level set to high."]
    assert await desk.stored() == {"thinkingLevel": "high"}


async def test_a_picture_is_a_first_message_too(desk: Desk) -> None:
    outcome = await desk.say("/new", has_media=True)
    assert outcome == Continue(text="", side_replies=[STARTED])


async def test_a_model_can_be_named(desk: Desk) -> None:
    outcome = await desk.say("/new deep what is\nlove")
    assert isinstance(outcome, Continue)
    assert outcome.text == "what is\nlove"
    assert outcome.side_replies == ["✅ New session started · model: acme/deep-thinker-2 (default: acme/swift-1)"]
    assert await desk.stored() == {"providerOverride": "acme", "modelOverride": "deep-thinker-2"}


async def test_a_greeting_mentions_a_model_that_is_not_the_default(desk: Desk) -> None:
    outcome = await desk.say("/new deep")
    assert isinstance(outcome, Continue) and outcome.greeting
    assert "acme/deep-thinker-2 rather than acme/swift-1" in outcome.text


@pytest.mark.parametrize(
    ("text", "model", "rest"),
    [
        ("acme thinker go on", "acme/deep-thinker-2", "go on"),
        ("acme hello", "acme/swift-1", "hello"),
        ("acme/deep-thinker-2", "acme/deep-thinker-2", ""),
        ("SWIFT  two  words", "acme/swift-1", "two  words"),
        ("deep-thinker is it", "acme/deep-thinker-2", "is it"),
        ("swift-1 x", "acme/swift-1", "x"),
        ("swif x", None, "swif x"),
        ("openai/gpt-5.2 x", None, "openai/gpt-5.2 x"),
        ("refactor this", None, "refactor this"),
        ("", None, ""),
    ],
)
def test_which_words_name_a_model(tmp_path: Path, text: str, model: str | None, rest: str) -> None:
    config = build(CONFIG)
    found, left = leading_model(text, config, Catalogue(config, {}, state_dir=str(tmp_path)), "main")
    assert (found.ref if found else None, left) == (model, rest)


def test_a_word_that_is_part_of_many_names_names_no_model(tmp_path: Path) -> None:
    catalogue = Catalogue(build({}), {"OPENROUTER_API_KEY": "k"}, state_dir=str(tmp_path))
    assert leading_model("thinking about lunch", build({}), catalogue, "main") == (None, "thinking about lunch")


async def test_a_stranger_starts_nothing_anew(desk: Desk) -> None:
    assert await desk.say("/reset", authorised=False) == Handled()
    assert desk.done == []
