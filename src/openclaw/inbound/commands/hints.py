"""Directives inside other text: wishes for that one run, stored nowhere and not acknowledged."""

from __future__ import annotations

import msgspec

from openclaw.inbound.commands import elevated
from openclaw.inbound.commands.context import CommandServices, Facts, Hints
from openclaw.inbound.commands.model_choice import QUESTIONS, choose_model
from openclaw.inbound.commands.settings import invalid_exec, known_profiles, unknown_profile
from openclaw.inbound.directives import Directives
from openclaw.models.base import Model
from openclaw.models.catalogue import UnknownModel


def honoured(directives: Directives, facts: Facts) -> Directives:
    """In groups, loosening what commands may do counts only in a message that mentions the agent."""
    if not facts.group or facts.mentioned:
        return directives
    loosens = directives.elevated is not None and directives.elevated.value != "off"
    exec = directives.exec
    tightens = exec is not None and exec.options.get("security") == "deny"
    return msgspec.structs.replace(
        directives,
        elevated=None if loosens else directives.elevated,
        exec=exec if tightens else None,
    )


async def hints_of(directives: Directives, facts: Facts, services: CommandServices) -> tuple[Hints, list[str], bool]:
    """The hints, what to tell the person about wishes that cannot be met, and whether a model was really named."""
    complaints: list[str] = []
    model = _model(directives, facts, services, complaints)
    wanted = directives.model
    profile = wanted.profile if wanted and model else None
    if profile and model and profile not in (known := await known_profiles(directives, facts, services)):
        complaints.append(f"{unknown_profile(profile, model, known)} The usual one is used.")
        profile = None
    level = directives.elevated.value if directives.elevated else None
    if level not in (None, "off") and (gates := elevated.closed_gates(services.config, facts)):
        complaints.append(elevated.refusal(services.runtime(facts.session), gates))
        level = None
    if directives.exec is not None and directives.exec.invalid:
        complaints.append(invalid_exec(directives.exec))
    queue = directives.queue.wish if directives.queue and directives.queue.says_something else None
    hints = Hints(
        thinking=directives.think.value if directives.think else None,
        verbose=directives.verbose.value if directives.verbose else None,
        reasoning=directives.reasoning.value if directives.reasoning else None,
        elevated=level,
        exec=directives.exec.options if directives.exec else {},
        model=model.ref if model else None,
        auth_profile=profile,
        queue=queue,
    )
    return hints, complaints, model is not None or wanted is None


def _model(directives: Directives, facts: Facts, services: CommandServices, complaints: list[str]) -> Model | None:
    wanted = directives.model
    if wanted is None or wanted.name.lower() in QUESTIONS:
        return None
    try:
        return choose_model(wanted.name, services.config, services.catalogue, facts.session.agent_id)
    except UnknownModel as unknown:
        complaints.append(str(unknown))
        return None
