"""A conversation as a document that people keep: Markdown, or one HTML file without scripts."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from openclaw.clock import iso_utc

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

LONGEST_OUTPUT = 4_000
"""The characters of a tool's output that a document shows."""
_NAMES = {"user": "You", "assistant": "Agent"}
_STYLE = (
    "body{font:16px/1.6 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1b1c1a}"
    "article{margin:0 0 1.6rem}article.user{background:#eef0ec;border-radius:12px;padding:.6rem 1rem}"
    "h2{font-size:.8rem;color:#5d605a;margin:0 0 .3rem}pre{background:#f2f2ef;padding:.7rem;overflow:auto;"
    "border-radius:8px;white-space:pre-wrap}table{border-collapse:collapse}"
    "td,th{border:1px solid #ddd;padding:.3rem .6rem}"
    "details{color:#5d605a;margin:.4rem 0}img{max-width:100%}@media print{details{display:none}}"
)


def heading(document: str, title: str) -> str:
    """Return the beginning of a document: ``markdown`` or ``html``."""
    if document == "markdown":
        return f"# {_one_line(title)}\n"
    name = html.escape(_one_line(title))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><title>{name}</title><style>{_STYLE}</style></head>\n<body><h1>{name}</h1>\n'
    )


def ending(document: str) -> str:
    return "</body></html>\n" if document == "html" else ""


def render(document: str, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a piece of the document for each message. ``messages`` are in the public shape."""
    one = _markdown_of if document == "markdown" else _html_of
    return [piece for message in messages if (piece := one(message))]


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from (cast("dict[str, Any]", block) for block in cast("list[Any]", content) if isinstance(block, dict))


def _name(message: Mapping[str, Any]) -> str:
    if any(block.get("type") == "tool_result" for block in _blocks(message)):
        return "Tool"
    name = _NAMES.get(str(message.get("role")), "Tool")
    at = message.get("timestamp")
    return f"{name} · {iso_utc(int(at))[:16].replace('T', ' ')}" if isinstance(at, int | float) and at else name


def _result(block: Mapping[str, Any]) -> str:
    content = block.get("content")
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    texts = [
        str(cast("dict[str, Any]", part).get("text") or "") if isinstance(part, dict) else str(part or "")
        for part in parts
    ]
    text = "\n".join(filter(None, texts))
    return text if len(text) <= LONGEST_OUTPUT else f"{text[:LONGEST_OUTPUT]}\n…"


def _markdown_of(message: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for block in _blocks(message):
        match block.get("type"):
            case "text" if str(block.get("text") or "").strip():
                parts.append(str(block["text"]).strip())
            case "tool_use":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False, indent=2)
                parts.append(f"**{block.get('name')}**\n\n{_fenced(arguments, 'json')}")
            case "tool_result" if result := _result(block):
                parts.append(_fenced(result, ""))
            case "image":
                parts.append("*(picture)*")
            case _:
                pass
    return f"\n## {_name(message)}\n\n" + "\n\n".join(parts) + "\n" if parts else ""


def _fenced(text: str, language: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _html_of(message: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for block in _blocks(message):
        match block.get("type"):
            case "text" if str(block.get("text") or "").strip():
                parts.append(_parser().render(str(block["text"])))
            case "tool_use":
                arguments = html.escape(json.dumps(block.get("input") or {}, ensure_ascii=False, indent=2))
                name = html.escape(str(block.get("name")))
                parts.append(f"<details><summary>{name}</summary><pre>{arguments}</pre></details>")
            case "tool_result" if result := _result(block):
                parts.append(f"<details><summary>Output</summary><pre>{html.escape(result)}</pre></details>")
            case "image":
                parts.append("<p><em>(picture)</em></p>")
            case _:
                pass
    if not parts:
        return ""
    role = "user" if message.get("role") == "user" else "agent"
    return f'<article class="{role}"><h2>{html.escape(_name(message))}</h2>{"".join(parts)}</article>\n'


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """The parser passes no HTML on, and links only to addresses that browsers open without running anything."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "Conversation"
