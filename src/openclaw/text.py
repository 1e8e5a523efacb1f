"""Shortens texts and words times, wherever a person or a model reads them.

The command line imports this file, so it imports nothing itself.
"""


def clipped(text: str, limit: int) -> str:
    """Cuts a text to ``limit`` characters, of which the last is an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shortened(text: str, limit: int = 80) -> str:
    """Puts a text on one line and cuts it to ``limit`` characters, without a blank before the ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def age(ms: float | None) -> str:
    """``just now``, ``16m ago``, ``5h ago``, ``3d ago``; ``unknown`` when there is none."""
    if ms is None:
        return "unknown"
    minutes = int(ms // 60_000)
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes}m ago"
    hours = minutes // 60
    return f"{hours}h ago" if hours < 48 else f"{hours // 24}d ago"


def duration(ms: int) -> str:
    """``450 ms``, ``3.2 s``, ``41 s``, ``5 min 3 s``, ``2 h 5 min``, ``3 d 4 h``. A negative time is ``0 ms``."""
    ms = max(0, ms)
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms // 100 / 10:g} s"
    seconds = ms // 1_000
    for size, name, small, small_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = seconds % size // small
            return f"{seconds // size} {name} {rest} {small_name}" if rest else f"{seconds // size} {name}"
    return f"{seconds} s"


def short_duration(ms: int) -> str:
    """``41s``, ``5m03s``, ``2h05m``."""
    seconds = max(0, ms) // 1000
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def counted(count: int, one: str, several: str) -> str:
    """A number and the word that fits it: "1 file", "2 files"."""
    return f"{count} {one if count == 1 else several}"


def failure_text(text: str) -> str:
    """What a failed tool says for people: the sentence inside, where its result is an object with one."""
    if not text.startswith("{"):
        return text
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, str) and error.strip() else text
