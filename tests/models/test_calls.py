"""The one place that calls models: the right provider, the current key, the whole answer, and the count of failures."""

from __future__ import annotations

import asyncio

import pytest

from openclaw.clock import SystemClock
from openclaw.config.schema import Config
from openclaw.models.base import Model, ModelError, StreamEvent, Text
from openclaw.models.calls import ModelCalls, wire_body
from openclaw.models.http import ModelHttp
from openclaw.models.keys import Keys
from tests.models.streams import ask
from tests.support.model_server import ModelServer, Reply


class Calls:
    """Calls whose key, turns and failures a test sees."""

    def __init__(self, key: str) -> None:
        self.environ = {"MOCK_API_KEY": key}
        self.turns = 0
        self.failures: list[ModelError] = []
        self.heard: list[StreamEvent] = []
        self.calls = ModelCalls(
            Keys(self.environ), Config, SystemClock(), take_turn=self._turn, failed=self.failures.append
        )

    async def _turn(self) -> None:
        self.turns += 1

    async def ask(self, model: Model) -> str:
        return (await self.calls.call(ask(model), "main", self.heard.append)).text


def keyed(server: ModelServer) -> Model:
    """A model whose key comes from the environment."""
    return server.model(provider="mock")


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("anthropic-messages", "/v1/messages"),
        ("openai-completions", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
    ],
)
async def test_the_api_of_a_model_chooses_its_protocol(server: ModelServer, api: str, path: str) -> None:
    made = Calls(server.api_key)
    server.reply("yes")
    assert await made.ask(server.model(api, provider="mock")) == "yes"
    assert server.requests[-1].path == path


def test_an_unknown_api_is_named_with_what_is_possible() -> None:
    with pytest.raises(ModelError, match=r"p/m has the unknown api 'telepathy'.*anthropic-messages"):
        Calls("k").calls.provider_for(Model(provider="p", id="m", api="telepathy"))


async def test_an_answer_is_heard_out_and_takes_a_turn_before_and_after_the_wait(server: ModelServer) -> None:
    made = Calls(server.api_key)
    server.reply("one two")
    assert await made.ask(keyed(server)) == "one two"
    assert "".join(event.delta for event in made.heard if isinstance(event, Text)) == "one two"
    assert (made.turns, made.failures) == (2, [])
    await made.calls.close()


async def test_a_changed_key_counts_from_the_next_call_on(server: ModelServer) -> None:
    made = Calls("wrong")
    with pytest.raises(ModelError) as refused:
        await made.ask(keyed(server))
    assert refused.value.kind == "auth"
    assert made.failures == [refused.value]
    made.environ["MOCK_API_KEY"] = server.api_key
    server.reply("ok")
    assert await made.ask(keyed(server)) == "ok"
    await made.calls.close()


async def test_a_cancelled_call_hangs_up(server: ModelServer) -> None:
    made = Calls(server.api_key)
    server.queue(Reply(text="one two", hold=asyncio.Event(), hold_after=1))
    task = asyncio.create_task(made.ask(keyed(server)))
    while not made.heard:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_until_idle()
    assert (server.disconnects, made.failures) == (1, [])
    await made.calls.close()


@pytest.mark.parametrize("api", ["anthropic-messages", "openai-completions", "openai-responses"])
async def test_the_body_built_again_is_the_one_that_was_sent(server: ModelServer, api: str) -> None:
    made = Calls(server.api_key)
    model = server.model(api, provider="mock")
    await made.ask(model)
    assert wire_body(ask(model)) == server.requests[-1].raw
    assert wire_body(ask(Model(provider="local", id="m", api="local"))) is None
    await made.calls.close()


async def test_closing_what_was_never_used_is_fine() -> None:
    made = Calls("k")
    await made.calls.close()
    await ModelHttp().close()
    assert made.turns == 0 and not made.failures
