"""The official OpenAI client, unchanged, against a Gateway process."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from pydantic import BaseModel

from openclaw.gateway.http import openai_run
from tests.gateway.http.served import PNG, Served, served
from tests.support.gateway import TOKEN
from tests.support.gateway_in_process import InProcessGateway
from tests.support.node import until

if TYPE_CHECKING:  # It takes long to load, and every worker of a test run would load it to look for tests.
    from openai import AsyncOpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "get_weather", "description": "W", "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
TWO_STEPS = 'Weather? [[tool:get_weather {"city":"Oslo"}]][[next]][[reply:It is cold in Oslo.]]'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("openai")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(gateway: Served) -> AsyncIterator[AsyncOpenAI]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{gateway.gateway.url}/v1", api_key=TOKEN) as client:
        yield client


def user(text: Any) -> Any:
    return {"role": "user", "content": text}


async def test_chat_whole(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="openclaw", messages=[user("[[reply:Hello there.]]")])
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


async def test_chat_streamed(client: AsyncOpenAI) -> None:
    text, finish, usage = "", None, None
    options: Any = {"include_usage": True}
    stream = await client.chat.completions.create(
        model="openclaw", messages=[user("[[delay:10]][[reply:one two three]]")], stream=True, stream_options=options
    )
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert (text, finish) == ("one two three", "stop")
    assert usage is not None
    assert usage.completion_tokens > 0


async def test_chat_with_the_streaming_helper(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="openclaw", messages=[user(TWO_STEPS)], tools=[CHAT_TOOL]
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls] == ["get_weather"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_tools_make_the_round_trip_without_a_session(
    client: AsyncOpenAI, gateway: Served, streamed: bool
) -> None:
    messages: list[Any] = [user(TWO_STEPS)]
    if streamed:
        async with client.chat.completions.stream(model="openclaw", messages=messages, tools=[CHAT_TOOL]) as stream:
            answer: Any = await stream.get_final_completion()
    else:
        answer = await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    assert answer.choices[0].finish_reason == "tool_calls"
    message = answer.choices[0].message
    call = message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    messages += [
        message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "minus four"},
    ]
    answer = await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    assert answer.choices[0].message.content == "It is cold in Oslo."
    result = gateway.sent[-1]["content"][0]
    assert (result["type"], result["content"]) == ("tool_result", "minus four")
    # The conversation goes on in the session that made the call, and is not told to it again.
    messages += [{"role": "assistant", "content": "It is cold in Oslo."}, user("Thanks [[reply:Welcome.]]")]
    await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    assert gateway.sent[-1]["content"][0]["text"] == "Thanks [[reply:Welcome.]]"
    assert len(gateway.sent) == 5


async def test_tools_make_the_round_trip_across_a_restart(client: AsyncOpenAI, gateway: Served) -> None:
    messages: list[Any] = [user(TWO_STEPS)]
    answer = await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    message: Any = answer.choices[0].message
    await gateway.gateway.stop()
    await gateway.gateway.start()
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "minus four"},
    ]
    answer = await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    assert answer.choices[0].message.content == "It is cold in Oslo."
    assert gateway.sent[-1]["content"][0]["type"] == "tool_result"


async def test_a_repeated_request_gets_its_calls_even_after_a_restart(client: AsyncOpenAI, gateway: Served) -> None:
    key = {"Idempotency-Key": "weather-of-oslo"}
    messages: list[Any] = [user(TWO_STEPS)]

    async def ask() -> Any:
        return await client.chat.completions.create(
            model="openclaw", messages=messages, tools=[CHAT_TOOL], extra_headers=key
        )

    first = await ask()
    before = len(gateway.model.requests)
    await gateway.gateway.stop()
    await gateway.gateway.start()
    again = await ask()
    assert again.choices[0].message.tool_calls == first.choices[0].message.tool_calls
    assert again.usage == first.usage
    assert len(gateway.model.requests) == before


async def test_a_call_is_still_open_when_the_end_of_its_run_was_lost(client: AsyncOpenAI, gateway: Served) -> None:
    """As if the process had died between writing the call down and ending the message."""
    messages: list[Any] = [user(TWO_STEPS)]
    answer = await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    message: Any = answer.choices[0].message
    run_id = answer.id.removeprefix("chatcmpl_")
    await gateway.gateway.stop()
    with contextlib.closing(sqlite3.connect(gateway.gateway.state_dir / "ledger.db")) as db, db:
        change = "UPDATE messages SET state = 'running', ended_at = NULL, result = NULL, attempts = 1 WHERE run_id = ?"
        assert db.execute(change, (run_id,)).rowcount == 1
    before = len(gateway.model.requests)
    await gateway.gateway.start()
    assert (await gateway.rpc("agent.wait", {"runId": run_id, "timeoutMs": 50_000}))["status"] == "ok"
    assert len(gateway.model.requests) == before
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "minus four"},
    ]
    answer = await client.chat.completions.create(model="openclaw", messages=messages, tools=[CHAT_TOOL])
    assert answer.choices[0].message.content == "It is cold in Oslo."
    assert gateway.sent[-1]["content"][0]["content"] == "minus four"


async def test_chat_with_a_picture(client: AsyncOpenAI, gateway: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    text = {"type": "text", "text": "what is it? [[reply:A dot.]]"}
    answer = await client.chat.completions.create(model="openclaw", messages=[user([text, image])])
    assert answer.choices[0].message.content == "A dot."
    assert gateway.sent[-1]["content"][1]["type"] == "image"


async def test_session_headers_and_user(client: AsyncOpenAI, gateway: Served) -> None:
    await client.chat.completions.create(
        model="openclaw:beta",
        messages=[user("hi [[reply:there]]")],
        extra_headers={"x-openclaw-session-key": "agent:beta:mine"},
    )
    await client.chat.completions.create(model="openclaw:beta", user="Ana", messages=[user("hi [[reply:Ana]]")])
    keys = await gateway.session_keys()
    assert {"agent:beta:mine", "agent:beta:openai-user:ana"} <= set(keys)


async def messages_there(gateway: Served) -> int:
    return len((await gateway.rpc("messages.list", {"limit": 500}))["messages"])


async def test_errors_are_the_clients_exceptions(client: AsyncOpenAI, gateway: Served) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="Missing user message"):
        await client.chat.completions.create(model="openclaw", messages=[])
    with pytest.raises(openai.NotFoundError, match="nobody"):
        await client.chat.completions.create(model="openclaw:nobody", messages=[user("hi")])
    with pytest.raises(openai.AuthenticationError):
        stranger = client.with_options(api_key="wrong-token-of-some-length")
        await stranger.chat.completions.create(model="openclaw", messages=[user("hi")])
    before = await messages_there(gateway)
    with pytest.raises(openai.InternalServerError, match="the model is broken"):
        await client.chat.completions.create(model="openclaw", messages=[user("[[error:400 the model is broken]]")])
    assert await messages_there(gateway) == before + 1, "the client must not send an accepted message again"
    with pytest.raises(openai.APIError, match="the model is broken"):
        async for _ in await client.chat.completions.create(
            model="openclaw", messages=[user("[[error:400 the model is broken]]")], stream=True
        ):
            pass


@pytest.mark.parametrize("source", ["openai", "openresponses"])
async def test_a_request_that_finds_too_many_waiting_may_be_sent_again(
    client: AsyncOpenAI, gateway: Served, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    import openai

    assert isinstance(gateway.gateway, InProcessGateway)
    monkeypatch.setattr(openai_run, "MAX_WAITING", 1)
    runs, key = gateway.gateway.gateway.runs, f"agent:main:{source}-user:busy"
    once, held, before = client.with_options(max_retries=0), asyncio.Event(), len(gateway.model.requests)
    gateway.model.reply("first", hold=held)

    def ask(text: str) -> Any:
        if source == "openai":
            return once.chat.completions.create(model="openclaw", messages=[user(text)], user="busy")
        return once.responses.create(model="openclaw", input=text, user="busy")

    try:
        first = asyncio.create_task(ask("one"))
        await gateway.model.wait_for_requests(before + 1)
        second = asyncio.create_task(ask("two [[reply:second]]"))
        await until(lambda: len(runs.waiting(key)) == 1)
        with pytest.raises(openai.RateLimitError, match="waiting already") as refused:
            await ask("three")
        assert "x-should-retry" not in refused.value.response.headers
    finally:
        held.set()
    await asyncio.gather(first, second)


async def test_what_became_of_a_request_is_told_by_the_id_its_caller_knows(
    client: AsyncOpenAI, gateway: Served
) -> None:
    chat = await client.chat.completions.create(model="openclaw", messages=[user("[[reply:Yes.]]")])
    response = await client.responses.create(model="openclaw", input="[[reply:Yes.]]")
    for name in (chat.id, response.id):
        told = await gateway.rpc("messages.why", {"ref": name})
        assert told["message"]["state"] == "answered"
        assert any(line.endswith("“Yes.”") for line in told["story"])


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["openclaw", "openclaw:main", "openclaw:beta"]


async def test_responses_whole(client: AsyncOpenAI, gateway: Served) -> None:
    answer = await client.responses.create(model="openclaw", input="[[reply:Hola.]]", instructions="Speak Spanish.")
    assert (answer.output_text, answer.status) == ("Hola.", "completed")
    assert answer.usage is not None
    assert answer.usage.input_tokens > answer.usage.output_tokens > 0
    assert "Speak Spanish." in json.dumps(gateway.model.requests[-1].body["system"])
    again = await client.responses.create(model="openclaw", input="[[reply:Adios.]]", previous_response_id=answer.id)
    assert again.output_text == "Adios."
    assert len(gateway.sent) == 3


async def test_responses_streamed(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="openclaw", input="[[delay:10]][[reply:uno dos tres]]") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(deltas) == final.output_text == "uno dos tres"


@pytest.mark.parametrize("streamed", [False, True])
async def test_responses_tools_make_the_round_trip(client: AsyncOpenAI, gateway: Served, streamed: bool) -> None:
    conversation: list[Any] = [user(TWO_STEPS)]
    if streamed:
        async with client.responses.stream(model="openclaw", input=conversation, tools=[RESPONSES_TOOL]) as stream:
            kinds = [event.type async for event in stream]
            answer: Any = await stream.get_final_response()
        assert "response.function_call_arguments.done" in kinds
    else:
        answer = await client.responses.create(model="openclaw", input=conversation, tools=[RESPONSES_TOOL])
    (call,) = answer.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Oslo"})
    conversation += [
        call.model_dump(include={"type", "call_id", "name", "arguments"}),
        {"type": "function_call_output", "call_id": call.call_id, "output": "minus four"},
    ]
    answer = await client.responses.create(model="openclaw", input=conversation, tools=[RESPONSES_TOOL])
    assert answer.output_text == "It is cold in Oslo."
    assert gateway.sent[-1]["content"][0]["content"] == "minus four"


async def test_a_picture_in_the_output_of_a_tool_reaches_the_model(client: AsyncOpenAI, gateway: Served) -> None:
    first = await client.responses.create(model="openclaw", input=TWO_STEPS, tools=[RESPONSES_TOOL])
    call: Any = first.output[0]
    parts = [
        {"type": "input_text", "text": "the radar shows"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
    ]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": parts}
    answer = await client.responses.create(
        model="openclaw", previous_response_id=first.id, input=[output], tools=[RESPONSES_TOOL]
    )
    assert answer.output_text
    blocks = [block for message in gateway.sent for block in message["content"]]
    result = next(block for block in blocks if block["type"] == "tool_result")
    assert result["content"] == "the radar shows"
    assert [block["type"] for block in blocks[blocks.index(result) :]].count("image") == 1


async def test_responses_with_a_picture_and_a_file(client: AsyncOpenAI, gateway: Served) -> None:
    data = base64.b64encode(b"alpha beta").decode()
    content: list[Any] = [
        {"type": "input_text", "text": "read [[reply:Done.]]"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"},
    ]
    answer = await client.responses.create(model="openclaw", input=[user(content)])
    assert answer.output_text == "Done."
    assert gateway.sent[-1]["content"][1]["type"] == "image"
    assert "alpha beta" in json.dumps(gateway.model.requests[-1].body["system"])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_silent_run_says_so_in_words_and_never_shows_the_token(
    client: AsyncOpenAI, gateway: Served, streamed: bool
) -> None:
    """OpenAI's clients expect an answer; that the agent said nothing is told in one fixed sentence."""
    ask: Any = {"model": "openclaw", "messages": [user("[[delay:5]][[reply:NO_REPLY nothing to add]]")]}
    question = "[[delay:5]][[reply:NO_REPLY nothing to add]]"
    if streamed:
        async with client.chat.completions.stream(**ask) as stream:
            chat = (await stream.get_final_completion()).choices[0]
        async with client.responses.stream(model="openclaw", input=question) as stream:
            response = await stream.get_final_response()
    else:
        chat = (await client.chat.completions.create(**ask)).choices[0]
        response = await client.responses.create(model="openclaw", input=question)
    assert (chat.message.content, chat.finish_reason) == ("No response from OpenClaw.", "stop")
    assert (response.output_text, response.status) == ("No response from OpenClaw.", "completed")
    rows = (await gateway.rpc("messages.list", {"limit": 2}))["messages"]
    assert [row["state"] for row in rows] == ["silent", "silent"]


async def test_responses_failures(client: AsyncOpenAI) -> None:
    import openai

    with pytest.raises(openai.InternalServerError, match="the model is broken"):
        await client.responses.create(model="openclaw", input="[[error:400 the model is broken]]")
    stream = await client.responses.create(model="openclaw", input="[[error:400 the model is broken]]", stream=True)
    last: Any = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert "the model is broken" in last.response.error.message


class Weather(BaseModel):
    city: str


async def test_typed_tools_of_the_client(client: AsyncOpenAI) -> None:
    import openai

    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    answer = await client.chat.completions.parse(model="openclaw", messages=[user(TWO_STEPS)], tools=[tool])
    calls = answer.choices[0].message.tool_calls or []
    assert calls[0].function.parsed_arguments == Weather(city="Oslo")
