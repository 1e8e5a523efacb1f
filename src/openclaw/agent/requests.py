"""The model requests of one run: one prompt, and the conversation cleaned and fitted to the model's window."""

from __future__ import annotations

from typing import Any

import msgspec

from openclaw.agent.window.history_cleaner import HistoryCleaner
from openclaw.agent.window.window import PromptWindow
from openclaw.messages import ImageBlock, Message, TextBlock, UserMessage, user_text
from openclaw.models.base import ModelError, ModelRequest
from openclaw.models.errors import supported_thinking_levels
from openclaw.models.thinking import clamp
from openclaw.sessions.prompt_prefix import GREETING_MARK, without_wrappers
from openclaw.worker_thread import with_many


class RequestBuilder:
    """Builds the requests of one run. Only the messages differ from one request to the next."""

    def __init__(self, template: ModelRequest, window: PromptWindow, cleaner: HistoryCleaner) -> None:
        self.template = template
        """The request without its messages."""
        self.window = window
        """Leaves out old tool output, and shortens what does not fit the model's window."""
        self.cleaner = cleaner
        """Makes the conversation acceptable to every provider: fitted pictures, no failed answers, no forged marks."""
        self._refusals = 0
        """How often a provider rejected a request as malformed. Rejected thinking levels do not count."""
        self._level_refused = False
        """A provider rejected the thinking level, and the run took another one."""

    def without_choices(self) -> RequestBuilder:
        """Return a builder of requests that force no tool and do not limit the answer."""
        template = msgspec.structs.replace(self.template, tool_choice=None, max_tokens=None)
        return RequestBuilder(template, self.window, self.cleaner)

    def use_cache(self, branch_cache: dict[Any, Any]) -> None:
        """Reuse what earlier runs computed for the branch that is sent next. Only its new messages need work."""
        if branch_cache is not self.template.branch_cache:
            self.window.use_cache(branch_cache)
            self.cleaner.use_cache(branch_cache)
            self.template.branch_cache = branch_cache

    def change_after_refusal(self, error: ModelError, now_ms: int) -> bool:
        """Change the next request after a provider rejected one as malformed. Return whether it is worth sending.

        The next request has a thinking level that the provider knows, or the plain form of the conversation. This
        works once: a request that is rejected in its plain form too is not sent again.
        """
        template, supported = self.template, supported_thinking_levels(str(error))
        if supported and not self._level_refused:
            level = clamp(template.thinking, supported)
            if level != template.thinking:
                self._level_refused, template.thinking = True, level
                return True
        self._refusals += 1
        if not self.cleaner.refused(now_ms):
            template.thinking = "off"
        return self._refusals == 1

    async def build(self, messages: list[Message]) -> ModelRequest:
        """Build the next request: the prompt, and the messages cleaned first and then fitted to the window.

        Only the end of a long conversation is worked on, and if that has many messages, in a thread.
        """
        recent = self.window.recent(messages)
        return await with_many(len(recent), lambda: self._build(recent))

    def _build(self, recent: list[Message]) -> ModelRequest:
        messages = self.window.of(self.cleaner.clean(recent))
        if not self.template.model.tools:
            messages = [_plain_text(message) for message in messages]
        return msgspec.structs.replace(self.template, messages=messages, output_room=self.window.output_room)


def _plain_text(message: Message) -> Message:
    """Return the message for a small model: what people typed, without stamps and notes that it would only repeat."""
    if not isinstance(message, UserMessage):
        return message
    text = user_text(message)
    typed = "Hello!" if GREETING_MARK in text else without_wrappers(text)
    pictures = [block for block in message.content if isinstance(block, ImageBlock)]
    return msgspec.structs.replace(message, content=[TextBlock(text=typed), *pictures] if pictures else typed)
