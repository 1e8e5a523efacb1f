"""People write to the agent on Signal: who is heard, what reaches the model, where the answer goes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import stored
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient, model_config
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

US, ANN, BOB, GROUP = "+15550000001", "+15550000042", "+15550000043", "Z3JvdXAtb25l"
Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]
Killable = Callable[..., AbstractAsyncContextManager[ForkedGateway]]


@pytest.fixture
async def signal() -> AsyncIterator[SignalDaemon]:
    async with SignalDaemon(US, groups=(GROUP,)) as daemon:
        yield daemon


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> Start:
    @asynccontextmanager
    async def gateway(more: dict[str, Any] | None = None, **channel: Any) -> AsyncIterator[InProcessGateway]:
        config = configuration(models, signal, more, channel)
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            await signal.connected()
            yield gateway

    return gateway


@pytest.fixture
def start_process(tmp_path: Path, models: ModelServer, signal: SignalDaemon) -> Killable:
    @asynccontextmanager
    async def gateway(more: dict[str, Any] | None = None, **channel: Any) -> AsyncIterator[ForkedGateway]:
        config = configuration(models, signal, more, channel)
        async with ForkedGateway(tmp_path / "state", config) as process:
            await signal.connected()
            yield process

    return gateway


def configuration(
    models: ModelServer, signal: SignalDaemon, more: dict[str, Any] | None, channel: dict[str, Any]
) -> dict[str, Any]:
    section = {"enabled": True, "account": US, "httpUrl": signal.url, "autoStart": False, **channel}
    return model_config(models.base_url, models.api_key, channels={"signal": section}, **(more or {}))


def in_group(signal: SignalDaemon, text: str, sender: str = ANN, name: str = "Ann", **data: Any) -> Any:
    return signal.message(text, sender=sender, name=name, groupInfo={"groupId": GROUP, "type": "DELIVER"}, **data)


def prompts(models: ModelServer, request: int = -1) -> str:
    return json.dumps(models.requests[request].body["messages"])


async def test_a_known_person_is_answered_where_they_wrote(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN]) as gateway:
        await signal.say("hello [[reply:Hi Ann]]", sender=ANN, name="Ann")
        sent = (await signal.called("send"))[0]
        async with gateway.client() as client:
            row = (await client.call("sessions.list", {}))["sessions"][0]
    assert (sent["message"], sent["recipient"]) == ("Hi Ann", [ANN])
    assert (row["key"], row["lastChannel"], row["lastTo"]) == ("agent:main:main", "signal", f"signal:{ANN}")
    assert "[Signal" in prompts(models)


async def test_a_stranger_gets_a_code_once_and_is_heard_after_approval(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start() as gateway, gateway.client() as client:
        await signal.say("let me in", sender=BOB, name="Bob")
        offered = (await signal.called("send"))[0]["message"]
        await signal.say("hello?", sender=BOB, name="Bob")
        async with asyncio.timeout(60):
            while True:  # Until the second message has been looked at, too.
                (asked,) = (await client.call("pairing.list", {}))["requests"]
                if asked["lastSeenAt"] != asked["createdAt"]:
                    break
                await asyncio.sleep(0.01)
        code = asked["code"]
        assert code in offered
        assert not models.requests
        await client.call("pairing.approve", {"code": code})
        await signal.say("now? [[reply:welcome]]", sender=BOB, name="Bob")
        sent = await signal.called("send", 2)
    assert [call["message"] for call in sent][1:] == ["welcome"]


async def _delivered(client: WireClient) -> None:
    """Until the Gateway itself knows that the reply has arrived."""
    async with asyncio.timeout(60):
        while True:
            listed = await client.call("messages.list", {})
            story = await client.call("messages.get", {"id": listed["messages"][0]["id"]})
            if '"sent"' in json.dumps(story):
                return
            await asyncio.sleep(0.01)


async def test_a_redelivered_message_is_answered_once_also_after_a_restart(
    start_process: Killable, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start_process(allowFrom=[ANN]) as gateway:
        await signal.say("only once", sender=ANN)
        await signal.called("send")
        async with gateway.client() as client:
            await _delivered(client)
        gateway.kill()
        signal.disconnect()
        await gateway.start()
        await signal.connected()
        await signal.repeat_all()
        await signal.say("another [[reply:fresh]]", sender=ANN)
        await signal.called("send", 2)
    assert len(models.requests) == 2
    assert [call["message"] for call in signal.of("send")] == ["ok", "fresh"]


async def test_the_one_session_of_the_global_scope_is_not_named_after_a_group(
    start: Start, signal: SignalDaemon
) -> None:
    more = {"session": {"scope": "global"}}
    async with start(more, groupPolicy="open") as gateway, gateway.client() as client:
        await signal.deliver(in_group(signal, "hello [[reply:hi]]"))
        assert (await signal.called("send"))[0]["groupId"] == GROUP
        (row,) = (await client.call("sessions.list", {}))["sessions"]
    assert (row["key"], row["kind"], row["chatType"], row["lastTo"]) == ("main", "direct", "direct", f"group:{GROUP}")
    assert "subject" not in row


async def test_a_job_reports_to_the_owner_when_every_direct_chat_is_apart(start: Start, signal: SignalDaemon) -> None:
    more = {"session": {"dmScope": "per-peer"}, "commands": {"ownerAllowFrom": [f"signal:{ANN}"]}}
    async with start(more, allowFrom=[ANN, BOB]) as gateway, gateway.client() as client:
        await signal.say("I am the owner [[reply:yes]]", sender=ANN, name="Ann")
        await signal.called("send")
        await signal.say("I am a guest [[reply:hello]]", sender=BOB, name="Bob")
        await signal.called("send", 2)
        job = {
            "name": "Brief",
            "schedule": {"kind": "every", "everyMs": 3_600_000},
            "sessionTarget": "isolated",
            "wakeMode": "next-heartbeat",
            "payload": {"kind": "agentTurn", "message": "Brief me [[reply:Two meetings]]"},
            "delivery": {"mode": "announce", "channel": "last"},
        }
        await client.call("cron.run", {"id": (await client.call("cron.add", job))["id"], "mode": "force"})
        report = (await signal.called("send", 3))[2]
        keys = {row["key"] for row in (await client.call("sessions.list", {}))["sessions"]}
    assert (report["message"], report["recipient"]) == ("Two meetings", [ANN])
    assert {f"agent:main:direct:{ANN}", f"agent:main:direct:{BOB}"} < keys and "agent:main:main" not in keys


async def test_a_group_is_answered_when_nothing_asks_for_a_mention(start: Start, signal: SignalDaemon) -> None:
    async with start(groupPolicy="open"):
        await signal.deliver(in_group(signal, "lunch at noon? [[reply:gladly]]"))
        sent = (await signal.called("send"))[0]
    assert (sent["message"], sent["groupId"]) == ("gladly", GROUP)


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        ({"messages": {"groupChat": {"mentionPatterns": ["@?clawd"]}}}, {}),
        ({}, {"*": {"requireMention": True}}),
    ],
    ids=["patterns", "requireMention"],
)
async def test_a_group_message_that_is_not_answered_leaves_a_line_in_the_log(
    start: Start, signal: SignalDaemon, models: ModelServer, caplog: pytest.LogCaptureFixture, more: Any, groups: Any
) -> None:
    async with start(more, groupPolicy="open", groups=groups, allowFrom=[ANN]):
        await signal.deliver(in_group(signal, "lunch at noon?"))
        await signal.say("hello [[reply:hi]]", sender=ANN)
        await signal.called("send")
    assert [record.getMessage() for record in caplog.records if "not answered" in record.getMessage()] == [
        f"signal message of {ANN} in group {GROUP} not answered: no mention"
    ]
    assert len(models.requests) == 1


async def test_in_a_group_only_what_is_addressed_to_the_agent_starts_a_run(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    more = {"messages": {"groupChat": {"mentionPatterns": ["@?clawd"]}}}
    async with start(more, groupPolicy="open") as gateway:
        await signal.deliver(in_group(signal, "lunch at noon?"))
        await signal.deliver(in_group(signal, "/think high or not", sender=BOB, name="Bob"))
        await signal.deliver(in_group(signal, "clawd, what do you say? [[reply:noon is fine]]"))
        sent = (await signal.called("send"))[0]
        async with gateway.client() as client:
            row = (await client.call("sessions.list", {}))["sessions"][0]
    assert (sent["message"], sent["groupId"]) == ("noon is fine", GROUP)
    assert (row["key"], row["kind"]) == (f"agent:main:signal:group:{GROUP.lower()}", "group")
    assert len(models.requests) == 1
    prompt = prompts(models)
    assert "[Chat messages since your last reply - for context]" in prompt
    assert "lunch at noon?" in prompt
    assert "/think high or not" in prompt
    assert "[Current message - respond to this]" in prompt
    assert "Activation: trigger-only" in json.dumps(models.requests[0].body["system"])


async def test_a_bare_mention_is_told_that_nothing_else_arrived_and_has_a_story(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start(groupPolicy="open", ignoreAttachments=True) as gateway:
        envelope = in_group(signal, "\ufffc", mentions=[{"start": 0, "length": 1, "number": US}])
        await signal.deliver(envelope)
        (told,) = await signal.called("send")
        async with gateway.client() as client:
            why = await client.call("messages.why", {"ref": f"{envelope['timestamp']}:{ANN}"})
    assert "did not get any text" in told["message"] and not models.requests
    assert why["message"]["state"] == "answered" and "did not get any text" in str(why["story"])


async def test_a_mention_alone_asks_about_what_was_said_before_it(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start(groupPolicy="open", groups={"*": {"requireMention": True}}):
        await signal.deliver(in_group(signal, "is the shop open? [[reply:until six]]"))
        await signal.deliver(in_group(signal, "\ufffc", mentions=[{"start": 0, "length": 1, "number": US}]))
        (sent,) = await signal.called("send")
    assert sent["message"] == "until six" and "is the shop open?" in prompts(models)


async def test_a_mention_alone_on_a_quoted_message_asks_about_that_message(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    quote = {"id": 12, "author": BOB, "authorNumber": BOB, "text": "is the shop open? [[reply:until six]]"}
    async with start(groupPolicy="open"):
        mention = {"start": 0, "length": 1, "number": US}
        await signal.deliver(in_group(signal, "\ufffc", mentions=[mention], quote=quote))
        (sent,) = await signal.called("send")
    assert sent["message"] == "until six" and "is the shop open?" in prompts(models)


async def test_commands_work_on_a_channel_and_only_for_those_who_may(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN, BOB], more={"commands": {"ownerAllowFrom": [f"signal:{ANN}"]}}):
        await signal.say("/status", sender=ANN)
        status = (await signal.called("send"))[0]["message"]
        await signal.say("/send off", sender=BOB)
        await signal.say("/send off", sender=ANN)
        sent = await signal.called("send", 2)
    assert "mock/mock-1" in status
    assert sent[1]["message"] == "⚙️ Send policy set to off."
    assert not models.requests


async def test_two_peoples_words_stay_apart_where_they_have_own_sessions(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN, BOB], more={"session": {"dmScope": "per-channel-peer"}}):
        await signal.say("canary-ann [[reply:for ann]]", sender=ANN)
        await signal.called("send")
        await signal.say("canary-bob [[reply:for bob]]", sender=BOB)
        sent = await signal.called("send", 2)
    assert [(call["message"], call["recipient"]) for call in sent] == [("for ann", [ANN]), ("for bob", [BOB])]
    assert "canary-ann" not in prompts(models, 1)


async def test_quick_texts_become_one_turn(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    async with start(allowFrom=[ANN], more={"messages": {"inbound": {"byChannel": {"signal": 400}}}}):
        await signal.say("first part", sender=ANN)
        await signal.say("second part [[reply:both]]", sender=ANN)
        sent = await signal.called("send")
    assert [call["message"] for call in sent] == ["both"]
    assert len(models.requests) == 1
    assert "first part\\nsecond part" in prompts(models)


async def test_a_reply_that_was_ready_when_the_gateway_died_is_still_delivered_once(
    start_process: Killable, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start_process(allowFrom=[ANN]) as gateway:
        held = asyncio.Event()
        models.queue(Reply("late but there", hold=held, hold_after=0))
        await signal.say("hello", sender=ANN)
        await models.wait_for_requests(1)
        gateway.kill()
        signal.disconnect()
        models.forget()
        models.queue(Reply("late but there"))
        await gateway.start()
        sent = await signal.called("send")
    assert [call["message"] for call in sent] == ["late but there"]


async def test_words_that_waited_for_more_survive_a_power_cut(
    start_process: Killable, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start_process(
        allowFrom=[ANN], more={"messages": {"inbound": {"byChannel": {"signal": 60_000}}}}
    ) as gateway:
        await signal.say("I was about to add [[reply:go on]]", sender=ANN)
        async with asyncio.timeout(60):
            while "about to add" not in await asyncio.to_thread(stored.everything_in_ledger, gateway):
                await asyncio.sleep(0.01)
        gateway.kill()
        signal.disconnect()
        await gateway.start()
        sent = await signal.called("send")
        await signal.connected()
        await signal.repeat_all()
        await signal.say("/status", sender=ANN)
        await signal.called("send", 2)
    assert sent[0]["message"] == "go on"
    assert len(models.requests) == 1


async def test_a_command_that_waits_for_a_run_keeps_nobody_else_waiting(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    models.queue(Reply("late", hold=held, hold_after=0))
    more = {"session": {"dmScope": "per-channel-peer"}}
    async with start(more, allowFrom=[ANN, BOB]):
        await signal.say("think long", sender=ANN, name="Ann")
        await models.wait_for_requests(1)
        await signal.say("/pin the door is blue", sender=ANN, name="Ann")
        await signal.say("hello [[reply:Hi Bob]]", sender=BOB, name="Bob")
        assert (await signal.called("send"))[0]["message"] == "Hi Bob"
        await signal.say("/stop", sender=ANN, name="Ann")
        texts = [call["message"] for call in (await signal.called("send", 3))]
        assert "⚙️ Agent was aborted." in texts
        assert any("Pinned" in text for text in texts)
        held.set()


async def test_a_question_about_a_command_is_put_where_the_message_came_from(
    start: Start, signal: SignalDaemon, models: ModelServer, tmp_path: Path
) -> None:
    run = '[[tool:exec {"command": "touch made.txt"}]][[next]][[reply:asked]]'
    more = {"commands": {"ownerAllowFrom": [ANN]}, "tools": {"exec": {"ask": "always"}}}
    rules = {"allowFrom": [ANN, BOB], "groupPolicy": "open", "groups": {"*": {"requireMention": False}}}
    async with start(more, **rules) as gateway, gateway.client() as client:
        await signal.deliver(in_group(signal, f"please {run}", sender=BOB, name="Bob"))
        (question,) = await signal.called("send")
        assert "May I run this command?" in question["message"]
        assert question["groupId"] == GROUP
        asked = (await client.event(lambda event, payload: event == "exec.approval.requested"))["payload"]
        slug = asked["id"][:8]
        # Only an owner may answer; anyone else is met with silence. What else the group says waits its turn.
        await signal.deliver(in_group(signal, f"/approve {slug} allow-once", sender=BOB, name="Bob"))
        await signal.deliver(in_group(signal, "still there? [[reply:yes]]", sender=BOB, name="Bob"))
        await signal.say("and you? [[reply:I wait for Ann]]", sender=BOB, name="Bob")
        assert (await signal.called("send", 2))[1]["message"] == "I wait for Ann"
        assert [one["id"] for one in (await client.call("question.list", {}))["questions"]] == [asked["id"]]
        assert not (tmp_path / "state" / "workspace" / "made.txt").exists()
        await signal.say(f"/approve {slug} once", sender=ANN, name="Ann")
        sent = (await signal.called("send", 5))[2:]
        answer = next(call for call in sent if "allowed once" in call["message"])
        assert answer["recipient"] == [ANN]
        outcome, later = (call for call in sent if call is not answer)
        assert (outcome["groupId"], outcome["message"]) == (GROUP, "asked")
        assert (later["groupId"], later["message"]) == (GROUP, "yes")
        assert (tmp_path / "state" / "workspace" / "made.txt").exists()


async def test_a_sender_who_may_have_elevated_commands_does_not_lend_them_to_others(
    start: Start, signal: SignalDaemon, models: ModelServer, tmp_path: Path
) -> None:
    made = tmp_path / "state" / "workspace" / "made.txt"
    run = '[[tool:exec {"command": "touch made.txt"}]][[next]][[reply:tried]]'
    tools = {"exec": {"host": "gateway", "ask": "off"}, "elevated": {"allowFrom": {"signal": [ANN]}}}
    rules = {"allowFrom": [ANN, BOB], "groupPolicy": "open", "groups": {"*": {"requireMention": False}}}
    async with start({"tools": tools}, **rules) as gateway, gateway.client() as client:
        key = f"agent:main:signal:group:{GROUP}"
        await client.call("sessions.patch", {"key": key, "elevatedLevel": "full"})
        await signal.deliver(in_group(signal, f"please {run}", sender=BOB, name="Bob"))
        await signal.called("send", 1)
        assert "is not on the allowlist" in prompts(models)
        assert not made.exists()
        await signal.deliver(in_group(signal, f"please {run}", sender=ANN, name="Ann"))
        await signal.called("send", 2)
        assert made.exists()


async def test_a_document_that_came_along_can_be_read_by_the_agent(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    signal.attachments["a1"] = b"the secret word is heron"
    listed = [{"id": "a1", "contentType": "text/plain", "filename": "../my notes.txt", "size": 24}]
    async with start(allowFrom=[ANN]) as gateway:
        await signal.say("see the file [[reply:seen]]", sender=ANN, attachments=listed)
        await signal.called("send")
        workspace = gateway.state_dir / "workspace"
        [path] = re.findall(r"\[media attached: (\S+) \(text/plain\)\]", prompts(models))
        assert path.startswith("media/inbound/") and path.endswith("-my_notes.txt")
        assert (workspace / path).read_bytes() == b"the secret word is heron"
        await signal.say(f'[[tool:read {{"path": "{path}"}}]][[next]][[reply:read it]]', sender=ANN)
        await signal.called("send", 2)
    assert "the secret word is heron" in prompts(models)


async def test_a_mention_in_a_group_shows_the_typing_sign_at_once(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    held = asyncio.Event()
    groups = {"groupPolicy": "open", "groups": {"*": {"requireMention": False}}}
    async with start(allowFrom=[ANN], **groups):
        models.queue(Reply("not yet", hold=held, hold_after=0), Reply("not yet", hold=held, hold_after=0))
        await signal.deliver(in_group(signal, "just talking"))
        await models.wait_for_requests(1)
        assert signal.of("sendTyping") == [], "nobody spoke to the agent, so nothing shows before it says something"
        held.set()
        await signal.called("send")
        held.clear()
        mention = {"start": 0, "length": 1, "number": US}
        await signal.deliver(in_group(signal, "\ufffc help me", mentions=[mention]))
        await models.wait_for_requests(2)
        assert (await signal.called("sendTyping"))[0]["groupId"] == GROUP
        held.set()
        await signal.called("send", 2)


async def test_a_quote_reaches_the_person_it_is_for(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    groups = {"groupPolicy": "open", "groups": {"*": {"requireMention": False}}}
    tags = ("[[reply_to_current]] first", "[[reply_to_current]] second", "[[reply_to:nonsense]] third")
    models.queue(*(Reply(text) for text in tags))
    async with start(allowFrom=[ANN], **groups):
        direct = await signal.say("one", sender=ANN)
        (first,) = await signal.called("send")
        group = in_group(signal, "two")
        await signal.deliver(group)
        second = (await signal.called("send", 2))[1]
        await signal.say("three", sender=ANN)
        third = (await signal.called("send", 3))[2]
    assert first["message"] == "first"
    assert (first["quoteTimestamp"], first["quoteAuthor"]) == (direct["timestamp"], ANN)
    assert (second["quoteTimestamp"], second["quoteAuthor"]) == (group["timestamp"], ANN)
    assert third["message"] == "third" and "quoteTimestamp" not in third


async def test_a_daemon_that_is_silent_for_long_gets_the_reply_once_when_it_answers_again(
    start: Start, signal: SignalDaemon, models: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openclaw.channels.signal.channel.SEND_TIMEOUT_S", 0.2)
    monkeypatch.setattr("openclaw.channels.manager.ANSWER_S", 0.1)
    monkeypatch.setattr("openclaw.outbound.deliver.ASK_AGAIN_S", 0.1)
    held, silence = asyncio.Event(), asyncio.Event()
    models.queue(Reply("Hi Ann", hold=held, hold_after=0))
    async with start(allowFrom=[ANN]) as gateway, gateway.client() as client:
        await signal.say("hello", sender=ANN)
        await models.wait_for_requests(1)
        signal.silent = silence
        held.set()
        await signal.until(lambda: signal.unanswered >= 2)
        (row,) = (await client.call("messages.list", {}))["messages"]
        async with asyncio.timeout(60):
            while True:
                (part,) = (await client.call("messages.get", {"id": row["id"]}))["deliveries"]
                if (part["state"], part["attempts"], part["possiblyDuplicate"]) == ("pending", 1, True):
                    break
                await asyncio.sleep(0.02)
        signal.silent = None
        silence.set()
        await signal.called("send")
        async with asyncio.timeout(60):
            while (await client.call("messages.get", {"id": row["id"]}))["deliveries"][0]["state"] != "sent":
                await asyncio.sleep(0.02)
    assert [call["message"] for call in signal.of("send")] == ["(possibly sent twice) Hi Ann"]


async def test_a_message_that_its_sender_changes_or_takes_back_is_answered_anew_or_forgotten(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    async with start(allowFrom=[ANN]):
        first = await signal.say("teh capital of France? [[reply:What is teh?]]")
        await signal.called("send")
        data = {**first["dataMessage"], "message": "the capital of France? [[reply:Paris]]", "timestamp": 77}
        edit = {"targetSentTimestamp": first["dataMessage"]["timestamp"], "dataMessage": data}
        await signal.deliver({**{name: first[name] for name in first if name != "dataMessage"}, "editMessage": edit})
        await signal.called("send", 2)
        await signal.deliver(signal.message(None, remoteDelete={"timestamp": first["dataMessage"]["timestamp"]}))
        await signal.say("and now? [[reply:nothing]]")
        await signal.called("send", 3)
    assert [sent["message"] for sent in signal.of("send")] == ["What is teh?", "Paris", "nothing"]
    assert "teh" not in prompts(models, 1) and "capital" not in prompts(models, 2)
