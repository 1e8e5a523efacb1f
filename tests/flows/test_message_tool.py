"""The agent writes to people on Signal by itself: where to, under which rules, once, and with its own record of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.schema.tools import CrossContext
from openclaw.config.schema.tools import MessageTool as Rules
from openclaw.rights import OWNER_CALLER
from openclaw.sessions.entry import SessionEntry
from openclaw.tools.base import ToolContext
from openclaw.tools.message import ChannelConversation, MessageRefused, marks_for
from tests.flows.test_session_tools import invoke
from tests.flows.test_signal import ANN, BOB, GROUP, Killable, Start, in_group, signal, start, start_process
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import WireClient
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.signal_daemon import SignalDaemon

__all__ = ["signal", "start", "start_process"]
pytestmark = pytest.mark.asyncio
APART = {"session": {"dmScope": "per-channel-peer"}}


@pytest.fixture
async def gateway(start: Start) -> AsyncIterator[InProcessGateway]:
    async with start(APART, allowFrom=[ANN]) as running:
        yield running


def queue_call(models: ModelServer, **arguments: Any) -> None:
    """Queues a call of the tool and the silence after it.

    Directives in a channel's text cannot ask for silence: the Gateway disarms ``NO_REPLY`` there.
    """
    models.queue(Reply(calls=[Call("message", arguments)]), Reply("NO_REPLY"))


async def end_of_first_message(gateway: InProcessGateway) -> str:
    """Waits until the first message of a person has its end, and returns the state that it ended with."""
    async with gateway.client() as client, asyncio.timeout(60):
        while True:
            rows = (await client.call("messages.list", {}))["messages"]
            for row in rows:
                if row["source"] == "signal" and row["state"] in ("answered", "silent", "error"):
                    return row["state"]
            await asyncio.sleep(0.01)


async def said(gateway: InProcessGateway | ForkedGateway, key: str) -> list[str]:
    async with gateway.client() as client:
        history = await client.call("chat.history", {"sessionKey": key})
    return [
        block["text"]
        for message in history["messages"]
        if message["role"] == "assistant"
        for block in message["content"]
        if block.get("type") == "text"
    ]


async def until_said(gateway: InProcessGateway | ForkedGateway, key: str, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in await said(gateway, key):
            await asyncio.sleep(0.01)


async def test_a_message_is_delivered_and_stands_in_the_session_of_the_chat(
    gateway: InProcessGateway, signal: SignalDaemon
) -> None:
    answer = await invoke(gateway, "message", {"action": "send", "to": BOB, "message": "dinner at 8"})
    assert (answer["status"], answer["delivered"], answer["channel"], answer["to"]) == ("ok", True, "signal", BOB)
    (sent,) = signal.of("send")
    assert (sent["message"], sent["recipient"]) == ("dinner at 8", [BOB])
    key = f"agent:main:signal:direct:{BOB}"
    assert answer["sessionKey"] == key and answer["messageId"].isdigit() and answer["runId"]
    await until_said(gateway, key, "dinner at 8")
    async with gateway.client() as client:
        (kept,) = (await client.call("chat.history", {"sessionKey": key}))["messages"]
    # Clients know by this that it is no answer of the Gateway to a command.
    assert (kept["provider"], kept["model"], kept["role"]) == ("openclaw", "delivery-mirror", "assistant")


async def test_the_model_sends_elsewhere_and_says_nothing_more(
    gateway: InProcessGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    queue_call(models, action="send", target=BOB, message="hi Bob")
    await signal.say("tell Bob", sender=ANN, name="Ann")
    (sent,) = await signal.called("send")
    assert (sent["message"], sent["recipient"]) == ("[from signal] hi Bob", [BOB])
    await until_said(gateway, f"agent:main:signal:direct:{BOB}", "[from signal] hi Bob")
    assert await end_of_first_message(gateway) == "silent"
    assert len(models.requests) == 2
    result = json.dumps(models.requests[-1].body["messages"][-1])
    assert "delivered" in result and "sessionKey" in result
    assert "- message: Send messages to people" in json.dumps(models.requests[-1].body["system"])
    assert len(signal.of("send")) == 1


async def test_without_a_target_it_is_the_current_chat_and_unmarked(
    gateway: InProcessGateway, signal: SignalDaemon, models: ModelServer
) -> None:
    queue_call(models, action="reply", message="here")
    await signal.say("go", sender=ANN, name="Ann")
    (sent,) = await signal.called("send")
    assert (sent["message"], sent["recipient"], sent["quoteAuthor"]) == ("here", [ANN], ANN)
    await until_said(gateway, f"agent:main:signal:direct:{ANN}", "here")


async def test_react_edit_and_delete(gateway: InProcessGateway, signal: SignalDaemon) -> None:
    sent = await invoke(gateway, "message", {"action": "send", "to": BOB, "message": "dinner at 8"})
    stamp = sent["messageId"]
    edited = await invoke(gateway, "message", {"action": "edit", "to": BOB, "messageId": stamp, "message": "at 9"})
    assert edited["delivered"] and signal.of("send")[-1] == {
        "message": "at 9", "editTimestamp": int(stamp), "recipient": [BOB], "account": "+15550000001",
    }  # fmt: skip
    deleted = await invoke(gateway, "message", {"action": "delete", "to": BOB, "messageId": stamp})
    assert deleted["delivered"] and signal.of("remoteDelete")[0]["targetTimestamp"] == int(stamp)
    react = {"action": "react", "to": f"group:{GROUP}", "messageId": "77", "emoji": "👍"}
    assert "must name the author of the message" in (await invoke(gateway, "message", react))["error"]
    for remove in (False, True):
        more = {"targetAuthor": ANN, "remove": remove}
        assert (await invoke(gateway, "message", {**react, **more}))["status"] == "ok"
    first, second = signal.of("sendReaction")
    assert (first["emoji"], first["targetAuthor"], first["targetTimestamp"], first["groupId"]) == ("👍", ANN, 77, GROUP)
    assert "remove" not in first and second["remove"] is True


async def test_the_model_reacts_to_the_message_it_answers(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    queue_call(models, action="react", emoji="🎉")
    async with start(allowFrom=[ANN], groupPolicy="open", groups={"*": {"requireMention": False}}):
        await signal.deliver(in_group(signal, "nice", timestamp=1_794_766_000_000))
        (reaction,) = await signal.called("sendReaction")
    assert (reaction["groupId"], reaction["targetAuthor"]) == (GROUP, ANN)
    assert reaction["targetTimestamp"] == 1_794_766_000_000


async def test_files_of_the_workspace_go_along_and_others_do_not(
    gateway: InProcessGateway, signal: SignalDaemon, tmp_path: Path
) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "a.txt").write_text("inside")
    (tmp_path / "secret.txt").write_text("outside")
    (workspace / "link.txt").symlink_to(tmp_path / "secret.txt")
    send = {"action": "send", "to": BOB}
    assert (await invoke(gateway, "message", {**send, "path": "a.txt"}))["status"] == "ok"
    encoded = base64.b64encode(b"\x89PNG\r\n\x1a\nmade").decode()
    assert (await invoke(gateway, "message", {**send, "buffer": encoded, "filename": "b.png"}))["status"] == "ok"
    await until_said(gateway, f"agent:main:signal:direct:{BOB}", "b.png")
    assert "a.txt" in await said(gateway, f"agent:main:signal:direct:{BOB}")
    sent = [one["attachments"][0] for one in signal.of("send")]
    assert base64.b64decode(sent[0].partition("base64,")[2]) == b"inside" and sent[1].startswith("data:image/png")
    for path in (str(tmp_path / "secret.txt"), "../../secret.txt", "link.txt"):
        for named in ({"path": path}, {"media": path}, {"attachments": ["a.txt", path]}):
            assert (await invoke(gateway, "message", {**send, **named}))["status"] == "error"
    assert "not a public address" in (await invoke(gateway, "message", {**send, "media": gateway.url}))["error"]
    assert len(signal.of("send")) == 2
    told = await invoke(
        gateway, "message", {**send, "message": "two\nMEDIA:./a.txt", "attachments": ["a.txt", "./gone.txt"]}
    )
    assert (told["status"], told["error"]) == ("error", "The file gone.txt was not sent: there is no such file.")
    (workspace / "c.txt").write_text("more")
    told = await invoke(gateway, "message", {**send, "message": "two\nMEDIA:./a.txt", "attachments": ["c.txt"]})
    assert told["status"] == "ok"
    sent = [(one["message"], len(one["attachments"])) for one in signal.of("send")[2:]]
    assert sent == [("two", 1), ("", 1)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"action": "poll", "to": BOB}, 'unknown action "poll"; known: send, reply, react, edit, delete'),
        ({"action": "send", "message": "x"}, "target required: this run belongs to no conversation on a channel"),
        ({"action": "send", "to": BOB}, "message or media required"),
        ({"action": "send", "to": BOB, "message": "NO_REPLY"}, "message or media required"),
        ({"action": "send", "to": "nobody", "message": "x"}, "'nobody' is not a Signal recipient"),
        ({"action": "send", "to": BOB, "message": "x", "channel": "telegram"}, "unsupported channel: telegram"),
        ({"action": "send", "to": BOB, "message": "x", "accountId": "b"}, 'unknown account "b"'),
        ({"action": "reply", "to": BOB, "message": "x"}, "messageId required"),
        ({"action": "edit", "to": BOB, "message": "x"}, "messageId required"),
        ({"action": "delete", "to": BOB}, "messageId required"),
        ({"action": "react", "to": BOB, "messageId": "5"}, "emoji required"),
        ({"action": "delete", "to": BOB, "messageId": "abc"}, "is not a Signal message id"),
        ({"action": "send", "targets": [ANN, BOB], "message": "x"}, "one call writes to one target"),
    ],
)
async def test_what_cannot_be_done_is_said(
    gateway: InProcessGateway, signal: SignalDaemon, arguments: dict[str, Any], error: str
) -> None:
    answer = await invoke(gateway, "message", arguments)
    assert answer["status"] == "error" and error in answer["error"]
    assert not [one for one in signal.calls if one[0] not in ("version", "sendTyping")]


async def test_a_dry_run_sends_nothing(gateway: InProcessGateway, signal: SignalDaemon) -> None:
    answer = await invoke(gateway, "message", {"action": "send", "to": BOB, "message": "x", "dryRun": True})
    assert answer["dryRun"] is True and not signal.of("send")


async def test_the_send_policy_counts(start: Start, signal: SignalDaemon) -> None:
    deny = {"action": "deny", "match": {"channel": "signal", "chatType": "group"}}
    async with start({"session": {"sendPolicy": {"rules": [deny]}}}) as gateway:
        answer = await invoke(gateway, "message", {"action": "send", "to": f"group:{GROUP}", "message": "x"})
        assert (answer["status"], answer["error"]) == ("forbidden", "send blocked by session policy")
        assert (await invoke(gateway, "message", {"action": "send", "to": BOB, "message": "x"}))["status"] == "ok"


async def test_a_chat_may_be_kept_to_itself(start: Start, signal: SignalDaemon, models: ModelServer) -> None:
    closed = {"tools": {"message": {"crossContext": {"allowWithinProvider": False}}}, **APART}
    async with start(closed, allowFrom=[ANN]):
        queue_call(models, action="send", target=BOB, message="hi")
        await signal.say("tell Bob", sender=ANN, name="Ann")
        async with asyncio.timeout(60):
            while "Cross-context messaging denied" not in json.dumps([one.body for one in models.requests]):
                await asyncio.sleep(0.01)
    assert not [one for one in signal.of("send") if BOB in one.get("recipient", [])]


HERE = ChannelConversation(channel="signal", account_id="default", to=ANN)
SAME = ChannelConversation(channel="signal", account_id="default", to=BOB)
OTHER = ChannelConversation(channel="telegram", account_id="default", to="5")


@pytest.mark.parametrize(
    ("rules", "here", "there", "marks"),
    [
        (Rules(), None, OTHER, ("", "")),
        (Rules(), HERE, SAME, ("[from signal] ", "")),
        (Rules(), HERE, OTHER, None),
        (Rules(cross_context=CrossContext(allow_across_providers=True)), HERE, OTHER, ("[from signal] ", "")),
        (Rules(allow_cross_context_send=True), HERE, OTHER, ("[from signal] ", "")),
        (Rules(cross_context=CrossContext(allow_within_provider=False)), HERE, SAME, None),
        (Rules(cross_context=CrossContext(marker={"enabled": False})), HERE, SAME, ("", "")),
        (Rules(cross_context=CrossContext(marker={"prefix": "{channel}>", "suffix": ""})), HERE, SAME, ("signal>", "")),
    ],
)  # fmt: skip
async def test_the_rules_for_other_conversations(
    rules: Rules, here: ChannelConversation | None, there: ChannelConversation, marks: tuple[str, str] | None
) -> None:
    if marks is None:
        with pytest.raises(MessageRefused, match="Cross-context messaging denied"):
            marks_for(rules, "send", here, there, same=False)
    else:
        assert marks_for(rules, "send", here, there, same=False) == marks
    assert marks_for(rules, "send", HERE, HERE, same=True) == ("", "")


async def test_a_message_waits_for_its_channel_and_goes_out_once_after_a_kill(
    start_process: Killable, signal: SignalDaemon
) -> None:
    key = f"agent:main:signal:direct:{BOB}"
    async with start_process(APART, allowFrom=[ANN]) as gateway:
        signal.strike_next("send", gateway.kill)
        with pytest.raises(Exception):
            await invoke(gateway, "message", {"action": "send", "to": BOB, "message": "once"})  # type: ignore[arg-type]
        await gateway.start()
        await signal.called("send", 2)
        await until_said(gateway, key, "once")
        assert (await said(gateway, key)).count("once") == 1
    assert [one["message"] for one in signal.of("send")] == ["once", "(possibly sent twice) once"]


async def test_one_call_sends_once_however_often_it_is_made(gateway: InProcessGateway, signal: SignalDaemon) -> None:
    tool = next(one for one in gateway.gateway.runtime.tools.added.make() if one.spec.name == "message")
    context = ToolContext(
        agent_id="main",
        session_key="agent:main:main",
        workspace=gateway.state_dir,
        run_id="r",
        call_id="c",
        caller=OWNER_CALLER,
    )
    answers = [(await tool.run({"action": "send", "to": BOB, "message": "x"}, context)).details for _ in range(2)]
    assert answers[0] == answers[1] and len(signal.of("send")) == 1


async def test_a_sub_agent_names_its_target_and_has_no_more_rights_than_the_chat(
    start: Start, signal: SignalDaemon
) -> None:
    closed = {"tools": {"message": {"crossContext": {"allowWithinProvider": False}}}, **APART}
    async with start(closed, allowFrom=[ANN]) as gateway:
        await signal.say("hello [[reply:hi]]", sender=ANN, name="Ann")
        await signal.called("send")
        parent, child = f"agent:main:signal:direct:{ANN}", "agent:main:subagent:1"
        store = gateway.gateway.runtime.stores.sessions
        await store.update("main", child, lambda _: SessionEntry(sessionId="c", updatedAt=1, spawnedBy=parent))
        send = {"action": "send", "message": "x"}
        assert "target required" in (await invoke(gateway, "message", send, child))["error"]
        denied = await invoke(gateway, "message", {**send, "to": BOB}, child)
        assert denied["status"] == "forbidden" and "Cross-context messaging denied" in denied["error"]
        assert (await invoke(gateway, "message", {**send, "to": ANN}, child))["status"] == "ok"
        assert (await invoke(gateway, "message", {**send, "to": BOB}, parent))["status"] == "forbidden"


async def test_an_announce_step_has_no_message_tool(gateway: InProcessGateway, models: ModelServer) -> None:
    async with gateway.client() as client:
        for key in ("main", "agent:main:work"):
            await client.chat("[[reply:begun]]", key)
    models.queue(Reply("forty-two"), Reply("REPLY_SKIP"), Reply("ANNOUNCE_SKIP"))
    await invoke(gateway, "sessions_send", {"sessionKey": "agent:main:work", "message": "the answer?"})
    async with asyncio.timeout(60):
        while not (steps := [one.body for one in models.requests if "announce step" in json.dumps(one.body["system"])]):
            await asyncio.sleep(0.01)
    tools = {tool["name"] for tool in steps[0]["tools"]}
    assert "message" not in tools and "web_fetch" in tools
    assert "message" in {tool["name"] for tool in models.requests[0].body["tools"]}


async def answered(client: WireClient) -> list[dict[str, Any]]:
    """The messages of people that have got their end."""
    rows = (await client.call("messages.list", {}))["messages"]
    return [row for row in rows if row["state"] == "answered" and row["source"] == "signal"]


@pytest.mark.parametrize("streams", [False, True])
async def test_what_the_agent_wrote_here_by_itself_does_not_come_again(
    start: Start, signal: SignalDaemon, models: ModelServer, streams: bool
) -> None:
    said, last = "The report is ready for you 🎉", "Done: the report is ready for you!"
    sends = [Call("message", {"action": "send", "to": ANN, "message": said})]
    models.queue(Reply(calls=sends), Reply(text="The report is ready for you."), Reply(calls=sends), Reply(text=last))
    async with start(allowFrom=[ANN], blockStreaming=streams) as gateway, gateway.client() as client:
        await signal.say("go", sender=ANN)
        await signal.called("send")
        await signal.say("again", sender=ANN)
        await signal.called("send", 2)
        async with asyncio.timeout(60):
            while len(done := await answered(client)) < 2:
                await asyncio.sleep(0.02)
        told = await client.call("messages.why", {"ref": str(done[0]["id"])})
    assert [call["message"] for call in signal.of("send")] == [said, said]
    assert any("with the message tool" in line for line in told["story"])


async def test_words_to_others_and_failed_ones_do_not_replace_the_answer(
    start: Start, signal: SignalDaemon, models: ModelServer
) -> None:
    to_bob = Call("message", {"action": "send", "to": BOB, "message": "Ann asks for the report"})
    refused = Call("message", {"action": "send", "message": "Here is the report", "media": "./gone.png"})
    models.queue(
        Reply(calls=[to_bob]), Reply(text="I asked Bob for it."), Reply(calls=[refused]), Reply(text="No file.")
    )
    async with start(allowFrom=[ANN]):
        await signal.say("go", sender=ANN)
        await signal.called("send", 2)
        await signal.say("again", sender=ANN)
        got = [call["message"] for call in await signal.called("send", 3)]
    assert got[1:] == ["I asked Bob for it.", "No file."]


async def test_sound_is_sent_as_a_voice_message_where_the_model_asks_for_it(
    gateway: InProcessGateway, signal: SignalDaemon
) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "say.ogg").write_bytes(b"OggS\0\2" + b"\0" * 22 + b"OpusHead")
    for voice in (True, False):
        words = {"action": "send", "to": ANN, "media": "./say.ogg", "asVoice": voice}
        answer = await invoke(gateway, "message", words)
        assert answer["status"] == "ok", answer
    spoken, file = signal.of("send")
    assert spoken["voiceNote"] is True and "voiceNote" not in file
    assert spoken["attachments"] == file["attachments"]
