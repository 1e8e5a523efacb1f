"""People write to the agent on Slack: who is heard, where the answer goes, and what survives a bad connection."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp
import pytest

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config, put_file
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer, Reply
from tests.support.slack_server import APP_TOKEN, BOT, BOT_TOKEN, SlackServer

ANN, BOB, GENERAL = "U0ANN", "U0BOB", "C0GENERAL"
Start = Callable[..., AbstractAsyncContextManager[InProcessGateway]]


@pytest.fixture
async def slack() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server
        assert server.strange == []


def configuration(models: ModelServer, slack: SlackServer, more: dict[str, Any] | None, section: Any) -> Any:
    channel = {**slack.settings, "dm": {"allowFrom": [ANN]}, **section}
    return model_config(models.base_url, models.api_key, channels={"slack": channel}, **(more or {}))


@pytest.fixture
def start(tmp_path: Path, models: ModelServer, slack: SlackServer) -> Start:
    @asynccontextmanager
    async def gateway(more: dict[str, Any] | None = None, **section: Any) -> AsyncIterator[InProcessGateway]:
        config = configuration(models, slack, more, section)
        async with InProcessGateway(tmp_path / "state", config) as gateway:
            await slack.connected()
            yield gateway

    return gateway


def prompts(models: ModelServer, request: int = -1) -> str:
    return json.dumps(models.requests[request].body["messages"])


async def keys(gateway: InProcessGateway) -> list[str]:
    async with gateway.client() as client:
        return [row["key"] for row in (await client.call("sessions.list", {}))["sessions"]]


async def test_a_direct_message_is_answered_and_acknowledged(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start() as gateway:
        await slack.say("hello [[reply:Hi **Ann**, a &lt; b]]")
        (reply,) = await slack.wrote()
        await slack.all_acknowledged()
        assert await keys(gateway) == ["agent:main:main"]
    assert (reply["channel"], reply["text"]) == ("D0ANN", "Hi *Ann*, a &lt; b")
    assert "[Slack Ann id:U0ANN" in prompts(models)


async def test_a_direct_chat_shows_the_typing_sign_and_removes_it_after_the_reply(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start():
        await slack.say("hello [[reply:Hi Ann]]")
        (reply,) = await slack.wrote()
        await slack.until(lambda: len(slack.of("assistant.threads.setStatus")) == 2)
    shown = slack.of("assistant.threads.setStatus")
    assert [call["status"] for call in shown] == ["is typing...", ""]
    assert {call["channel_id"] for call in shown} == {reply["channel"]}


async def test_a_stranger_gets_a_pairing_code_and_no_answer(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start() as gateway, gateway.client() as client:
        await slack.say("let me in", user=BOB, channel="D0BOB")
        (offer,) = await slack.wrote()
        (asked,) = (await client.call("pairing.list", {}))["requests"]
    assert offer["channel"] == "D0BOB"
    assert asked["code"] in offer["text"]
    assert not models.requests


@pytest.mark.parametrize(
    ("room", "section", "heard"),
    [
        (GENERAL, {"groupPolicy": "open"}, True),
        (GENERAL, {"channels": {GENERAL: {}}}, True),
        (GENERAL, {"channels": {"*": {}}}, True),
        (GENERAL, {"channels": {"C0OTHER": {}}}, False),
        (GENERAL, {}, False),
        (GENERAL, {"channels": {GENERAL: {"allow": False}}}, False),
        (GENERAL, {"channels": {GENERAL: {"users": [BOB]}}}, False),
        (GENERAL, {"groupPolicy": "disabled", "channels": {GENERAL: {}}}, False),
        ("G0SECRET", {"channels": {"G0SECRET": {}}}, True),
    ],
)
async def test_the_list_of_channels_decides_where_the_agent_listens(
    start: Start, slack: SlackServer, models: ModelServer, room: str, section: Any, heard: bool
) -> None:
    async with start(**section):
        await slack.say(f"<@{BOT}> hello [[reply:here]]", channel=room)
        await slack.all_acknowledged()
        await slack.say("and you? [[reply:direct]]")
        await slack.wrote(2 if heard else 1)
    assert sorted(post["text"] for post in slack.ours) == (["direct", "here"] if heard else ["direct"])


async def test_in_a_channel_a_mention_is_needed_unless_the_settings_say_otherwise(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    rooms = {GENERAL: {}, "G0SECRET": {"requireMention": False}}
    async with start(channels=rooms) as gateway:
        await slack.say("lunch at noon?", channel=GENERAL)
        await slack.say(f"<@{BOT}>: what do you say, <@{BOB}>? [[reply:noon is fine]]", channel=GENERAL)
        await slack.wrote()
        await slack.say("no mention here [[reply:still heard]]", channel="G0SECRET")
        await slack.wrote(2)
        found = await keys(gateway)
    assert [(post["channel"], post["text"]) for post in slack.ours] == [
        (GENERAL, "noon is fine"),
        ("G0SECRET", "still heard"),
    ]
    assert set(found) == {"agent:main:slack:channel:c0general", "agent:main:slack:channel:g0secret"}
    first = prompts(models, 0)
    assert "lunch at noon?" in first
    assert "what do you say, @Bob?" in first
    assert "#general" in first or "general id:" in first


async def test_a_mention_that_slack_tells_twice_is_answered_once(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start(groupPolicy="open"):
        event = slack.message(f"<@{BOT}> both [[reply:once]]", channel=GENERAL)
        mention = {name: value for name, value in event.items() if name != "channel_type"}
        await slack.deliver({**mention, "type": "app_mention"})
        await slack.deliver(event)
        await slack.wrote()
        await slack.all_acknowledged()
        await slack.say("then [[reply:after]]")
        await slack.wrote(2)
    assert [post["text"] for post in slack.ours] == ["once", "after"]
    assert len(models.requests) == 2


async def test_a_thread_has_its_own_session_and_is_answered_in_the_thread(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start(groupPolicy="open") as gateway:
        root = await slack.say("Shall we deploy on Friday?", user=BOB, channel=GENERAL)
        thread = root["ts"]
        await slack.say(f"<@{BOT}> your view? [[reply:better not]]", channel=GENERAL, thread_ts=thread)
        (reply,) = await slack.wrote()
        found = await keys(gateway)
    assert (reply["channel"], reply["thread_ts"]) == (GENERAL, thread)
    assert found == [f"agent:main:slack:channel:c0general:thread:{thread}"]
    assert "Shall we deploy on Friday?" in prompts(models)


async def test_a_thread_begins_with_its_channel_if_it_shall(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start(groupPolicy="open", thread={"inheritParent": True, "historyScope": "channel"}):
        root = await slack.say(f"<@{BOT}> where to? [[reply:Rome]]", channel=GENERAL)
        await slack.wrote()
        await slack.say("by train perhaps", user=BOB, channel=GENERAL)
        await slack.say(f"<@{BOT}> when? [[reply:in May]]", channel=GENERAL, thread_ts=root["ts"])
        await slack.wrote(2)
    asked = models.requests[-1].body["messages"]
    assert "Rome" in json.dumps(asked[:-1]) and "by train perhaps" in json.dumps(asked[-1])


async def test_an_answer_to_our_own_thread_needs_no_mention(start: Start, slack: SlackServer) -> None:
    async with start(groupPolicy="open"):
        await slack.say(f"<@{BOT}> begin [[reply:a start]]", channel=GENERAL)
        (ours,) = await slack.wrote()
        await slack.say("more? [[reply:more]]", channel=GENERAL, thread_ts=ours["ts"], parent_user_id=BOT)
        _, second = await slack.wrote(2)
    assert (second["text"], second["thread_ts"]) == ("more", ours["ts"])


async def test_a_direct_chat_with_several_people_is_heard_when_it_is_switched_on(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start(dm={"allowFrom": [ANN], "groupEnabled": True}) as gateway:
        await slack.say("all of us [[reply:hello both]]", channel="C0MPIM")
        await slack.wrote()
        await slack.say("a stranger", user=BOB, channel="C0MPIM")
        await slack.all_acknowledged()
        found = await keys(gateway)
    assert [(post["channel"], post["text"]) for post in slack.ours] == [("C0MPIM", "hello both")]
    assert found == ["agent:main:slack:group:c0mpim"]


async def test_a_direct_chat_with_several_people_is_off_by_default(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start(groupPolicy="open"):
        await slack.say(f"<@{BOT}> all of us", channel="C0MPIM")
        await slack.all_acknowledged()
    assert not models.requests


async def test_a_slash_command_is_answered_to_the_person_alone(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    command = {"command": "/openclaw", "user_id": ANN, "user_name": "ann", "channel_id": GENERAL, "team_id": "T"}
    async with start(slashCommand={"enabled": True}, channels={"*": {}}):
        await slack.deliver({**command, "text": "status", "trigger_id": "1.1"}, "slash_commands")
        (status,) = await slack.wrote()
        await slack.deliver({**command, "text": "hello [[reply:hi]]", "trigger_id": "1.2"}, "slash_commands")
        _, answer = await slack.wrote(2)
        slack.member_of.discard(GENERAL)
        await slack.deliver({**command, "text": "again [[reply:there]]", "trigger_id": "1.3"}, "slash_commands")
        *_, elsewhere = await slack.wrote(3)
        await slack.all_acknowledged()
    assert status["only_for"] == ANN
    assert "mock/mock-1" in status["text"]
    assert (answer["text"], answer["channel"], answer["only_for"]) == ("hi", GENERAL, ANN)
    assert (elsewhere["text"], elsewhere["channel"]) == ("there", "D0ANN")


async def test_a_message_that_its_sender_changes_is_answered_anew(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start() as gateway:
        said = await slack.say("helo [[reply:first]]")
        await slack.wrote()
        changed = {"type": "message", "subtype": "message_changed", "channel": "D0ANN", "channel_type": "im"}
        inner = {name: said[name] for name in ("type", "user", "ts")}
        same = {**inner, "text": said["text"]}
        # A preview of a link is also a change. It changes no word.
        await slack.deliver({**changed, "message": same, "previous_message": same, "ts": slack.stamp()})
        new = {**inner, "text": "hello [[reply:second]]", "edited": {"user": ANN, "ts": slack.stamp()}}
        await slack.deliver({**changed, "message": new, "previous_message": same, "ts": slack.stamp()})
        await slack.wrote(2)
        gone = {**changed, "subtype": "message_deleted", "deleted_ts": said["ts"], "previous_message": new}
        await slack.deliver({**gone, "ts": slack.stamp()})
        await slack.all_acknowledged()
        assert gateway.errors_path.read_text().count("Traceback") == 0
    assert [post["text"] for post in slack.ours] == ["first", "second"]


async def test_files_are_fetched_with_the_token_from_slack_only(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    slack.files["report.txt"] = b"quarterly numbers"
    slack.files["photo.png"] = b"never fetched"
    url = f"{slack.url}/files-pri"
    files = [
        {
            "id": "F1",
            "name": "report.txt",
            "mimetype": "text/plain",
            "size": 17,
            "url_private": f"{url}/moved-report.txt",
        },
        {
            "id": "F2",
            "name": "huge.bin",
            "mimetype": "application/zip",
            "size": 99_000_000,
            "url_private": f"{url}/huge",
        },
        {"id": "F3", "name": "stolen.txt", "mimetype": "text/plain", "url_private": "http://127.0.0.1:9/steal"},
        {"id": "F4", "name": "gone.txt", "mode": "tombstone"},
    ]
    async with start():
        await slack.say("look [[reply:seen]]", files=files, subtype="file_share")
        await slack.wrote()
    assert slack.file_tokens == [f"Bearer {BOT_TOKEN}", None]
    prompt = prompts(models)
    assert "report.txt" in prompt
    assert "huge.bin was not fetched: it is larger than 20 MB" in prompt
    assert "stolen.txt was not fetched: its URL is not on a Slack server" in prompt
    assert "gone.txt was not fetched" in prompt


async def test_messages_that_came_while_the_connection_was_gone_are_answered_once(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start():
        event = await slack.say("before [[reply:one]]")
        await slack.wrote()
        await slack.all_acknowledged()
        await slack.disconnect()
        await slack.say("meanwhile [[reply:two]]")
        await slack.connected(2)
        await slack.wrote(2)
        await slack.again("again-1", event)
        await slack.all_acknowledged()
        await slack.refresh()
        await slack.connected(3)
        await slack.drop_oldest()
        await slack.say("after [[reply:three]]")
        await slack.wrote(3)
        await slack.all_acknowledged()
    assert [post["text"] for post in slack.ours] == ["one", "two", "three"]
    assert len(models.requests) == 3


async def test_a_message_is_acknowledged_only_when_it_is_kept_and_survives_a_kill(
    tmp_path: Path, models: ModelServer, slack: SlackServer
) -> None:
    config = configuration(models, slack, None, {})
    async with ForkedGateway(tmp_path / "state", config) as gateway:
        await slack.connected()
        await slack.say("first [[reply:one]]")
        await slack.wrote()
        await slack.all_acknowledged()
        gateway.kill()
        await slack.say("second [[reply:two]]")
        await gateway.start()
        await slack.connected(2)
        await slack.wrote(2)
        await slack.all_acknowledged()
    assert [post["text"] for post in slack.ours] == ["one", "two"], "the key in its metadata tells that it arrived"


async def test_a_post_that_arrived_without_an_answer_is_found_again_and_not_repeated(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start():
        slack.drop_next("chat.postMessage")
        await slack.say("hello [[reply:only once]]")
        await slack.called("conversations.history")
        await slack.say("next [[reply:and this]]")
        await slack.wrote(2)
    assert [post["text"] for post in slack.ours] == ["only once", "and this"]


async def test_a_post_that_never_arrived_is_sent_again_without_a_mark(start: Start, slack: SlackServer) -> None:
    async with start():
        slack.refuse_next("chat.postMessage", "fatal_error")
        await slack.say("hello [[reply:in the end]]")
        await slack.wrote()
    assert [post["text"] for post in slack.ours] == ["in the end"]


async def test_a_bare_mention_is_told_that_nothing_else_arrived(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    async with start(groupPolicy="open"):
        await slack.say(f"<@{BOT}>", channel=GENERAL)
        (told,) = await slack.wrote()
    assert "did not get any text" in told["text"]
    assert not models.requests


async def test_two_accounts_answer_through_the_one_that_heard(
    tmp_path: Path, models: ModelServer, slack: SlackServer
) -> None:
    async with SlackServer() as other:
        accounts = {"home": slack.settings, "work": {**other.settings, "dm": {"allowFrom": [BOB]}}}
        section = {"dm": {"allowFrom": [ANN]}, "accounts": accounts}
        config = model_config(models.base_url, models.api_key, channels={"slack": section})
        async with InProcessGateway(tmp_path / "state", config):
            await slack.connected()
            await other.connected()
            await other.say("at work [[reply:from work]]", user=BOB, channel="D0BOB")
            await other.wrote()
            await slack.say("at home [[reply:from home]]")
            await slack.wrote()
        assert [post["text"] for post in other.ours] == ["from work"]
    assert [post["text"] for post in slack.ours] == ["from home"]


async def test_a_rate_limit_is_waited_out(start: Start, slack: SlackServer) -> None:
    async with start():
        slack.refuse_next("chat.postMessage", "ratelimited", 429, {"Retry-After": "1"})
        await slack.say("hello [[reply:patience]]")
        await slack.wrote()
    assert [post["text"] for post in slack.ours] == ["patience"]
    assert ("chat.postMessage", "ratelimited") in slack.refused


async def test_a_long_reply_arrives_whole_and_in_order(start: Start, slack: SlackServer, models: ModelServer) -> None:
    words = " ".join(f"word{number}" for number in range(1500))
    async with start():
        await slack.say(f"tell me [[reply:{words}]]")
        await slack.until(lambda: slack.ours and "word1499" in slack.ours[-1]["text"])
    assert " ".join(post["text"] for post in slack.ours) == words
    assert len(slack.ours) > 1


@pytest.mark.parametrize(("key", "named"), [("botToken", "botToken"), ("appToken", "appToken")])
async def test_a_refused_token_is_one_clear_line_and_no_secret(
    tmp_path: Path, models: ModelServer, slack: SlackServer, key: str, named: str
) -> None:
    wrong = "xoxb-wrong-canary-98765"
    config = configuration(models, slack, None, {key: wrong})
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        async with asyncio.timeout(60):
            while True:
                status = await client.call("channels.status", {})
                (account,) = status["channelAccounts"]["slack"]
                if not account["running"] and account.get("lastError"):
                    break
                await asyncio.sleep(0.02)
        shown = json.dumps([status, await client.call("config.get", {}), gateway.errors_path.read_text()])
    assert account["lastError"] == f"channels.slack.{named}: Slack rejected it: invalid_auth"
    for secret in (wrong, BOT_TOKEN, APP_TOKEN, "canary-ticket"):
        assert secret not in shown


async def test_a_file_of_the_workspace_goes_with_the_words(
    start: Start, slack: SlackServer, models: ModelServer
) -> None:
    models.queue(Reply(text="Here **it** is.\nMEDIA:./a.txt"))
    async with start() as gateway:
        put_file(gateway, "a.txt", b"words")
        await slack.say("send")
        (sent,) = await slack.wrote()
    assert (sent["text"], sent["files"]) == ("Here *it* is.", [("a.txt", b"words")])


# Requests instead of a WebSocket

SIGNING = "signing-canary-0123456789abcdef"


def signed(body: bytes, *, secret: str = SIGNING, stamp: int | None = None) -> dict[str, str]:
    at = str(int(time.time()) if stamp is None else stamp)
    mark = hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": f"v0={mark}"}


async def test_with_the_mode_http_signed_requests_are_heard_and_kept_before_they_are_answered(
    tmp_path: Path, models: ModelServer, slack: SlackServer
) -> None:
    section = {"mode": "http", "signingSecret": SIGNING, "slashCommand": {"enabled": True}}
    config = configuration(models, slack, None, section)
    del config["channels"]["slack"]["appToken"]
    async with (
        InProcessGateway(tmp_path / "state", config) as gateway,
        gateway.client() as client,
        aiohttp.ClientSession() as http,
    ):
        async with asyncio.timeout(60):
            while not (await client.call("channels.status", {}))["channelAccounts"]["slack"][0]["connected"]:
                await asyncio.sleep(0.01)

        async def post(body: bytes, headers: dict[str, str], kind: str = "application/json") -> tuple[int, str]:
            asked = {"Content-Type": kind, **headers}
            async with http.post(f"{gateway.url}/slack/events", data=body, headers=asked) as answer:
                return answer.status, await answer.text()

        challenge = json.dumps({"type": "url_verification", "challenge": "c42"}).encode()
        assert await post(challenge, signed(challenge)) == (200, "c42")
        event = slack.message("hello [[reply:Hi **Ann**]]")
        body = json.dumps({"type": "event_callback", "team_id": "T0TEAM", "event": event}).encode()
        old = int(time.time()) - 600
        for headers in (signed(body, secret="wrong"), signed(body, stamp=old), {}):
            assert (await post(body, headers))[0] == 401
        forged = [(await post(body, signed(body, secret="wrong")))[0] for _ in range(12)]
        assert forged == [401] * 7 + [429] * 5, "strangers are slowed down, and Slack is not"
        for _ in range(2):  # Slack sends it again when it has seen no answer.
            assert await post(body, signed(body)) == (200, "")
        assert (await client.call("messages.list", {}))["messages"], "it was on disk before the answer"
        (reply,) = await slack.wrote()
        fields = {"command": "/openclaw", "text": "status", "user_id": ANN, "channel_id": "D0ANN", "trigger_id": "1.2"}
        form = urlencode(fields).encode()
        assert await post(form, signed(form), "application/x-www-form-urlencoded") == (200, "")
        status = (await slack.wrote(2))[1]
        for junk in (b"[" * 100_000, b"{", b'{"type": "event_callback", "event": 7}'):
            assert await post(junk, signed(junk)) == (200, "")
        shown = json.dumps([await client.call("channels.status", {"probe": True}), await client.call("config.get", {})])
        shown += gateway.errors_path.read_text()
    assert (reply["channel"], reply["text"]) == ("D0ANN", "Hi *Ann*")
    assert "mock/mock-1" in status["text"] and slack.opened == 0
    assert len(models.requests) == 1 and SIGNING not in shown
