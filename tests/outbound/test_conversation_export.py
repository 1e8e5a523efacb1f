"""A conversation as Markdown and HTML: everything readable is there, and nothing in it is alive."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from openclaw.outbound.conversation_export import LONGEST_OUTPUT, ending, heading, render

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "How much **room**?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "name": "exec", "input": {"command": "df"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a ``` fence"}]}]},
    {"role": "assistant", "content": [{"type": "text", "text": "| a |\n|---|\n| 1 |"}]},
]


def test_markdown_keeps_the_text_and_fences_what_tools_said() -> None:
    text = heading("markdown", "The\nroom") + "".join(render("markdown", TALK)) + ending("markdown")
    assert text.startswith("# The room\n")
    assert "How much **room**?" in text and '"command": "df"' in text
    assert "````\na ``` fence\n````" in text


def test_html_is_one_document_with_rendered_text() -> None:
    text = heading("html", "<b>") + "".join(render("html", TALK)) + ending("html")
    assert text.startswith("<!doctype html>") and text.rstrip().endswith("</html>")
    assert "<title>&lt;b&gt;</title>" in text and "<strong>room</strong>" in text and "<td>1</td>" in text


def test_long_output_is_cut() -> None:
    [piece] = render("html", [{"role": "user", "content": [{"type": "tool_result", "content": "x" * 10_000}]}])
    assert len(piece) < LONGEST_OUTPUT + 500


@given(st.text(max_size=200))
def test_no_text_becomes_a_tag_or_a_script_address(text: str) -> None:
    hostile = f"<script>{text}</script> [go](javascript:{text}) ![x](https://tracker.example/{text}) <img onerror=1>"
    [piece] = render("html", [{"role": "assistant", "content": hostile}])
    assert "<script" not in piece and "<img" not in piece and 'href="javascript' not in piece
