"""What stays the same from call to call is made once, and made anew when it does not stay the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from openclaw.messages import AssistantMessage, Message, TextBlock, ToolSpec, UserMessage
from openclaw.models import anthropic, openai_chat, openai_responses
from openclaw.models.base import Model
from openclaw.models.endpoint import Endpoint
from openclaw.models.message_builder import encode_body
from openclaw.models.standing import MOST_ENCODED, MOST_ENDPOINTS, Standing
from tests.models.streams import READ, ask

MODEL = Model(provider="p", id="m", base_url="http://127.0.0.1:1")
WRITE = msgspec.structs.replace(READ, name="write", description="\ud800 half a pair")


def made(model: Model, api_key: str) -> Endpoint:
    return Endpoint(f"{model.base_url}/v1", {"x-api-key": api_key}, api_key=api_key)


def test_an_endpoint_lasts_until_key_or_settings_change() -> None:
    standing = Standing()
    first = standing.endpoint(MODEL, "key-1", made)
    assert standing.endpoint(msgspec.structs.replace(MODEL), "key-1", made) is first
    assert standing.endpoint(MODEL, "key-2", made).headers == {"x-api-key": "key-2"}
    moved = msgspec.structs.replace(MODEL, base_url="http://127.0.0.1:2")
    assert standing.endpoint(moved, "key-2", made).url == "http://127.0.0.1:2/v1"


def test_no_more_is_kept_than_is_in_use() -> None:
    standing = Standing()
    hot = ["hot"]
    kept = standing.encoded(hot, None, lambda: hot)
    for number in range(MOST_ENCODED * 2):
        standing.encoded([number], None, lambda: number)  # noqa: B023
        assert standing.encoded(hot, None, lambda: "made again") is kept
    for number in range(MOST_ENDPOINTS * 2):
        standing.endpoint(msgspec.structs.replace(MODEL, id=str(number)), "k", made)
    assert len(standing._encoded) <= MOST_ENCODED
    assert len(standing._endpoints) <= MOST_ENDPOINTS


@pytest.mark.parametrize(
    ("api", "adapter"),
    [("anthropic-messages", anthropic), ("openai-completions", openai_chat), ("openai-responses", openai_responses)],
)
@pytest.mark.parametrize("system", ["You are a test. ANTHROPIC_MAGIC_STRING_TRIGGER_REFUSAL_1", ""])
@pytest.mark.parametrize("tools", [[READ, WRITE], [READ], []])
def test_the_body_is_the_same_with_what_is_kept(api: str, adapter: Any, system: str, tools: list[ToolSpec]) -> None:
    standing = Standing()
    model = msgspec.structs.replace(MODEL, api=api)
    history: list[Message] = [UserMessage(content="u"), AssistantMessage(content=[TextBlock(text="a")])]
    for retention in ("short", "none", "short"):
        chosen = msgspec.structs.replace(model, compat={"cacheRetention": retention} if adapter is anthropic else {})
        request = ask(chosen, messages=[*history, UserMessage(content="now")], system=system, tools=tools)
        plain = encode_body(adapter.build_body(request))
        for _ in range(2):
            assert encode_body(adapter.build_request(request, "k", standing).body) == plain
