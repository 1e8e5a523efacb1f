"""Google's Gemini API: the request that is sent and the stream that is read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.clock import SystemClock
from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserMessage,
)
from openclaw.models import convert
from openclaw.models.base import Done, Model, ModelError, ModelRequest, StreamEvent, Text, Thinking
from openclaw.models.google import NO_SIGNATURE, GoogleStream, build_body, build_request
from openclaw.models.http import SseParser
from tests.support.gateway import FEW_TOOLS, model_config, put_file, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_rules import Refused
from tests.support.model_rules_google import check_google
from tests.support.stored import put_sessions, put_transcript

GEMINI = Model(
    provider="google", id="gemini-2.5-flash", api="google-generative-ai", base_url="https://g.test/v1beta",
    reasoning=True, input=("text", "image"), max_tokens=65_536,
)  # fmt: skip
GEMINI_3 = Model(provider="google", id="gemini-3-pro", api="google-generative-ai", reasoning=True, input=GEMINI.input)
READ = ToolSpec(name="read", description="Reads.", parameters={"type": "object", "properties": {"path": {}}})
PICTURE = ImageBlock(data="aGk=", mime_type="image/png")


def body_of(*messages: Message, model: Model = GEMINI, **fields: Any) -> dict[str, Any]:
    body = build_body(ModelRequest(model=model, system="Be kind.", messages=list(messages), **fields))
    body = json.loads(json.dumps(body, default=lambda raw: json.loads(bytes(raw))))
    check_google(body)
    return body


def said(*blocks: Any, model: Model = GEMINI, reason: Any = "stop") -> AssistantMessage:
    return AssistantMessage(
        content=list(blocks), api=model.api, provider=model.provider, model=model.id, stop_reason=reason
    )


def result(text: str, *pictures: ImageBlock, error: bool = False) -> ToolResultMessage:
    content: list[Any] = [TextBlock(text=text), *pictures]
    return ToolResultMessage(tool_call_id="c", tool_name="read", content=content, is_error=error)


CALL = ToolCall(id="c", name="read", arguments={"path": "a"}, thought_signature="c2ln")


def test_a_conversation_with_a_call_is_sent_in_googles_turns() -> None:
    body = body_of(
        UserMessage(content="read a"),
        said(ThinkingBlock(thinking="hm", thinking_signature="aG0="), TextBlock(text="Reading."), CALL),
        result("text of a"),
        said(TextBlock(text="Done.")),
        UserMessage(content=[TextBlock(text="and this?"), PICTURE]),
        tools=[READ],
        tool_choice={"name": "read"},
        turn_facts="It is noon.",
    )
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "read a"}]},
        {
            "role": "model",
            "parts": [
                {"thought": True, "text": "hm", "thoughtSignature": "aG0="},
                {"text": "Reading."},
                {"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "c2ln"},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "text of a"}}}]},
        {"role": "model", "parts": [{"text": "Done."}]},
        {
            "role": "user",
            "parts": [
                {"text": "and this?"},
                {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                {"text": "It is noon."},
            ],
        },
    ]
    assert body["systemInstruction"] == {"parts": [{"text": "Be kind."}]}
    assert body["tools"][0]["functionDeclarations"][0]["name"] == "read"
    choice = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["read"]}}
    assert body["toolConfig"] == choice and body["generationConfig"] == {"maxOutputTokens": 32_000}


def test_a_conversation_begins_and_ends_with_the_user_and_answers_in_a_row_are_one() -> None:
    body = body_of(said(TextBlock(text="one")), said(TextBlock(text="two")))
    assert [content["role"] for content in body["contents"]] == ["user", "model", "user"]
    assert [part["text"] for part in body["contents"][1]["parts"]] == ["one", "two"]


def test_pictures_of_results_follow_the_results_or_are_part_of_them_for_gemini_3() -> None:
    history = (UserMessage(content="look"), said(CALL), result("a picture", PICTURE), UserMessage(content="well?"))
    older, newer = body_of(*history), body_of(*history, model=GEMINI_3)
    assert older["contents"][3]["parts"][0] == {"text": convert.RESULT_IMAGES}
    assert newer["contents"][2]["parts"][0]["functionResponse"]["parts"][0]["inlineData"]["data"] == "aGk="
    # Another model made the call, and its signature means nothing to this one.
    assert newer["contents"][1]["parts"][0]["thoughtSignature"] == NO_SIGNATURE


def test_a_failed_result_and_a_missing_one_are_errors() -> None:
    body = body_of(UserMessage(content="x"), said(CALL), result("no", error=True), said(CALL), UserMessage(content="y"))
    answers = [part["functionResponse"]["response"] for turn in body["contents"] for part in turn["parts"]
               if "functionResponse" in part]  # fmt: skip
    assert answers == [{"error": "no"}, {"error": "No result provided"}]


@pytest.mark.parametrize(
    ("model", "level", "config"),
    [
        (GEMINI, "off", None),
        (GEMINI, "low", {"includeThoughts": True, "thinkingBudget": 2048}),
        (GEMINI_3, "medium", {"includeThoughts": True, "thinkingLevel": "HIGH"}),
    ],
)
def test_thinking_is_asked_for_as_the_model_takes_it(model: Model, level: Any, config: Any) -> None:
    body = body_of(UserMessage(content="hi"), model=model, thinking=level, max_tokens=1000)
    assert body["generationConfig"].get("thinkingConfig") == config
    assert body["generationConfig"]["maxOutputTokens"] >= 1000


def test_the_address_names_the_model_and_the_key_is_a_header() -> None:
    wire = build_request(ModelRequest(model=GEMINI, system="", messages=[UserMessage(content="hi")]), "secret")
    assert wire.url == "https://g.test/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert wire.headers == {"x-goog-api-key": "secret"}


def events_of(*pieces: Any, end: bool = True) -> list[StreamEvent]:
    reader, parser = GoogleStream(GEMINI), SseParser()
    raw = b"".join(b"data: " + json.dumps(piece).encode() + b"\r\n\r\n" for piece in pieces)
    return [*reader.feed(parser.feed(raw)), *(reader.finish() if end else [])]


def piece(*parts: Any, reason: str | None = None, **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [{**candidate, **({"finishReason": reason} if reason else {})}], **more}


def test_thoughts_words_and_calls_of_a_stream_are_told_apart() -> None:
    usage = {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 7, "thoughtsTokenCount": 3}
    events = events_of(
        piece({"text": "I think", "thought": True}),
        piece({"text": " so", "thought": True, "thoughtSignature": "c2ln"}),
        piece({"text": "Hel"}),
        piece({"text": "lo"}),
        piece({"functionCall": {"name": "read", "args": {"path": "a"}}, "thoughtSignature": "Y2Fs"}),
        piece({"text": "", "thoughtSignature": "ZW5k"}, reason="STOP", usageMetadata=usage),
    )
    done = events[-1]
    assert isinstance(done, Done)
    message = done.message
    assert [event.delta for event in events if isinstance(event, Thinking)] == ["I think so"]
    assert [event.delta for event in events if isinstance(event, Text)] == ["Hello"]
    assert message.content[0] == ThinkingBlock(thinking="I think so", thinking_signature="c2ln")
    (call,) = message.tool_calls
    assert (call.name, call.arguments, call.thought_signature) == ("read", {"path": "a"}, "Y2Fs")
    assert message.stop_reason == "toolUse"
    assert (message.usage.input, message.usage.cache_read, message.usage.output) == (60, 40, 10)


@pytest.mark.parametrize(
    ("last", "reason", "words"),
    [
        (piece({"text": "cut"}, reason="MAX_TOKENS"), "length", None),
        (piece(reason="SAFETY"), "error", "SAFETY"),
        ({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, "error", "PROHIBITED_CONTENT"),
    ],
)
def test_how_an_answer_ended_is_known(last: Any, reason: str, words: str | None) -> None:
    done = events_of(last)[-1]
    assert isinstance(done, Done) and done.message.stop_reason == reason
    assert words is None or words in str(done.message.error_message)


def test_a_stream_that_stops_early_or_holds_an_error_fails() -> None:
    with pytest.raises(ModelError) as cut:
        events_of(piece({"text": "half"}))
    assert cut.value.retryable and cut.value.partial is not None
    error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
    with pytest.raises(ModelError) as refused:
        events_of(error)
    assert refused.value.kind == "overloaded" and refused.value.retryable


def test_an_answer_that_is_not_a_stream_is_read() -> None:
    whole = json.dumps([piece({"text": "all "}), piece({"text": "at once"}, reason="STOP")]).encode()
    done = GoogleStream(GEMINI).feed_whole(whole)[-1]
    assert isinstance(done, Done) and done.message.text == "all at once"


WINDOW = 60_000
SUMMARY = "## Goal\nBuild the shed.\n## Progress\n### Done\n- [x] the plan\n## Next Steps\n1. buy wood"


class StandIn:
    """Answers as Google does, and refuses what Google refuses."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.refused: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body = json.loads(raw)
        self.bodies.append(body)
        assert request.path == "/v1beta/models/gemini-x:streamGenerateContent" and request.query["alt"] == "sse"
        tokens = len(raw) // 4
        try:
            assert request.headers["x-goog-api-key"] == "k-google"
            check_google(body)
        except Refused as refused:
            return self._refuse(str(refused))
        if tokens > WINDOW:
            return self._refuse(
                f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({WINDOW})."
            )
        text = json.dumps(body["contents"][-1])
        parts: list[Any] = [{"text": SUMMARY if "<conversation>" in text else "fine"}]
        if "please read" in text and "<conversation>" not in text:
            parts = [{"functionCall": {"name": "read", "args": {"path": "notes.txt"}}}]
        last = piece(*parts, reason="STOP", usageMetadata={"promptTokenCount": tokens, "candidatesTokenCount": 5})
        return web.Response(body=b"data: " + json.dumps(last).encode() + b"\n\n", content_type="text/event-stream")

    def _refuse(self, message: str) -> web.Response:
        self.refused.append(message)
        error = {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}
        return web.json_response([error], status=400)


@pytest.fixture
async def stand_in() -> AsyncGenerator[tuple[StandIn, str]]:
    google = StandIn()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", google.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield google, f"http://127.0.0.1:{runner.addresses[0][1]}/v1beta"
    await runner.cleanup()


async def test_through_the_gateway_a_tool_is_called_and_an_overflow_recovered(
    tmp_path: Path, stand_in: tuple[StandIn, str]
) -> None:
    google, address = stand_in
    config: dict[str, Any] = model_config(address, "k-google", tools=FEW_TOOLS)
    provider = config["models"]["providers"]["mock"]
    provider |= {"api": "google-generative-ai", "models": [{"id": "gemini-x", "contextWindow": 1_000_000}]}
    config["agents"]["defaults"] |= {
        "model": "mock/gemini-x", "compaction": {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}},
    }  # fmt: skip
    config["compaction"] = {"reserveTokens": 20_000, "keepRecentTokens": 1000}
    async with InProcessGateway(tmp_path / "state", config) as gateway, gateway.client() as client:
        put_file(gateway, "notes.txt", b"what the notes say")
        assert text_of(await client.chat("please read the notes")) == "fine"
        sent = json.dumps(google.bodies[-1]["contents"])
        assert "what the notes say" in sent and google.refused == []
        for number in range(5):
            assert text_of(await client.chat(f"message {number}: " + "word " * 9000)) == "fine"
        assert len(google.refused) == 1 and "input token count" in google.refused[0]
        assert any("Build the shed." in json.dumps(body["contents"]) for body in google.bodies)


async def test_results_of_a_foreign_transcript_are_sent_under_the_names_of_their_calls(
    tmp_path: Path, stand_in: tuple[StandIn, str]
) -> None:
    google, address = stand_in
    config: dict[str, Any] = model_config(address, "k-google", tools=FEW_TOOLS)
    config["models"]["providers"]["mock"] |= {"api": "google-generative-ai", "models": [{"id": "gemini-x"}]}
    config["agents"]["defaults"]["model"] = "mock/gemini-x"
    calls = [{"type": "toolCall", "id": name, "name": name, "arguments": {}} for name in ("old.reader", "exec")]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": calls, "stopReason": "toolUse"},
        {"role": "toolResult", "toolCallId": "old.reader", "toolName": "", "content": "one"},
        {"role": "toolResult", "toolCallId": "exec", "toolName": "bash", "content": "two"},
    ]
    began = "2026-11-17T10:00:00.000Z"
    lines: list[dict[str, Any]] = [{"type": "session", "version": 3, "id": "s", "cwd": "/", "timestamp": began}]
    for number, message in enumerate(messages):
        tree = {"id": f"e{number}", "parentId": f"e{number - 1}" if number else None}
        lines.append({"type": "message", **tree, "timestamp": began, "message": message})
    gateway = InProcessGateway(tmp_path / "state", config)
    put_sessions(gateway, {"agent:main:main": {"sessionId": "s", "updatedAt": SystemClock().now_ms()}})
    put_transcript(gateway, "s.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    async with gateway, gateway.client() as client:
        assert text_of(await client.chat("on")) == "fine"
    assert google.refused == []
    names = [part["functionResponse"]["name"] for part in google.bodies[-1]["contents"][2]["parts"]]
    assert names == ["old_reader", "exec"]
