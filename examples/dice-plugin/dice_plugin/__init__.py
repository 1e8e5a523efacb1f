"""Dice for an OpenClaw agent and the people who talk to it: one example for each extension point."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from openclaw.extensions.api import (
    Block,
    CommandCall,
    ExtensionApi,
    InstantAnswer,
    MessageReceived,
    MessageSent,
    MethodRequest,
    PromptAbout,
    ToolCalling,
)
from openclaw.messages import AssistantMessage, TextBlock, UserMessage, user_text
from openclaw.models.base import Done, ModelRequest, StreamEvent, Text
from openclaw.tools.arguments import RecordTool, ToolArguments
from openclaw.tools.base import ToolContext, ToolResult, text_result

MOST_SIDES = 1000


class DiceArguments(ToolArguments):
    sides: Annotated[int, Meta(ge=2, description="How many sides it has (6)")] = 6


class DiceTool(RecordTool[DiceArguments]):
    name = "dice"
    summary = "Roll a die"
    description = "Roll a die and return the number."

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def execute(self, arguments: DiceArguments, context: ToolContext) -> ToolResult:
        rolled = self._chance.randint(1, arguments.sides)
        return text_result(f"The die shows {rolled}.", {"rolled": rolled})


class EchoModel:
    """A wire protocol without a wire: the answer is the last message."""

    async def stream(self, request: ModelRequest, api_key: str) -> AsyncGenerator[StreamEvent]:
        said = next(user_text(one) for one in reversed(request.messages) if isinstance(one, UserMessage))
        text = f"echo: {said.strip().splitlines()[0]}"
        yield Text(text)
        model = request.model
        yield Done(
            AssistantMessage(content=[TextBlock(text=text)], api=model.api, provider=model.provider, model=model.id)
        )


class Counts:
    """What went by since the Gateway started."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0

    def shown(self) -> dict[str, int]:
        return {"received": self.received, "sent": self.sent}


def register(api: ExtensionApi) -> None:
    chance = random.Random(api.config.get("seed"))
    counts = Counts()

    async def heard(about: MessageReceived) -> None:
        counts.received += 1

    def sent(about: MessageSent) -> None:
        counts.sent += 1

    def coin(about: MessageReceived) -> InstantAnswer | None:
        if about.text.strip().lower() != "flip a coin":
            return None
        return InstantAnswer(chance.choice(("Heads.", "Tails.")))

    def fair(about: ToolCalling) -> Block | None:
        sides = about.arguments.get("sides", 6)
        return Block(f"at most {MOST_SIDES} sides") if about.tool == "dice" and sides > MOST_SIDES else None

    def diary(about: Any) -> dict[str, Any] | None:
        return {"cancel": True, "reason": "the diary is kept whole"} if about.session_key.endswith(":diary") else None

    def roll(call: CommandCall) -> str:
        sides = int(call.args or 6)
        return f"🎲 {chance.randint(1, sides)} of {sides}"

    def advice(about: PromptAbout) -> str:
        return "When somebody wants chance, roll with the dice tool. Never make a number up."

    def told(request: MethodRequest) -> dict[str, int]:
        return counts.shown()

    async def served(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(counts.shown())

    api.on("message_received", heard)
    api.on("message_sent", sent)
    api.on("before_accept", coin)
    api.on("before_tool_call", fair)
    api.on("session_before_compact", diary)
    api.add_tool(DiceTool(chance), sessions="all")
    api.add_command("dice", roll, right="read", usage="[sides]", help="Roll a die.")
    api.add_prompt_section("Dice", advice)
    api.add_method("counts", told, right="read")
    api.add_route("GET", "counts", served, auth="secret")
    api.add_provider("echo", EchoModel())
