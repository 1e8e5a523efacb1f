"""Directives that stand alone: checked, stored with the session, acknowledged. All or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.config.agents import agent_config
from openclaw.config.schema import Config
from openclaw.config.schema.tools import Elevated
from openclaw.inbound.access import normal_id
from openclaw.inbound.commands.context import CommandServices, Facts, Hints
from openclaw.inbound.commands.models import QUESTIONS, choose_model, current_model, model_info, no_numbers
from openclaw.inbound.commands.queue import invalid_options, queue_acks, queue_changes, queue_overview
from openclaw.inbound.directives import (
    ENTRY_FIELD,
    EXEC_VALUES,
    Directives,
    ExecDirective,
    ExecField,
    Level,
    LevelKind,
    level_values,
    stored,
)
from openclaw.models.base import Model
from openclaw.models.catalogue import UnknownModel
from openclaw.models.thinking import level_unless_set, supported_levels
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef

_EXEC_FIELDS: dict[ExecField, str] = {
    "host": "execHost",
    "security": "execSecurity",
    "ask": "execAsk",
    "node": "execNode",
}
_NAMES: dict[LevelKind, str] = {
    "think": "thinking",
    "verbose": "verbose",
    "reasoning": "reasoning",
    "elevated": "elevated",
}
_ACKS: dict[tuple[LevelKind, str], str] = {
    ("think", "off"): "Thinking disabled.",
    ("verbose", "on"): "⚙️ Verbose logging enabled.",
    ("verbose", "full"): "⚙️ Verbose logging set to full.",
    ("verbose", "off"): "⚙️ Verbose logging disabled.",
    ("reasoning", "on"): "⚙️ Reasoning visibility enabled.",
    ("reasoning", "stream"): "⚙️ Reasoning stream enabled (Telegram only).",
    ("reasoning", "off"): "⚙️ Reasoning visibility disabled.",
    ("elevated", "on"): "⚙️ Elevated mode set to ask (approvals may still apply).",
    ("elevated", "ask"): "⚙️ Elevated mode set to ask (approvals may still apply).",
    ("elevated", "full"): "⚙️ Elevated mode set to full (auto-approve).",
    ("elevated", "off"): "⚙️ Elevated mode disabled.",
}


class Refused(Exception):
    """The text is the reply; nothing was stored."""


class Change(msgspec.Struct, kw_only=True):
    """What the directives come to, gathered before anything is written."""

    fields: dict[str, Any] = {}
    acks: list[str] = []
    notes: list[str] = []


async def store_directives(directives: Directives, facts: Facts, services: CommandServices) -> str:
    """Checks everything first; then stores it, and answers with one line per setting joined by blanks."""
    entry = await services.entry(facts.session)
    desk = _Desk(facts, services, entry)
    try:
        desk.profiles = await known_profiles(directives, facts, services)
        change = desk.read(directives)
    except Refused as refused:
        return str(refused)
    begun = await services.use_session(facts)
    await services.patch_session(facts.session, {**change.fields, "updatedAt": services.clock.now_ms()})
    for note in change.notes:
        services.note(facts.session, note)
    acks = " ".join(change.acks)
    return f"{begun}\n{acks}" if begun else acks


class _Desk:
    """Reads directives in the order in which they may be refused."""

    def __init__(self, facts: Facts, services: CommandServices, entry: SessionEntry | None) -> None:
        self.facts, self.services, self.entry = facts, services, entry
        self.config, self.catalogue = services.config, services.catalogue
        self.change = Change()
        self.profiles: Sequence[str] = ()
        """Stored credentials that fit the wanted model; looked up only when one is named."""

    @property
    def session(self) -> SessionRef:
        return self.facts.session

    def read(self, directives: Directives) -> Change:
        model = self._model(directives)
        for kind, level in level_directives(directives):
            self._level(kind, level, model)
        if directives.exec is not None:
            self._exec(directives.exec)
        if directives.queue is not None:
            self._queue(directives)
        self._check_xhigh(directives, model)
        self._acknowledge(directives)
        return self.change

    def _model(self, directives: Directives) -> Model:
        """The model the session will have; choosing it is part of the change."""
        wanted = directives.model
        if wanted is None or wanted.name.lower() in QUESTIONS:
            if wanted is not None:
                raise Refused(model_info(wanted.name.lower(), self.facts, self.services, self.entry))
            try:
                return current_model(self.entry, self.config, self.catalogue, self.session.agent_id)
            except UnknownModel as unknown:
                raise Refused(f"{unknown} /model default goes back to the configured one.") from None
        if wanted.name.isdigit():
            raise Refused(no_numbers(wanted.name))
        try:
            model = choose_model(wanted.name, self.config, self.catalogue, self.session.agent_id)
        except UnknownModel as unknown:
            raise Refused(str(unknown)) from None
        if wanted.profile and wanted.profile not in self.profiles:
            raise Refused(f"{unknown_profile(wanted.profile, model, self.profiles)} The model is unchanged.")
        self.change.fields.update(model_fields(model, self._default(), wanted.profile))
        return model

    def _default(self) -> Model:
        return self.catalogue.default_for(self.config, self.session.agent_id)

    def _level(self, kind: LevelKind, level: Level, model: Model) -> None:
        options = level_options(kind, model)
        if level.value is None and level.word:
            raise Refused(f'Unrecognized {_NAMES[kind]} level "{level.word}". Valid levels: {", ".join(options)}.')
        if level.value is None:
            raise Refused(
                f"Current {_NAMES[kind]} level: {self._current(kind, model)}.\nOptions: {', '.join(options)}."
            )
        if kind == "elevated" and level.value != "off" and (gates := closed_gates(self.config, self.facts)):
            raise Refused(elevated_refusal(self.services.runtime(self.session), gates))
        field = ENTRY_FIELD[kind]
        unset = level_unless_set(model, self.config.agents.defaults.thinking_default) if kind == "think" else "off"
        self.change.fields[field] = stored(field, level.value, unset)

    def _current(self, kind: LevelKind, model: Model) -> str:
        return effective_levels(self.facts, self.services, self.entry, model)[kind]

    def _exec(self, exec: ExecDirective) -> None:
        if exec.invalid:
            raise Refused(invalid_exec(exec))
        if not exec.options:
            raise Refused(self._exec_overview())
        for name, value in exec.options.items():
            self.change.fields[_EXEC_FIELDS[name]] = value

    def _exec_overview(self) -> str:
        defaults = self.config.tools.exec
        entry = self.entry or {}
        shown = ", ".join(
            f"{name}={entry.get(field) or getattr(defaults, name, None) or 'default'}"
            for name, field in _EXEC_FIELDS.items()
        )
        options = ", ".join(f"{name}={'|'.join(values) or '<id>'}" for name, values in EXEC_VALUES.items())
        return f"Current exec defaults: {shown}.\nOptions: {options}."

    def _queue(self, directives: Directives) -> None:
        queue = directives.queue
        assert queue is not None
        if queue.invalid:
            raise Refused(invalid_options(queue))
        if not queue.says_something:
            raise Refused(queue_overview(self.facts, self.services, self.entry))
        self.change.fields.update(queue_changes(queue))

    def _check_xhigh(self, directives: Directives, model: Model) -> None:
        if directives.think and directives.think.value == "xhigh" and "xhigh" not in supported_levels(model):
            raise Refused(f'Thinking level "xhigh" is not available with {model.ref}; high is the most it offers.')

    def _acknowledge(self, directives: Directives) -> None:
        acks, notes = self.change.acks, self.change.notes
        for kind, level in level_directives(directives):
            assert level.value is not None
            acks.append(_ACKS.get((kind, level.value), f"Thinking level set to {level.value}."))
            if kind == "elevated":
                if self.services.runtime(self.session) == "direct":
                    acks.append("⚙️ Runtime is direct; sandboxing does not apply.")
                notes.append(f"Elevated mode is now {level.value}.")
            if kind == "reasoning":
                notes.append(f"Reasoning visibility is now {level.value}.")
        if directives.exec is not None:
            chosen = ", ".join(f"{name}={value}" for name, value in directives.exec.options.items())
            acks.append(f"⚙️ Exec defaults set ({chosen}).")
        if directives.model is not None:
            self._acknowledge_model(directives.model.name, directives.model.profile)
        if directives.queue is not None:
            acks.extend(queue_acks(directives.queue))

    def _acknowledge_model(self, name: str, profile: str | None) -> None:
        model = choose_model(name, self.config, self.catalogue, self.session.agent_id)
        with_profile = f" with the credential {profile}" if profile else ""
        if "modelOverride" in self.change.fields and self.change.fields["modelOverride"] is None:
            self.change.acks.append(f"Model reset to default ({model.ref}){with_profile}.")
        else:
            label = f"{name} ({model.ref})" if name.lower() in self.catalogue.aliases() else model.ref
            self.change.acks.append(f"Model set to {label}{with_profile}.")
        before = current_model_ref(self.entry, self.services, self.session.agent_id)
        if before != model.ref:
            self.change.notes.append(f"Model switched to {model.ref}.")


# Shared with hints, the status card and new sessions


def level_directives(directives: Directives) -> list[tuple[LevelKind, Level]]:
    pairs: list[tuple[LevelKind, Level | None]] = [
        ("think", directives.think),
        ("verbose", directives.verbose),
        ("reasoning", directives.reasoning),
        ("elevated", directives.elevated),
    ]
    return [(kind, level) for kind, level in pairs if level is not None]


def level_options(kind: LevelKind, model: Model) -> tuple[str, ...]:
    values = level_values(kind)
    return values if kind != "think" or "xhigh" in supported_levels(model) else values[:-1]


def effective_levels(
    facts: Facts, services: CommandServices, entry: SessionEntry | None, model: Model
) -> dict[LevelKind, str]:
    """What counts now: the session's own setting, else the configured default."""
    defaults, own = services.config.agents.defaults, entry or SessionEntry(sessionId="")
    return {
        "think": own.get("thinkingLevel") or defaults.thinking_default or ("low" if model.reasoning else "off"),
        "verbose": own.get("verboseLevel") or defaults.verbose_default,
        "reasoning": own.get("reasoningLevel") or "off",
        "elevated": effective_elevated(services.config, facts, own.get("elevatedLevel")),
    }


def model_fields(model: Model, default: Model, profile: str | None = None) -> dict[str, Any]:
    """The default is stored as the absence of a choice, so that it follows the configuration."""
    chosen = model.ref != default.ref
    return {
        "providerOverride": model.provider if chosen else None,
        "modelOverride": model.id if chosen else None,
        "authProfileOverride": profile,
        "authProfileOverrideSource": "user" if profile else None,
        "authProfileOverrideCompactionCount": None,
    }


async def known_profiles(directives: Directives, facts: Facts, services: CommandServices) -> Sequence[str]:
    """The stored credentials one of which ``/model name@profile`` means; nothing is read without a profile."""
    wanted = directives.model
    if wanted is None or not wanted.profile:
        return ()
    try:
        model = choose_model(wanted.name, services.config, services.catalogue, facts.session.agent_id)
    except UnknownModel:
        return ()
    return await services.auth_profiles(model, facts.session.agent_id)


def unknown_profile(profile: str, model: Model, stored: Sequence[str]) -> str:
    there = f"stored are: {', '.join(stored)}" if stored else "none is stored"
    return f'Auth profile "{profile}" is not stored for {model.provider} ({there}).'


def current_model_ref(entry: SessionEntry | None, services: CommandServices, agent_id: str) -> str | None:
    try:
        return current_model(entry, services.config, services.catalogue, agent_id).ref
    except UnknownModel:
        return None


def invalid_exec(exec: ExecDirective) -> str:
    return " ".join(
        f'Unrecognized exec {name} "{value}". Valid: {", ".join(EXEC_VALUES[name])}.'
        for name, value in exec.invalid.items()
    )


def closed_gates(config: Config, facts: Facts) -> list[str]:
    """The key paths that stand in the way; empty means allowed."""
    agent = agent_config(config, facts.session.agent_id)
    own = agent.tools.elevated if agent and agent.tools else None
    closed = _closed("tools.elevated", config.tools.elevated, facts, list_required=True)
    if own is not None:
        closed += _closed(f"agents.list[{facts.session.agent_id}].tools.elevated", own, facts, list_required=False)
    return closed


def elevated_allowed(config: Config, facts: Facts) -> bool:
    """Asked with every message; nearly always answered by the first look: nobody is listed."""
    return bool(config.tools.elevated.allow_from) and not closed_gates(config, facts)


def _closed(path: str, settings: Elevated, facts: Facts, *, list_required: bool) -> list[str]:
    if not settings.enabled:
        return [f"{path}.enabled"]
    listed = settings.allow_from.get(facts.channel)
    if listed is None and not list_required:
        return []
    known = {normal_id(facts.channel, str(entry)) for entry in listed or ()}
    allowed = "*" in known or not known.isdisjoint(facts.sender_ids)
    return [] if allowed else [f"{path}.allowFrom.{facts.channel}"]


def elevated_refusal(runtime: str, gates: list[str]) -> str:
    return (
        f"elevated is not available right now (runtime={runtime}).\n"
        f"Closed by: {', '.join(gates)}. Change these keys of the configuration to allow it."
    )


def effective_elevated(config: Config, facts: Facts, stored: str | None) -> str:
    if closed_gates(config, facts):
        return "off"
    return stored or config.agents.defaults.elevated_default


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
    if level not in (None, "off") and (gates := closed_gates(services.config, facts)):
        complaints.append(elevated_refusal(services.runtime(facts.session), gates))
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
