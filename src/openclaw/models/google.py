"""Google's Gemini API: the request we send and the stream we read."""

from __future__ import annotations

import re
import secrets
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from openclaw.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingLevel,
    ToolCall,
    ToolResultMessage,
    ToolSpec,
    UserBlock,
    UserMessage,
)
from openclaw.models import convert, thinking
from openclaw.models.base import Model, ModelRequest
from openclaw.models.convert import PartState, build_history
from openclaw.models.http import ReplyReader, WireRequest, number, request_to

BASE_URL = "https://generativelanguage.googleapis.com/v1beta"
MAX_ID = 64
NO_SIGNATURE = "skip_thought_signature_validator"
"""What Google tells to send with a call that another model made. Gemini 3 refuses a call without a signature."""
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_BUDGETS: dict[ThinkingLevel, int] = {"minimal": 128, "low": 2048, "medium": 8192, "high": 24_576, "xhigh": 24_576}
_LEVELS: dict[ThinkingLevel, str] = {
    "minimal": "LOW", "low": "LOW", "medium": "HIGH", "high": "HIGH", "xhigh": "HIGH",
}  # fmt: skip
_FLASH_LEVELS: dict[ThinkingLevel, str] = {**_LEVELS, "minimal": "MINIMAL", "medium": "MEDIUM"}


def build_request(request: ModelRequest, api_key: str = "") -> WireRequest:
    model = request.model
    base = (model.base_url or BASE_URL).rstrip("/")
    if urlsplit(base).path == "":
        base = f"{base}/v1beta"
    name = model.id if model.id.startswith(("models/", "tunedModels/")) else f"models/{model.id}"
    headers = {"x-goog-api-key": api_key} if api_key else {}
    url = f"{base}/{quote(name, safe='/-._')}:streamGenerateContent?alt=sse"
    return request_to(url, model, api_key, headers, build_body(request))


def build_body(request: ModelRequest) -> dict[str, Any]:
    model = request.model

    def build(history: list[Message], state: PartState) -> list[dict[str, Any]]:
        contents = _contents(history, model)
        if state.first and contents and contents[0]["role"] == "model":
            contents.insert(0, _user([{"text": convert.BOOTSTRAP}]))
        return contents

    finished, current = build_history(request, convert.UniqueIds(MAX_ID), build)
    if current[-1]["role"] == "model":
        current.append(_user([{"text": convert.CONTINUE}]))
    body: dict[str, Any] = {"contents": [*finished, *current]}
    if texts := request.system_parts:
        body["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_declaration(spec) for spec in request.tools]}]
        if (choice := convert.tool_choice(request)) is not None:
            named = {"allowedFunctionNames": [choice["name"]]} if isinstance(choice, dict) else {}
            body["toolConfig"] = {"functionCallingConfig": {"mode": "NONE" if choice == "none" else "ANY", **named}}
    body["generationConfig"] = _generation(request)
    return body


def _declaration(spec: ToolSpec) -> dict[str, Any]:
    schema = {"properties": {}, **spec.parameters, "type": "object"}
    return {"name": spec.name, "description": spec.description, "parametersJsonSchema": schema}


def _generation(request: ModelRequest) -> dict[str, Any]:
    """The limits of the answer. ``maxOutputTokens`` limits thinking and answer together."""
    model, level = request.model, thinking.clamp_to_model(request.thinking, request.model)
    answer = thinking.output_limit(model, request.max_tokens, request.output_room)
    config: dict[str, Any] = {"maxOutputTokens": answer}
    if request.temperature is not None:
        config["temperature"] = request.temperature
    if level == "off":
        return config
    budget = _BUDGETS[level]
    config["maxOutputTokens"] = thinking.output_limit(model, answer + budget, request.output_room)
    if _is_gemini_3(model):
        levels = (_FLASH_LEVELS if "flash" in model.id else _LEVELS)[level]
        config["thinkingConfig"] = {"includeThoughts": True, "thinkingLevel": levels}
    else:
        config["thinkingConfig"] = {"includeThoughts": True, "thinkingBudget": budget}
    return config


def _is_gemini_3(model: Model) -> bool:
    return "gemini-3" in model.id


def _user(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "parts": parts}


def _contents(history: list[Message], model: Model) -> list[dict[str, Any]]:
    """The turns: answers that follow each other are one, and so are the results of one answer's calls."""
    out: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []

    def end_results() -> None:
        if results:
            out.append(_user([*results]))
        if pictures:
            out.append(_user([{"text": convert.RESULT_IMAGES}, *pictures]))
        results.clear()
        pictures.clear()

    for message in history:
        match message:
            case ToolResultMessage():
                blocks = convert.user_blocks(message, model)
                shown = [_image(block) for block in blocks if isinstance(block, ImageBlock)]
                nested = shown if _is_gemini_3(model) else []
                results.append(_result(message, convert.result_text(blocks), nested))
                pictures += [] if nested else shown
            case UserMessage():
                end_results()
                if blocks := convert.user_blocks(message, model):
                    out.append(_user([_block(block) for block in blocks]))
            case AssistantMessage():
                end_results()
                parts = _answer_parts(message, model)
                if parts and out and out[-1]["role"] == "model":
                    out[-1]["parts"] += parts
                elif parts:
                    out.append({"role": "model", "parts": parts})
    end_results()
    return out


def _block(block: UserBlock) -> dict[str, Any]:
    return _image(block) if isinstance(block, ImageBlock) else {"text": block.text}


def _image(block: ImageBlock) -> dict[str, Any]:
    return {"inlineData": {"mimeType": block.mime_type, "data": block.data}}


def _result(message: ToolResultMessage, text: str, pictures: list[dict[str, Any]]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "name": message.tool_name,
        "response": {"error" if message.is_error else "output": text},
    }
    if pictures:
        response["parts"] = pictures
    return {"functionResponse": response}


def _answer_parts(message: AssistantMessage, model: Model) -> list[dict[str, Any]]:
    same = convert.is_same_model(message, model)
    parts: list[dict[str, Any]] = []
    for block in message.content:
        match block:
            case TextBlock():
                parts.append({"text": block.text, **_signed(block.text_signature if same else None)})
            case ThinkingBlock():
                if not convert.is_blank(block.thinking):
                    thought = {"thought": True, "text": block.thinking}
                    parts.append({**thought, **_signed(block.thinking_signature)})
            case ToolCall():
                signed = _signed(block.thought_signature if same else None)
                if not signed and _is_gemini_3(model):
                    signed = {"thoughtSignature": NO_SIGNATURE}
                parts.append({"functionCall": {"name": block.name, "args": block.arguments}, **signed})
    return parts


def _signed(signature: str | None) -> dict[str, Any]:
    """The field for a signature, if Google can have made it."""
    if not signature or len(signature) % 4 or not _BASE64.fullmatch(signature):
        return {}
    return {"thoughtSignature": signature}


_STOP: dict[str, StopReason] = {"STOP": "stop", "MAX_TOKENS": "length", "FINISH_REASON_UNSPECIFIED": "stop"}


class _Candidate(msgspec.Struct, rename="camel"):
    content: dict[str, Any] | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Answer(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: dict[str, Any] | None = None
    prompt_feedback: dict[str, Any] | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Answer)
_list_decoder = msgspec.json.Decoder(list[_Answer])


class GoogleStream(ReplyReader):
    """Reads the pieces of an answer. Each has whole parts; a call is never cut in two."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        super().__init__(model, timestamp)
        self._note = ""

    def _read_event(self, data: bytes) -> None:
        if data != b"[DONE]":
            self._handle(self.builder.decode(_decoder, data))

    def _read_whole(self, body: bytes) -> bool:
        if body.lstrip().startswith(b"["):
            pieces = self.builder.decode(_list_decoder, body)
        else:
            pieces = [self.builder.decode(_decoder, body)]
        for piece in pieces:
            self._handle(piece)
        if self.stop is not None:
            self._end()
        return self.stop is not None

    def _end(self) -> None:
        reason = _STOP.get(self.stop or "", "error")
        withheld = f"The provider withheld the answer ({self.stop}). {self._note}".strip()
        self.builder.done(reason, withheld if reason == "error" else None)

    def _handle(self, piece: _Answer) -> None:
        if piece.error is not None:
            code = piece.error.get("code") if isinstance(piece.error, dict) else None
            raise self.builder.refused(
                {"error": piece.error}, code if isinstance(code, int) and 400 <= code < 600 else None
            )
        if piece.usage_metadata:
            self._count(piece.usage_metadata)
        blocked = (piece.prompt_feedback or {}).get("blockReason")
        if blocked:
            self.stop = str(blocked)
        if not piece.candidates:
            return
        candidate = piece.candidates[0]
        self.builder.started = True
        parts = (candidate.content or {}).get("parts")
        for part in parts if isinstance(parts, list) else []:
            self._take(part)
        if candidate.finish_reason:
            self.stop, self._note = candidate.finish_reason, candidate.finish_message or ""

    def _take(self, part: Any) -> None:
        match part:
            case {"functionCall": {"name": str(name), **fields}}:
                call_id = fields.get("id")
                own = call_id if isinstance(call_id, str) and call_id else f"call_{secrets.token_hex(12)}"
                block = self.builder.open_call(own, name)
                arguments = fields.get("args")
                block.whole_arguments = arguments if isinstance(arguments, dict) else {}
                block.thought_signature = _signature_of(part)
            case {"text": str(text)}:
                block = self.builder.extend_last("thinking" if part.get("thought") is True else "text", text)
                block.signature = _signature_of(part) or block.signature
            case _:
                pass

    def _count(self, usage: dict[str, Any]) -> None:
        cached = number(usage, "cachedContentTokenCount")
        # In the usage, unlike in ``maxOutputTokens``, the answer is counted without the thinking.
        output = number(usage, "candidatesTokenCount") + number(usage, "thoughtsTokenCount")
        prompt = number(usage, "promptTokenCount") + number(usage, "toolUsePromptTokenCount")
        self.builder.count(input=max(0, prompt - cached), output=output, cache_read=cached)


def _signature_of(part: dict[str, Any]) -> str | None:
    signature = part.get("thoughtSignature")
    return signature if isinstance(signature, str) and signature else None
