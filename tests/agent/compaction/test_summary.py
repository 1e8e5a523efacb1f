"""A conversation as a summariser reads it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openclaw.agent.compaction.summary import FileOps, conversation, excerpts, pieces, without_file_lists
from openclaw.agent.window.tokens import text_tokens
from openclaw.messages import ImageBlock, Message, TextBlock, ThinkingBlock, ToolResultMessage, UserMessage
from tests.agent.scripted import call, says


def user(text: str) -> UserMessage:
    return UserMessage(content=[TextBlock(text=text), ImageBlock(data="aGk=", mime_type="image/png")])


def result(text: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id="1", tool_name="exec", content=[TextBlock(text=text)])


def test_every_voice_has_its_label_and_pictures_are_left_out() -> None:
    thinking = says("I look.", call("1", "exec", command="ls", n=1), call("2", "read", path="a"))
    thinking.content.insert(0, ThinkingBlock(thinking="hm"))
    assert conversation([user("What is here?"), thinking, result("a\nb")]) == (
        "[User]: What is here?\n\n[Assistant thinking]: hm\n\n[Assistant]: I look.\n\n"
        '[Assistant tool calls]: exec(command="ls", n=1); read(path="a")\n\n[Tool result]: a\nb'
    )


def test_a_tool_result_is_quoted_with_at_most_two_thousand_characters() -> None:
    text = conversation([result("b" * 50_000)])
    assert 2000 < len(text) < 2200
    assert "48000 characters left out" in text


@given(st.lists(st.integers(0, 5000), max_size=40), st.integers(100, 2000), st.integers(1, 3))
def test_any_conversation_is_told_in_the_pieces_that_were_asked_for(sizes: list[int], room: int, most: int) -> None:
    messages: list[Message] = []
    for number, size in enumerate(sizes):
        messages += [user(f"q{number} " + "x" * size), result("y" * size), says("z" * size)]
    texts = pieces(messages, room, most)
    assert len(texts) <= most
    assert all(text_tokens(text) <= room + 30 for text in texts)


def test_the_digest_tells_the_newest_words_and_says_what_is_missing() -> None:
    text = excerpts([*(user(f"word {n}") for n in range(100)), result("output"), says("last")], 300)
    assert text.endswith("- Assistant: last")
    assert "output" not in text
    assert "only in the transcript" in text
    assert len(text) < 400


def test_file_lists_leave_a_summary_as_they_came() -> None:
    files = FileOps(read={"a", "b", "c"}, modified={"c", "d"})
    assert files.lists() == (["a", "b"], ["c", "d"])
    assert without_file_lists("text" + files.block()) == "text"
