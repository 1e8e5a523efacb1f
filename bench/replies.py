"""What it costs to cut a long reply into parts and to render them."""

from __future__ import annotations

import time

from bench.row import Row, summary
from openclaw.outbound.chunking import Limits
from openclaw.outbound.rendering import Format, render

SIZE = 1_000_000
RUNS = 3
REPLY = (
    "Here is a **bold** statement with `code` and a [link](https://example.org/a?x=1) followed by plain words, commas, "
    "and more plain words that go on for a while so that it looks like prose.\n\n"
) * 3 + (
    "- item one with some words\n- item two with *emphasis*\n  - nested\n\n"
    "```python\ndef f(x):\n    return x + 1\n\nprint(f(2))\n```\n\n"
)


async def measure() -> list[Row]:
    rows: list[Row] = []
    formats: tuple[Format, ...] = ("telegram", "signal")
    for format in formats:
        what = f"cutting and rendering 1 MB of Markdown for {format}, CPU"
        figures = [seconds(format) for _ in range(RUNS)]
        rows.append(Row(figure="replies", what=what, unit="s", bar=1.0, **summary(figures)))
    return rows


def seconds(format: Format) -> float:
    text = REPLY * (SIZE // len(REPLY))
    before = time.process_time()
    for part in Limits(4000, format=format).cut(text):
        render(part, format)
    return time.process_time() - before
