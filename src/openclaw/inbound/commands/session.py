"""Commands on the session itself: ``/stop``, ``/send``, ``/activation``, ``/usage``, ``/resume``, ``/why``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from openclaw.inbound.command_text import Listening, command_body
from openclaw.inbound.commands.context import (
    CommandContext,
    CommandServices,
    EarlierSession,
    Facts,
    Handled,
    Stopped,
)
from openclaw.inbound.commands.models import leading_model
from openclaw.inbound.commands.settings import model_fields
from openclaw.inbound.directives import read_send_policy, read_usage
from openclaw.models.base import Model
from openclaw.outbound.usage_text import ago, shortened
from openclaw.sessions.resume import NotResumable
from openclaw.sessions.typed_text import GREETING_MARK

_SEND_STORED = {"on": "allow", "off": "deny", "inherit": None}
_NEXT_USAGE = {"off": "tokens", "tokens": "full", "full": "off"}
LISTED = 20


async def stop(context: CommandContext) -> Handled:
    stopped = await context.services.stop(context.session)
    return Handled(reply=stopped_text(stopped), stopped=stopped)


def stopped_text(stopped: Stopped) -> str:
    if not stopped.children:
        return "⚙️ Agent was aborted."
    plural = "" if stopped.children == 1 else "s"
    return f"⚙️ Agent was aborted. Stopped {stopped.children} sub-agent{plural}."


async def send(context: CommandContext) -> str:
    choice = read_send_policy(context.args)
    if choice is None:
        return "⚙️ Usage: /send on|off|inherit"
    await context.services.patch_session(context.session, {"sendPolicy": _SEND_STORED[choice]})
    return f"⚙️ Send policy set to {choice}."


async def activation(context: CommandContext) -> str:
    if not context.facts.group:
        return "⚙️ Group activation only applies to group chats."
    mode = context.args.strip().lower()
    if mode not in ("mention", "always"):
        return "⚙️ Usage: /activation mention|always"
    # The agent must learn the new rule before it speaks again.
    changes = {"groupActivation": mode, "groupActivationNeedsSystemIntro": True}
    await context.services.patch_session(context.session, changes)
    return f"⚙️ Group activation set to {mode}."


async def usage(context: CommandContext) -> str:
    word = context.args.strip().lower()
    if word == "cost":
        return await _costs(context)
    now = read_usage(str(context.setting("responseUsage") or "off")) or "off"
    mode = read_usage(word) if word else _NEXT_USAGE[now]
    if mode is None:
        return "⚙️ Usage: /usage off|tokens|full|cost"
    begun = await context.services.use_session(context.facts)
    changes = {"responseUsage": None if mode == "off" else mode, "updatedAt": context.services.clock.now_ms()}
    await context.services.patch_session(context.session, changes)
    return "\n".join([*([begun] if begun else []), f"⚙️ Usage footer: {mode}."])


async def _costs(context: CommandContext) -> str:
    lines = ["💸 Usage cost"]
    for label, cost in (await context.services.costs(context.session)).items():
        lines.append(f"{label} {cost.text}")
    return "\n".join(lines)


async def resume(context: CommandContext) -> str:
    wanted = context.args.strip()
    if wanted.lower() == "list":
        earlier = await context.services.earlier_sessions(context.session)
        return _listing(earlier, context.services.clock.now_ms())
    try:
        return f"⏪ {await context.services.resume_session(context.session, wanted or None)}"
    except NotResumable as refused:
        return f"{refused} /resume list shows what there is." if wanted else str(refused)


def _listing(earlier: Sequence[EarlierSession], now_ms: int) -> str:
    if not earlier:
        return "There is no earlier session to go back to."
    lines = ["Earlier sessions:"]
    for number, session in enumerate(earlier[:LISTED], 1):
        title = shortened(session.title, 60) or session.session_id[:8]
        reason = f", {session.reason}" if session.reason else ""
        lines.append(f"{number}. {title} (ended {ago(session.ended_at, now_ms)}{reason})")
    return "\n".join([*lines, "/resume N goes back to one; nothing is lost."])


async def why(context: CommandContext) -> str:
    ref = context.args.strip() or None
    story = await context.services.why(context.session, ref)
    if story:
        return "\n".join(story)
    return f'Nothing is known of "{ref}".' if ref else "No message of this session is on record yet."


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
