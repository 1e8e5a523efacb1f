"""What follows a failed model call: the same key again, another key, another model, or the end.

The order is that of ``Candidates``: first the other credentials of the provider, then the fallback models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from openclaw.config.agents import fallback_models, image_models, may_fall_back, primary_model
from openclaw.models.base import ErrorKind, Model, ModelError, ModelRequest
from openclaw.models.errors import RetrySettings, next_retry_ms
from openclaw.models.keys import MissingKey, canonical_provider
from openclaw.models.thinking import clamp_to_model

if TYPE_CHECKING:
    from openclaw.config.schema import Config
    from openclaw.config.store import Derived
    from openclaw.models.catalogue import Catalogue, UnknownModel
    from openclaw.models.keys import Keys

log = logging.getLogger("openclaw.models.fallback")

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
    """It is asked with another key. The attempts are counted anew."""


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
    rests_until: int = 0


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

    async def rests_until(self, model: Model, agent_id: str) -> int:
        """The end of the model's rest: of the first of its keys that can be used again. 0: it can be asked."""
        keys = self.keys
        if keys.cooldowns.none_rests:
            return 0
        try:
            found = await keys.all_for(model, self._config(), agent_id)
        except MissingKey:
            return 0
        return min(keys.rests_until(key, model) for key in found)

    async def rest_of(self, model: Model, agent_id: str) -> ModelFailure | None:
        """Why a model rests and how long. None: it does not rest."""
        until = await self.rests_until(model, agent_id)
        if not until:
            return None
        key = await self.keys.pick(model, self._config(), agent_id)
        stats = self.keys.cooldowns.of(key.credential)
        return ModelFailure(
            model=model.ref,
            kind=stats.kind(),
            credential=key.credential.id,
            at=stats.last_failure_at,
            rests_until=until,
        )

    async def is_usable(self, model: Model, agent_id: str) -> bool:
        """Whether the model has a key that does not rest."""
        try:
            found = await self.keys.all_for(model, self._config(), agent_id)
        except MissingKey:
            return False
        return any(not self.keys.rests_until(key, model) for key in found)

    async def other_key(self, model: Model, agent_id: str, error: ModelError) -> bool:
        """Whether the model can be asked with another key than the one that failed."""
        if error.credential is None or error.kind not in OF_KEY:
            return False
        found = await self.keys.all_for(model, self._config(), agent_id)
        return any(key.credential != error.credential and not self.keys.rests_until(key, model) for key in found)

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
        resting = await self._failover.rest_of(self.current, self._agent_id)
        successor = await self._successor() if resting is not None else None
        if resting is not None and successor is not None:
            self.failures.append(resting)
            self._take(successor)
        return self.current

    async def next_step(self, error: ModelError, attempt: int = 1, retry: RetrySettings | None = None) -> NextStep:
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
            found = self._failover.others(self._agent_id, self._chosen, pictures=self._pictures)
            unique = {model.ref: model for model in found if model.ref != self.chosen}
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
