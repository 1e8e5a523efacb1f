"""Lives of a session, made up: what is said, called, aborted, lost in a crash, branched, condensed, switched."""

from __future__ import annotations

import base64
import io
from typing import Any, TypeAlias

from PIL import Image

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResultMessage,
    UserBlock,
    UserMessage,
)
from openclaw.models.base import Model
from tests.support.model_rules import encrypted, mark_of

Happening: TypeAlias = tuple[str, int]
KINDS = (
    "say", "say", "answer", "answer", "call", "call", "crash", "steer", "abort", "switch", "branch", "condense",
    "inject", "stray", "other_session", "break_off", "odd",
)  # fmt: skip
TEXTS = (
    "hello",
    "two\nlines",
    "naïve 😀",
    "trailing  ",
    "bad \ud83d half",
    " ",
    "",
    "\ud83d \udc00",
    "[Inter-session message]",
)
NAMES = ("read", "functions.read", "", "sehr_lang" * 20, "exec")
BLANK = (" ", "", "\n", "\ud83d")


def picture(width: int, height: int, kind: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


_PNG = picture(8, 8, "PNG")
_JPEG = picture(8, 8, "JPEG")
IMAGES = (
    ImageBlock(data=_PNG, mime_type="image/png"),
    ImageBlock(data=_JPEG, mime_type="image/png"),
    ImageBlock(data=picture(2600, 4, "PNG"), mime_type="image/png"),
    ImageBlock(data=_PNG[:40], mime_type="image/png"),
    ImageBlock(data=_JPEG[: len(_JPEG) // 8 * 4], mime_type="image/jpeg"),
    ImageBlock(data="[the picture is missing]", mime_type="image/webp"),
    ImageBlock(data="", mime_type="image/png"),
    ImageBlock(data=picture(8, 8, "BMP"), mime_type="image/bmp"),
    ImageBlock(data=picture(8, 8, "BMP"), mime_type="image/png"),
)


class Life:
    """Plays happenings one after the other; ``messages`` is what a transcript's active branch would hold."""

    def __init__(self, models: list[Model], first: int = 0) -> None:
        self.messages: list[Message] = []
        self._models = models
        self._model = models[first % len(models)]
        self._made = 0

    def play(self, happenings: list[Happening]) -> list[Message]:
        for kind, n in happenings:
            getattr(self, f"_{kind}")(n)
        return self.messages

    def _next(self) -> int:
        self._made += 1
        return self._made

    def _say(self, n: int) -> None:
        text = TextBlock(text=TEXTS[n % len(TEXTS)])
        content: Any = text.text if n % 3 == 0 else [text]
        if n % 5 == 0:
            content = [text, IMAGES[n // 5 % len(IMAGES)]]
        self._add(UserMessage(content=content, timestamp=self._next()))

    def _odd(self, n: int) -> None:
        self._add(UserMessage(content=BLANK[n % len(BLANK)] if n % 2 else [], timestamp=self._next()))

    def _other_session(self, n: int) -> None:
        source = {"kind": "inter_session", "sourceSessionKey": f"agent:main:{n}"}
        self._add(UserMessage(content="from elsewhere", timestamp=self._next(), provenance=source))

    def _answer(self, n: int) -> None:
        self._reply([*self._thoughts(n), self._text(n)])

    def _inject(self, n: int) -> None:
        """What the Gateway itself writes, in the name of no model."""
        text = TextBlock(text=TEXTS[n % len(TEXTS)])
        self._add(
            AssistantMessage(content=[text], api="openai-responses", provider="openclaw", model="gateway-injected")
        )

    def _break_off(self, n: int) -> None:
        """The output limit is reached while thinking."""
        self._reply(self._thoughts(n | 1), "length")

    def _call(self, n: int) -> None:
        for call in self._calls(n):
            self._result(call, n)

    def _crash(self, n: int) -> None:
        """Some results were never written, others twice or in another order."""
        calls = self._calls(n)
        for call in reversed(calls[: n // 4 % (len(calls) + 1)]):
            self._result(call, n)
            if n % 7 == 0:
                self._result(call, n + 1)

    def _steer(self, n: int) -> None:
        for call in self._calls(n):
            self._say(n)
            self._result(call, n)

    def _abort(self, n: int) -> None:
        calls = self._calls(n, reason="aborted" if n % 2 else "error")
        if n % 3 == 0:
            self._result(calls[0], n)

    def _switch(self, n: int) -> None:
        self._model = self._models[n % len(self._models)]

    def _branch(self, n: int) -> None:
        del self.messages[n % (len(self.messages) + 1) :]

    def _condense(self, n: int) -> None:
        """Any cut, also one that no compaction of ours would choose."""
        kept = self.messages[n % (len(self.messages) + 1) :]
        self.messages = [UserMessage(content=[TextBlock(text="<summary>\nearlier\n</summary>")], timestamp=0), *kept]

    def _stray(self, n: int) -> None:
        known = [
            call for message in self.messages if isinstance(message, AssistantMessage) for call in message.tool_calls
        ]
        lost = ToolCall(id=("", "toolu_lost", "call_9|fc_9")[n % 3], name="read", arguments={})
        self._result(known[n % len(known)] if known and n % 2 else lost, n)

    # What replies are made of

    def _thoughts(self, n: int) -> list[Any]:
        if n % 2 == 0:
            return []
        number = self._next()
        mark = mark_of(self._model, number)
        match self._model.api:
            case "anthropic-messages":
                signed = ThinkingBlock(thinking="" if n % 3 == 0 else f"hm {mark}", thinking_signature=mark)
                hidden = ThinkingBlock(thinking="", thinking_signature=mark, redacted=True)
                unsigned = ThinkingBlock(thinking="cut")
                return [[signed], [hidden], [unsigned], [signed, hidden]][n // 2 % 4]
            case "openai-responses":
                whole = ThinkingBlock(thinking="hm", thinking_signature=encrypted(self._model, number))
                if n // 2 % 4 == 0:
                    return [whole]
                # Thoughts that cannot be sent back: not encrypted, or not even readable.
                later = self._next()
                bare = ThinkingBlock(thinking="hm", thinking_signature=f'{{"type":"reasoning","id":"rs_{later}"}}')
                unread = ThinkingBlock(thinking="hm", thinking_signature="{")
                return [[bare], [whole, bare], [whole, unread]][n // 2 % 4 - 1]
            case "google-generative-ai":
                return [ThinkingBlock(thinking="hm", thinking_signature=base64.b64encode(mark.encode()).decode())]
            case _:
                return [ThinkingBlock(thinking=f"hm {mark}", thinking_signature="reasoning_content")]

    def _text(self, n: int) -> TextBlock:
        own = f"msg_{self._next()}_of_rs_{self._made - 1}" if self._model.api == "openai-responses" else None
        return TextBlock(text=TEXTS[n % len(TEXTS)], text_signature=own)

    def _calls(self, n: int, reason: Any = "toolUse") -> list[ToolCall]:
        thoughts = self._thoughts(n)
        rs = self._made
        blocks = [*thoughts, self._text(n)] if n % 3 == 0 else thoughts
        calls = [
            ToolCall(
                id=self._call_id(n + place, rs), name=NAMES[n % len(NAMES)], arguments={"path": "x", "n": [n, None]}
            )
            for place in range(1 + n % 3)
        ]
        self._reply([*blocks, *calls], reason)
        return calls

    def _call_id(self, n: int, rs: int) -> str:
        match self._model.api:
            case "anthropic-messages":
                return f"toolu_{self._next()}"
            case "openai-responses":
                return f"call_{self._next()}|fc_{self._made}_of_rs_{rs}"
            case _:
                # Numbered anew in every reply, or as some servers number them.
                return f"call_{n % 3}" if n % 2 else f"functions.read:{n % 4}"

    def _reply(self, content: list[Any], reason: Any = "stop") -> None:
        model = self._model
        names: dict[str, Any] = {"api": model.api, "provider": model.provider, "model": model.id}
        self._add(AssistantMessage(content=content, stop_reason=reason, timestamp=self._next(), **names))

    def _result(self, call: ToolCall, n: int) -> None:
        content: list[UserBlock] = [TextBlock(text=TEXTS[n % len(TEXTS)])] if n % 4 else []
        if n % 5 == 0:
            content.append(IMAGES[n // 5 % len(IMAGES)])
        self._add(
            ToolResultMessage(
                tool_call_id=call.id, tool_name=call.name, content=content, is_error=n % 6 == 0, timestamp=self._next()
            )
        )

    def _add(self, message: Message) -> None:
        self.messages.append(message)
