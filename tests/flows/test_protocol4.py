"""Clients of protocol 4 beside those of protocol 3 on the same sessions, through a running Gateway."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from openclaw.device_keys import device_id, encode_base64url, signed_text
from tests.support.gateway import TOKEN, RequestFailed, WireClient, text_of
from tests.support.gateway_in_process import InProcessGateway

TUI = {
    "id": "openclaw-tui",
    "version": "2026.9.6",
    "platform": "linux",
    "mode": "ui",
    "buildId": "b",
    "timeZone": "UTC",
}
V4: dict[str, Any] = {"minProtocol": 4, "maxProtocol": 4, "client": TUI, "scopes": ["operator.admin"]}


def newer(gateway: InProcessGateway, **more: Any) -> Any:
    return gateway.client(**{**V4, **more})


async def send(client: WireClient, text: str, key: str = "main", **more: Any) -> dict[str, Any]:
    run_id = str(uuid.uuid4())
    params = {"sessionKey": key, "message": text, "idempotencyKey": run_id, **more}
    answer = await client.call("chat.send", params)
    return {**answer, "final": await client.ending(run_id)}


async def test_hello_of_protocol_4_says_what_was_granted_and_names_only_what_answers(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        hello = client.hello
    assert hello["protocol"] == 4
    assert hello["auth"] == {"role": "operator", "scopes": ["operator.admin"]}
    assert hello["server"]["bootId"]
    assert "buildId" not in hello["server"], "a page of another build reloads when it reads ours"
    assert hello["features"]["capabilities"] == ["published-model-catalog", "session-scoped-model-catalog"]
    methods = set(hello["features"]["methods"])
    assert {"sessions.subscribe", "chat.startup", "sessions.create"} <= methods
    assert not {"connect", "wizard.start", "voicewake.get"} & methods, "methods that answer UNAVAILABLE"
    attachments = hello["policy"]["attachments"]
    assert attachments["maxBytes"] * 4 // 3 < hello["policy"]["maxPayload"]
    assert (hello["controlUiLinkReaders"], hello["controlUiWidgetKinds"]) == ([], [])


async def test_a_client_of_protocol_3_sees_nothing_of_protocol_4(gateway: InProcessGateway) -> None:
    async with gateway.client() as older, newer(gateway) as client:
        assert older.hello["protocol"] == 3
        assert "auth" not in older.hello
        assert "capabilities" not in older.hello["features"]
        assert not {"sessions.subscribe", "chat.startup"} & {*older.hello["features"]["methods"]}
        with pytest.raises(RequestFailed, match=r"unknown method: chat\.startup"):
            await older.call("chat.startup", {"sessionKey": "main"})
        with pytest.raises(RequestFailed, match="unexpected property 'maxBytes'"):
            await older.call("chat.history", {"sessionKey": "main", "maxBytes": 1000})
        await client.call("sessions.subscribe")
        await client.call("sessions.messages.subscribe", {"key": "main"})
        final = (await send(client, "[[reply:one two three four]]"))["final"]
        assert text_of(final) == "one two three four"
        await older.ending(final["runId"])
        numbers = [frame["seq"] for frame in older.events if "seq" in frame]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no number is missing for older clients"
        assert not {"sessions.changed", "session.message"} & {frame["event"] for frame in older.events}
        deltas = [f["payload"] for f in older.events if f["event"] == "chat" and f["payload"]["state"] == "delta"]
        assert deltas
        assert not any("deltaText" in delta for delta in deltas)


async def test_delta_texts_add_up_to_the_text_and_replace_at_its_beginning(gateway: InProcessGateway) -> None:
    words = " ".join(f"word{number}" for number in range(60))
    async with newer(gateway) as client:
        final = (await send(client, f"[[delay:10]] [[reply:{words}]]"))["final"]
        shown = ""
        for frame in client.of_run(final["runId"]):
            payload = frame["payload"]
            if frame["event"] == "chat" and payload["state"] == "delta":
                shown = payload["deltaText"] if payload.get("replace") else shown + payload["deltaText"]
                assert shown == text_of(payload)
        assert shown
        assert words.startswith(shown)


async def test_subscribers_get_the_confirmation_of_their_message_the_reply_and_the_row(
    gateway: InProcessGateway,
) -> None:
    async with newer(gateway) as client, gateway.client() as older:
        assert await client.call("sessions.subscribe") == {"subscribed": True}
        answer = await client.call("sessions.messages.subscribe", {"key": "main", "includeApprovals": True})
        assert answer["subscribed"]
        assert answer["approvalReplay"]["approvals"] == []
        sent = await send(client, "hello [[reply:good day]]")
        run_id = sent["final"]["runId"]

        def is_reply(event: str, payload: Any) -> bool:
            return event == "session.message" and payload["message"]["role"] == "assistant"

        reply = (await client.event(is_reply))["payload"]
        own = next(frame["payload"] for frame in client.events if frame["event"] == "session.message")
        assert own["message"]["idempotencyKey"] == f"{run_id}:user"
        assert (own["messageSeq"], reply["messageSeq"]) == (1, 2)
        assert own["messageId"] == own["message"]["__openclaw"]["id"]
        assert own["session"]["sessionId"] == sent["sessionId"]
        done = await client.event(lambda name, p: name == "sessions.changed" and p["reason"] == "run-finished")
        assert done["payload"]["session"]["key"] == "agent:main:main"
        # A message that an older client sends reaches the subscriber as well.
        await older.chat("from elsewhere [[reply:indeed]]")
        await client.event(lambda name, p: name == "session.message" and p["messageSeq"] == 4)
        seqs = [frame["payload"]["messageSeq"] for frame in client.events if frame["event"] == "session.message"]
        assert seqs == [1, 2, 3, 4], "each message once and in order"
        assert (await client.call("sessions.messages.unsubscribe", {"key": "main"}))["subscribed"] is False


async def test_startup_has_what_a_conversation_is_opened_with(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        await send(client, "hello [[reply:good day]]")
        start = await client.call("chat.startup", {"sessionKey": "main", "limit": 50, "maxBytes": 100_000, "x": 1})
        assert [message["role"] for message in start["messages"]] == ["user", "assistant"]
        assert [message["__openclaw"]["seq"] for message in start["messages"]] == [1, 2]
        assert (start["activity"], start["hasMore"], start["totalMessages"]) == ([], False, 2)
        assert start["sessionInfo"]["key"] == "agent:main:main"
        (model,) = [model for model in start["metadata"]["models"] if "default" in model.get("tags", [])]
        assert (model["provider"], model["id"]) == ("mock", "mock-1")
        assert "/new" in {alias for command in start["metadata"]["commands"] for alias in command["textAliases"]}
        assert (await client.call("chat.metadata", {"sessionKey": "main"}))["models"] == start["metadata"]["models"]
        agents = await client.call("agents.list")
        assert agents["agents"][0]["model"] == {"primary": "mock/mock-1"}
        status = await client.call("models.authStatus", {"agentId": "main"})
        assert "mock" in [provider["provider"] for provider in status["providers"]]


async def test_create_begins_a_session_beside_its_parent(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        await send(client, "the old conversation")
        new = {"key": "agent:main:tui-1", "parentSessionKey": "main", "succeedsParent": True, "label": "second"}
        created = await client.call("sessions.create", new)
        assert (created["ok"], created["key"]) == (True, "agent:main:tui-1")
        described = (await client.call("sessions.describe", {"key": "agent:main:tui-1"}))["session"]
        assert (described["sessionId"], described["label"]) == (created["sessionId"], "second")
        assert text_of((await send(client, "[[reply:fresh]]", "agent:main:tui-1"))["final"]) == "fresh"
        page = await client.call("sessions.list", {"limit": 1, "configuredAgentsOnly": True})
        assert (page["totalCount"], page["hasMore"], page["nextOffset"], page["owners"]) == (2, True, 1, [])
        assert (await client.call("sessions.describe", {"key": "nothing"}))["session"] is None


async def test_a_stale_session_id_runs_in_the_current_session_of_the_key(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        first = (await send(client, "one"))["sessionId"]
        await client.call("sessions.reset", {"key": "main"})
        sent = await send(client, "two [[reply:second]]", sessionId=first)
        assert text_of(sent["final"]) == "second"
        assert sent["sessionId"] != first
        assert sent["sessionId"] == (await client.call("sessions.describe", {"key": "main"}))["session"]["sessionId"]
        assert [entry["type"] for entry in gateway.transcript(first) if "two" in json.dumps(entry)] == []


@pytest.mark.parametrize(
    ("expected", "refused"),
    [
        ({"expectedLabel": "first"}, False),
        ({"expectedLabel": None}, True),
        ({"expectedThinkingLevel": None, "expectedLabel": "first"}, False),
        ({"expectedSessionId": "another"}, True),
    ],
)
async def test_patch_changes_nothing_unless_the_session_is_as_expected(
    gateway: InProcessGateway, expected: dict[str, Any], refused: bool
) -> None:
    async with newer(gateway) as client:
        await client.call("sessions.patch", {"key": "main", "label": "first"})
        change = client.call("sessions.patch", {"key": "main", "label": "second", **expected})
        if refused:
            with pytest.raises(RequestFailed, match="the session has changed") as caught:
                await change
            assert caught.value.error["details"]["code"] == "SESSION_CHANGED"
        else:
            await change
        described = (await client.call("sessions.describe", {"key": "main"}))["session"]
        assert described["label"] == ("first" if refused else "second")


async def test_rewind_returns_the_text_and_the_left_branch_can_be_found_again(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        await send(client, "one [[reply:first]]")
        await send(client, "two [[reply:second]]")
        history = (await client.call("chat.history", {"sessionKey": "main", "inputRunIds": []}))["messages"]
        second = history[2]["__openclaw"]["id"]
        forked = await client.call("sessions.fork", {"sessionKey": "main", "entryId": second})
        assert forked["editorText"] == "two [[reply:second]]"
        copy = await client.call("chat.history", {"sessionKey": forked["key"]})
        assert [message["role"] for message in copy["messages"]] == ["user", "assistant"]
        rewound = await client.call("sessions.rewind", {"sessionKey": "main", "entryId": second})
        assert rewound["editorText"] == "two [[reply:second]]"
        await client.call("sessions.messages.subscribe", {"key": "main"})
        await send(client, "other [[reply:third]]")
        await client.event(lambda name, p: name == "session.message" and p["messageSeq"] == 4)
        branches = (await client.call("sessions.branches.list", {"sessionKey": "main"}))["branches"]
        assert [(one["headline"], one["messageCount"], one["active"]) for one in branches] == [
            ("third", 4, True),
            ("second", 4, False),
        ]
        back = {"sessionKey": "main", "entryId": branches[1]["leafEntryId"]}
        assert (await client.call("sessions.rewind", back))["editorText"] == ""
        shown = (await client.call("chat.history", {"sessionKey": "main"}))["messages"]
        assert shown[-1]["content"][0]["text"] == "second"


async def test_scheduled_jobs_come_in_pages_and_one_by_one(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        added = []
        for name in ("a", "b", "c"):
            job = {"name": name, "schedule": {"kind": "every", "everyMs": 3_600_000}, "sessionTarget": "main"}
            payload = {"kind": "systemEvent", "text": "x"}
            added.append(await client.call("cron.add", {**job, "wakeMode": "now", "payload": payload}))
        page = await client.call("cron.list", {"limit": 2, "offset": 0, "compact": True, "sortBy": "name"})
        assert (len(page["jobs"]), page["total"], page["hasMore"], page["nextOffset"]) == (2, 3, True, 2)
        rest = await client.call("cron.list", {"limit": 2, "offset": 2})
        assert (len(rest["jobs"]), rest["hasMore"], rest["nextOffset"]) == (1, False, None)
        assert rest["snapshotRevision"] == page["snapshotRevision"]
        assert (await client.call("cron.get", {"id": added[0]["id"]}))["name"] == "a"
        with pytest.raises(RequestFailed, match="cron job not found: nope"):
            await client.call("cron.get", {"id": "nope"})
        assert (await client.call("cron.runs", {"scope": "all", "limit": 5}))["entries"] == []


async def test_a_client_that_reads_may_not_change_sessions(gateway: InProcessGateway) -> None:
    async with newer(gateway, scopes=["operator.read", "operator.questions"]) as client:
        await client.call("sessions.subscribe")
        for method, params in (
            ("sessions.create", {"key": "x"}),
            ("sessions.rewind", {"sessionKey": "main", "entryId": "e"}),
            ("sessions.fork", {"sessionKey": "main", "entryId": "e"}),
        ):
            with pytest.raises(RequestFailed, match=r"missing scope: operator\.admin"):
                await client.call(method, params)


async def test_the_catalogue_follows_hello_if_the_client_asked_for_it(gateway: InProcessGateway) -> None:
    async with newer(gateway, modelCatalog={"agentId": "main", "sessionKey": "main"}) as client:
        event = await client.event(lambda name, _: name == "models.snapshot")
        assert event["payload"]["target"] == {"agentId": "main", "sessionKey": "main"}
        assert "mock-1" in [model["id"] for model in event["payload"]["catalog"]["models"]]


@pytest.mark.parametrize(
    ("method", "empty"),
    [
        ("plugin.approval.list", []),
        ("openclaw.approval.list", []),
        ("taskSuggestions.list", {"suggestions": []}),
        ("tasks.list", {"tasks": []}),
        ("progressCard.get", {"card": None}),
        ("sessions.companion.state", {"exchanges": []}),
        ("update.status", {"sentinel": None, "updateAvailable": None}),
    ],
)
async def test_what_this_gateway_has_none_of_is_empty(gateway: InProcessGateway, method: str, empty: Any) -> None:
    async with newer(gateway) as client:
        assert await client.call(method, {"sessionKey": "main"}) == empty


@pytest.mark.parametrize("protocol", [3, 4])
async def test_a_device_may_sign_its_platform(gateway: InProcessGateway, protocol: int) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes_raw()

    async def connect(family: str) -> dict[str, Any]:
        import aiohttp

        async with aiohttp.ClientSession() as http, http.ws_connect(gateway.url.replace("http", "ws")) as socket:
            challenge = (await socket.receive_json())["payload"]
            info = {"id": "node-host", "version": "1", "platform": " Linux ", "mode": "node", "deviceFamily": "Server"}
            text = signed_text(
                device_id=device_id(raw),
                client_id="node-host",
                client_mode="node",
                role="node",
                scopes=[],
                signed_at=challenge["ts"],
                token=TOKEN,
                nonce=challenge["nonce"],
                machine=("LINUX", family),
            )
            assert text.startswith("v3|")
            assert text.endswith(f"|linux|{family.lower()}")
            device = {
                "id": device_id(raw),
                "publicKey": encode_base64url(raw),
                "signature": encode_base64url(key.sign(text.encode())),
                "signedAt": challenge["ts"],
                "nonce": challenge["nonce"],
            }
            params = {"minProtocol": protocol, "maxProtocol": protocol, "client": info, "role": "node", "scopes": []}
            params |= {"device": device, "auth": {"token": TOKEN}}
            await socket.send_json({"type": "req", "id": "1", "method": "connect", "params": params})
            while (frame := await socket.receive_json())["type"] != "res":
                pass
            return frame

    assert (await connect("server"))["ok"]
    refused = await connect("phone")
    assert refused["error"]["message"] == "device signature invalid"


async def test_a_connection_may_follow_a_bounded_number_of_sessions(gateway: InProcessGateway) -> None:
    async with newer(gateway) as client:
        for number in range(256):
            await client.call("sessions.messages.subscribe", {"key": f"s{number}"})
        with pytest.raises(RequestFailed, match="may subscribe to 256 sessions"):
            await client.call("sessions.messages.subscribe", {"key": "one-more"})
        await client.call("sessions.messages.unsubscribe", {"key": "s1"})
        assert (await client.call("sessions.messages.subscribe", {"key": "one-more"}))["subscribed"]
