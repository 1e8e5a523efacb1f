"""Slack's names of emoji. Slack reacts with names, people and models write signs."""

from __future__ import annotations

import re
import unicodedata

# fmt: off
NAMES = {
    "👍": "+1", "👎": "-1", "❤": "heart", "😂": "joy", "🎉": "tada", "👏": "clap", "🙏": "pray", "🔥": "fire",
    "👀": "eyes", "✅": "white_check_mark", "✔": "heavy_check_mark", "❌": "x", "🚀": "rocket", "💯": "100",
    "🤔": "thinking_face", "😀": "grinning", "😃": "smiley", "😄": "smile", "😁": "grin", "😅": "sweat_smile",
    "🙂": "slightly_smiling_face", "😉": "wink", "😊": "blush", "😍": "heart_eyes", "😎": "sunglasses", "😢": "cry",
    "😭": "sob", "😡": "rage", "😱": "scream", "😴": "sleeping", "🤷": "shrug", "🙌": "raised_hands", "👋": "wave",
    "👌": "ok_hand", "💪": "muscle", "🤝": "handshake", "✨": "sparkles", "⭐": "star", "⚠": "warning",
    "❓": "question", "❗": "exclamation", "⏳": "hourglass_flowing_sand", "⌛": "hourglass", "🦞": "lobster",
    "🐛": "bug", "💡": "bulb", "📌": "pushpin", "📎": "paperclip", "🔒": "lock", "☕": "coffee", "🍕": "pizza",
    "🎂": "birthday", "💀": "skull", "🤖": "robot_face", "🧠": "brain", "🛑": "octagonal_sign", "🆗": "ok",
    "➕": "heavy_plus_sign",
}
# fmt: on
_NAME = re.compile(r"[a-z0-9_+'-]{1,100}")
_SIGNS_APART = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
"""Variation selectors and skin tones. Slack's names have none."""


def emoji_name(emoji: str) -> str | None:
    """The name of ``👍``, ``:+1:`` or ``+1``. None if Slack can have no such emoji."""
    text = emoji.strip()
    if _NAME.fullmatch(name := text.strip(":").lower()):
        return name
    sign = _SIGNS_APART.sub("", text)
    if sign in NAMES:
        return NAMES[sign]
    if len(sign) != 1:
        return None
    name = unicodedata.name(sign, "").lower().replace(" ", "_")
    return name if _NAME.fullmatch(name) else None
