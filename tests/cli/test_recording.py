"""The recorded session of the docs shows the chat as it is now."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from scripts.record import DOCS, cast, record, svg, transcript

from tests.support.tmux import need_tmux


def said(text: str) -> list[str]:
    """The lines without the times in them."""
    plain = re.sub(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", "…", text)
    plain = re.sub(r"\d+(\.\d+)? (ms|s|min)\b( \d+ s\b)?", "1 s", plain)
    return [line.strip() for line in plain.splitlines() if line.strip()]


async def test_the_recording_is_what_the_chat_shows_now() -> None:
    need_tmux()
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="rec") as folder:
        now = await record(Path(folder), hurried=True)
    kept = transcript((DOCS / "terminal.md").read_text("utf-8"))
    assert said(now.text) == said(kept), "run `make pictures`"

    header, *events = cast(now.frames).splitlines()
    assert json.loads(header)["version"] == 2
    times = [json.loads(event)[0] for event in events]
    assert times == sorted(times)
    ElementTree.fromstring(svg(now.frames))


def test_the_kept_recording_can_be_played() -> None:
    header, *events = (DOCS / "terminal.cast").read_text("utf-8").splitlines()
    assert json.loads(header)["width"] == 80
    last = json.loads(events[-1])[2]
    assert "/why" in last and "Answered on" in last
    assert "film" in (DOCS / "terminal.svg").read_text("utf-8")
