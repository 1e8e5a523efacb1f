"""Records a chat in a real terminal for the docs: ``python -m scripts.record``. ``make pictures`` runs it.

The chat runs in tmux against a real Gateway; the words of the model are scripted. Out come ``docs/terminal.cast`` (for
``asciinema play``), ``docs/terminal.svg`` (the same, moving, for web pages) and the text in ``docs/terminal.md``.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text
from tests.support.clock import until
from tests.support.gateway import TOKEN
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.tmux import Tmux

DOCS = Path(__file__).parent.parent / "docs"
COLUMNS, ROWS = 80, 30
LOOK_S = 0.12
"""How often the screen is looked at."""
LONGEST_PAUSE_S = 1.2
"""Longer pauses are shortened to this."""
END_S = 4
NOTES = {
    "garden.md": "# Garden\n\n- oak: planted 1998\n- walnut: water it in dry summers\n",
    "travel.md": "# Travel\n\n- the train at 9:12, not the one at 9:40\n",
}
GREETING = "I am your agent. I live on **your own machine**, and what we say stays there."
FOUND = "In `garden.md`:\n\n- the **oak**, planted in 1998\n- the **walnut**, to be watered in dry summers"
LONG = "Water it early in the morning, slowly, a good bucket for each step of its crown. Once a week is enough."
_THEME = TerminalTheme(
    (24, 26, 31),
    (220, 223, 228),
    [(40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194),
     (220, 223, 228)],
    [(110, 117, 130), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221),
     (86, 182, 194), (255, 255, 255)],
)  # fmt: skip
_CONSOLE = Console(color_system="truecolor", force_terminal=True, width=COLUMNS)
_SPACE = str.maketrans(" ", "\N{NO-BREAK SPACE}")


class Frame(NamedTuple):
    """What the screen showed from a moment on."""

    at: float
    lines: tuple[str, ...]
    """Its lines with the codes of their colours."""


class Recording(NamedTuple):
    frames: list[Frame]
    text: str
    """Everything that was said, as plain text."""


async def record(folder: Path, *, hurried: bool = False) -> Recording:
    """Plays the session. ``folder`` is empty, and its path short enough for a socket.

    ``hurried``: without the pauses that let a person read along, for who wants the text only.
    """
    home = folder / "home"
    (home / "notes").mkdir(parents=True)
    for name, text in NOTES.items():
        (home / "notes" / name).write_text(text)
    async with (
        ModelServer(any_key=True) as model,
        InProcessGateway(home / ".openclaw", _config(model)) as gateway,
        Tmux(folder, gateway.env, "chat", colours=True) as terminal,
    ):
        watch = _Watch(terminal)
        looking = asyncio.create_task(watch.look())
        try:
            await _Session(terminal, model, gateway, 0 if hurried else 1).play()
        finally:
            watch.ended = True
            await looking
        text = await terminal.screen(scrolled=True)
    return Recording(_shortened(watch.frames), _cleaned(text, home))


def _config(model: ModelServer) -> dict[str, Any]:
    provider = {
        "baseUrl": f"{model.base_url}/v1",
        "apiKey": "none",
        "api": "openai-completions",
        "models": [{"id": "qwen3", "contextWindow": 131072}],
    }
    return {
        "gateway": {"mode": "local", "auth": {"mode": "token", "token": TOKEN}},
        "agents": {"defaults": {"model": "mine/qwen3", "userTimezone": "UTC"}},
        "models": {"providers": {"mine": provider}},
        "messages": {"queue": {"mode": "followup", "debounceMs": 0}},
    }


class _Session:
    """What is said. ``pace`` stretches the pauses between words; 0 leaves them out."""

    def __init__(self, terminal: Tmux, model: ModelServer, gateway: InProcessGateway, pace: float) -> None:
        self._terminal = terminal
        self._model = model
        self._gateway = gateway
        self._pace = pace

    async def play(self) -> None:
        shows = self._terminal.shows
        await shows(idle=True)
        self._will_say(Reply(text=GREETING))
        await self._say("Hello! Who are you?")
        await shows("stays there", idle=True)

        search = Call("exec", {"command": "grep -rE 'oak|walnut' ~/notes"})
        self._will_say(Reply(text="I look.", calls=[search]), Reply(text=FOUND))
        await self._say("What do my notes say about trees?")
        await shows("in dry summers", idle=True)

        # The second message waits until the first is answered.
        held = asyncio.Event()
        self._will_say(Reply(text=LONG, hold=held, hold_after=6), Reply(text="At 9:12, says `travel.md`."))
        await self._say("How do I water the walnut?")
        await shows("early in the", "writing…")
        await self._say("And when is my train?")
        await shows("⋯ waits: And when is my train?")
        # The chat shows it a moment before the Gateway has it.
        await until(lambda: bool(self._gateway.gateway.runs.waiting("agent:main:main")))
        held.set()
        await shows("is enough.", "At 9:12", idle=True)

        await self._say("/why")
        await shows("Answered on", idle=True)

    def _will_say(self, *replies: Reply) -> None:
        self._model.queue(*(replace(reply, delay_ms=90 * self._pace) for reply in replies))

    async def _say(self, text: str) -> None:
        step = 3 if self._pace else len(text)
        for start in range(0, len(text), step):
            await self._terminal.type(text[start : start + step])
            await asyncio.sleep(LOOK_S * self._pace)
        await self._terminal.press("Enter")


class _Watch:
    """Looks at the screen again and again and keeps what is new."""

    def __init__(self, terminal: Tmux) -> None:
        self._terminal = terminal
        self._begun = time.monotonic()
        self.frames: list[Frame] = []
        self.ended = False

    async def look(self) -> None:
        while True:
            last_time = self.ended
            screen = (await self._terminal.screen(coloured=True)).rstrip("\n").split("\n")
            lines = tuple(line.rstrip() for line in screen)
            if any(line.strip() for line in lines) and (not self.frames or self.frames[-1].lines != lines):
                self.frames.append(Frame(time.monotonic() - self._begun, lines))
            if last_time:
                return
            await asyncio.sleep(LOOK_S)


def _shortened(frames: list[Frame]) -> list[Frame]:
    kept: list[Frame] = []
    now = 0.0
    for index, frame in enumerate(frames):
        if index:
            now += min(frame.at - frames[index - 1].at, LONGEST_PAUSE_S)
        kept.append(Frame(round(now, 2), frame.lines))
    return kept


def _cleaned(text: str, home: Path) -> str:
    lines = [line.rstrip().replace(str(home), "/home/you") for line in text.split("\n")]
    while lines and lines[-1].strip() in ("", "›"):
        lines.pop()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def cast(frames: list[Frame]) -> str:
    """The recording as asciinema reads it (version 2)."""
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "A chat in the terminal"}
    rows = [json.dumps(head)]
    for frame in frames:
        data = "\x1b[H\x1b[2J" + "\r\n".join(frame.lines)
        rows.append(json.dumps([frame.at, "o", data], ensure_ascii=False))
    return "\n".join(rows) + "\n"


LETTER_W, LINE_H, EDGE = 8.4, 18, 14


def svg(frames: list[Frame]) -> str:
    """The recording as a moving picture. Frames stand below each other, and one of them is in view at a time."""
    rows = max(row for frame in frames for row, line in enumerate(frame.lines, 1) if line.strip())
    width, height = COLUMNS * LETTER_W + 2 * EDGE, rows * LINE_H + 2 * EDGE
    length = frames[-1].at + END_S
    names: dict[str, str] = {}
    groups: list[str] = []
    steps: list[str] = []
    for index, frame in enumerate(frames):
        uses: list[str] = []
        for row, line in enumerate(frame.lines):
            if line.strip():
                name = names.setdefault(line, f"l{len(names)}")
                uses.append(f'<use href="#{name}" y="{(row + 1) * LINE_H - 4}"/>')
        groups.append(f'<g transform="translate(0 {index * height:g})">{"".join(uses)}</g>')
        steps.append(f"{frame.at / length * 100:.3f}%{{transform:translateY({-index * height:g}px)}}")
    steps.append(f"100%{{transform:translateY({-(len(frames) - 1) * height:g}px)}}")
    lines = "\n".join(f'<text id="{name}">{_spans(line)}</text>' for line, name in names.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">\n'
        "<title>A chat in the terminal: a greeting, a search in notes, a message that waits, and /why</title>\n"
        f"<style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;fill:{_hex(_THEME.foreground_color)};"
        "white-space:pre}.b{font-weight:bold}.d{opacity:.6}.i{font-style:italic}\n"
        f"#film{{animation:film {length:g}s step-end infinite}}@keyframes film{{{''.join(steps)}}}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{_hex(_THEME.background_color)}"/>\n<defs>\n{lines}\n</defs>\n'
        f'<svg x="{EDGE}" y="{EDGE}" width="{width - 2 * EDGE:g}" height="{height - 2 * EDGE:g}" '
        f'overflow="hidden"><g id="film">\n' + "\n".join(groups) + "\n</g></svg>\n</svg>\n"
    )


def _spans(line: str) -> str:
    parts: list[str] = []
    column = 0
    for segment in Text.from_ansi(line).render(_CONSOLE):
        text = segment.text.rstrip("\n")
        if text.strip():
            # Each part is put at its column, since fonts differ in the width of some letters.
            parts.append(
                f'<tspan x="{column * LETTER_W:g}"{_look(segment.style)}>{escape(text.translate(_SPACE))}</tspan>'
            )
        column += segment.cell_length
    return "".join(parts)


def _look(style: Style | None) -> str:
    if style is None:
        return ""
    classes = [name for name, on in (("b", style.bold), ("d", style.dim), ("i", style.italic)) if on]
    named = f' class="{" ".join(classes)}"' if classes else ""
    if style.color is None or style.color.is_default:
        return named
    return f'{named} fill="{_hex(style.color.get_truecolor(_THEME))}"'


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


_PART = re.compile(r"(<!-- recorded: chat -->\n```\n).*?(```\n<!-- end -->)", re.DOTALL)


def with_transcript(page: str, text: str) -> str:
    return _PART.sub(lambda part: part[1] + text + part[2], page)


def transcript(page: str) -> str:
    """The text of the recording that a page holds."""
    found = _PART.search(page)
    assert found is not None
    return found[0].removeprefix(found[1]).removesuffix(found[2])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rec") as folder:
        recording = asyncio.run(record(Path(folder)))
    (DOCS / "terminal.cast").write_text(cast(recording.frames), "utf-8")
    (DOCS / "terminal.svg").write_text(svg(recording.frames), "utf-8")
    page = DOCS / "terminal.md"
    page.write_text(with_transcript(page.read_text("utf-8"), recording.text), "utf-8")


if __name__ == "__main__":
    main()
