"""The stand-in must refuse what the vendors refuse, or tests that pass against it would mean little."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp
import pytest

from tests.support.model_rules import Refused, check_anthropic
from tests.support.model_rules_openai import check_chat, check_responses
from tests.support.model_script import Call, parse_stages
from tests.support.model_server import ModelServer, Reply, last_user_text

USER = {"role": "user", "content": "hi"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]}
TOOL = {"name": "read", "description": "d", "input_schema": {"type": "object", "properties": {}}}
THOUGHT = {"type": "thinking", "thinking": "t", "signature": "s"}


def claude(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5000, "messages": list(messages), "tools": [TOOL], **fields}


def text(role: str, value: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": value}]}


@pytest.mark.parametrize(
    "body",
    [
        claude(USER),
        claude(USER, USE, RESULT),
        claude(USER, USE, RESULT, USER, text("assistant", "ok"), USER),
        claude(USER, text("assistant", "prefill")),
        claude(USER, {"role": "assistant", "content": [THOUGHT, *USE["content"]]}, RESULT,
               thinking={"type": "enabled", "budget_tokens": 1024}),
    ],
)  # fmt: skip
def test_good_anthropic_requests_pass(body: dict[str, Any]) -> None:
    check_anthropic(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (claude(), "at least one message"),
        (claude(text("assistant", "x")), "first message"),
        (claude(USER, USE), "without `tool_result`"),
        (claude(USER, USE, USER), "without `tool_result`"),
        (claude(USER, RESULT), "unexpected `tool_use_id`"),
        (claude(USER, USE, RESULT, USE, RESULT), "must be unique"),
        (claude(USER, USE, USER, RESULT), "must come first"),
        (claude(USER, USE, RESULT, RESULT), "multiple"),
        (claude(text("user", "")), "non-empty"),
        (claude(text("user", " \n")), "non-whitespace"),
        (claude({"role": "system", "content": "x"}), "Unexpected role"),
        (claude(USER, {"role": "assistant", "content": []}), "non-empty content"),
        (claude(USER, temprature=1), "Extra inputs"),
        (claude(USER, max_tokens=None), "max_tokens"),
        (claude(USER, max_tokens=0), "max_tokens"),
        (claude(USER, thinking={"type": "enabled", "budget_tokens": 5000}), "must be greater"),
        (claude(USER, thinking={"type": "enabled", "budget_tokens": 100}), "at least 1024"),
        (claude(USER, temperature=0.5, thinking={"type": "adaptive"}), "temperature"),
        (claude(USER, USE, RESULT, thinking={"type": "enabled", "budget_tokens": 1024}), "Expected `thinking`"),
        (claude(USER, text("assistant", "x "), ), "trailing whitespace"),
        (claude(USER, {"role": "assistant", "content": [{**THOUGHT, "signature": ""}]}, USER), "signature"),
        (claude(USER, USE, RESULT, tools=[]), "must define `tools`"),
        (claude(USER, tools=[TOOL, TOOL]), "unique"),
        (claude(USER, {"role": "assistant", "content": [{**USE["content"][0], "id": "a|b"}]}, RESULT), "pattern"),
        (claude(USER, {"role": "assistant", "content": [{**USE["content"][0], "id": "a" * 65}]}, RESULT), "64"),
        (claude(USER, tool_choice={"type": "tool", "name": "nope"}), "not found"),
        (claude({"role": "user", "content": [{"type": "image", "source": {
            "type": "base64", "media_type": "image/bmp", "data": "AAAA"}}]}), "media_type"),
        (claude(*[{"role": "user", "content": [
            {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}] * 5), "maximum of 4"),
    ],
)  # fmt: skip
def test_bad_anthropic_requests_are_refused_in_the_vendors_words(body: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_anthropic(body)


CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
CHAT_USE = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def test_a_good_chat_request_passes() -> None:
    check_chat(chat({"role": "system", "content": "s"}, USER, CHAT_USE, CHAT_RESULT, USER, stream=True))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat(), "empty array"),
        (chat(USER, CHAT_USE), "did not have response"),
        (chat(USER, CHAT_USE, USER), "must be followed by tool messages"),
        (chat(USER, CHAT_RESULT), "must be a response"),
        (chat(USER, CHAT_USE, CHAT_RESULT, CHAT_RESULT), "must be a response"),
        (chat(USER, {"role": "assistant", "content": None}), "got null"),
        (chat(USER, {**CHAT_USE, "tool_calls": [{**CHAT_CALL, "id": "x" * 41}]}), "maximum length 40"),
        (chat(USER, {**CHAT_USE, "tool_calls": []}), "empty array"),
        (chat(USER, {**CHAT_USE, "usage": {}}), "Additional properties"),
        (chat(USER, unknown=1), "Unrecognized"),
        (chat(USER, stream_options={}), "stream_options"),
        (chat(USER, max_tokens=1, max_completion_tokens=1), "only one"),
        (chat(USER, tool_choice="auto"), "only allowed when"),
        (chat({"role": "toolResult", "content": "x"}), "Invalid value: 'toolResult'"),
    ],
)
def test_bad_chat_requests_are_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_chat(body)


CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
OUTPUT_ITEM = {"type": "function_call_output", "call_id": "c", "output": "x"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"}


def responses(*items: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": list(items), "store": False, **fields}


def test_a_good_responses_request_passes() -> None:
    check_responses(responses(USER, REASONING, CALL_ITEM, OUTPUT_ITEM, {"role": "assistant", "content": "x"}))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (responses(), "empty array"),
        (responses(USER, CALL_ITEM), "No tool output found"),
        (responses(USER, OUTPUT_ITEM), "No tool call found"),
        (responses(USER, REASONING), "without its required following item"),
        (responses(USER, REASONING, USER), "without its required following item"),
        (responses(USER, {**REASONING, "encrypted_content": None}, CALL_ITEM, OUTPUT_ITEM), "not found"),
        (responses(USER, {**CALL_ITEM, "id": "toolu_1"}, OUTPUT_ITEM), "begins with 'fc'"),
        (responses(USER, {**CALL_ITEM, "call_id": "x" * 65}), "call_id"),
        (responses(USER, max_output_tokens=3), "minimum value is 16"),
        (responses(USER, messages=[]), "Unknown parameter"),
        (responses({"role": "tool", "content": "x"}), "Invalid value: 'tool'"),
    ],
)
def test_bad_responses_requests_are_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_responses(body)


def test_directives_describe_replies() -> None:
    first, second = parse_stages(
        'read it [[think:hm]][[reply:One moment]][[tool:read {"a":[[1]]}]] [[tool:status]][[delay:5]][[sleep:7]]'
        "[[next]][[tokens:3]][[stop:length]]\n[message_id: 1]"
    )
    assert (first.thinking, first.text, first.delay_ms, first.sleep_ms) == ("hm", "One moment", 5, 7)
    assert first.calls == [Call("read", {"a": [[1]]}), Call("status", {})]
    assert (second.text, second.stop) == ("tok0 tok1 tok2 ", "length")
    assert parse_stages("nothing [[special]] here") == []
    assert parse_stages("[[error:529 too busy]]")[0] == Reply(status=529, message="too busy")


@pytest.mark.parametrize(
    ("api", "body", "answered"),
    [
        ("anthropic-messages", {"messages": [USER, USE, RESULT]}, 1),
        ("openai-completions", {"messages": [USER, CHAT_USE, CHAT_RESULT, CHAT_USE, CHAT_RESULT]}, 2),
        ("openai-responses", {"input": [USER, REASONING, CALL_ITEM, CALL_ITEM, OUTPUT_ITEM]}, 1),
        ("openai-responses", {"input": "hi"}, 0),
    ],
)
def test_the_script_is_the_last_users_text(api: str, body: dict[str, Any], answered: int) -> None:
    assert last_user_text(api, body) == ("hi", answered)


async def ask_http(server: ModelServer, body: dict[str, Any]) -> tuple[int, Any]:
    headers = {"x-api-key": server.api_key, "anthropic-version": "2023-06-01"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.base_url}/v1/messages", json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def test_scripted_replies_come_in_order_then_directives_then_ok(server: ModelServer) -> None:
    server.reply("first")
    script = text("user", "[[tool:read {}]][[next]][[reply:after the tool]]")
    answers = [
        await ask_http(server, claude(script)),
        await ask_http(server, claude(script)),
        await ask_http(server, claude(script, USE, RESULT)),
        await ask_http(server, claude(script, USE, RESULT, text("assistant", "x"), USER)),
    ]
    shown = [[block.get("text", block["type"]) for block in answer["content"]] for _, answer in answers]
    assert shown == [["first"], ["tool_use"], ["after the tool"], ["ok"]]


async def test_a_scripted_failure_may_be_followed_by_success(server: ModelServer) -> None:
    body = claude(text("user", "[[error:503 busy]][[next]][[reply:fine]]"))
    assert [(await ask_http(server, body))[0] for _ in range(3)] == [503, 200, 200]


async def test_a_refused_request_is_recorded_with_its_reason(server: ModelServer) -> None:
    status, answer = await ask_http(server, claude(USER, USE))
    assert status == 400
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert server.requests[-1].error == answer["error"]["message"]


async def test_it_runs_as_a_process_of_its_own() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.model_server", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        status, answer = await ask_http(ModelServer(port=port), claude(text("user", "[[reply:from afar]]")))
        assert (status, answer["content"][0]["text"]) == (200, "from afar")
    finally:
        process.kill()
        await process.wait()
