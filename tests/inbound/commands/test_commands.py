"""The commands, as a person meets them."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.agent.spend.spend import Totals, cost_text
from openclaw.inbound.commands.handle import HANDLERS
from openclaw.inbound.commands.registry import COMMANDS, listed, unknown_command
from openclaw.inbound.commands.session import read_value
from openclaw.inbound.incoming import Continue, Handled
from openclaw.messages import Route
from openclaw.outbound.reply import money, percent, token_count
from openclaw.sessions.keys import SessionRef
from openclaw.storage.message_ledger import Accept, MessageBody, ReasonCode, RejectedMessage
from openclaw.text import age
from tests.inbound.commands.desk import SESSION, Desk, MakeDesk

GROUP = {"chat_type": "group", "channel": "signal"}


def test_every_listed_command_works() -> None:
    by_other_means = {"new", "reset"}
    for command in COMMANDS:
        assert command.directive or command.name in HANDLERS or command.name in by_other_means, command.name
    assert set(HANDLERS) <= {command.name for command in COMMANDS}


def test_two_commands_cannot_share_a_word() -> None:
    words = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(set(words)) == len(words)


# Looking


async def test_help_is_short_and_names_only_commands_that_exist(desk: Desk) -> None:
    reply = await desk.reply("/help") or ""
    named = {word.strip("/;.,:") for word in reply.split() if word.startswith("/")}
    assert named <= {command.name for command in COMMANDS}
    assert len(reply.splitlines()) < 12


async def test_the_list_shows_what_would_work_here(desk: Desk, make_desk: MakeDesk) -> None:
    reply = await desk.reply("/commands") or ""
    assert [line for line in reply.splitlines() if line.isalpha()] == [
        "Session", "Options", "Status", "Management",
    ]  # fmt: skip
    assert "  /whoami, /id — How the Gateway knows you." in reply
    assert "/activation" not in reply and "/config" not in reply and "/restart" not in reply
    assert "/activation mention|always — " in (await desk.reply("/commands", **GROUP) or "")
    allowed = await make_desk({"commands": {"config": True, "restart": True}})
    assert {"config", "restart"} <= {command.name for command in listed(allowed.context.config)}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("/stauts", " Did you mean /status or /restart?"),
        ("/Contxt", " Did you mean /context?"),
        ("/stauts of the build", " Did you mean /status or /restart?"),
        ("/xyzzy", ""),
    ],
)
async def test_an_unknown_command_is_told_and_not_sent_to_the_model(desk: Desk, typed: str, meant: str) -> None:
    word = typed.split()[0]
    assert await desk.reply(typed) == (
        f"Unknown command {word}.{meant} /help lists them all. To send it to the agent as text, begin with two "
        f"slashes: /{word}"
    )


@pytest.mark.parametrize("text", ["/etc/hosts", "look at /stauts", "/usr/bin/status is", "/s3 is slow", "/a_b", "/"])
def test_paths_and_other_words_behind_a_slash_are_words(text: str) -> None:
    assert unknown_command(text) is None


async def test_two_slashes_send_the_text_with_one(desk: Desk) -> None:
    outcome = await desk.say("//xyzzy please")
    assert isinstance(outcome, Continue)
    assert outcome.text == "/xyzzy please"


async def test_whoami_says_how_to_be_allowed(desk: Desk) -> None:
    facts = {"channel": "signal", "sender_username": "ada", "chat": "signal:+1555", "thread_id": 7}
    assert await desk.reply("/id", **facts) == (
        "🧭 Identity\nChannel: signal\nUser id: +1555\nUsername: @ada\nChat: signal:+1555\nThread: 7\nAllowFrom: +1555"
    )


async def test_status_of_a_session_that_has_not_begun_shows_unknown_as_unknown(desk: Desk) -> None:
    lines = (await desk.reply("/status") or "").splitlines()
    assert lines[0].startswith("🦞 OpenClaw ")
    assert lines[1:] == [
        "🧠 Model: acme/swift-1 · 🔑 no key needed",
        "📚 Context: ?/100k · 🧹 Compactions: 0",
        "🧵 Session: agent:main:main • not begun",
        "⚙️ Runtime: direct · Think: off",
        "🪢 Queue: collect (depth 0)",
    ]


async def test_status_of_a_session_at_work(desk: Desk) -> None:
    changes = {
        "modelOverride": "deep-thinker-2", "providerOverride": "acme", "inputTokens": 15_500, "outputTokens": 1234,
        "totalTokens": 50_000, "contextTokens": 200_000, "compactionCount": 2, "thinkingLevel": "high",
        "verboseLevel": "full", "reasoningLevel": "on", "groupActivation": "always", "queueMode": "steer",
    }  # fmt: skip
    await desk.occupy("a")
    await desk.queue("b")
    await desk.set(changes)
    desk.clock.now += 3 * 60_000
    assert (await desk.reply("/status", **GROUP) or "").splitlines()[1:] == [
        "🧠 Model: acme/deep-thinker-2 · 🔑 no key needed",
        "🧮 Tokens: 16k in / 1.2k out",
        "📚 Context: 50k/200k (25%) · 🧹 Compactions: 2",
        "🧵 Session: agent:main:main • updated 3m ago",
        "⚙️ Runtime: direct · Think: high · verbose:full · Reasoning: on",
        "👥 Activation: always · 🪢 Queue: steer (running, depth 1)",
    ]


async def test_status_of_a_session_whose_model_is_gone(desk: Desk) -> None:
    await desk.set({"modelOverride": "retired", "providerOverride": "gone"})
    assert "🧠 Model: gone/retired (unknown)" in (await desk.reply("/status") or "")
    assert "/model default goes back" in (await desk.reply("/model") or "")
    assert await desk.reply("/model default") == "Model reset to default (acme/swift-1)."
    await desk.set({"modelOverride": "retired"})
    assert "🧠 Model: retired (unknown)" in (await desk.reply("/status") or ""), "no provider was stored"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "?"), (999, "999"), (1000, "1.0k"), (9999, "10.0k"), (10_000, "10k"), (15_500, "16k"), (1_234_567, "1.2m")],
)
def test_token_counts(count: int | None, shown: str) -> None:
    assert token_count(count) == shown


def test_money_percent_and_ages() -> None:
    assert (money(0.0099), money(12.345), percent(1, 8), percent(10**6, 1)) == ("$0.0099", "$12.35", "13%", "999%")
    day = 24 * 60 * 60_000
    assert [age(ms) for ms in (59_999, 60_000, day, 2 * day)] == ["just now", "1m ago", "24h ago", "2d ago"]


async def test_models_lists_providers_then_models(desk: Desk) -> None:
    assert (await desk.reply("/models") or "").startswith("Providers:\n- acme (2)\n")
    assert await desk.reply("/models acme") == "Models of acme (page 1 of 1):\n- acme/swift-1\n- acme/deep-thinker-2"
    assert await desk.reply("/models ACME all") == "Models of acme (2):\n- acme/swift-1\n- acme/deep-thinker-2"
    assert await desk.reply("/models acme 9") == 'There is no page "9"; write a number from 1 to 1, or all.'
    assert (await desk.reply("/models nobody") or "").startswith('No models of "nobody" are on offer.\nProviders:')
    assert "Endpoint: http://127.0.0.1:9/v1" in (await desk.reply("/model status") or "")


async def test_why_tells_the_story(desk: Desk) -> None:
    assert await desk.reply("/why") == "No message of this session is on record yet."
    await desk.occupy("first")
    await desk.queue("second")
    story = await desk.reply("/why") or ""
    first, second = story.splitlines()
    assert first.startswith("Accepted on ") and second.startswith("It has been waiting for ")
    assert await desk.reply("/why r1") == await desk.reply("/why 2") == story
    assert await desk.reply("/why 1") not in (None, story)
    assert await desk.reply("/why 43") == 'Nothing is known of "43".'
    elsewhere = SessionRef("main", "agent:main:other")
    assert await desk.reply("/why 1", session=elsewhere) == 'Nothing is known of "1".'


async def test_why_knows_a_message_by_its_id_on_the_channel_in_its_own_chat_only(desk: Desk) -> None:
    ledger, elsewhere = desk.context.runtime.stores.ledger, SessionRef("main", "agent:main:other")
    for session in (SESSION, elsewhere):
        accept = Accept(
            run_id=f"run-{session.key}",
            dedupe_key="",
            agent_id="main",
            session_key=session.key,
            session_id="s",
            source="telegram",
            route=Route(channel="telegram", to=session.key),
            body=MessageBody(prompt="hi", message_ids=["1234567"]),
        )
        await ledger.post(accept, [])
    for session in (SESSION, elsewhere):
        story = await desk.reply("/why 1234567", session=session) or ""
        assert story.splitlines()[0].endswith(f"for session {session.key}.")
    refused = RejectedMessage(message_id="777", channel="telegram", chat="telegram:1", code=ReasonCode.NOT_ADDRESSED)
    await ledger.note_rejected(refused)
    assert "It was not accepted" in (await desk.reply("/why 777", channel="telegram", chat="telegram:1") or "")
    assert await desk.reply("/why 777", channel="telegram", chat="telegram:2") == 'Nothing is known of "777".'


# The queue


async def test_queue_shows_and_edits_what_waits(desk: Desk) -> None:
    await desk.occupy("long job")
    desk.clock.now += 60_000
    await desk.queue("one", "two", "three\nlines")
    desk.clock.now += 5000
    assert (await desk.reply("/queue list") or "").splitlines() == [
        "Running: long job (1 min)",
        "Waiting (3):",
        "1. one (5 s)",
        "2. two (5 s)",
        "3. three lines (5 s)",
        "/queue drop N lets one go, /queue now N puts it first.",
    ]
    assert await desk.reply("/queue drop 2") == "⚙️ Dropped “two”."
    assert await desk.reply("/queue now 2") == "⚙️ “three lines” runs next."
    assert desk.runs == ["r0", "r3", "r1"]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("/queue drop 3", 'There is no item "3"; write a number from 1 to 1.'),
        ("/queue now x", 'There is no item "x"; write a number from 1 to 1.'),
        ("/queue drop", "Which one? Write /queue drop 1 for the first. /queue list shows them."),
    ],
)
async def test_queue_edits_that_name_nothing(desk: Desk, text: str, reply: str) -> None:
    await desk.occupy("long job")
    await desk.queue("one")
    assert await desk.reply(text) == reply
    assert desk.runs == ["r0", "r1"]


async def test_a_mistyped_queue_option_is_reported_and_stays_text(desk: Desk) -> None:
    assert (await desk.reply("/queue bogus") or "").startswith('Unrecognized queue option "bogus".\nOptions: modes')
    outcome = await desk.say("/queue what is that")
    assert isinstance(outcome, Continue) and outcome.text == "what is that"
    assert outcome.side_replies[0].startswith('Unrecognized queue option "what".')
    assert await desk.reply("/queue drop 1") == "Nothing is waiting."


# The session


@pytest.mark.parametrize("text", ["/stop", "stop", " STOP"])
async def test_stop_stops_everything_and_says_so(desk: Desk, text: str) -> None:
    await desk.occupy("a")
    await desk.queue("b")
    outcome = await desk.say(text)
    assert outcome == Handled(reply="⚙️ Agent was aborted.", stopped=["r0", "r1"])
    assert (await desk.stored())["abortedLastRun"] is True


@pytest.mark.parametrize("text", ["stop!", "please stop", "/stop now", "halt"])
async def test_what_is_not_exactly_a_stop_goes_to_the_agent(desk: Desk, text: str) -> None:
    await desk.occupy("a")
    assert await desk.say(text) == Continue(text=text)
    assert desk.runs == ["r0"] and "abortedLastRun" not in await desk.stored()


@pytest.mark.parametrize(
    ("text", "reply", "policy"),
    [
        ("/send on", "⚙️ Send policy set to on.", "allow"),
        ("/send: off", "⚙️ Send policy set to off.", "deny"),
        ("/send default", "⚙️ Send policy set to inherit.", None),
        ("/send", "⚙️ Usage: /send on|off|inherit", None),
        ("/send on now", "⚙️ Usage: /send on|off|inherit", None),
    ],
)
async def test_send(desk: Desk, text: str, reply: str, policy: str | None) -> None:
    assert await desk.reply(text) == reply
    assert (await desk.stored()).get("sendPolicy") == policy


async def test_activation_is_for_groups(desk: Desk) -> None:
    assert await desk.reply("/activation always") == "⚙️ Group activation only applies to group chats."
    assert await desk.reply("/activation often", **GROUP) == "⚙️ Usage: /activation mention|always"
    assert await desk.reply("/activation Always", **GROUP) == "⚙️ Group activation set to always."
    assert await desk.stored() == {"groupActivation": "always", "groupActivationNeedsSystemIntro": True}


async def test_usage_cycles_and_takes_a_mode(desk: Desk) -> None:
    replies = [await desk.reply("/usage") for _ in range(3)]
    assert replies == ["⚙️ Usage footer: tokens.", "⚙️ Usage footer: full.", "⚙️ Usage footer: off."]
    assert await desk.stored() == {}
    assert await desk.reply("/usage on") == "⚙️ Usage footer: tokens."
    assert await desk.stored() == {"responseUsage": "tokens"}
    assert await desk.reply("/usage lots") == "⚙️ Usage: /usage off|tokens|full|cost"


async def test_usage_cost_adds_up_the_session_the_day_and_the_month(desk: Desk) -> None:
    await desk.spend(12.345)
    desk.clock.now += 2 * 86_400_000
    await desk.spend(0.0099)
    assert await desk.reply("/usage cost") == "💸 Usage cost\nSession $12.35\nToday $0.0099\nLast 30d $12.35"


@pytest.mark.parametrize(
    ("totals", "text"),
    [
        (Totals(total_cost=0.0099), "$0.0099"),
        (Totals(total_cost=12.345, missing_cost_entries=1), "$12.35 (partial)"),
        (Totals(missing_cost_entries=1), "n/a"),
    ],
)
def test_costs_that_are_not_known_are_not_made_up(totals: Totals, text: str) -> None:
    assert cost_text(totals) == text


async def test_resume_goes_back(desk: Desk) -> None:
    now = desk.clock.now_ms()
    earlier = [
        {"sessionId": "aaaa1111", "endedAt": now - 60_000, "reason": "daily"},
        {"sessionId": "aaaa2222", "endedAt": now - 3 * 86_400_000, "reason": "new"},
    ]
    await desk.set({"previousSessions": earlier})
    for session_id in ("aaaa1111", "aaaa2222"):
        await desk.write(session_id)
    assert await desk.reply("/resume list") == (
        "Earlier sessions:\n1. aaaa1111 (2023-11-14) (ended 1m ago, daily)\n"
        "2. aaaa2222 (2023-11-11) (ended 3d ago, new)\n/resume N goes back to one; nothing is lost."
    )
    assert (await desk.reply("/resume 9") or "").endswith("choose 1 to 2. /resume list shows what there is.")
    for text, session_id in (("/resume", "aaaa1111"), ("/resume aaaa2", "aaaa2222")):
        assert (await desk.reply(text) or "").startswith("⏪ Back in ")
        entry = await desk.entry()
        assert entry is not None and entry["sessionId"] == session_id
    assert desk.done == ["resume", "resume"]


async def test_resume_without_an_earlier_session(desk: Desk) -> None:
    assert await desk.reply("/resume") == "There is no earlier session here to resume."
    assert await desk.reply("/resume list") == "There is no earlier session to go back to."


# The Gateway


@pytest.mark.parametrize("name", ["config", "restart"])
async def test_commands_on_the_gateway_are_off_until_allowed(desk: Desk, name: str) -> None:
    reply = await desk.reply(f"/{name}")
    assert (reply or "").startswith(f"⚠️ /{name} is disabled. ")
    assert desk.done == []


async def test_config_reads_and_writes(make_desk: MakeDesk) -> None:
    desk = await make_desk({"commands": {"config": True}, "gateway": {"port": 4000}})
    assert await desk.reply("/config get gateway.port") == "⚙️ gateway.port:\n4000"
    assert await desk.reply("/config get gateway.nosuch") == "⚠️ Config path not found: gateway.nosuch"
    assert await desk.reply("/config set gateway.port=5000") == "⚙️ Set gateway.port in the configuration."
    assert desk.context.config.gateway.port == 5000
    triggers = "session.resetTriggers"
    assert await desk.reply(f"/config set {triggers}=['a', 'b']") == f"⚙️ Set {triggers} in the configuration."
    assert list(desk.context.config.session.reset_triggers) == ["a", "b"]
    assert await desk.reply("/config unset gateway.port") == "⚙️ Removed gateway.port from the configuration."
    assert await desk.reply("/config unset gateway.port") == "⚠️ Config path not found: gateway.port"
    assert "gateway.port" in (await desk.reply("/config set gateway.port=far") or "")
    doubtful = await desk.reply("/config set talk.voiceId=v") or ""
    assert doubtful.startswith("⚙️ Set talk.voiceId") and "has no effect yet" in doubtful
    refused = await desk.reply("/config set gateway.auth.mode=none") or ""
    assert refused.startswith("⚠️") and "gateway.auth.mode" in refused
    assert "port" not in desk.runtime.config.snapshot.parsed["gateway"]
    assert (await desk.reply("/config set nonsense") or "").startswith("⚙️ Usage: /config")


async def test_a_channel_may_be_kept_from_changing_the_configuration(make_desk: MakeDesk) -> None:
    desk = await make_desk({"commands": {"config": True}, "channels": {"signal": {"configWrites": False}}})
    assert await desk.reply("/config set gateway.port=5000", channel="signal") == (
        "⚠️ Changes from signal are switched off (configWrites)."
    )
    assert desk.context.config.gateway.port != 5000


@pytest.mark.parametrize(("text", "value"), [("5", 5), ("true", True), ("hello world", "hello world"), ("'x'", "x")])
def test_values_are_json_where_they_can_be(text: str, value: Any) -> None:
    assert read_value(text) == value


async def test_restart_when_allowed(make_desk: MakeDesk) -> None:
    desk = await make_desk({"commands": {"restart": True}})
    assert (await desk.reply("/restart") or "").startswith("⚙️ Restarting.")
    assert desk.done == ["/restart from webchat"]


async def test_a_default_model_that_does_not_exist_is_named_in_the_answer(make_desk: MakeDesk) -> None:
    desk = await make_desk({"agents": {"defaults": {"model": "nobody/nothing"}}})
    assert (await desk.reply("/new hello") or "").startswith("Unknown model 'nobody/nothing'.")
    assert desk.done == []
    assert await desk.say("hello /think high there") == Continue(
        text="hello there", wishes=MessageBody(thinking="high")
    )


# What is not a command


@pytest.mark.parametrize("text", ["/no_such thing", "/usr/bin/python fails", "hello", "a / b", "/", "//", "  x\n\n y "])
async def test_what_is_no_command_goes_to_the_agent_unchanged(desk: Desk, text: str) -> None:
    assert await desk.say(text) == Continue(text=text)


async def test_text_commands_can_be_switched_off_where_there_are_menus(make_desk: MakeDesk) -> None:
    desk = await make_desk({"commands": {"text": False}})
    assert await desk.say("/status", channel="telegram") == Continue(text="/status")
    assert (await desk.reply("/status", channel="telegram", native=True) or "").startswith("🦞")
    assert (await desk.reply("stop", channel="telegram")) == "⚙️ Agent was aborted."
