"""What follows a failed call: the same key after a pause, another key, another model, or the end."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.config.load import build
from openclaw.config.schema.system import Retry
from openclaw.config.store import Derived
from openclaw.models.base import ErrorKind, Model, ModelError, ModelRequest
from openclaw.models.calls import Failover, HandOver, NextStep, TryAgain, for_model
from openclaw.models.catalogue import Catalogue
from openclaw.models.keys import Keys, MissingKey
from tests.support.clock import HeldClock

RETRY = Retry(max_retries=2, base_delay_ms=2000)
RETRYABLE = ("rate_limit", "overloaded", "timeout", "network", "other")
CONFIG = {
    "agents": {"defaults": {"model": {"primary": "one/m", "fallbacks": ["two/m", "keyless/m", "nowhere/m", "two/m"]}}},
    "models": {
        "providers": {
            name: {"baseUrl": f"https://{name}.test/v1", "models": [{"id": "m"}, {"id": "n"}]}
            for name in ("one", "two", "three", "keyless")
        }
    },
}
KEYS = {"ONE_API_KEY": "a", "TWO_API_KEY": "b", "THREE_API_KEY": "c"}


class World:
    def __init__(self, config: dict[str, Any] = CONFIG, environ: dict[str, str] = KEYS) -> None:
        self.clock, made = HeldClock(), build(config)
        self.catalogue = Catalogue(made, environ, state_dir="/nonexistent")
        self.keys = Keys(environ, clock=self.clock)
        self.failover = Failover(self.keys, lambda: made, lambda: self.catalogue, Derived())

    def model(self, name: str) -> Model:
        return self.catalogue.resolve(name)

    async def fail(self, kind: ErrorKind, attempt: int = 1, chosen: str = "one/m", **more: Any) -> NextStep:
        model = self.model(chosen)
        candidates = self.failover.candidates("main", model)
        await candidates.begin()
        error = ModelError("no", kind=kind, retryable=kind in RETRYABLE, **more)
        error.credential = (await self.keys.pick(model, build(CONFIG), "main")).credential
        return await candidates.next_step(error, attempt, RETRY)


@pytest.mark.parametrize(
    ("kind", "attempt", "more", "expected"),
    [
        ("overloaded", 1, {}, TryAgain(2000)),
        ("overloaded", 2, {}, TryAgain(4000)),
        ("overloaded", 3, {}, HandOver()),
        ("rate_limit", 1, {"retry_after_s": 1}, TryAgain(2000)),
        ("rate_limit", 1, {"retry_after_s": 6}, HandOver()),
        ("network", 1, {}, TryAgain(2000)),
        ("timeout", 1, {}, HandOver()),
        ("auth", 1, {}, HandOver()),
        ("billing", 1, {}, HandOver()),
        ("format", 1, {}, HandOver()),
        ("format", 1, {"status": 404}, HandOver()),
        ("other", 3, {"status": 500}, HandOver()),
        ("overflow", 1, {}, None),
        ("budget", 1, {}, None),
    ],
)
async def test_a_short_pause_is_waited_for_and_then_another_model_goes_on(
    kind: ErrorKind, attempt: int, more: dict[str, Any], expected: NextStep
) -> None:
    assert await World().fail(kind, attempt, **more) == expected


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [("rate_limit", {"retry_after_s": 600}, TryAgain(60_000)), ("timeout", {}, TryAgain(2000)), ("auth", {}, None)],
)
async def test_without_another_model_every_pause_is_waited_for(
    kind: ErrorKind, more: dict[str, Any], expected: NextStep
) -> None:
    alone = {**CONFIG, "agents": {"defaults": {"model": "one/m"}}}
    assert await World(alone).fail(kind, **more) == expected


@pytest.mark.parametrize(
    ("kind", "attempt", "expected"),
    [
        ("auth", 1, TryAgain(other_key=True)),
        ("billing", 1, TryAgain(other_key=True)),
        ("rate_limit", 1, TryAgain(other_key=True)),
        ("overloaded", 1, TryAgain(2000)),
        ("overloaded", 3, TryAgain(other_key=True)),
        ("network", 3, HandOver()),
        ("format", 1, HandOver()),
    ],
)
async def test_another_key_comes_first_where_it_can_help(kind: ErrorKind, attempt: int, expected: NextStep) -> None:
    environ = {"ANTHROPIC_OAUTH_TOKEN": "first", "ANTHROPIC_API_KEY": "second", **KEYS}
    assert await World(environ=environ).fail(kind, attempt, "anthropic/claude-sonnet-4-5") == expected


async def test_the_order_is_chosen_fallbacks_configured_each_once_and_only_with_a_key() -> None:
    world = World()
    candidates = world.failover.candidates("main", world.model("three/m"))
    asked = [(await candidates.begin()).ref]
    while await candidates.next_step(ModelError("no", kind="auth"), 1, RETRY) == HandOver():
        asked.append(candidates.current.ref)
    assert asked == ["three/m", "two/m", "one/m"]
    assert [failure.model for failure in candidates.failures] == ["three/m", "two/m"]
    again = world.failover.candidates("main", world.model("three/m"))
    assert (await again.begin()).ref == "three/m", "all of them rest, so the first is asked"
    assert not again.failures


async def test_a_model_that_rests_is_passed_over_and_asked_again_afterwards() -> None:
    world = World()
    assert await world.fail("billing") == HandOver()
    resting = world.failover.candidates("main", world.model("one/m"))
    assert (await resting.begin()).ref == "two/m"
    assert (resting.failures[0].kind, resting.reason()) == ("billing", "billing")
    world.clock.advance(5 * 3600 + 1)
    assert (await world.failover.candidates("main", world.model("one/m")).begin()).ref == "one/m"


async def test_a_missing_key_asks_another_model_and_lets_nothing_rest() -> None:
    world = World()
    candidates = world.failover.candidates("main", world.model("keyless/m"))
    assert await candidates.next_step(MissingKey("no key"), 1, RETRY) == HandOver()
    assert world.keys.cooldowns.none_cooling_down


def test_a_request_for_another_model_asks_nothing_that_it_cannot_do() -> None:
    large = Model(provider="a", id="m", reasoning=True, max_tokens=8000)
    small = Model(provider="b", id="m", max_tokens=500, tools=False)
    request = ModelRequest(model=large, system="", messages=[], thinking="high", max_tokens=4000, branch_cache={})
    changed = for_model(request, small)
    assert (changed.model, changed.thinking, changed.max_tokens, changed.branch_cache) == (small, "off", 500, None)
    assert for_model(request, large) is request
