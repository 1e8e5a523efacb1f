"""``/approve``: a person's answer when the agent wants to run a command and has to ask."""

from __future__ import annotations

from openclaw.inbound.commands.context import CommandContext, Decision, handles

USAGE = "⚙️ Usage: /approve <id> allow-once|allow-always|deny"
_DECISIONS: dict[str, Decision] = {
    "allow-once": "allow-once",
    "allowonce": "allow-once",
    "allow": "allow-once",
    "once": "allow-once",
    "allow-always": "allow-always",
    "allowalways": "allow-always",
    "always": "allow-always",
    "deny": "deny",
    "reject": "deny",
    "block": "deny",
}


@handles("approve")
async def approve(context: CommandContext) -> str:
    facts = context.facts
    if not facts.approver:
        return "❌ /approve needs the scope operator.approvals, which this client does not have."
    read = read_answer(context.args)
    if read is None:
        return USAGE
    ref, decision = read
    try:
        command = context.services.decide(ref, decision, facts.sender_name or f"{facts.channel}:{_who(context)}")
    except LookupError as unknown:
        return f'❌ "{ref}": {unknown.args[0]}'
    outcome = {"allow-once": "allowed once", "allow-always": "allowed from now on", "deny": "denied"}[decision]
    return f"✅ Exec approval {ref}: {outcome}. Command: {command}"


def read_answer(args: str) -> tuple[str, Decision] | None:
    """The id and the decision, in either order."""
    words = args.split()
    if len(words) != 2:
        return None
    for ref, word in (words, reversed(words)):
        if (decision := _DECISIONS.get(word.lower())) and ref.lower() not in _DECISIONS:
            return ref, decision
    return None


def _who(context: CommandContext) -> str:
    return context.facts.sender_ids[0] if context.facts.sender_ids else "owner"
