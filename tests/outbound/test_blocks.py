"""Where the blocks of a streamed reply end, and which are sent together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openclaw.config.load import parse_config
from openclaw.outbound.blocks import (
    BlockChunker,
    BlockRef,
    BlockSettings,
    Coalescer,
    ReplyBlock,
    Rest,
    block_settings,
    digest_of,
    pause_range,
    rest_of,
)
from openclaw.outbound.chunking import find_fences

PARAGRAPH = "word " * 168


def texts(blocks: list[ReplyBlock]) -> list[str]:
    return [block.text for block in blocks]


@pytest.mark.parametrize(
    ("size", "preference", "text", "streamed", "flushed"),
    [
        ((10, 20), "paragraph", "hello", [], ["hello"]),
        ((5, 40), "paragraph", "First para.\n\nSecond para.", ["First para."], ["Second para."]),
        ((5, 20), "newline", "abcdefghij klm", [], ["abcdefghij klm"]),
        ((5, 20), "newline", "abcdefg\nhij", ["abcdefg"], ["hij"]),
        ((5, 60), "sentence", "One two. Three four. Five", ["One two. Three four."], ["Five"]),
        ((5, 60), "paragraph", "alpha beta gamma", ["alpha beta"], ["gamma"]),
        ((5, 10), "paragraph", "abcdefghijklmnopqrstuvwxyz", ["abcdefghij", "klmnopqrst"], ["uvwxyz"]),
        (
            (5, 60),
            "paragraph",
            "Intro\n```js\na()\n\nb()\n```\nafter text",
            ["Intro\n```js\na()\n\nb()\n```"],
            ["after text"],
        ),
        (
            (5, 80),
            "paragraph",
            "````md\n```js\nx\n```\n````\nend.",
            ["````md\n```js\nx\n```\n````"],
            ["end."],
        ),
        ((2, 10), "paragraph", "\n\n\n   \n", [], []),
        ((6, 50), "paragraph", "abcdef\n\nxyz", ["abcdef"], ["xyz"]),
        ((3, 50), "paragraph", "\n\nabc def\n\nghi", ["\n\nabc def"], ["ghi"]),
        ((20, 5), "paragraph", "abcdefghij klmnopqrst uvw", ["abcdefghij klmnopqrs"], ["t uvw"]),
        ((800, 1200), "paragraph", "\n\n".join([PARAGRAPH[:840]] * 3), [PARAGRAPH.strip()] * 2, [PARAGRAPH.strip()]),
        # Code is cut at a line end and closed within the limit.
        (
            (10, 30),
            "paragraph",
            "```js\nconst a=1;\nconst b=2;\nconst c=3;\n```\n",
            ["```js\nconst a=1;\n```", "```js\nconst b=2;\n```"],
            ["```js\nconst c=3;\n```"],
        ),
    ],
)
def test_a_block_ends_at_the_best_place_between_its_limits(
    size: tuple[int, int], preference: Any, text: str, streamed: list[str], flushed: list[str]
) -> None:
    chunker = BlockChunker(*size, preference)
    chunker.start()
    chunker.feed(text)
    assert texts(chunker.drain(force=False)) == streamed
    assert texts(chunker.drain(force=True)) == flushed


@pytest.mark.parametrize(
    ("size", "text", "blocks"),
    [
        (
            (5, 20),
            "Para one here.\n\nPara two here.\n\nPara three",
            ["Para one here.", "Para two here.", "Para three"],
        ),
        ((5, 12), "aaa bbb. ccc ddd. ee. fff ggg. h", ["aaa bbb.", "ccc ddd. ee.", "fff ggg.", "h"]),
        ((800, 1200), 1300 * "x", [1200 * "x", 100 * "x"]),
        (
            (5, 25),
            "```js\nlet x = 1;\nlet y = 2;\n```\nDone now ok",
            ["```js\nlet x = 1;\n```", "```js\nlet y = 2;\n```", "Done now ok"],
        ),
    ],
)
def test_at_the_end_everything_is_in_a_block(size: tuple[int, int], text: str, blocks: list[str]) -> None:
    chunker = BlockChunker(*size)
    chunker.start()
    chunker.feed(text)
    assert texts(chunker.drain(force=True)) == blocks


def test_by_paragraph_a_short_paragraph_is_a_block_too() -> None:
    chunker = BlockChunker(800, 1200, by_paragraph=True)
    chunker.start()
    chunker.feed("Hi.\n\nSecond ")
    assert texts(chunker.drain(force=False)) == ["Hi."]
    chunker.feed("para.\n\n```\ncode\n\nmore\n```\n\nTail")
    assert texts(chunker.drain(force=False)) == ["Second para.", "```\ncode\n\nmore\n```"]
    assert texts(chunker.drain(force=True)) == ["Tail"]
    long = BlockChunker(5, 12, by_paragraph=True)
    long.start()
    long.feed("abcdefgh ijklmnop qrst\n\nz")
    assert texts(long.drain(force=False)) == ["abcdefgh", "ijklmnop", "qrst"]
    assert texts(long.drain(force=True)) == ["z"]


def test_one_character_at_a_time_makes_the_same_kind_of_blocks() -> None:
    chunker = BlockChunker(10, 16)
    chunker.start()
    blocks: list[ReplyBlock] = []
    for char in "Hello there world, how are you?":
        chunker.feed(char)
        blocks += chunker.drain(force=False)
    assert texts(blocks) == ["Hello there", "world, how"]
    assert texts(chunker.drain(force=True)) == ["are you?"]


PIECES = ["word ", "a", ".", "! ", "\n", "\n\n", "```py\n", "\n```\n", "x = 1\n", "~~~~\n", "é😀", "  "]


@given(st.lists(st.sampled_from(PIECES), max_size=60), st.integers(2, 20), st.integers(25, 60), st.integers(1, 9))
@example(["word ", "word ", "```py\n", "```py\n", "word "], 16, 25, 1)
@example(["word ", "word ", "```py\n", "! ", "~~~~\n"], 16, 25, 1)
@settings(derandomize=True)
def test_however_it_arrives_nothing_is_lost_and_every_place_is_right(
    pieces: list[str], least: int, most: int, slice_size: int
) -> None:
    text = "".join(pieces)
    chunker = BlockChunker(least, most)
    chunker.start()
    blocks: list[ReplyBlock] = []
    for place in range(0, len(text), slice_size):
        chunker.feed(text[place : place + slice_size])
        blocks += chunker.drain(force=False)
    blocks += chunker.drain(force=True)
    fence_lines = ("```", "~~~", "````")
    marks = str.maketrans("", "", "`~\\ ")  # A line of marks inside code may be cut in two.
    lines = [line for block in blocks for line in block.text.split("\n")]
    words = [line.translate(marks) for line in lines if not line.lstrip().startswith(fence_lines)]
    source = [line.translate(marks) for line in text.split("\n") if not line.lstrip().startswith(fence_lines)]
    assert "".join(words) == "".join(source)
    done = 0
    for block in blocks:
        assert done < block.end <= len(text)
        done = block.end
        assert len(block.text) <= max(most, least)
        if block is not blocks[-1]:
            assert all(fence.close < fence.end for fence in find_fences(block.text))
    assert not text[done:].strip()


@pytest.mark.parametrize("text", ["word word word! ~~~~\n", "word word a   ```py\nx"])
def test_what_stood_inside_a_line_does_not_become_a_fence_of_the_next_block(text: str) -> None:
    chunker = BlockChunker(11, 25)
    chunker.start()
    blocks: list[ReplyBlock] = []
    for char in text:
        chunker.feed(char)
        blocks += chunker.drain(force=False)
    blocks += chunker.drain(force=True)
    assert not any(find_fences(block.text) for block in blocks)
    assert "".join("".join(texts(blocks)).replace("\\", "").split()) == "".join(text.split())


def test_a_line_that_may_become_an_inner_fence_does_not_close_the_code() -> None:
    chunker = BlockChunker(8, 28)
    chunker.start()
    blocks: list[ReplyBlock] = []
    for piece in ("```py\nword x = 1\n", "y = 2\n\n\n```", "py\nz\n```\n"):
        chunker.feed(piece)
        blocks += chunker.drain(force=False)
    blocks += chunker.drain(force=True)
    assert texts(blocks) == ["```py\nword x = 1\ny = 2\n\n\n```", "```py\n```py\nz\n```"]


def coalescer(least: int = 10, most: int = 30, joiner: str = "\n\n", **more: Any) -> Coalescer:
    return Coalescer(least, most, joiner, **more)


def add(joined: Coalescer, *words: str) -> list[str]:
    return [sent.text for place, word in enumerate(words) for sent in joined.add(ReplyBlock(word, place + 1))]


def test_small_blocks_wait_for_more_and_leave_together() -> None:
    short = coalescer()
    assert add(short, "abc", "def") == []
    assert texts(short.paused()) == []
    assert texts(short.flush()) == ["abc\n\ndef"]
    enough = coalescer()
    assert add(enough, "abcdef", "ghijkl") == []
    assert texts(enough.paused()) == ["abcdef\n\nghijkl"]
    assert not enough.waits


def test_blocks_that_do_not_fit_together_leave_one_after_the_other() -> None:
    tight = coalescer(most=12, joiner=" ")
    assert add(tight, "abcdef", "ghijklm") == ["abcdef"]
    assert texts(tight.flush()) == ["ghijklm"]
    assert add(coalescer(most=12), "abcdef", "a" * 14) == ["abcdef", "a" * 14]
    assert add(coalescer(most=10, joiner=" "), "abcd", "efghi") == ["abcd efghi"]
    assert add(coalescer(each=True), "a", "b") == ["a", "b"]
    assert add(coalescer(), "", " ") == []


def test_a_joined_message_knows_how_far_it_goes() -> None:
    joined = coalescer()
    joined.add(ReplyBlock("abc", 3))
    joined.add(ReplyBlock("def", 9, "```\n"))
    (sent,) = joined.flush()
    assert (sent.end, sent.head) == (9, "```\n")


def test_words_that_came_in_two_blocks_stand_together_again() -> None:
    chunker, joined = BlockChunker(5, 20), coalescer(most=100)
    chunker.start()
    said: list[ReplyBlock] = []
    for piece in ("One two three ", "four five six.\n\nSeven", " eight\nnine"):
        chunker.feed(piece)
        for block in chunker.drain(force=False):
            said += joined.add(block)
    for block in chunker.drain(force=True):
        said += joined.add(block)
    assert texts([*said, *joined.flush()]) == ["One two three four five six.\n\nSeven eight\nnine"]


def ref(text: str, answer: int = 0, head: str = "", files: Sequence[str] = ()) -> BlockRef:
    digest = digest_of(text, files)
    return BlockRef(answer=answer, end=len(text), digest=digest, head=head, files=len(files))


def test_what_was_sent_in_blocks_is_not_sent_again() -> None:
    refs = [ref("One."), ref("One.\n\nTwo."), ref("Same", 1), ref("Same", 2)]
    assert rest_of("One.\n\nTwo.\n\nThree.", [], refs) == Rest("\n\nThree.")
    assert rest_of("Same", [], refs) == Rest("")
    assert rest_of("Same", [], refs) == Rest("")
    assert rest_of("Same", [], refs) == Rest("Same")
    assert rest_of("Another answer", [], [ref("Anothes")]) == Rest("Another answer")
    assert rest_of("```py\na\nb\n```", [], [ref("```py\na\n", head="```py\n")]) == Rest("```py\nb\n```")


def test_files_that_were_sent_with_blocks_are_not_sent_again() -> None:
    files = ["./a.png", "./b.png"]
    assert rest_of("One.\nTwo.", files, [ref("One."), ref("One.", files=files[:1])]) == Rest("\nTwo.", 1)
    assert rest_of("One.", files, [ref("One.", files=files)]) == Rest("", 2)
    # A file alone, before any word, belongs to the answer that names this file first.
    assert rest_of("One.", files, [ref("", files=["./a.png"])]) == Rest("One.", 1)
    assert rest_of("One.", files[1:], [ref("", files=["./a.png"])]) == Rest("One.")


def config(**settings: Any) -> Any:
    loaded = parse_config("openclaw.json", msgspec.json.encode(settings).decode(), {})
    assert loaded.valid, loaded.issues
    return loaded.config


ON = {"agents": {"defaults": {"blockStreamingDefault": "on"}}}


@pytest.mark.parametrize(
    ("channel", "section", "defaults", "streams"),
    [
        ("telegram", {}, {}, False),
        ("telegram", {}, {"blockStreamingDefault": "on"}, True),
        ("telegram", {"blockStreaming": False}, {"blockStreamingDefault": "on"}, False),
        ("telegram", {"blockStreaming": True}, {}, True),
        ("signal", {}, {"blockStreamingDefault": "on"}, False),
        ("signal", {"blockStreaming": True}, {}, True),
        ("signal", {"blockStreaming": False, "accounts": {"a": {"blockStreaming": True}}}, {}, True),
    ],
)
def test_channels_other_than_telegram_stream_only_when_told_so(
    channel: str, section: dict[str, Any], defaults: dict[str, Any], streams: bool
) -> None:
    found = config(channels={channel: section}, agents={"defaults": defaults})
    assert (block_settings(found, channel, "a") is not None) is streams


def test_the_sizes_come_from_the_account_then_the_defaults_then_the_channel() -> None:
    signal = {"blockStreaming": True, "textChunkLimit": 1000}
    found = block_settings(config(channels={"signal": signal}), "signal", None)
    assert found == BlockSettings(min_chars=800, max_chars=1000, join_min=1000, join_max=1000)
    defaults = {
        "blockStreamingBreak": "message_end",
        "blockStreamingChunk": {"minChars": 50, "maxChars": 90, "breakPreference": "sentence"},
        "blockStreamingCoalesce": {"minChars": 60, "idleMs": 5},
    }
    signal = {"blockStreaming": True, "chunkMode": "newline", "blockStreamingCoalesce": {"maxChars": 100, "idleMs": 0}}
    found = block_settings(config(channels={"signal": signal}, agents={"defaults": defaults}), "signal", None)
    assert found == BlockSettings(
        at_message_end=True,
        min_chars=50,
        max_chars=90,
        preference="sentence",
        by_paragraph=True,
        join_min=60,
        join_max=100,
        idle_ms=0,
    )


def test_an_agents_own_pauses_count_however_its_name_is_written() -> None:
    delay = {"mode": "custom", "minMs": 5, "maxMs": 9}
    agents = {
        "defaults": {"humanDelay": {"mode": "natural"}},
        "list": [{"id": "Work", "humanDelay": delay}, {"id": "b"}],
    }
    found = config(agents=agents)
    assert [pause_range(found, agent) for agent in ("work", "b")] == [(5, 9), (800, 2500)]


def test_a_longest_pause_that_is_too_short_counts_as_the_shortest() -> None:
    found = config(agents={"defaults": {"humanDelay": {"mode": "custom", "minMs": 10, "maxMs": 5}}})
    assert pause_range(found, "main") == (10, 10)
