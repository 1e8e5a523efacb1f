"""What Slack's events mean."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from openclaw.channels.slack import SlackKind, SlackTarget, target_of
from openclaw.channels.slack.channel import emoji_name
from openclaw.channels.slack.incoming import (
    Bot,
    SlackEvent,
    Surroundings,
    interpret,
    is_for_us,
    readable,
)
from openclaw.channels.submit import Deleted, Edited, Posted, Reacted
from openclaw.config.load import parse_config
from openclaw.outbound.reply import SendFailed

BOT = Bot(user="U0BOT", bot_id="B0BOT", team="T1")
AROUND = Surroundings(names={"U0ANN": "Ann", "U0BOB": "Bob"})


def event(**fields: Any) -> SlackEvent:
    base = {"type": "message", "user": "U0ANN", "channel": "C1", "channel_type": "channel", "ts": "1700000000.000100"}
    return msgspec.convert({**base, "unknown": {"field": 1}, **fields}, SlackEvent)


def heard(said: SlackEvent, around: Surroundings = AROUND) -> Any:
    return interpret(said, BOT, around) if is_for_us(said, BOT) else None


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("<@U0BOT> hello", "hello"),
        ("<@U0BOT>: hello <@U0BOT>", "hello"),
        ("ask <@U0BOT> or <@U0BOB>", "ask @U0BOT or @Bob"),
        ("<@U9|zoe> in <#C1|general>", "@zoe in #general"),
        ("<!here> <!subteam^S1|@team> <!date^1^x|today>", "@here @team today"),
        ("see <https://e.org/a?x=1&amp;y=2|the docs>", "see the docs (https://e.org/a?x=1&y=2)"),
        ("<https://e.org> <mailto:a@e.org|a@e.org>", "https://e.org a@e.org"),
        ("a &lt; b &amp;&amp; c &gt; d", "a < b && c > d"),
        ("1 < 2 and <", "1 < 2 and <"),
        ("<> <|label>", "<> label"),
        ("", ""),
        (" " * 200_000, " " * 200_000),
        ("<@U0BOT>" * 10_000, ""),
    ],
)
def test_markup_becomes_plain_text(written: str, text: str) -> None:
    assert readable(written, BOT, AROUND.names) == text


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "U0BOT", "text": "own"},
        {"bot_id": "B0BOT", "user": None, "text": "own"},
        {"bot_id": "B9", "text": "another bot"},
        {"subtype": "bot_message", "user": None, "bot_id": "B9", "text": "another bot"},
        {"subtype": "channel_join", "text": "joined"},
        {"subtype": "message_replied"},
        {"text": ""},
        {"text": "no id", "ts": None},
        {"type": "pin_added"},
        {"subtype": "message_changed", "message": {"user": "U0ANN", "ts": "1.1", "text": "a"},
         "previous_message": {"text": "a"}},
        {"subtype": "message_changed", "message": {"user": "U0BOT", "ts": "1.1", "text": "b"}},
        {"subtype": "message_deleted", "previous_message": {"user": "U0BOT", "ts": "1.1", "text": "b"}},
        {"type": "reaction_added", "reaction": "eyes", "item": {"type": "file"}},
        {"type": "reaction_added", "reaction": "eyes", "user": "U0BOT",
         "item": {"type": "message", "channel": "C1", "ts": "1.1"}},
    ],
)  # fmt: skip
def test_what_does_not_concern_the_agent_is_passed_over(fields: dict[str, Any]) -> None:
    assert heard(event(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "kind", "peer", "to"),
    [
        ({"channel": "D1", "channel_type": "im"}, "direct", "U0ANN", "user:U0ANN"),
        ({"channel": "D1", "channel_type": None}, "direct", "U0ANN", "user:U0ANN"),
        ({"channel": "C1"}, "channel", "C1", "channel:C1"),
        ({"channel": "G1", "channel_type": "group"}, "channel", "G1", "channel:G1"),
        ({"channel": "C2", "channel_type": "mpim"}, "group", "C2", "channel:C2"),
    ],
)
def test_a_conversation_is_known_by_its_kind(fields: dict[str, Any], kind: str, peer: str, to: str) -> None:
    post = heard(event(text="hi", **fields))
    assert isinstance(post, Posted)
    assert (post.inbound.peer.kind, post.inbound.peer.id, post.inbound.to) == (kind, peer, to)
    assert (post.inbound.message_id, post.inbound.timestamp_ms) == ("1700000000.000100", 1_700_000_000_000)


def test_mentions_and_threads_are_facts_of_the_message() -> None:
    inbound = heard(event(text="<@U0BOB> and <@U0BOT>!", thread_ts="1699999999.000001")).inbound
    assert (inbound.mentioned, inbound.mentions_others) == (True, True)
    assert (inbound.thread_id, inbound.thread_has_session) == ("1699999999.000001", True)
    root = heard(event(text="root", thread_ts="1700000000.000100")).inbound
    assert (root.thread_id, root.thread_has_session, root.mentioned) == (None, False, False)
    assert heard(event(text="by itself", type="app_mention")).inbound.mentioned


def test_the_first_message_of_a_thread_comes_along() -> None:
    starter = event(text="Shall we?", user="U0BOB")
    around = msgspec.structs.replace(AROUND, thread_starter=starter, room_name="general")
    inbound = heard(event(text="yes", thread_ts="1.1"), around).inbound
    assert inbound.thread_starter == "Bob: Shall we?"
    assert inbound.thread_label == "Slack thread in #general: Shall we?"
    ours = msgspec.structs.replace(AROUND, thread_starter=event(text="I think", user="U0BOT"))
    assert heard(event(text="why?", thread_ts="1.1"), ours).inbound.quoted.from_us


def test_a_shared_message_is_quoted() -> None:
    shared = {"is_share": True, "text": "the words", "author_name": "Zoe", "ts": "1600000000.000100"}
    quoted = heard(event(text="see this", attachments=[shared])).inbound.quoted
    assert (quoted.sender, quoted.text, quoted.from_us) == ("Zoe", "the words", False)


def test_changes_and_deletions_name_the_old_message() -> None:
    inner = {"user": "U0ANN", "ts": "1.1", "text": "new", "edited": {"ts": "2.2"}}
    edit = heard(event(subtype="message_changed", message=inner, previous_message={"text": "old"}))
    assert isinstance(edit, Edited)
    assert (edit.inbound.message_id, edit.inbound.text, edit.inbound.revision) == ("1.1", "new", "2.2")
    gone = heard(event(subtype="message_deleted", deleted_ts="1.1", previous_message=inner))
    assert isinstance(gone, Deleted)
    assert gone.inbound.message_id == "1.1"


def test_a_reaction_says_who_did_what() -> None:
    item = {"type": "message", "channel": "C1", "ts": "1.1"}
    added = heard(event(type="reaction_added", reaction="eyes", item=item, item_user="U0BOT"))
    assert isinstance(added, Reacted)
    assert (added.to_us, added.inbound.text) == (True, "Slack: Ann reacted with :eyes: to your message (id 1.1)")
    removed = heard(event(type="reaction_removed", reaction="eyes", item=item, item_user="U0BOB"))
    assert removed.inbound.text == "Slack: Ann took back the reaction :eyes: to the message of Bob (id 1.1)"


@pytest.mark.parametrize(
    ("section", "environ", "problem"),
    [
        ({"botToken": "xoxb-1", "appToken": "xapp-1"}, {}, ""),
        ({}, {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_APP_TOKEN": "xapp-1"}, ""),
        ({"appToken": "xapp-1"}, {}, "set channels.slack.botToken to the bot's token (xoxb-…)"),
        ({"botToken": {"env": "MINE"}}, {}, "set channels.slack.appToken to the app's token (xapp-…)"),
        ({"mode": "http", "botToken": "xoxb-1", "signingSecret": "s"}, {}, ""),
        ({"mode": "http", "signingSecret": "s"}, {}, "set channels.slack.botToken"),
        ({"mode": "http", "botToken": "xoxb-1", "appToken": "xapp-1"}, {}, "set channels.slack.signingSecret"),
        (
            {"accounts": {"work": {}}},
            {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_APP_TOKEN": "xapp-1"},
            "set channels.slack.accounts.work.botToken",
        ),
    ],
)
def test_what_is_missing_is_named(section: dict[str, Any], environ: dict[str, str], problem: str) -> None:
    config = parse_config("openclaw.json", json.dumps({"channels": {"slack": section}}), {}).config
    (account,) = SlackKind(environ).accounts(config)
    assert account.problem.startswith(problem)
    assert bool(account.problem) == bool(problem)


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ("user:U123", SlackTarget("user", "U123")),
        ("slack:user:u123", SlackTarget("user", "U123")),
        ("<@U123>", SlackTarget("user", "U123")),
        ("channel:c0general", SlackTarget("channel", "C0GENERAL")),
        ("<#C1AB|general>", SlackTarget("channel", "C1AB")),
        ("D0ANN", SlackTarget("channel", "D0ANN")),
        ("channel:C1", SlackTarget("channel", "C1")),
        ("ephemeral:C1AB:U123", SlackTarget("ephemeral", "C1AB", "U123")),
    ],
)
def test_addresses(to: str, target: SlackTarget) -> None:
    assert target_of(to) == target


@pytest.mark.parametrize("to", ["", "#general", "ann", "user:", "channel:U1", "+4915112345678"])
def test_what_is_no_address_is_refused_for_good(to: str) -> None:
    with pytest.raises(SendFailed) as refused:
        target_of(to)
    assert refused.value.permanent


@pytest.mark.parametrize(
    ("emoji", "name"),
    [("👍", "+1"), ("👍🏽", "+1"),
     ("❤️", "heart"), (":eyes:", "eyes"), ("tada", "tada"), ("🐙", "octopus"), ("a b", None)],
)  # fmt: skip
def test_emoji_have_names(emoji: str, name: str | None) -> None:
    assert emoji_name(emoji) == name
