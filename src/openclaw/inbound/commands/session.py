"""Commands on the session itself: ``/stop``, ``/send``, ``/activation``, ``/usage``, ``/resume``, ``/why``."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw.inbound.commands.context import CommandContext, EarlierSession, Handled, Stopped, handles
from openclaw.inbound.commands.figures import ago, shortened
from openclaw.inbound.levels import read_send_policy, read_usage
from openclaw.sessions.resume import NotResumable

_SEND_STORED = {"on": "allow", "off": "deny", "inherit": None}
_NEXT_USAGE = {"off": "tokens", "tokens": "full", "full": "off"}
LISTED = 20


@handles("stop")
async def stop(context: CommandContext) -> Handled:
    stopped = await context.services.stop(context.session)
    return Handled(reply=stopped_text(stopped), stopped=stopped)


def stopped_text(stopped: Stopped) -> str:
    if not stopped.children:
        return "⚙️ Agent was aborted."
    plural = "" if stopped.children == 1 else "s"
    return f"⚙️ Agent was aborted. Stopped {stopped.children} sub-agent{plural}."


@handles("send")
async def send(context: CommandContext) -> str:
    choice = read_send_policy(context.args)
    if choice is None:
        return "⚙️ Usage: /send on|off|inherit"
    await context.services.patch_session(context.session, {"sendPolicy": _SEND_STORED[choice]})
    return f"⚙️ Send policy set to {choice}."


@handles("activation")
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


@handles("usage")
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


@handles("resume")
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


@handles("why")
async def why(context: CommandContext) -> str:
    ref = context.args.strip() or None
    story = await context.services.why(context.session, ref)
    if story:
        return "\n".join(story)
    return f'Nothing is known of "{ref}".' if ref else "No message of this session is on record yet."
