from __future__ import annotations

import pytest

from openclaw.cli.client import GatewayError
from openclaw.cli.turn_stream import Turn, message_text, recent, reply_texts, tool_line

from .fake_gateway import agent_event, agent_result, chat_event, deltas, res, spoken


def turn_of(*frames: dict) -> tuple[Turn, list[tuple[str, str]]]:
    turn, shown = Turn("r"), []
    for frame in frames:
        shown += turn.digest(frame)
    return turn, shown


def test_a_plain_turn_shows_its_deltas_and_keeps_the_session_key() -> None:
    turn, shown = turn_of(*spoken("Hel", "lo", key="agent:main:x")({"idempotencyKey": "r"}))
    assert shown == [("text", "Hel"), ("text", "lo")]
    assert (turn.session_key, turn.final_text, turn.state, turn.rest()) == ("agent:main:x", "Hello", "final", "")
    assert reply_texts(turn.payload) == ["Hello"]


def test_a_tool_call_ends_the_message_before_it() -> None:
    start = {"phase": "start", "name": "exec", "toolCallId": "c", "args": {"command": "echo hi"}}
    result = {
        "phase": "result",
        "name": "exec",
        "isError": False,
        "result": {"content": [{"type": "text", "text": "hi"}]},
    }
    turn, shown = turn_of(
        *deltas("r", "Let me see."),
        agent_event("r", "tool", start),
        agent_event("r", "tool", {"phase": "update", "name": "exec"}),
        agent_event("r", "tool", result),
        *deltas("r", "It says hi."),
        chat_event("r", "final", "It says hi."),
    )
    assert shown == [
        ("text", "Let me see."),
        ("break", ""),
        ("tool", "exec: echo hi"),
        ("result", "hi"),
        ("text", "It says hi."),
    ]
    assert turn.rest() == ""


def test_a_failed_tool_is_named() -> None:
    _, shown = turn_of(agent_event("r", "tool", {"phase": "result", "name": "read", "isError": True, "meta": "a.txt"}))
    assert shown == [("failed", "read: a.txt")]


def test_a_failed_tool_tells_its_error_in_words() -> None:
    said = '{"status": "error", "tool": "exec", "error": "ls: no such file"}'
    result = {"content": [{"type": "text", "text": said}]}
    data = {"phase": "result", "name": "exec", "isError": True, "meta": "ls", "result": result}
    assert turn_of(agent_event("r", "tool", data))[1] == [("failed", "exec: ls: no such file")]


def test_a_message_whose_beginning_was_missed_is_shown_from_its_beginning() -> None:
    turn = Turn("r")
    turn.attach_again()
    assert turn.digest(agent_event("r", "assistant", {"delta": "of words"})) == []
    data = {"text": "A lot of words", "delta": " of words"}
    assert turn.digest(agent_event("r", "assistant", data)) == [("text", "A lot of words")]
    data = {"text": "A lot of words.", "delta": "."}
    assert turn.digest(agent_event("r", "assistant", data)) == [("text", ".")]
    turn.digest(chat_event("r", "final", "A lot of words."))
    assert turn.rest() == ""


def test_words_of_a_run_that_begins_after_the_connection_came_back_are_shown_as_they_come() -> None:
    turn = Turn("r")
    turn.attach_again()
    turn.digest(agent_event("r", "lifecycle", {"phase": "start"}))
    assert turn.digest(agent_event("r", "assistant", {"delta": "At once"})) == [("text", "At once")]


def test_a_message_that_waits_goes_on_waiting_when_its_words_change() -> None:
    turn = Turn("r")
    turn.waiting = True
    assert turn.digest(agent_event("r", "queue", {"phase": "reworded"})) == [] and turn.waiting


def test_cumulative_text_that_starts_again_is_a_new_message() -> None:
    _, shown = turn_of(
        agent_event("r", "assistant", {"text": "One", "delta": "One"}),
        agent_event("r", "assistant", {"text": "One.", "delta": "."}),
        agent_event("r", "assistant", {"text": "Two", "delta": "Two"}),
    )
    assert shown == [("text", "One"), ("text", "."), ("break", ""), ("text", "Two")]


def test_events_of_other_runs_are_ignored() -> None:
    turn, shown = turn_of(*deltas("other", "x"), chat_event("other", "final", "x"))
    assert (shown, turn.state) == ([], "")


def test_a_refused_call_raises_and_a_failed_run_is_remembered() -> None:
    refusal = {"type": "res", "id": "1", "ok": False, "error": {"code": "INVALID_REQUEST", "message": "no"}}
    with pytest.raises(GatewayError, match="no"):
        turn_of(refusal)
    failed = {**refusal, "error": {"code": "UNAVAILABLE", "message": "model is down"}}
    turn, _ = turn_of(res({"runId": "r", "status": "accepted"}), failed)
    assert (turn.state, turn.error) == ("error", "model is down")


@pytest.mark.parametrize(
    ("streamed", "final", "rest"),
    [
        ("Hello", "Hello", ""),
        (" Hello \n", "Hello", ""),
        ("Hel", "Hello", "lo"),
        ("", "Hello", "Hello"),
        ("Hello", None, ""),
        ("Before. Hello", "Hello", ""),
        ("Something else", "Hello", None),
    ],
)
def test_what_is_missing_of_the_final_text(streamed: str, final: str | None, rest: str | None) -> None:
    turn = Turn("r")
    turn.streamed, turn.final_text = streamed, final
    assert turn.rest() == rest


@pytest.mark.parametrize(
    ("args", "meta", "line"),
    [
        ({"command": "echo hi"}, None, "t: echo hi"),
        ({"path": "a.txt", "limit": 3}, None, "t: a.txt"),
        ({"x": 1}, None, 't: {"x": 1}'),
        ({}, None, "t"),
        (None, "short", "t: short"),
        ({"command": "a\nb\x1b[2J"}, None, "t: a b[2J"),
    ],
)
def test_tool_lines_tell_what_is_done(args: object, meta: str | None, line: str) -> None:
    assert tool_line("t", args, meta) == line


def test_media_is_listed_after_the_text() -> None:
    payload = {"result": {"payloads": [{"text": "See", "mediaUrl": "file:///a.png"}, {"text": "", "mediaUrl": None}]}}
    assert reply_texts(payload) == ["See", "MEDIA:file:///a.png"]
    assert reply_texts(agent_result("r", "a", "b")["payload"]) == ["a", "b"]


def test_message_text_joins_text_blocks_only() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_text({"content": blocks}) == "a\n\nb"
    assert message_text({"content": "plain"}) == "plain"


def test_a_change_of_the_model_is_a_note_between_the_words() -> None:
    switched = {"phase": "fallback", "selectedModel": "a/m", "activeModel": "b/m", "text": "↪️ b/m answers."}
    turn, shown = turn_of(
        *deltas("r", "It is for"),
        agent_event("r", "lifecycle", switched),
        agent_event("r", "assistant", {"delta": "It is 42.", "text": "It is 42."}),
        chat_event("r", "final", "It is 42."),
    )
    assert shown == [("text", "It is for"), ("note", "↪️ b/m answers."), ("break", ""), ("text", "It is 42.")]
    assert (turn.error, turn.rest()) == (None, "")


def test_the_end_of_a_conversation_counts_what_was_said_and_leaves_repeated_failures_out() -> None:
    def said(role: str, text: str) -> dict:
        return {"role": role, "content": [{"type": "text", "text": text}]}

    failed = {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "busy"}
    call = {"role": "assistant", "content": [{"type": "toolCall", "name": "read", "arguments": {}}]}
    result = said("toolResult", "a file")
    talk = [said("user", "one"), call, result, said("assistant", "two"), said("user", "three"), failed, failed, failed]
    assert recent(talk, 2) == [said("user", "three"), failed]
    assert recent(talk, 4) == [*talk[:5], failed]
    assert recent(talk, 0) == []
