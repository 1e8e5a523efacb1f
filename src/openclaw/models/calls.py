"""Calls to language models: the one place that owns the HTTP session, the providers and the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from openclaw.clock import Clock
from openclaw.messages import AssistantMessage, UserMessage
from openclaw.models import anthropic, google, openai_chat, openai_responses
from openclaw.models.base import (
    CLI_API,
    Credential,
    Done,
    ErrorKind,
    Model,
    ModelError,
    ModelRequest,
    OnEvent,
    Provider,
)
from openclaw.models.cli_backend import CliProvider
from openclaw.models.http import HttpProvider, ModelHttp, encode_body
from openclaw.models.keys import Keys
from openclaw.models.local.provider import LocalProvider

if TYPE_CHECKING:
    from openclaw.config.schema import Config

TRIAL_S = 60.0
TRIAL_TOKENS = 256
"""Enough for models that think before they speak. The answer to a trial is one sentence."""
_TRIAL_QUESTION = "Say hello in one short sentence."
_BODIES = {
    "anthropic-messages": anthropic.build_body,
    "openai-completions": openai_chat.build_body,
    "openai-responses": openai_responses.build_body,
    "google-generative-ai": google.build_body,
}


class ModelCalls:
    """Makes every model call of a Gateway.

    ``config`` gives the current configuration. ``take_turn`` is awaited before the request is built and before the
    answer is handled, so that many calls at once leave room for other tasks. ``failed`` is told of every failed call.
    """

    def __init__(
        self,
        keys: Keys,
        config: Callable[[], Config],
        clock: Clock,
        state_dir: str | None = None,
        *,
        take_turn: Callable[[], Awaitable[None]],
        failed: Callable[[ModelError], None],
    ) -> None:
        self.http = ModelHttp()
        self.keys = keys
        self._config = config
        self._clock = clock
        self._take_turn = take_turn
        self._failed = failed
        self._local = LocalProvider(state_dir, clock=clock)
        self._providers: dict[str, Provider] = {
            "anthropic-messages": HttpProvider(self.http, clock, anthropic.build_request, anthropic.AnthropicStream),
            "openai-completions": HttpProvider(self.http, clock, openai_chat.build_request, openai_chat.ChatStream),
            "openai-responses": HttpProvider(
                self.http, clock, openai_responses.build_request, openai_responses.ResponsesStream
            ),
            "google-generative-ai": HttpProvider(self.http, clock, google.build_request, google.GoogleStream),
            "local": self._local,
            CLI_API: CliProvider(config, keys.environ, clock),
        }

    async def call(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        """The model's message. ``on_event`` is told of every event before it. The key is looked up at every call.

        A caller that is cancelled hangs up at once. Raises ``ModelError``, which names the credential that was used.
        """
        answering, model, keys = False, request.model, self.keys
        credential: Credential | None = None
        try:
            await self._take_turn()
            began, config = self._clock.now_ms(), self._config()
            chosen = await keys.pick(model, config, agent_id, request.session_id)
            key = await keys.read(chosen, model, config)
            credential = chosen.credential
            # Closed here and not by the garbage collector: a run that is stopped hangs up.
            async with aclosing(self.provider_for(model).stream(request, key)) as events:
                async for event in events:
                    if not answering:
                        answering = True
                        await self._take_turn()
                    if type(event) is Done:
                        keys.cooldowns.succeeded(credential, model.provider, began)
                        return event.message
                    on_event(event)
            raise ModelError("The model's stream ended without a final event.", kind="network")
        except ModelError as error:
            error.credential = credential
            self._failed(error)
            raise

    def add_provider(self, api: str, provider: Provider) -> None:
        """Makes the wire protocol of an extension known."""
        self._providers[api] = provider

    def provider_for(self, model: Model) -> Provider:
        """The provider that speaks the model's ``api``."""
        provider = self._providers.get(model.api)
        if provider is None:
            known = ", ".join(self._providers)
            raise ModelError(
                f"Model {model.ref} has the unknown api {model.api!r}; set `api` of its provider to one of: {known}.",
                kind="other",
            )
        return provider

    async def close(self) -> None:
        """Ends the local model's process and the HTTP session, and writes down which keys rest."""
        await self._local.close()
        await self.http.close()
        await self.keys.cooldowns.close()


def wire_body(request: ModelRequest) -> bytes | None:
    """The bytes a request is sent with, built again from the request. None for a model without a network."""
    build = _BODIES.get(request.model.api)
    return None if build is None else encode_body(build(request))


class Trial(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How one try of a key went."""

    ok: bool
    said: str = ""
    """What the model answered."""
    error: str = ""
    kind: ErrorKind = "other"
    duration_ms: int = 0


async def try_key(provider: Provider, model: Model, key: str, clock: Clock, *, timeout_s: float = TRIAL_S) -> Trial:
    """Sends the model one real message with this key. Never raises for a call that fails."""
    request = ModelRequest(
        model=model,
        system="You are a helpful assistant.",
        messages=[UserMessage(content=_TRIAL_QUESTION, timestamp=clock.now_ms())],
        max_tokens=min(TRIAL_TOKENS, model.max_tokens),
    )
    began = clock.now_ms()
    try:
        async with asyncio.timeout(timeout_s), aclosing(provider.stream(request, key)) as events:
            async for event in events:
                if isinstance(event, Done):
                    said = event.message.text.strip()
                    return Trial(ok=True, said=said, duration_ms=clock.now_ms() - began)
        failed = Trial(ok=False, error="The stream ended without an answer.", kind="network")
    except ModelError as error:
        failed = Trial(ok=False, error=str(error), kind=error.kind)
    except TimeoutError:
        failed = Trial(ok=False, error=f"There was no answer within {timeout_s:.0f} seconds.", kind="timeout")
    return msgspec.structs.replace(failed, duration_ms=clock.now_ms() - began)
