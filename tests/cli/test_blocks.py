from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.cli.blocks import BlockSplitter

FENCED = "Look:\n```python\nx = 1\n\ny = 2\n```\nDone.\n"
LIST = "- one\n\n- two\n  more of two\n\n  still two\n\nAfter the list.\n"
TABLE = "| a | b |\n| - | - |\n| 1 | 2 |\n\nAfter the table.\n"


def blocks_of(text: str, *cuts: int) -> list[str]:
    splitter, blocks, last = BlockSplitter(), [], 0
    for cut in [*sorted(cuts), len(text)]:
        blocks += splitter.feed(text[last:cut])
        last = max(last, cut)
    return [*blocks, splitter.finish()]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("One.\n\nTwo.\n", ["One.\n\n", "Two.\n"]),
        ("# Title\nText\n\n", ["# Title\n", "Text\n\n", ""]),
        (FENCED, ["Look:\n", "```python\nx = 1\n\ny = 2\n```\n", "Done.\n"]),
        (LIST, ["- one\n\n- two\n  more of two\n\n  still two\n\n", "After the list.\n"]),
        (TABLE, ["| a | b |\n| - | - |\n| 1 | 2 |\n\n", "After the table.\n"]),
        (
            "1. a\n   ```\n   code\n\n   more\n   ```\n2. b\n\nend\n",
            ["1. a\n   ```\n   code\n\n   more\n   ```\n2. b\n\n", "end\n"],
        ),
        ("- ```\n\n  x\n  ```\n- y\n\nz\n", ["- ```\n\n  x\n  ```\n- y\n\n", "z\n"]),
        ("````\n```\n\n```\n````\nx\n", ["````\n```\n\n```\n````\n", "x\n"]),
        ("~~~\na\n\n```\n~~~\n", ["~~~\na\n\n```\n~~~\n", ""]),
        ("`` `code` ``\nx\n\ny", ["`` `code` ``\nx\n\n", "y"]),
        ("\n\nfirst\n\n", ["\n\nfirst\n\n", ""]),
        ("no newline", ["no newline"]),
    ],
)
def test_a_block_is_shown_when_it_is_finished(text: str, blocks: list[str]) -> None:
    assert blocks_of(text) == blocks


def test_a_finished_paragraph_does_not_wait_for_the_next_one() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("Hello wor") == []
    assert splitter.pending == "Hello wor"
    assert splitter.feed("ld.\n\n") == ["Hello world.\n\n"]


def test_a_code_block_waits_for_its_end() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("```\na\n\nb\n\n") == []
    assert splitter.feed("```\n") == ["```\na\n\nb\n\n```\n"]


LINES = st.sampled_from(
    [
        "",
        "",
        "text",
        "# head",
        "- item",
        "  more",
        "1. one",
        "```",
        "```py",
        "~~~",
        "| a | b |",
        "| - | - |",
        "    code",
        "> q",
        "   ",
    ]
)
MARKDOWN = st.lists(LINES, max_size=25).map("\n".join)


@given(st.one_of(MARKDOWN, st.text()), st.lists(st.integers(0, 200), max_size=8))
def test_blocks_joined_are_the_text_however_it_arrives(text: str, cuts: list[int]) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    assert "".join(blocks_of(text, *cuts)) == text
    assert blocks_of(text, *cuts) == blocks_of(text)


@given(st.lists(st.sampled_from(["para\n\n", FENCED, "# h\n", "```\n- x\n\n# y\n```\n"]), min_size=1, max_size=8))
def test_a_fence_is_never_cut_in_two(parts: list[str]) -> None:
    for block in blocks_of("".join(parts)):
        assert block.count("```") % 2 == 0


@given(st.lists(st.sampled_from(["- a\n", "- b\n\n", "  more\n", "- c\n\n  deep\n\n"]), min_size=1, max_size=8))
def test_a_list_is_never_cut_in_two(items: list[str]) -> None:
    text = "- first\n" + "".join(items)
    assert blocks_of(text + "\nAfter.\n")[0] == text + "\n"
