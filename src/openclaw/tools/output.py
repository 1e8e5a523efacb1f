"""What a command printed: a bounded tail of raw bytes, made readable only when somebody looks."""

from __future__ import annotations

import codecs
import re

TAIL_CHARS = 2000
_BYTES_PER_CHAR = 2
_ESCAPE = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)"  # operating system command: title, link
    r"|[PX^_][^\x1b]*\x1b\\"  # device control string
    r"|\[[0-?]*[ -/]*[@-~]"  # control sequence: colour, cursor
    r"|[ -/]*[0-~])"  # everything else
)
_OPEN_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]{0,512}\x1b?|[ -/]*)\Z")
_JUNK = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufff9-\ufffb\ufffe\uffff]")


def clean(text: str) -> str:
    """Without escape sequences and control characters; of a line that was drawn over, what was drawn last."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        text = "\n".join(_last_drawn(line) for line in text.split("\n"))
    return _JUNK.sub("", text)


def _last_drawn(line: str) -> str:
    return line.rstrip("\r").rsplit("\r", 1)[-1]


class Output:
    """Feeding is cheap (a copy); memory stays below a few times ``max_chars`` however much is printed."""

    def __init__(self, max_chars: int) -> None:
        self.max_chars = max_chars
        self.total_bytes = 0
        self._keep = max_chars * _BYTES_PER_CHAR
        self._raw = bytearray()
        self._drained = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._cleaned: tuple[int, str] = (0, "")

    def feed(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        self._raw += chunk
        if len(self._raw) > 2 * self._keep:
            del self._raw[: len(self._raw) - self._keep]

    @property
    def truncated(self) -> bool:
        return self.total_bytes > len(self._raw) or self.total_bytes > self._keep or len(self._all()) > self.max_chars

    def text(self) -> str:
        """The last ``max_chars`` characters."""
        return self._all()[-self.max_chars :]

    def tail(self, chars: int = TAIL_CHARS) -> str:
        return clean(_decode(bytes(self._raw[-chars * 8 :])))[-chars:]

    def drain(self, *, final: bool = False) -> str:
        """What came since the last call. An unfinished character or escape sequence waits for the next one."""
        start = self.total_bytes - len(self._raw)
        lost = max(0, start - self._drained)
        fresh = bytes(self._raw[max(0, self._drained - start) :])
        self._drained = self.total_bytes
        if lost:
            self._decoder.reset()
            self._held = ""
        text = self._held + self._decoder.decode(fresh, final)
        self._held = ""
        if not final and (unfinished := _OPEN_ESCAPE.search(text, max(0, len(text) - 600))):
            text, self._held = text[: unfinished.start()], unfinished.group()
        text = clean(text)
        if lost or len(text) > self.max_chars:
            return f"[Output cut here: more came than is kept]\n{text[-self.max_chars :]}"
        return text

    def _all(self) -> str:
        if self._cleaned[0] != self.total_bytes:
            self._cleaned = self.total_bytes, clean(_decode(bytes(self._raw[-self._keep :])))
        return self._cleaned[1]


def _decode(raw: bytes) -> str:
    # A cut may fall inside a character: drop its remaining continuation bytes.
    start = 0
    while start < min(3, len(raw)) and raw[start] & 0xC0 == 0x80:
        start += 1
    return raw[start:].decode("utf-8", "replace")
