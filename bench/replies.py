"""What it costs to cut a long reply into parts and to render them."""

from __future__ import annotations

import time

import msgspec
from markdown_it import MarkdownIt

from bench.row import Row, summary
from openclaw.config.schema import Config
from openclaw.outbound.channel_formats import FORMATS, Format, render
from openclaw.outbound.chunking import Limits, limits_for

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
    "list markers": "- " * 50 + "a\n", "one line": "word ", "one word": "w", "entities": "&amp;", "tags": "<b>x</b> ",
    "growing ticks": "".join("`" * length + " " for length in range(400)),
    "emoji": "👩\u200d👩\u200d👧", "combining": "e\u0301",
    "closing marks": "_a " * 300 + "a* " * 300, "open labels": "[a\n", "short lines": "*a\n", "paragraphs": "a\n\n",
    "tiny fences": "~~~\na\n~~~\n", "tiny tables": "|a|b|\n|-|-|\n",
    "wide table": "|" + "a|" * 80 + "\n|" + "-|" * 80 + "\n",
    "wide cell": "| h |\n| - |\n| " + "w" * 5000 + " |\n" + "|a|\n" * 500 + "\n",
}
# fmt: on
"""Texts of nothing but marks, which a hostile page may put into a reply."""

PACKED = {
    "small links": "see [a](http://x.org/1), [b](http://x.org/2) and [c](http://x.org/3) for more\n",
    "nested emphasis": "**bold *it ~~strike~~ al* ic** and *more **nested** words*\n\n",
    "short items": "- some item\n- another one here\n",
    "nested items": "- some item\n  - another one here\n    - and one more of them\n",
    "tasks": "- [ ] something to do\n- [x] something done\n",
    "inline code": "use `a` or `b` and `c d` here\n\n",
    "addresses": "see https://x.org/some_page and https://x.org/other\n\n",
    "pictures": "![a picture](https://x.org/some.png) and text\n\n",
    "quotes": "> a quoted line of text\n> and another one\n\n",
    "headings": "## Heading\n\nA line of text.\n\n",
    "small fences": "```py\nprint(1)\nprint(2)\n```\n\nSome text.\n\n",
    "long lines": "word *it* and some more words " * 400 + "\n\n",
    "tables": "| name | value | note |\n| --- | --- | --- |\n"
    + "| a | 1 | some *words* |\n" * 20
    + "\ntext between\n\n",
}
"""Texts that people read, of one kind of markup and hardly anything else."""
PACKED_SIZE = 200_000
GROWTH_SIZE = 100_000
PACKED_BAR_S, DENSE_BAR_S = 2.5, 7.0
"""markdown-it alone takes up to 2.3 s for packed texts, and 350 bytes a part make 2,900 IRC messages of 2 ms each. Long
replies are cut in a thread, so these texts delay no other session."""
FELT = 0.02
"""Shorter times say nothing about growth."""


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
        rows.append(Row(figure="replies", what=what, unit="s", bar=DENSE_BAR_S, **summary([taken[worst]])))
    return [*rows, *(packed(shape) for shape in PACKED), growth()]


def growth() -> Row:
    """How many times longer twice the text takes, for the shape and format where that is most."""
    ratios: dict[str, float] = {}
    for shape, text in {**DENSE, **PACKED}.items():
        for format in ("telegram", "irc"):
            once = seconds(text, format, GROWTH_SIZE)
            if once >= FELT:
                ratios[f"{shape!r}, {format}"] = seconds(text, format, 2 * GROWTH_SIZE) / once
    worst = max(ratios, key=lambda name: ratios[name])
    what = f"time for twice the text, most of {len(ratios)} shapes and formats ({worst})"
    return Row(figure="replies", what=what, unit="times", bar=3.0, kind="size", **summary([ratios[worst]]))


def packed(shape: str) -> Row:
    """Scaled up to 1 MB, beside the time that the library takes to read the same parts once with its own rules."""
    scale = SIZE / PACKED_SIZE
    taken = {format: scale * seconds(PACKED[shape], format, PACKED_SIZE) for format in FORMATS}
    worst = max(FORMATS, key=lambda format: taken[format])
    return Row(
        figure="replies",
        what=f"the same of nothing but {shape}, slowest format ({worst}), CPU",
        unit="s",
        bar=PACKED_BAR_S,
        reference="markdown-it alone, once",
        reference_value=scale * parser_seconds(PACKED[shape], worst),
        measured=taken[worst],
        low=min(taken[format] for format in FORMATS if format != "discord"),
    )


def limits(format: Format) -> Limits:
    return msgspec.structs.replace(limits_for(Config(), format), format=format)


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
