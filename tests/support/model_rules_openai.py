"""What OpenAI's two APIs would refuse."""

from __future__ import annotations

import re
from typing import Any

from tests.support.model_rules import Refused, check

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
DATA_URL = re.compile(r"data:image/(?:jpeg|png|gif|webp);base64,[A-Za-z0-9+/]+=*")
EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh")
_CHAT_TOP = {
    "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "response_format", "seed", "stop", "store",
    "user", "prompt_cache_key", "prompt_cache_retention", "metadata", "n", "logprobs", "frequency_penalty",
    "presence_penalty", "service_tier", "verbosity",
}  # fmt: skip
_CHAT_FIELDS = {
    "system": {"content", "name"},
    "developer": {"content", "name"},
    "user": {"content", "name"},
    "assistant": {
        "content", "name", "tool_calls", "refusal", "reasoning_content", "reasoning", "reasoning_text",
        "reasoning_details",
    },
    "tool": {"content", "tool_call_id", "name"},
}  # fmt: skip
_RESPONSES_TOP = {
    "model", "input", "instructions", "stream", "store", "max_output_tokens", "temperature", "top_p", "tools",
    "tool_choice", "parallel_tool_calls", "reasoning", "include", "prompt_cache_key", "prompt_cache_retention",
    "metadata", "text", "truncation", "user", "service_tier", "previous_response_id",
}  # fmt: skip


def check_chat(body: Any) -> None:
    check(isinstance(body, dict), "We could not parse the JSON body of your request.")
    for name in body:
        check(name in _CHAT_TOP, f"Unrecognized request argument supplied: {name}")
    check(isinstance(body.get("model"), str) and body["model"], "you must provide a model parameter")
    messages = body.get("messages")
    check(isinstance(messages, list) and messages, "Invalid 'messages': empty array. Expected minimum length 1.")
    check("stream_options" not in body or body.get("stream"), "'stream_options' is only allowed when 'stream' is true.")
    check(not ("max_tokens" in body and "max_completion_tokens" in body), "Set only one of the two token limits.")
    for name in ("max_tokens", "max_completion_tokens"):
        check(name not in body or (type(body[name]) is int and body[name] >= 1), f"Invalid '{name}'")
    check(body.get("reasoning_effort") in EFFORTS, "Invalid value for 'reasoning_effort'")
    _check_temperature(body)
    names = [_chat_tool(tool, index) for index, tool in enumerate(body.get("tools", []))]
    check(len(set(names)) == len(names), "Tool names must be unique.")
    _check_choice(body.get("tool_choice"), names)
    waiting: list[str] = []
    for index, message in enumerate(messages):
        waiting = _chat_message(message, index, waiting)
    check(not waiting, f"tool_call_ids did not have response messages: {', '.join(waiting)}")


def _chat_message(message: Any, index: int, waiting: list[str]) -> list[str]:
    """Checks one message; returns the calls that still wait for their result."""
    where = f"messages[{index}]"
    check(isinstance(message, dict), f"{where} is not an object")
    role = message.get("role")
    check(role in _CHAT_FIELDS, f"Invalid value: '{role}' for {where}.role")
    extra = set(message) - _CHAT_FIELDS[role] - {"role"}
    check(not extra, f"Additional properties are not allowed in {where}: {', '.join(sorted(extra))}")
    if role == "tool":
        call_id = message.get("tool_call_id")
        check(
            call_id in waiting,
            "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        )
        _chat_content(message.get("content"), where, images=False)
        return [waiting_id for waiting_id in waiting if waiting_id != call_id]
    check(
        not waiting,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."
        f" The following tool_call_ids did not have response messages: {', '.join(waiting)}",
    )
    if role != "assistant":
        _chat_content(message.get("content"), where, images=role == "user")
        return []
    calls = message.get("tool_calls")
    if calls is None:
        _chat_content(message.get("content"), where, images=False)
        return []
    check(isinstance(calls, list) and calls, f"Invalid '{where}.tool_calls': empty array")
    if message.get("content") is not None:
        _chat_content(message["content"], where, images=False)
    ids = [_chat_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    check(len(set(ids)) == len(ids), f"Duplicate ids in {where}.tool_calls")
    return ids


def _chat_call(call: Any, where: str) -> str:
    check(isinstance(call, dict) and set(call) == {"id", "type", "function"}, f"Invalid '{where}'")
    check(call["type"] == "function", f"Invalid '{where}.type'")
    check(isinstance(call["id"], str) and call["id"], f"Invalid '{where}.id'")
    check(len(call["id"]) <= 40, f"Invalid '{where}.id': string too long. Expected a string with maximum length 40")
    function = call["function"]
    check(NAME.fullmatch(str(function.get("name"))), f"Invalid '{where}.function.name': does not match pattern")
    check(isinstance(function.get("arguments"), str), f"Invalid type for '{where}.function.arguments'")
    return call["id"]


def _chat_content(content: Any, where: str, *, images: bool) -> None:
    if isinstance(content, str):
        return
    check(isinstance(content, list) and content, f"Invalid value for '{where}.content': expected a string, got null")
    for part in content:
        check(isinstance(part, dict), f"Invalid part of '{where}.content'")
        if part.get("type") == "image_url" and images:
            check(DATA_URL.fullmatch(part["image_url"]["url"]), f"Invalid image in '{where}'")
            continue
        check(part.get("type") == "text", f"Invalid value: '{part.get('type')}' in '{where}.content'")
        check(isinstance(part.get("text"), str) and part["text"], f"Invalid '{where}.content': empty text")


def _chat_tool(tool: Any, index: int) -> str:
    where = f"tools[{index}]"
    check(isinstance(tool, dict) and tool.get("type") == "function", f"Invalid '{where}.type'")
    return _function(tool.get("function"), f"{where}.function")


def _function(function: Any, where: str) -> str:
    check(isinstance(function, dict), f"Missing required parameter: '{where}'")
    name = function.get("name")
    check(NAME.fullmatch(str(name)), f"Invalid '{where}.name': does not match pattern '^{NAME.pattern}$'")
    schema = function.get("parameters")
    check(isinstance(schema, dict) and schema.get("type") == "object", f"Invalid schema for function '{name}'")
    return str(name)


def _check_choice(choice: Any, names: list[str]) -> None:
    if choice is None:
        return
    check(names, "'tool_choice' is only allowed when 'tools' are specified.")
    if isinstance(choice, str):
        check(choice in ("auto", "none", "required"), "Invalid 'tool_choice'")
        return
    name = choice.get("name") or choice.get("function", {}).get("name")
    check(name in names, "Invalid value for 'tool_choice': no such tool")


def _check_temperature(body: dict[str, Any]) -> None:
    temperature = body.get("temperature")
    check(temperature is None or 0 <= temperature <= 2, "Invalid 'temperature'")


def check_responses(body: Any) -> None:
    check(isinstance(body, dict), "We could not parse the JSON body of your request.")
    for name in body:
        check(name in _RESPONSES_TOP, f"Unknown parameter: '{name}'.")
    check(isinstance(body.get("model"), str) and body["model"], "Missing required parameter: 'model'.")
    limit = body.get("max_output_tokens")
    check(limit is None or (type(limit) is int and limit >= 16), "Invalid 'max_output_tokens': minimum value is 16.")
    check(body.get("reasoning", {}).get("effort") in EFFORTS, "Invalid value for 'reasoning.effort'")
    check(set(body.get("include", [])) <= {"reasoning.encrypted_content"}, "Invalid value for 'include'")
    _check_temperature(body)
    names: list[str] = []
    for index, tool in enumerate(body.get("tools", [])):
        check(tool.get("type") == "function", f"Invalid 'tools[{index}].type'")
        names.append(_function(tool, f"tools[{index}]"))
    _check_choice(body.get("tool_choice"), names)
    items = body.get("input")
    if isinstance(items, str):
        check(items, "Missing required parameter: 'input'.")
        return
    check(isinstance(items, list) and items, "Invalid 'input': empty array.")
    _check_items(items, stored=body.get("store", True) is not False)


def _check_items(items: list[Any], *, stored: bool) -> None:
    called: dict[str, bool] = {}
    ids: set[str] = set()
    for index, item in enumerate(items):
        where = f"input[{index}]"
        check(isinstance(item, dict), f"Invalid '{where}'")
        if item_id := item.get("id"):
            check(item_id not in ids, f"Duplicate item found with id {item_id}.")
            check(len(item_id) <= 64, f"Invalid '{where}.id': string too long")
            ids.add(item_id)
        match item.get("type", "message"):
            case "message":
                _response_message(item, where)
            case "function_call":
                _function_call(item, where, called)
            case "function_call_output":
                call_id = item.get("call_id")
                check(
                    called.get(str(call_id)) is False,
                    f"No tool call found for function call output with call_id {call_id}.",
                )
                _output(item.get("output"), where)
                called[str(call_id)] = True
            case "reasoning":
                _reasoning(item, items[index + 1] if index + 1 < len(items) else None, where, stored=stored)
            case other:
                raise Refused(f"Invalid value: '{other}' for '{where}.type'")
    missing = [call_id for call_id, answered in called.items() if not answered]
    check(not missing, f"No tool output found for function call {', '.join(missing)}.")


def _response_message(item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    check(role in ("user", "system", "developer", "assistant"), f"Invalid value: '{role}' for '{where}.role'")
    extra = set(item) - {"type", "role", "content", "id", "status"}
    check(not extra, f"Unknown parameter: '{where}.{'/'.join(extra)}'")
    check(
        "id" not in item or str(item["id"]).startswith("msg"),
        f"Invalid '{where}.id': expected an ID that begins with 'msg'.",
    )
    content = item.get("content")
    if isinstance(content, str):
        return
    check(isinstance(content, list) and content, f"Invalid '{where}.content'")
    kinds = {"output_text", "refusal"} if role == "assistant" else {"input_text", "input_image"}
    for part in content:
        check(part.get("type") in kinds, f"Invalid value: '{part.get('type')}' in '{where}.content'")
        if part["type"] == "input_image":
            check(DATA_URL.fullmatch(part.get("image_url", "")), f"Invalid image in '{where}'")


def _function_call(item: dict[str, Any], where: str, called: dict[str, bool]) -> None:
    extra = set(item) - {"type", "id", "call_id", "name", "arguments", "status"}
    check(not extra, f"Unknown parameter: '{where}.{'/'.join(extra)}'")
    call_id = item.get("call_id")
    check(
        isinstance(call_id, str) and 1 <= len(call_id) <= 64, f"Invalid '{where}.call_id': string too long or missing"
    )
    check(call_id not in called, f"Duplicate call_id {call_id}")
    check(NAME.fullmatch(str(item.get("name"))), f"Invalid '{where}.name'")
    check(isinstance(item.get("arguments"), str), f"Invalid type for '{where}.arguments'")
    check(
        "id" not in item or str(item["id"]).startswith("fc"),
        f"Invalid '{where}.id': expected an ID that begins with 'fc'.",
    )
    called[str(call_id)] = False


def _output(output: Any, where: str) -> None:
    if isinstance(output, str):
        return
    check(isinstance(output, list) and output, f"Invalid '{where}.output'")
    for part in output:
        check(part.get("type") in ("input_text", "input_image"), f"Invalid part of '{where}.output'")


def _reasoning(item: dict[str, Any], following: Any, where: str, *, stored: bool) -> None:
    item_id = item.get("id")
    check(str(item_id).startswith("rs"), f"Invalid '{where}.id': expected an ID that begins with 'rs'.")
    check(isinstance(item.get("summary"), list), f"Missing required parameter: '{where}.summary'.")
    check(stored or item.get("encrypted_content"), f"Item with id '{item_id}' not found. Items are not persisted.")
    follows = isinstance(following, dict) and (
        following.get("type") in ("function_call", "reasoning")
        or (following.get("type", "message") == "message" and following.get("role") == "assistant")
    )
    check(follows, f"Item '{item_id}' of type 'reasoning' was provided without its required following item.")


ID = re.compile(r"[a-zA-Z0-9]{9}")
_FIELDS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "tool_call_id", "name"},
}
_MAY_FOLLOW = {
    None: {"system", "user"},
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user"},
    "calls": {"tool"},
    "tool": {"tool", "assistant"},
}


def check_mistral(body: Any) -> None:
    check_chat(body)
    check("max_completion_tokens" not in body, "max_completion_tokens: Extra inputs are not permitted")
    before: str | None = None
    waiting = 0
    for index, message in enumerate(body["messages"]):
        role = message["role"]
        check(role in _FIELDS, f"Input should be a known role, not '{role}'")
        extra = set(message) - _FIELDS[role]
        check(not extra, f"messages.{index}.{role}.{'/'.join(sorted(extra))}: Extra inputs are not permitted")
        check(role in _MAY_FOLLOW[before], f"Unexpected role '{role}' after role '{before}'")
        check(before != "tool" or role == "tool" or not waiting, "Not the same number of function calls and responses")
        calls = message.get("tool_calls") or []
        if role == "assistant":
            check(message.get("content") or calls, "Assistant message must have either content or tool_calls, not none")
            waiting = len(calls)
        elif role == "tool":
            waiting -= 1
        for call in calls:
            check(ID.fullmatch(call["id"]), f"Tool call id was {call['id']} but must be 9 letters or digits.")
        before = "calls" if calls else role
    check(before in ("user", "tool"), f"Expected last role User or Tool for serving but got {before}")
