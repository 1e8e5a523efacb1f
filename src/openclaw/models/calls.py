"""Calls to language models, and what follows a failed one: the same key again, another key, another model, or the end.

``ModelCalls`` is the one place that owns the HTTP session, the providers and the keys. ``Candidates`` are the models of
one run in the order in which they are asked: first with the other credentials of a provider, then the fallback models.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from openclaw.clock import Clock
from openclaw.config.agents import fallback_models, image_models, may_fall_back, primary_model
from openclaw.config.schema.system import Retry
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
from openclaw.models.errors import next_retry_ms
from openclaw.models.http import HttpProvider, ModelHttp, encode_body
from openclaw.models.keys import Keys, MissingKey, canonical_provider
from openclaw.models.local.provider import LocalProvider
from openclaw.models.thinking import clamp_to_model

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.store import Derived
    from openclaw.models.catalogue import Catalogue, UnknownModel


log = logging.getLogger("openclaw.models.calls")

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
    answer is handled, so that many calls at once leave room for other tasks. ``failed`` gets every failed call.
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
        """Return the model's message. ``on_event`` gets every event before it. The key is resolved at every call.

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
            names = ", ".join(self._providers)
            raise ModelError(
                f"Model {model.ref} has the unknown api {model.api!r}; set `api` of its provider to one of: {names}.",
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
                    text = event.message.text.strip()
                    return Trial(ok=True, said=text, duration_ms=clock.now_ms() - began)
        failed = Trial(ok=False, error="The stream ended without an answer.", kind="network")
    except ModelError as error:
        failed = Trial(ok=False, error=str(error), kind=error.kind)
    except TimeoutError:
        failed = Trial(ok=False, error=f"There was no answer within {timeout_s:.0f} seconds.", kind="timeout")
    return msgspec.structs.replace(failed, duration_ms=clock.now_ms() - began)


# What follows a failure

LONG_WAIT_MS = 5_000
"""A longer pause is not waited for if another key or model could answer now."""
NO_HELP = ("overflow", "budget")
"""Failures that another key or model does not help with."""
OF_KEY: tuple[ErrorKind, ...] = ("auth", "billing", "rate_limit", "overloaded")
"""Failures that another key of the same provider may not have."""
KEY_AT_ONCE: tuple[ErrorKind, ...] = ("auth", "billing", "rate_limit")
"""Failures of the account: while there is another key, the same one is not asked again."""
MOST_ATTEMPTS = 32
"""A bound on the attempts of one answer, whatever keys come and go meanwhile."""


class TryAgain(msgspec.Struct, frozen=True):
    """The same model is asked again."""

    delay_ms: int = 0
    other_key: bool = False
    """Retry with another key. The attempts are counted from zero."""


class HandOver(msgspec.Struct, frozen=True):
    """Another model goes on."""


NextStep: TypeAlias = TryAgain | HandOver | None
"""What follows a failed call. None: nothing helps."""


class ModelFailure(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a model did not answer in a run. The ledger keeps it."""

    model: str
    kind: ErrorKind
    said: str = ""
    """The provider's words. Empty if the model was not asked because it rests."""
    credential: str = ""
    at: int = 0
    cooldown_until: int = msgspec.field(default=0, name="restsUntil")


class Failover:
    """Knows the fallback models and which credentials rest. All runs share it."""

    def __init__(
        self, keys: Keys, config: Callable[[], Config], catalogue: Callable[[], Catalogue], derived: Derived
    ) -> None:
        self.keys = keys
        self._config = config
        self._catalogue = catalogue
        self._derived = derived

    def candidates(self, agent_id: str, chosen: Model, *, pictures: bool = False) -> Candidates:
        """The models of one run, ``chosen`` first. ``pictures``: the message has some."""
        pictures = pictures and bool(image_models(self._config()))
        return Candidates(self, agent_id, chosen, pictures=pictures)

    async def instead_of(self, unknown: UnknownModel, agent_id: str, *, pictures: bool = False) -> Candidates:
        """The models of a run whose chosen model nobody knows (any more). Raises ``unknown`` if no other is usable."""
        provider, slash, model_id = unknown.name.partition("/")
        gone = Model(provider=provider if slash else "unknown", id=model_id if slash else provider)
        candidates = self.candidates(agent_id, gone, pictures=pictures)
        if not isinstance(await candidates.next_step(unknown), HandOver):
            raise unknown
        return candidates

    def others(self, agent_id: str, chosen: Model, *, pictures: bool) -> Iterator[Model]:
        """The models to try besides the chosen one, in their order. Names that the catalogue does not know are skipped.

        They are the agent's fallbacks and its configured model. A model that sees no pictures comes after the models
        for pictures.
        """
        config = self._config()
        key = ("fallbacks", agent_id, pictures)
        for name in self._derived.of(config, key, lambda: _names(config, agent_id, pictures=pictures)):
            try:
                yield _with_profile_of(self._catalogue().resolve(name), chosen)
            except ModelError as unknown:
                log.warning("the fallback %s is not used: %s", name, unknown)

    async def cooldown_of(self, model: Model, agent_id: str) -> ModelFailure | None:
        """Why a model rests, and until when the first of its keys can be used again. None: it does not rest."""
        keys = self.keys
        if keys.cooldowns.none_cooling_down:
            return None
        try:
            credentials = await keys.all_for(model, self._config(), agent_id)
        except MissingKey:
            return None
        key = min(credentials, key=lambda key: keys.cooldown_end(key, model))
        until = keys.cooldown_end(key, model)
        if not until:
            return None
        stats = keys.cooldowns.of(key.credential)
        return ModelFailure(
            model=model.ref,
            kind=stats.kind(),
            credential=key.credential.id,
            at=stats.last_failure_at,
            cooldown_until=until,
        )

    async def is_usable(self, model: Model, agent_id: str) -> bool:
        """Whether the model has a key that does not rest."""
        try:
            credentials = await self.keys.all_for(model, self._config(), agent_id)
        except MissingKey:
            return False
        return any(not self.keys.cooldown_end(key, model) for key in credentials)

    async def other_key(self, model: Model, agent_id: str, error: ModelError) -> bool:
        """Whether the model can be asked with another key than the one that failed."""
        if error.credential is None or error.kind not in OF_KEY:
            return False
        credentials = await self.keys.all_for(model, self._config(), agent_id)
        return any(key.credential != error.credential and not self.keys.cooldown_end(key, model) for key in credentials)

    async def note_failure(self, model: Model, agent_id: str, error: ModelError) -> None:
        """Lets the key rest, unless the failure says nothing about later calls."""
        if isinstance(error, MissingKey) or (error.kind == "format" and error.status != 404):
            return
        credential, config = error.credential, self._config()
        if credential is None:
            try:
                credential = (await self.keys.pick(model, config, agent_id)).credential
            except MissingKey:
                return
        provider = canonical_provider(model.provider)
        self.keys.cooldowns.failed(credential, error, provider, model.ref, config.auth.cooldowns)


class Candidates:
    """The models of one run in the order in which they are asked, and what became of each."""

    def __init__(self, failover: Failover, agent_id: str, chosen: Model, *, pictures: bool) -> None:
        self._failover = failover
        self._agent_id = agent_id
        self._pictures = pictures and "image" not in chosen.input
        self._chosen = chosen
        self._rest: list[Model] | None = None
        """The models that were not asked yet. None: not looked up yet."""
        self.current = chosen
        self.failures: list[ModelFailure] = []
        """The failures after which the run went on, oldest first."""

    @property
    def chosen(self) -> str:
        return self._chosen.ref

    @property
    def for_pictures(self) -> bool:
        """Whether the message goes to another model because the chosen one sees no pictures."""
        return self._pictures

    @property
    def has_others(self) -> bool:
        """Whether there are models that were not asked yet."""
        return bool(self._others())

    def reason(self) -> str:
        """The kind of failure because of which the chosen model does not answer. Empty: it does."""
        return next((failure.kind for failure in reversed(self.failures) if failure.model == self.chosen), "")

    async def begin(self) -> Model:
        """The first model that does not rest. If all rest, it is the first."""
        if self._pictures:
            rest = self._others()
            if rest and "image" in rest[0].input:
                rest.append(self.current)
                self.current = rest.pop(0)
            else:
                self._pictures = False
        resting = await self._failover.cooldown_of(self.current, self._agent_id)
        successor = await self._successor() if resting is not None else None
        if resting is not None and successor is not None:
            self.failures.append(resting)
            self._take(successor)
        return self.current

    async def next_step(self, error: ModelError, attempt: int = 1, retry: Retry | None = None) -> NextStep:
        """Decides what follows a failure of ``current``. After ``HandOver`` ``current`` is the next model.

        ``attempt`` counts the failures of this key for this answer, from 1. Without ``retry`` the call is one beside
        the conversation: the same key is not asked again, and a passing failure does not let the model rest.
        """
        model = self.current
        if error.kind in NO_HELP or len(self.failures) >= MOST_ATTEMPTS:
            return None
        passing = retry is None and error.kind not in KEY_AT_ONCE
        other_key = not passing and await self._failover.other_key(model, self._agent_id, error)
        successor = await self._successor()
        delay = next_retry_ms(error, attempt, retry) if retry is not None else None
        if (other_key and error.kind in KEY_AT_ONCE) or (successor is not None and error.kind == "timeout"):
            delay = None
        if delay is not None and (delay <= LONG_WAIT_MS or not (other_key or successor)):
            return TryAgain(delay)
        if not passing:
            await self._failover.note_failure(model, self._agent_id, error)
        if other_key:
            self.failures.append(failed_model(model, error))
            return TryAgain(other_key=True)
        # Looked up again, because the key that rests now may also be that of the next model.
        successor = await self._successor()
        if successor is None:
            return None
        self.failures.append(failed_model(model, error))
        self._take(successor)
        return HandOver()

    def _take(self, successor: Model) -> None:
        self._others().remove(successor)
        self.current = successor

    async def _successor(self) -> Model | None:
        """The next model that has a key and does not rest."""
        for model in self._others():
            if await self._failover.is_usable(model, self._agent_id):
                return model
        return None

    def _others(self) -> list[Model]:
        if self._rest is None:
            others = self._failover.others(self._agent_id, self._chosen, pictures=self._pictures)
            unique = {model.ref: model for model in others if model.ref != self.chosen}
            self._rest = list(unique.values())
        return self._rest


def _names(config: Config, agent_id: str, *, pictures: bool) -> list[str]:
    """The configured names of the models to try, in their order."""
    names = [*(image_models(config) if pictures else ()), *fallback_models(config, agent_id)]
    primary = primary_model(config, agent_id) if may_fall_back(config, agent_id) else None
    return [*names, *([primary] if primary else [])]


def failed_model(model: Model, error: ModelError) -> ModelFailure:
    name = error.credential.id if error.credential else ""
    return ModelFailure(model=model.ref, kind=error.kind, said=str(error)[:400], credential=name)


def _with_profile_of(model: Model, chosen: Model) -> Model:
    """The model with the chosen one's credential, if both have the same provider."""
    if chosen.auth_profile and chosen.provider == model.provider:
        return msgspec.structs.replace(model, auth_profile=chosen.auth_profile)
    return model


def for_model(request: ModelRequest, model: Model) -> ModelRequest:
    """The request as another model gets it. The providers convert its messages."""
    if model is request.model:
        return request
    room = request.output_room
    return msgspec.structs.replace(
        request,
        model=model,
        tools=request.tools if model.tools else [],
        tool_choice=request.tool_choice if model.tools else None,
        thinking=clamp_to_model(request.thinking, model),
        max_tokens=min(request.max_tokens, model.max_tokens) if request.max_tokens else None,
        output_room=room if room is None else max(1, room + model.context_window - request.model.context_window),
        branch_cache=None,
        prompt_cache=None,
    )


def models_asked(failures: Sequence[ModelFailure]) -> list[str]:
    return list(dict.fromkeys(failure.model for failure in failures))
