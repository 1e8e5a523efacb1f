"""What a person gets of a model's words: decided once, while they arrive, for every channel, event and view."""

from __future__ import annotations

import msgspec

from openclaw.events import Silent, Speech, Spoken, Unsaid
from openclaw.messages import AssistantBlock, AssistantMessage, TextBlock, ThinkingBlock
from openclaw.outbound.reasoning import Framing, Piece, Said, TagStream, Thought, framed, typed
from openclaw.outbound.reply_tags import ReplyTags
from openclaw.outbound.silence import SilenceGate


class SpeechStream:
    """Fed with the model's text, gives what may be shown at once and what is reasoning."""

    def __init__(self, *, only_final: Framing = False, ack_max_chars: int | None = None) -> None:
        self._only_final: Framing = only_final
        self._tags = TagStream(only_final=only_final)
        self._reply_tags = ReplyTags()
        self._gate = SilenceGate(ack_max_chars=ack_max_chars)
        self._said: list[str] = []

    def feed(self, delta: str) -> list[Piece]:
        return self._through(self._tags.feed(delta))

    def close(self, *, complete: bool = True) -> list[Piece]:
        """``complete``: False for a text that was broken off."""
        pieces = self._through(self._tags.close(complete=complete))
        text = self._gate.feed(self._reply_tags.close(complete=complete))
        if text := text + self._gate.close(complete=complete):
            pieces.append(self._say(text))
        return pieces

    @property
    def thinking(self) -> bool:
        return self._tags.thinking

    def stored(self, message: AssistantMessage, before: str, *, thinking: bool) -> AssistantMessage:
        """A message this stream was fed with, as it is kept. ``before``: the parts of the answer that came earlier."""
        if self._only_final:
            return framed(message, before, thinking=thinking, only_final=self._only_final)
        return typed(message, thinking=thinking)

    @property
    def silent(self) -> bool:
        return self._gate.silent is not None

    @property
    def said(self) -> str:
        """Everything let through so far."""
        return "".join(self._said)

    @property
    def outcome(self) -> Speech:
        if self._gate.silent is not None:
            return Silent(self._gate.silent)
        text = self.said.strip()
        return Spoken(text, self._reply_tags.reply_to) if text else Unsaid()

    def _through(self, pieces: list[Piece]) -> list[Piece]:
        shown: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Thought):
                shown.append(piece)
            elif text := self._gate.feed(self._reply_tags.feed(piece.text)):
                shown.append(self._say(text))
        return shown

    def _say(self, text: str) -> Said:
        self._said.append(text)
        return Said(text)


def heard(text: str, *, complete: bool = True) -> Speech:
    """What a person hears of a whole text."""
    stream = SpeechStream()
    stream.feed(text)
    stream.close(complete=complete)
    return stream.outcome


def visible_text(text: str, *, complete: bool = True) -> str:
    """The same as plain text: empty for silence and for nothing."""
    speech = heard(text, complete=complete)
    return speech.text if isinstance(speech, Spoken) else ""


def visible_message(message: AssistantMessage, *, with_reasoning: bool) -> AssistantMessage | None:
    """A stored message as people see it; None when nothing of it is for them."""
    message = typed(message)
    complete = message.stop_reason not in ("error", "aborted")
    whole = visible_text(message.text, complete=complete)
    content: list[AssistantBlock] = []
    texts = [block for block in message.content if isinstance(block, TextBlock)]
    for block in message.content:
        match block:
            case TextBlock() if len(texts) == 1 or block is texts[0]:
                # Tokens and tags may reach from one block into the next: they are read as one text.
                shown = block if block.text == whole and len(texts) == 1 else TextBlock(text=whole)
                content += [shown] if whole else []
            case TextBlock():
                pass
            case ThinkingBlock():
                content += [block] if with_reasoning else []
            case _:
                content.append(block)
    if not content and message.content and complete:
        return None
    return msgspec.structs.replace(message, content=content)
