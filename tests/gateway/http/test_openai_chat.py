"""``/v1/chat/completions`` byte by byte; what a real client makes of it is tested with that client."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.gateway.http.served import BEARER, PNG, Served
from tests.support.gateway import TOKEN, model_config
from tests.support.gateway_in_process import InProcessGateway

pytestmark = pytest.mark.asyncio(loop_scope="package")
PATH = "/v1/chat/completions"


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "openclaw", "messages": [{"role": "user", "content": text}], **more}


def chunks(stream: str) -> list[Any]:
    return [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]


async def test_an_answer_has_the_shape_of_a_chat_completion(gateway: Served) -> None:
    status, answer = await gateway.post(PATH, ask("[[reply:respuesta]]", model="openclaw:beta"))
    assert status == 200
    assert answer["id"].startswith("chatcmpl_")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "openclaw:beta"
    assert answer["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": "respuesta"}, "finish_reason": "stop"}
    ]
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_a_stream_ends_with_a_finish_reason_and_done(gateway: Served) -> None:
    stream = await gateway.stream(PATH, ask("[[reply:one two three]]"))
    assert stream.endswith("data: [DONE]\n\n")
    parts = chunks(stream)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == "one two three"
    assert parts[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert len({part["id"] for part in parts}) == 1


async def test_without_the_secret_nothing_is_answered(gateway: Served) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        async with gateway.http.post(gateway.gateway.url + PATH, json=ask("hi"), headers=headers) as response:
            assert response.status == 401
            assert await response.json() == {"error": {"message": "Unauthorized", "type": "unauthorized"}}


async def test_a_page_of_another_site_is_refused_even_with_the_secret(gateway: Served) -> None:
    status, answer = await gateway.post(PATH, ask("hi"), Origin="https://evil.example")
    assert status == 403
    assert answer["error"]["type"] == "forbidden"


async def test_other_verbs_are_told_to_post(gateway: Served) -> None:
    async with gateway.http.get(gateway.gateway.url + PATH, headers=BEARER) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Missing user message in `messages`."),
        ({"messages": []}, "Missing user message in `messages`."),
        ({"messages": [{"role": "system", "content": "be nice"}]}, "Missing user message in `messages`."),
        ({"messages": [{"role": "user", "content": "  "}]}, "Missing user message in `messages`."),
        ({"messages": "hi"}, "messages: Expected `array`, got `str`"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content: Expected `str | array | null`, got `int`",
        ),
        (ask("hi", n=2), "n: only one answer per request is given"),
        (ask("hi", tools=[{"type": "web_search"}]), 'tools.0.type: only "function" tools can be passed to the agent'),
        (ask("hi", tools=[{"function": {"name": "no spaces"}}]), "tools.0.name: must be 1 to 64 letters"),
        (ask("hi", tool_choice="required"), "Error: tool_choice=required but no tools were provided"),
        (ask("hi", user="a\nb"), "user: must be printable text"),
        (ask([{"type": "input_audio"}]), "messages: content parts of type 'input_audio' are not supported"),
    ],
)
async def test_a_bad_request_says_what_is_wrong(gateway: Served, body: Any, message: str) -> None:
    status, answer = await gateway.post(PATH, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"].startswith(message)


async def test_a_body_that_is_not_json_or_too_large_is_refused(gateway: Served) -> None:
    for data in (b"{not json", b" " * (20 * 1024 * 1024 + 1)):
        async with gateway.http.post(gateway.gateway.url + PATH, data=data, headers=BEARER) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_the_same_user_comes_back_to_the_same_session(gateway: Served) -> None:
    for text in ("first [[reply:one]]", "second [[reply:two]]"):
        await gateway.post(PATH, ask(text, user="Ana Lopez", model="openclaw:beta"))
    assert "agent:beta:openai-user:ana lopez" in await gateway.session_keys()
    texts = [json.dumps(message) for message in gateway.sent]
    assert "first" in texts[0]
    assert "second" in texts[-1]


async def test_a_request_without_a_user_gets_a_session_of_its_own(gateway: Served) -> None:
    _, answer = await gateway.post(PATH, ask("alone [[reply:yes]]"))
    run_id = answer["id"].removeprefix("chatcmpl_")
    assert f"agent:main:openai:{run_id}" in await gateway.session_keys()


@pytest.mark.parametrize(
    ("headers", "model", "expected"),
    [
        ({"x-openclaw-session-key": "agent:beta:desk"}, "openclaw", "agent:beta:desk"),
        ({"x-openclaw-agent-id": "beta", "x-openclaw-session-key": "shelf"}, "openclaw", "agent:beta:shelf"),
        ({"x-openclaw-agent": "beta", "x-openclaw-session-key": "box"}, "agent:main", "agent:beta:box"),
        ({"x-openclaw-session-key": "drawer"}, "openclaw/beta", "agent:beta:drawer"),
        ({"x-openclaw-session-key": "lid"}, "AGENT:Beta", "agent:beta:lid"),
        ({"x-openclaw-session-key": "pen"}, "gpt-4o", "agent:main:pen"),
    ],
)
async def test_headers_and_model_choose_agent_and_session(
    gateway: Served, headers: dict[str, str], model: str, expected: str
) -> None:
    status, _ = await gateway.post(PATH, ask("hi [[reply:there]]", model=model, user="ignored"), **headers)
    assert status == 200
    assert expected in await gateway.session_keys()


async def test_an_unknown_agent_is_not_found(gateway: Served) -> None:
    status, answer = await gateway.post(PATH, ask("hi", model="openclaw:nobody"))
    assert status == 404
    assert answer["error"]["message"] == 'unknown agent id "nobody"'


async def test_a_conversation_that_the_session_does_not_hold_is_told_as_history(gateway: Served) -> None:
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "My name is Ana."},
        {"role": "assistant", "content": "Ahoy Ana."},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]
    await gateway.post(PATH, {"messages": messages})
    assert gateway.sent[-1]["content"][0]["text"] == (
        "[Chat messages since your last reply - for context]\n"
        "User: My name is Ana.\n"
        "Assistant: Ahoy Ana.\n\n"
        "[Current message - respond to this]\n"
        "User: What is my name?"
    )
    assert "You are a pirate." in json.dumps(gateway.model.requests[-1].body["system"])


async def test_history_that_the_session_holds_is_not_told_again(gateway: Served) -> None:
    user = f"user-{uuid.uuid4()}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": "one [[reply:Answer one.]]"}]
    _, answer = await gateway.post(PATH, {"messages": messages, "user": user})
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "two [[reply:Answer two.]]"}]
    await gateway.post(PATH, {"messages": messages, "user": user})
    assert [message["role"] for message in gateway.sent] == ["user", "assistant", "user"]
    assert gateway.sent[-1]["content"][0]["text"] == "two [[reply:Answer two.]]"


async def test_a_picture_reaches_the_model(gateway: Served) -> None:
    content = [
        {"type": "text", "text": "what is this? [[reply:a dot]]"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    status, _ = await gateway.post(PATH, {"messages": [{"role": "user", "content": content}]})
    assert status == 200
    image = gateway.sent[-1]["content"][1]
    assert image["source"] == {"type": "base64", "media_type": "image/png", "data": PNG}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/a.png", "image 1: fetching by URL is switched off here"),
        ("data:image/png;base64,@@@", "image 1: invalid base64 content"),
        ("data:image/png;base64,aGVsbG8=", "image 1: the content is not one of image/jpeg"),
        ("data:broken", "image 1: the data URL is malformed"),
    ],
)
async def test_a_picture_that_cannot_be_used_is_refused(gateway: Served, url: str, message: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    status, answer = await gateway.post(PATH, {"messages": [{"role": "user", "content": content}]})
    assert status == 400
    assert answer["error"]["message"].startswith(message)


async def test_a_failed_run_is_an_error_that_clients_do_not_retry(gateway: Served) -> None:
    body = ask("[[error:400 the model refuses]]")
    before = len(gateway.model.requests)
    async with gateway.http.post(gateway.gateway.url + PATH, json=body, headers=BEARER) as response:
        assert response.status == 500
        assert response.headers["x-should-retry"] == "false"
        error = (await response.json())["error"]
    assert error["type"] == "api_error"
    assert "the model refuses" in error["message"]
    stream = await gateway.stream(PATH, body)
    assert "the model refuses" in chunks(stream)[-1]["error"]["message"]
    # Two requests of ours, each tried once more because the provider called it malformed.
    assert len(gateway.model.requests) == before + 4


async def test_the_same_idempotency_key_runs_once(gateway: Served) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}
    before = len(gateway.model.requests)
    answers = [await gateway.post(PATH, ask("once [[reply:only once]]"), **key) for _ in range(2)]
    stream = await gateway.stream(PATH, ask("once [[reply:only once]]"), **key)
    assert len(gateway.model.requests) == before + 1
    assert answers[0][1]["id"] == answers[1][1]["id"] == chunks(stream)[0]["id"]
    assert answers[1][1]["choices"][0]["message"]["content"] == "only once"
    assert "only once" in stream


@pytest.mark.parametrize(("header", "status"), [(b"Idempotency-Key", b"200"), (b"X-OpenClaw-Session-Key", b"400")])
async def test_a_header_of_bytes_that_are_no_text_is_answered(gateway: Served, header: bytes, status: bytes) -> None:
    """No client of a library sends such a header, so the request is written by hand."""
    body = json.dumps(ask("[[reply:ok]]")).encode()
    host = gateway.gateway.url.removeprefix("http://")
    head = [b"POST " + PATH.encode() + b" HTTP/1.1", b"Host: " + host.encode(), b"Connection: close"]
    head += [b"Authorization: Bearer " + TOKEN.encode(), b"Content-Length: %d" % len(body), header + b": \xe9\xff"]
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(b"\r\n".join([*head, b"", body]))
    answer = await reader.read()
    writer.close()
    assert answer.split()[1] == status, answer


async def test_a_caller_that_hangs_up_does_not_stop_the_run(gateway: Served) -> None:
    user = f"user-{uuid.uuid4()}"
    body = ask("[[delay:20]][[tokens:20]]", user=user, stream=True)
    response = await gateway.http.post(gateway.gateway.url + PATH, json=body, headers=BEARER)
    begun = await response.content.readuntil(b"\n\n")
    await response.content.readuntil(b"tok0")
    response.close()
    run_id = chunks(begun.decode())[0]["id"].removeprefix("chatcmpl_")
    waited = await gateway.rpc("agent.wait", {"runId": run_id, "timeoutMs": 50_000})
    assert waited["status"] == "ok"
    history = await gateway.history(f"agent:main:openai-user:{user}")
    assert history[-1]["content"][0]["text"].split()[-1] == "tok19"


async def test_answers_of_several_messages_are_separated_by_a_blank_line(gateway: Served) -> None:
    text = '[[reply:Let me look.]][[tool:read {"path":"none.txt"}]][[next]][[reply:There is no such file.]]'
    _, answer = await gateway.post(PATH, ask(text))
    whole = "Let me look.\n\nThere is no such file."
    assert answer["choices"][0]["message"]["content"] == whole
    assert answer["choices"][0]["finish_reason"] == "stop"
    stream = await gateway.stream(PATH, ask(text))
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in chunks(stream)) == whole


async def test_a_length_limit_is_passed_on_and_reported(gateway: Served) -> None:
    _, answer = await gateway.post(PATH, ask("[[reply:cut]][[stop:length]]", max_completion_tokens=77))
    assert gateway.model.requests[-1].body["max_tokens"] == 77
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_models_are_the_agents(gateway: Served) -> None:
    async with gateway.http.get(gateway.gateway.url + "/v1/models", headers=BEARER) as response:
        assert [row["id"] for row in (await response.json())["data"]] == ["openclaw", "openclaw:main", "openclaw:beta"]


async def test_one_model_can_be_asked_for_by_name(gateway: Served) -> None:
    for name, status in (("openclaw:beta", 200), ("openclaw:nobody", 404)):
        async with gateway.http.get(f"{gateway.gateway.url}/v1/models/{name}", headers=BEARER) as response:
            assert response.status == status
            answer = await response.json()
            assert answer["id"] == name if status == 200 else name in answer["error"]["message"]


async def test_a_session_key_that_cannot_be_one_is_a_bad_request(gateway: Served) -> None:
    status, answer = await gateway.post(PATH, ask("hi"), **{"x-openclaw-session-key": "k" * 3000})
    assert status == 400
    assert answer["error"]["message"].startswith("invalid session key: ")


async def test_other_v1_paths_are_not_found_as_json(gateway: Served) -> None:
    status, answer = await gateway.post("/v1/embeddings", {})
    assert status == 404
    assert answer["error"]["type"] == "invalid_request_error"


async def test_endpoints_that_are_off_say_how_they_are_switched_on(tmp_path: Path) -> None:
    async with (
        InProcessGateway(tmp_path / "state", model_config("http://127.0.0.1:1", "k")) as off,
        aiohttp.ClientSession() as http,
    ):
        async with http.post(off.url + PATH, json=ask("hi"), headers=BEARER) as response:
            assert "gateway.http.endpoints.chatCompletions.enabled" in await response.text()
        async with http.get(off.url + "/v1/models", headers=BEARER) as response:
            assert "gateway.http.endpoints.chatCompletions.enabled" in await response.text()
