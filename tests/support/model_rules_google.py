"""What Google's Gemini API refuses, in about its words."""

from __future__ import annotations

import base64
import re
from typing import Any

from tests.support.model_rules import UNSIGNED, check

_NAME = re.compile(r"[a-zA-Z_-][a-zA-Z0-9_.-]{0,63}")
_PARTS = ("text", "inlineData", "functionCall", "functionResponse")


def check_google(body: Any) -> None:
    check(isinstance(body, dict), "Invalid JSON payload received.")
    known = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}
    check(not set(body) - known, f"Unknown name: {set(body) - known}")
    contents = body.get("contents")
    check(isinstance(contents, list) and contents, "contents is not specified")
    for place, content in enumerate(contents):
        _check_content(content, f"contents[{place}]")
    _check_order(contents)
    if (system := body.get("systemInstruction")) is not None:
        check(all(part.get("text") for part in system["parts"]), "systemInstruction: parts must have text")
    _check_tools(body)
    config = body.get("generationConfig", {})
    check(config.get("maxOutputTokens", 1) >= 1, "max_output_tokens must be positive")
    check(0 <= config.get("temperature", 0) <= 2, "temperature must be in the range [0.0, 2.0]")
    given = config.get("thinkingConfig", {})
    check(not {"thinkingBudget", "thinkingLevel"} <= set(given), "You can only set one of thinking budget and level.")


def check_gemini_3(body: Any) -> None:
    check_google(body)
    for content in body["contents"]:
        calls = [part for part in content["parts"] if "functionCall" in part]
        check(not calls or calls[0].get("thoughtSignature"), "Function call is missing a thought_signature")


def _check_content(content: Any, where: str) -> None:
    check(content.get("role") in ("user", "model"), "Please use a valid role: user, model.")
    parts = content.get("parts")
    check(isinstance(parts, list) and parts, f"{where}.parts must not be empty.")
    for part in parts:
        kinds = [name for name in _PARTS if name in part]
        check(len(kinds) == 1, f"{where}: required oneof field 'data' must have one initialized field")
        check(set(part) <= {kinds[0], "thought", "thoughtSignature"}, f"{where}: Unknown name in {sorted(part)}")
        _check_part(part, kinds[0], content["role"], where)


def _check_part(part: dict[str, Any], kind: str, role: str, where: str) -> None:
    value = part[kind]
    match kind:
        case "text":
            check(isinstance(value, str) and value.strip(), f"{where}: empty text parameter")
        case "inlineData":
            check(role == "user" and value["mimeType"] and base64.b64decode(value["data"]), f"{where}: bad inline_data")
        case "functionCall":
            check(role == "model", f"{where}: function call in a user turn")
            check(_NAME.fullmatch(value["name"]) and isinstance(value["args"], dict), f"{where}: bad function_call")
        case _:
            check(role == "user", f"{where}: function response in a model turn")
            check(_NAME.fullmatch(value["name"]) and isinstance(value["response"], dict), f"{where}: bad response")
    if (signature := part.get("thoughtSignature")) is not None and signature != UNSIGNED:
        check(base64.b64decode(signature, validate=True), f"{where}: thought_signature: Base64 decoding failed")


def _check_order(contents: list[Any]) -> None:
    check(contents[0]["role"] == "user", "Please ensure that the first turn is a user turn.")
    check(contents[-1]["role"] == "user", "Please ensure that the last turn is a user turn.")
    waiting: list[str] = []
    before = ""
    for content in contents:
        called = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]
        answered = [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part]
        check(not (before == content["role"] == "model"), "model turns must be one")
        check(
            answered == waiting,
            "Please ensure that the number of function response parts is equal to the number of function call parts "
            f"of the function call turn ({waiting}, {answered}).",
        )
        check(not answered or len(answered) == len(content["parts"]), "responses must stand alone")
        waiting, before = called, content["role"]
    check(not waiting, "function call turn without its responses")


def _check_tools(body: dict[str, Any]) -> None:
    tools = body.get("tools", [])
    declared = [one for tool in tools for one in tool["functionDeclarations"]]
    names = [one["name"] for one in declared]
    check(len(set(names)) == len(names), "Duplicate function declaration found")
    check(all(_NAME.fullmatch(name) for name in names), "Invalid function name")
    check(all(one["parametersJsonSchema"]["type"] == "object" for one in declared), "schema must be an object")
    if (choice := body.get("toolConfig")) is not None:
        wanted = choice["functionCallingConfig"]
        check(names and wanted["mode"] in ("AUTO", "ANY", "NONE"), "Function calling config without declarations")
        check(set(wanted.get("allowedFunctionNames", [])) <= set(names), "allowed_function_names must be declared")
