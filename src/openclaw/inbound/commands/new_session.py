"""``/new`` and ``/reset``: a new session for the same key, perhaps with a model and the first words."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from openclaw.inbound.command_text import Listening, command_body
from openclaw.inbound.commands.context import CommandServices, Facts
from openclaw.inbound.commands.model_choice import leading_model
from openclaw.inbound.commands.settings import model_fields
from openclaw.inbound.stamp import GREETING_MARK
from openclaw.models.base import Model

DEFAULT_TRIGGERS = ("/new", "/reset")
_PREFIX = re.compile(r"^[A-Za-z0-9+()\-_. ]+:[ \t]*")
GREETING = (
    f"{GREETING_MARK}. Greet the person in your own voice, in one to three sentences, "
    "and ask what they would like to do. {model}Say nothing about files, tools or other workings."
)


def find_reset(text: str, triggers: Iterable[str], listening: Listening) -> tuple[str, str] | None:
    """The trigger a message begins with and the text behind it, untouched; None when it is not a reset."""
    wanted = dict.fromkeys((*DEFAULT_TRIGGERS, *(trigger.strip() for trigger in triggers)))
    if "/" not in text and all(trigger.startswith("/") for trigger in wanted if trigger):
        return None
    body = command_body(text, listening)
    # A sender's name may stand in front where a channel wrapped the text. The rest is cut from what was typed: the
    # bare words used for looking have lost their line breaks and brackets.
    candidates = (body, command_body(_PREFIX.sub("", body, count=1), listening))
    for trigger in wanted:
        for candidate in candidates:
            if trigger and _begins(candidate, trigger):
                return trigger, _rest(candidate[len(trigger) :])
    return None


def _begins(text: str, trigger: str) -> bool:
    if text[: len(trigger)].lower() != trigger.lower():
        return False
    behind = text[len(trigger) : len(trigger) + 1]
    return not behind or behind.isspace() or (behind == ":" and trigger.startswith("/"))


def _rest(text: str) -> str:
    return text.strip().removeprefix(":").strip()


class Started(msgspec.Struct, frozen=True):
    announcement: str
    rest: str
    """The words after the trigger and the model."""
    greeting: str
    """What the agent is told when there are none."""


async def start_over(trigger: str, rest: str, facts: Facts, services: CommandServices) -> Started:
    """Replaces the session and stores the model that the rest begins with."""
    reason = "reset" if trigger.lower() == "/reset" else "new"
    config, catalogue, session = services.config, services.catalogue, facts.session
    default = catalogue.default_for(config, session.agent_id)
    await services.rotate_session(session, reason)
    chosen, rest = leading_model(rest, config, catalogue, session.agent_id)
    if chosen is not None:
        await services.patch_session(session, model_fields(chosen, default))
    model = chosen or default
    different = f" (default: {default.ref})" if model.ref != default.ref else ""
    return Started(f"✅ New session started · model: {model.ref}{different}", rest, greeting(model, default))


def greeting(model: Model, default: Model) -> str:
    mention = f"Mention that you run on {model.ref} rather than {default.ref}. " if model.ref != default.ref else ""
    return GREETING.format(model=mention)
