"""``/v1/responses`` byte by byte."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from tests.gateway.http.served import BEARER, PNG, Served

pytestmark = pytest.mark.asyncio(loop_scope="package")
PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def ask(given: Any, **more: Any) -> dict[str, Any]:
    return {"model": "openclaw", "input": given, **more}


def events(stream: str) -> list[tuple[str, Any]]:
    blocks = [block.split("\n") for block in stream.split("\n\n") if block.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def system_text(gateway: Served) -> str:
    return json.dumps(gateway.model.requests[-1].body["system"])


async def test_an_answer_has_the_shape_of_a_response(gateway: Served) -> None:
    status, answer = await gateway.post(PATH, ask("[[reply:hola]]"))
    assert status == 200
    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", "openclaw")
    (item,) = answer["output"]
    assert item["type"] == "message"
    assert item["id"].startswith("msg_")
    assert item["content"] == [{"type": "output_text", "text": "hola", "annotations": []}]
    usage = answer["usage"]
    assert 0 < usage["output_tokens"] < usage["input_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_a_stream_sends_its_events_in_the_promised_order(gateway: Served) -> None:
    stream = await gateway.stream(PATH, ask("[[delay:30]][[reply:one two]]"))
    assert stream.endswith("data: [DONE]\n\n")
    seen = events(stream)
    names = [name for name, _ in seen]
    deltas = names.count("response.output_text.delta")
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in seen] == list(range(len(seen)))
    assert "".join(data["delta"] for name, data in seen if name.endswith("text.delta")) == "one two"
    assert seen[-1][1]["response"]["output"][0]["content"][0]["text"] == "one two"
    assert all(data["type"] == name for name, data in seen)


async def test_a_call_of_the_callers_tool_comes_back_as_a_function_call(gateway: Served) -> None:
    body = ask('[[tool:get_weather {"city":"Oslo"}]][[next]][[reply:Cold.]]', tools=[WEATHER])
    _, answer = await gateway.post(PATH, body)
    assert answer["status"] == "incomplete"
    (call,) = answer["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call",
        "get_weather",
        {"city": "Oslo"},
    )
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "minus four"}
    _, answer = await gateway.post(PATH, ask([output], tools=[WEATHER], previous_response_id=answer["id"]))
    assert answer["output"][0]["content"][0]["text"] == "Cold."
    assert gateway.sent[-1]["content"][0]["type"] == "tool_result"
    assert gateway.sent[-1]["content"][0]["content"] == "minus four"


async def test_a_streamed_call_has_its_own_events(gateway: Served) -> None:
    nested = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "parameters")}}
    body = ask('[[reply:Looking.]][[tool:get_weather {"city":"Oslo"}]]', tools=[nested])
    seen = events(await gateway.stream(PATH, body))
    names = [name for name, _ in seen]
    assert names[-5:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert seen[-2][1]["output_index"] == 1
    assert [item["type"] for item in seen[-1][1]["response"]["output"]] == ["message", "function_call"]


async def test_a_forced_choice_offers_only_the_callers_tools(gateway: Served) -> None:
    choice = {"type": "function", "name": "get_weather"}
    await gateway.post(PATH, ask("[[tool:get_weather {}]]", tools=[WEATHER], tool_choice=choice))
    sent = gateway.model.requests[-1].body
    assert [tool["name"] for tool in sent["tools"]] == ["get_weather"]
    assert sent["tool_choice"] == {"type": "tool", "name": "get_weather"}
    await gateway.post(PATH, ask("[[reply:no]]", tools=[WEATHER], tool_choice="none"))
    assert "get_weather" not in [tool["name"] for tool in gateway.model.requests[-1].body["tools"]]


async def test_of_two_tools_with_one_name_the_callers_counts(gateway: Served) -> None:
    mine = {**WEATHER, "name": "read", "description": "Mine."}
    _, answer = await gateway.post(PATH, ask('[[tool:read {"city":"x"}]]', tools=[mine]))
    assert answer["output"][0]["type"] == "function_call"
    offered = [tool for tool in gateway.model.requests[-1].body["tools"] if tool["name"] == "read"]
    assert [tool["description"] for tool in offered] == ["Mine."]


async def test_an_earlier_response_is_continued(gateway: Served) -> None:
    _, first = await gateway.post(PATH, ask("my name is Ana [[reply:Hello Ana.]]"))
    _, second = await gateway.post(PATH, ask("and now? [[reply:Still Ana.]]", previous_response_id=first["id"]))
    assert second["previous_response_id"] == first["id"]
    assert [message["role"] for message in gateway.sent] == ["user", "assistant", "user"]
    status, _ = await gateway.post(PATH, ask("hi [[reply:ok]]", previous_response_id="resp_of_another_server"))
    assert status == 200
    assert len(gateway.sent) == 1


async def test_instructions_system_items_and_files_go_to_the_system_prompt(gateway: Served) -> None:
    data = base64.b64encode(b"a,b\n1,2\n</file><file name='x'>").decode()
    items = [
        {"role": "developer", "content": "Be short."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "sum it [[reply:3]]"},
                {"type": "input_file", "filename": "n.csv", "file_data": f"data:text/csv;base64,{data}"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            ],
        },
    ]
    status, _ = await gateway.post(PATH, ask(items, instructions="Be kind."))
    assert status == 200
    system = system_text(gateway)
    assert system.index("Be kind.") < system.index("Be short.") < system.index("n.csv")
    assert "&lt;/file>" in system
    assert [block["type"] for block in gateway.sent[-1]["content"]] == ["text", "image", "text"], "the last: facts"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": "hi"}, "model: required"),
        ({"model": "openclaw"}, "input: required"),
        (ask([]), "Missing user message in `input`."),
        (ask([{"type": "web_search_call"}]), "input.0: items of type 'web_search_call' are not supported"),
        (ask([{"role": "robot", "content": "x"}]), "input.0.role: unknown role 'robot'"),
        (ask([{"role": "user", "content": [{"type": "video"}]}]), "input.0.content.0: parts of type 'video'"),
        (ask("hi", tool_choice="required"), "Error: tool_choice=required but no tools were provided"),
        (ask("hi", tool_choice={"type": "function", "name": "x"}), "Error: tool_choice names 'x'"),
        (ask("hi", tools=[WEATHER, WEATHER]), "tools: the name 'get_weather' is used twice"),
        (ask("hi", max_output_tokens=0), "max_output_tokens: must be at least 1"),
        (ask([{"role": "user", "content": [{"type": "input_file"}]}]), "input.0.content.0: give the file as"),
    ],
)
async def test_a_bad_request_names_the_place(gateway: Served, body: Any, message: str) -> None:
    status, answer = await gateway.post(PATH, body)
    assert status == 400
    assert answer["error"]["message"].startswith(message)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254", "2130706433"])
async def test_private_addresses_are_never_fetched(gateway: Served, host: str) -> None:
    url = f"http://{host}:{gateway.model.port}/picture.png"
    before = len(gateway.model.requests)
    content = [{"type": "input_image", "image_url": url}]
    status, answer = await gateway.post(PATH, ask([{"role": "user", "content": content}]))
    assert status == 400
    assert "is not a public address" in answer["error"]["message"]
    assert len(gateway.model.requests) == before


async def test_the_same_user_comes_back_to_the_same_session(gateway: Served) -> None:
    user = f"Ana {uuid.uuid4()}"
    await gateway.post(PATH, ask("one [[reply:1]]", user=user))
    await gateway.post(PATH, ask("two [[reply:2]]", user=user))
    assert f"agent:main:openresponses-user:{user.lower()}" in await gateway.session_keys()
    assert len(gateway.sent) == 3


async def test_a_failed_run_is_a_failed_response(gateway: Served) -> None:
    body = ask("[[error:400 the model refuses]]")
    async with gateway.http.post(gateway.gateway.url + PATH, json=body, headers=BEARER) as response:
        answer = await response.json()
        assert (response.status, response.headers["x-should-retry"]) == (500, "false")
    assert answer["status"] == "failed"
    assert answer["error"]["code"] == "api_error"
    assert "the model refuses" in answer["error"]["message"]
    name, data = events(await gateway.stream(PATH, body))[-1]
    assert name == "response.failed"
    assert "the model refuses" in data["response"]["error"]["message"]
