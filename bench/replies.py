"""What it costs to cut a long reply into parts and to render them."""

from __future__ import annotations

import time

from markdown_it import MarkdownIt

from bench.row import Row, summary
from openclaw.outbound.chunking import CHANNEL_LIMITS, DISCORD_LINES, Limits
from openclaw.outbound.rendering import FORMATS, Format, render

SIZE = 1_000_000
RUNS = 3
REPLY = (
    "Here is a **bold** statement with `code` and a [link](https://example.org/a?x=1) followed by plain words, commas, "
    "and more plain words that go on for a while so that it looks like prose.\n\n"
) * 3 + (
    "- item one with some words\n- item two with *emphasis*\n  - nested\n\n"
    "```python\ndef f(x):\n    return x + 1\n\nprint(f(2))\n```\n\n"
)


# fmt: off
DENSE = {
    "[": "[", "![": "![", "*": "*", "_": "_", "a*": "a*", "`": "`", "`a": "`a", "<": "<", "|": "|", "&": "&",
    "nested quotes": ">" * 60 + " a\n", "deep lists": "".join(f"{'  ' * depth}- a\n" for depth in range(60)),
    "list markers": "- " * 50 + "a\n", "one line": "word ",
}
# fmt: on
"""Texts of nothing but marks, which a hostile page may put into a reply."""

PACKED = {
    "small links": "see [a](http://x.org/1), [b](http://x.org/2) and [c](http://x.org/3) for more\n",
    "nested emphasis": "**bold *it ~~strike~~ al* ic** and *more **nested** words*\n\n",
    "short items": "- some item\n- another one here\n",
    "inline code": "use `a` or `b` and `c d` here\n\n",
    "tables": "| name | value | note |\n| --- | --- | --- |\n"
    + "| a | 1 | some *words* |\n" * 20
    + "\ntext between\n\n",
}
"""Texts that people read, of one kind of markup and hardly anything else."""
PACKED_SIZE = 200_000


async def measure() -> list[Row]:
    rows: list[Row] = []
    for format in FORMATS:
        what = f"cutting and rendering 1 MB of Markdown for {format}, CPU"
        figures = [seconds(REPLY, format) for _ in range(RUNS)]
        rows.append(Row(figure="replies", what=what, unit="s", bar=1.0, **summary(figures)))
    for format in ("telegram", "irc"):
        taken = {shape: seconds(text, format) for shape, text in DENSE.items()}
        worst = max(taken, key=lambda shape: taken[shape])
        what = f"the same of nothing but marks for {format}, worst of {len(DENSE)} ({worst!r}), CPU"
        rows.append(Row(figure="replies", what=what, unit="s", bar=1.0, **summary([taken[worst]])))
    return [*rows, *(packed(shape) for shape in PACKED)]


def packed(shape: str) -> Row:
    """Scaled up to 1 MB, beside the time that the library takes to read the same parts once with its own rules."""
    scale = SIZE / PACKED_SIZE
    taken = {format: scale * seconds(PACKED[shape], format, PACKED_SIZE) for format in FORMATS}
    worst = max(FORMATS, key=lambda format: taken[format])
    return Row(
        figure="replies",
        what=f"the same of nothing but {shape}, slowest format ({worst}), CPU",
        unit="s",
        bar=1.0,
        reference="markdown-it alone, once",
        reference_value=scale * parser_seconds(PACKED[shape], worst),
        measured=taken[worst],
        low=min(taken[format] for format in FORMATS if format != "discord"),
    )


def limits(format: Format) -> Limits:
    lines = DISCORD_LINES if format == "discord" else 0
    return Limits(CHANNEL_LIMITS.get(format, 4000), format=format, lines=lines)


def seconds(piece: str, format: Format, size: int = SIZE) -> float:
    text = piece * (size // len(piece))
    before = time.process_time()
    for part in limits(format).cut(text):
        render(part, format)
    return time.process_time() - before


def parser_seconds(piece: str, format: Format) -> float:
    parts = limits(format).cut(piece * (PACKED_SIZE // len(piece)))
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    before = time.process_time()
    for part in parts:
        parser.parse(part)
    return time.process_time() - before
