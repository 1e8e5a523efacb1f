"""Context rebuild: which entries of the branch become which messages."""

import json
from typing import Any

import msgspec
import pytest

from openclaw.messages import AssistantMessage, TextBlock, UserMessage
from openclaw.sessions.tree import BranchContext, is_notice, message_of, select_window


def line(own: str, parent: str | None, kind: str = "message", **fields: object) -> dict:
    if kind == "message" and "message" not in fields:
        fields["message"] = {"role": "user", "content": [{"type": "text", "text": own}], "timestamp": 1}
    return {"type": kind, "id": own, "parentId": parent, "timestamp": "2026-01-01T00:00:00.000Z", **fields}


def raw(fields: dict) -> bytes:
    return json.dumps(fields).encode()


def seen(path: list[dict]) -> list[str]:
    """The texts a model sees for a path from root to leaf, summaries in brackets."""
    types, ids = [entry["type"] for entry in path], [entry["id"] for entry in path]
    walk = ((place, types[place], ids[place]) for place in range(len(path) - 1, -1, -1))
    window = select_window(walk, lambda place: path[place].get("firstKeptEntryId"))
    branch = BranchContext()
    if window.compaction is not None:
        branch.summarize(ids[window.compaction], raw(path[window.compaction]))
    for place in window.places:
        branch.add(ids[place], types[place], raw(path[place]))
    return [_short(message.content[0].text) for message in branch.context().messages]


def _short(text: str) -> str:
    return f"[{text.split('<summary>')[1].split('</summary>')[0].strip()}]" if "<summary>" in text else text


def compaction(own: str, kept: str) -> dict:
    return line(own, None, "compaction", summary=f"sum {own}", firstKeptEntryId=kept, tokensBefore=1)


def messages(*names: str) -> list[dict]:
    return [line(name, None) for name in names]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ([], []),
        (messages("1", "2", "3"), ["1", "2", "3"]),
        ([*messages("1", "2", "3", "4"), compaction("5", "3"), *messages("6", "7")], ["[sum 5]", "3", "4", "6", "7"]),
        (
            [*messages("1", "2"), compaction("3", "2"), *messages("4", "5"), compaction("6", "5"), *messages("7")],
            ["[sum 6]", "5", "7"],
        ),
        (
            [*messages("1", "2"), compaction("3", "2"), *messages("4"), compaction("5", "1"), *messages("6")],
            ["[sum 5]", "1", "2", "4", "6"],
        ),
        ([*messages("1", "2"), compaction("3", "not there"), *messages("4")], ["[sum 3]", "4"]),
        ([*messages("1"), compaction("2", "later"), *messages("later")], ["[sum 2]", "later"]),
        ([*messages("1"), line("x", None, "custom", data={}), *messages("2")], ["1", "2"]),
        ([*messages("1"), line("x", None, "from the future", text="?"), *messages("2")], ["1", "2"]),
        ([*messages("1"), line("b", None, "branch_summary", fromId="q", summary="tried")], ["1", "[tried]"]),
        ([*messages("1"), line("b", None, "branch_summary", fromId="q", summary="")], ["1"]),
        (
            [line("c", None, "custom_message", customType="x", content="hello", display=False), *messages("1")],
            ["hello", "1"],
        ),
        (
            [line("k", None, "custom", data={}), compaction("2", "k"), *messages("3")],
            ["[sum 2]", "3"],
        ),
    ],
)
def test_model_sees_the_last_summary_what_it_kept_and_what_followed(path, expected):
    assert seen(path) == expected


def test_last_model_and_thinking_level_on_the_path_count():
    branch = BranchContext()
    assert branch.context().thinking_level == "off"
    assert branch.context().model is None
    branch.add("1", "model_change", raw(line("1", None, "model_change", provider="p", modelId="m1")))
    branch.add("2", "thinking_level_change", raw(line("2", None, "thinking_level_change", thinkingLevel="high")))
    assert branch.context().model == ("p", "m1")
    answer = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "provider": "q", "model": "m2"}
    branch.add("3", "message", raw(line("3", "2", message=answer)))
    assert branch.context().model == ("q", "m2")
    assert branch.context().thinking_level == "high"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "plain"}, UserMessage(content="plain")),
        (
            {"role": "custom", "content": "hook", "timestamp": 3},
            UserMessage(content=[TextBlock(text="hook")], timestamp=3),
        ),
        (
            {"role": "hookMessage", "content": [{"type": "text", "text": "h"}]},
            UserMessage(content=[TextBlock(text="h")]),
        ),
        ({"role": "bashExecution", "command": "ls", "output": "", "excludeFromContext": True}, None),
        ({"role": "martian", "content": "x"}, None),
        ({"role": "user", "content": 5}, None),
        ("not an object", None),
        (None, None),
    ],
)
def test_messages_of_other_writers_are_read_or_left_out(message, expected):
    assert message_of("message", raw(line("a", None, message=message))) == expected


def test_shell_run_by_the_user_reads_as_user_text():
    run = {"role": "bashExecution", "command": "false", "output": "oh", "exitCode": 1, "truncated": True}
    message = message_of("message", raw(line("a", None, message=run)))
    assert isinstance(message, UserMessage)
    text = message.content[0].text
    assert "`false`" in text and "oh" in text and "exit code 1" in text


def test_leftovers_of_streaming_are_ignored():
    block = {"type": "toolCall", "id": "c", "name": "n", "arguments": {}, "partialJson": '{"a'}
    answer = {"role": "assistant", "content": [block], "stopReason": "aborted", "index": 4}
    message = message_of("message", raw(line("a", None, message=answer)))
    assert isinstance(message, AssistantMessage)
    assert message.tool_calls[0].arguments == {}


OURS = {"provider": "openclaw", "model": "gateway-injected"}


@pytest.mark.parametrize(
    ("own", "text", "fields", "notice"),
    [
        ("a", "⚙️ Usage footer: full.", {**OURS, "notice": True}, True),
        ("say-r1", "Thinking level set to low.", OURS, True),
        ("a", "🦞 OpenClaw 2026.2.9 (abc)\n…", OURS, True),
        ("a", "🧠 Context breakdown\n…", OURS, True),
        ("a", "⚙️ Compacted (12k → 3k)", OURS, True),
        ("a", "[Ops]\n\nThe disk is full.", OURS, False),
        ("a", "Thinking level set to low.", OURS, False),
        ("say-r1", "I said so.", {"provider": "mock", "model": "m"}, False),
        ("a", "🦞 OpenClaw is a Gateway.", {"provider": "mock", "model": "m"}, False),
        ("a", "sent by a tool", {"provider": "openclaw", "model": "delivery-mirror"}, False),
    ],
)
def test_the_model_sees_what_clients_say_in_the_chat_and_not_what_answers_a_command(
    own: str, text: str, fields: dict[str, Any], notice: bool
) -> None:
    message = AssistantMessage(content=[TextBlock(text=text)], **fields)
    assert is_notice(own, message) is notice
    branch = BranchContext()
    entry = line(own, None, message=json.loads(msgspec.json.encode(message)))
    branch.add("u", "message", raw(line("u", None)))
    branch.add(own, "message", raw(entry))
    assert len(branch.context().messages) == (1 if notice else 2)
    known = None if fields["provider"] == "openclaw" else (fields["provider"], fields["model"])
    assert branch.context().model == known, "what no model wrote is no change of the model"
