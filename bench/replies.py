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


# fmt: off
DENSE = {
    "[": "[", "![": "![", "*": "*", "_": "_", "a*": "a*", "`": "`", "`a": "`a", "<": "<", "|": "|", "&": "&",
    "nested quotes": ">" * 60 + " a\n", "deep lists": "".join(f"{'  ' * depth}- a\n" for depth in range(60)),
    "list markers": "- " * 50 + "a\n", "one line": "word ",
}
# fmt: on
"""Texts of nothing but marks, which a hostile page may put into a reply."""


async def measure() -> list[Row]:
    rows: list[Row] = []
    formats: tuple[Format, ...] = ("telegram", "signal")
    for format in formats:
        what = f"cutting and rendering 1 MB of Markdown for {format}, CPU"
        figures = [seconds(REPLY, format) for _ in range(RUNS)]
        rows.append(Row(figure="replies", what=what, unit="s", bar=1.0, **summary(figures)))
        taken = {shape: seconds(text, format) for shape, text in DENSE.items()}
        worst = max(taken, key=lambda shape: taken[shape])
        what = f"the same of nothing but marks, worst of {len(DENSE)} ({worst!r}), CPU"
        rows.append(Row(figure="replies", what=what, unit="s", bar=1.0, **summary([taken[worst]])))
    return rows


def seconds(piece: str, format: Format) -> float:
    text = piece * (SIZE // len(piece))
    before = time.process_time()
    for part in Limits(4000, format=format).cut(text):
        render(part, format)
    return time.process_time() - before
