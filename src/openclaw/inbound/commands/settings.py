"""Directives: stored with the session when they stand alone, settings for one run inside other text. And ``/queue``.

``/queue`` also lists the waiting messages and changes the list. Its settings, such as ``/queue collect``, can stand
within a message like any directive: ``inbound/directives.py`` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.config.agents import agent_config, wants_sandbox
from openclaw.config.schema import Config
from openclaw.config.schema.tools import Elevated
from openclaw.inbound.access import normal_id
from openclaw.inbound.commands.models import (
    QUESTIONS,
    check_program,
    choose_model,
    current_model,
    model_info,
    no_numbers,
)
from openclaw.inbound.directives import (
    ENTRY_FIELD,
    EXEC_VALUES,
    Called,
    Directives,
    ExecDirective,
    ExecField,
    Level,
    LevelKind,
    QueueDirective,
    level_values,
    parse_directives,
    stored,
)
from openclaw.inbound.incoming import CommandContext, Facts, current_session
from openclaw.models.base import Model
from openclaw.models.catalogue import UnknownModel
from openclaw.models.thinking import level_unless_set, supported_levels
from openclaw.runs.queue import RunRecord, queue_settings
from openclaw.runs.session_change import set_entry_fields
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.prompt_prefix import typed_words
from openclaw.storage.base import AbortReason, MessageBody
from openclaw.text import shortened

OPTIONS = (
    "Options: modes steer, followup, collect, steer-backlog, interrupt; "
    "debounce:<ms|s|m|h>, cap:<n>, drop:old|new|summarize; reset."
)
LIST_HINT = "/queue drop N lets one go, /queue now N puts it first."
SHOWN = 20


async def queue(context: CommandContext, facts: Facts, args: str) -> str | None:
    """Shows what waits, drops one of it or puts one first. None: the words are a setting, which is a directive."""
    key = facts.session.key
    words = args.lower().split()
    match words:
        case ["list"]:
            return _listing(context, facts)
        case ["drop" | "now" as verb]:
            return f"Which one? Write /queue {verb} 1 for the first. /queue list shows them."
        case ["drop" | "now" as verb, number]:
            _, waiting = running_and_waiting(context, facts)
            if not waiting:
                return "Nothing is waiting."
            if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= len(waiting):
                return f'There is no item "{number}"; write a number from 1 to {len(waiting)}.'
            record = waiting[int(number) - 1]
            if verb == "now":
                done = context.dispatcher.promote(key, record.run_id)
            else:
                # A message that is about to run is neither running nor waiting, and is not dropped.
                waits = record in context.dispatcher.waiting(key)
                done = waits and bool(await context.dispatcher.abort(key, record.run_id, AbortReason.REMOVED))
            if not done:
                return f"“{_typed(record)}” is no longer waiting."
            return f"⚙️ “{_typed(record)}” runs next." if verb == "now" else f"⚙️ Dropped “{_typed(record)}”."
        case [word] if parse_directives(f"/queue {word}").rest:
            return f'Unrecognized queue option "{args}".\n{OPTIONS}\nAlso: /queue list, drop N, now N.'
        case _:
            return None


def edits_queue(called: Called) -> bool:
    """Whether the words ask for the list or a change to it, and not for a setting."""
    words = called.args.lower().split()
    return called.command.name == "queue" and len(words) in (1, 2) and words[0] in ("list", "drop", "now")


def running_and_waiting(context: CommandContext, facts: Facts) -> tuple[RunRecord | None, list[RunRecord]]:
    records = context.dispatcher.active(facts.session.key)
    running = next((record for record in records if record.state == "running"), None)
    return running, [record for record in records if record is not running]


def _typed(record: RunRecord) -> str:
    """The beginning of what the person wrote."""
    return shortened(record.row.body.written or typed_words(record.row.body.prompt or ""))


def _listing(context: CommandContext, facts: Facts) -> str:
    running, waiting = running_and_waiting(context, facts)
    now = context.runtime.clock.now_ms()

    def line(record: RunRecord) -> str:
        seconds = max(0, now - record.row.accepted_at) // 1000
        minutes = f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"
        return f"{_typed(record)} ({minutes if seconds >= 60 else f'{seconds} s'})"

    lines = [f"Running: {line(running)}"] if running else []
    if not waiting:
        return "\n".join([*lines, "Nothing is waiting."])
    lines.append(f"Waiting ({len(waiting)}):")
    lines += [f"{number}. {line(record)}" for number, record in enumerate(waiting[:SHOWN], 1)]
    if len(waiting) > SHOWN:
        lines.append(f"… and {len(waiting) - SHOWN} more")
    return "\n".join([*lines, LIST_HINT])


# The directive


def queue_overview(facts: Facts, context: CommandContext, entry: SessionEntry | None) -> str:
    settings = queue_settings(context.config.messages.queue, entry, facts.channel)
    current = (
        f"Current queue settings: mode={settings.mode}, debounce={settings.debounce_ms}ms, "
        f"cap={settings.cap}, drop={settings.drop}."
    )
    return f"{current}\n{OPTIONS}\n{_listing(context, facts)}"


def invalid_options(queue: QueueDirective) -> str:
    advice = {
        "debounce": "Write a time such as 1500ms, 2s or 1m.",
        "cap": "Write a whole number of at least 1.",
        "drop": "Write old, new or summarize.",
    }
    names = {"debounce": "debounce", "cap": "cap", "drop": "drop policy"}
    return " ".join(f'Invalid {names[name]} "{value}". {advice[name]}' for name, value in queue.invalid.items())


def queue_changes(queue: QueueDirective) -> dict[str, Any]:
    """The fields to set in the session's entry. A reset removes those that are not set anew."""
    wish = queue.wish
    values = {
        "queueMode": wish.mode,
        "queueDebounceMs": wish.debounce_ms,
        "queueCap": wish.cap,
        "queueDrop": wish.drop,
    }
    return {name: value for name, value in values.items() if queue.reset or value is not None}


def queue_acks(queue: QueueDirective) -> list[str]:
    wish = queue.wish
    acks = ["⚙️ Queue mode reset to default."] if queue.reset else []
    if wish.mode:
        acks.append(f"⚙️ Queue mode set to {wish.mode}.")
    if wish.debounce_ms is not None:
        acks.append(f"⚙️ Queue debounce set to {wish.debounce_ms}ms.")
    if wish.cap is not None:
        acks.append(f"⚙️ Queue cap set to {wish.cap}.")
    if wish.drop:
        acks.append(f"⚙️ Queue drop set to {wish.drop}.")
    return acks


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


class DirectiveRefused(Exception):
    """A directive cannot be carried out, and nothing is stored. The text is the reply."""


async def store_directives(directives: Directives, facts: Facts, context: CommandContext) -> str:
    """Checks every directive, then stores them all, and answers with one sentence per setting."""
    reader = _Reader(facts, context, await context.entry(facts.session))
    try:
        reader.profiles = await known_profiles(directives, facts, context)
        reader.read(directives)
    except DirectiveRefused as refused:
        return str(refused)
    reply = await store_settings(reader.fields, " ".join(reader.acks), facts, context)
    for note in reader.notes:
        context.runtime.notes.add(facts.session.key, note)
    return reply


async def store_settings(fields: dict[str, Any], acknowledgement: str, facts: Facts, context: CommandContext) -> str:
    """Sets fields of the session's entry and returns the reply.

    A session that has expired is replaced first, because the settings are meant for the new one. The reply says so
    where the chat does not show it by itself.
    """
    runtime = context.runtime
    _, rotation = await current_session(facts, runtime, context.dispatcher)
    if rotation is not None:
        context.notices.announce(facts.session, rotation)
        if facts.channel != "webchat":
            acknowledgement = f"{rotation.marker_text}\n{acknowledgement}"
    await set_entry_fields(runtime, facts.session, {**fields, "updatedAt": runtime.clock.now_ms()})
    return acknowledgement


class _Reader:
    """Turns directives into changes, in the order in which they may be refused."""

    def __init__(self, facts: Facts, context: CommandContext, entry: SessionEntry | None) -> None:
        self.facts, self.context, self.entry = facts, context, entry
        self.config, self.catalogue, self.agent_id = context.config, context.catalogue, facts.session.agent_id
        self.fields: dict[str, Any] = {}
        """Fields of the session's entry to set. None removes a field."""
        self.acks: list[str] = []
        """Sentences for the person."""
        self.notes: list[str] = []
        """Lines that the agent sees at its next turn."""
        self.profiles: Sequence[str] = ()
        """The stored credentials for the wanted model. They are read only when the directive names one."""

    def read(self, directives: Directives) -> None:
        model = self._model(directives)
        for kind, level in level_directives(directives):
            self._level(kind, level, model)
        if directives.exec is not None:
            self._exec(directives.exec)
        queue, think = directives.queue, directives.think
        if queue is not None:
            if queue.invalid:
                raise DirectiveRefused(invalid_options(queue))
            if not queue.says_something:
                raise DirectiveRefused(queue_overview(self.facts, self.context, self.entry))
            self.fields.update(queue_changes(queue))
        if think and think.value == "xhigh" and "xhigh" not in supported_levels(model):
            raise DirectiveRefused(
                f'Thinking level "xhigh" is not available with {model.ref}; high is the most it offers.'
            )
        self._acknowledge(directives)

    def _model(self, directives: Directives) -> Model:
        """The model that the session will have. Choosing another one is part of the change."""
        wanted = directives.model
        if wanted is None or wanted.name.lower() in QUESTIONS:
            if wanted is not None:
                raise DirectiveRefused(model_info(wanted.name.lower(), self.facts, self.context, self.entry))
            try:
                return current_model(self.entry, self.config, self.catalogue, self.agent_id)
            except UnknownModel as unknown:
                raise DirectiveRefused(f"{unknown} /model default goes back to the configured one.") from None
        if wanted.name.isdigit():
            raise DirectiveRefused(no_numbers(wanted.name))
        try:
            model = choose_model(wanted.name, self.config, self.catalogue, self.agent_id)
            check_program(model, self.facts, self.catalogue)
        except UnknownModel as unknown:
            raise DirectiveRefused(str(unknown)) from None
        if wanted.profile and wanted.profile not in self.profiles:
            raise DirectiveRefused(f"{unknown_profile(wanted.profile, model, self.profiles)} The model is unchanged.")
        default = self.catalogue.default_for(self.config, self.agent_id)
        self.fields.update(model_fields(model, default, wanted.profile))
        return model

    def _level(self, kind: LevelKind, level: Level, model: Model) -> None:
        options = level_values(kind)
        if kind == "think" and "xhigh" not in supported_levels(model):
            options = options[:-1]
        if level.value is None and level.word:
            raise DirectiveRefused(
                f'Unrecognized {_NAMES[kind]} level "{level.word}". Valid levels: {", ".join(options)}.'
            )
        if level.value is None:
            current = effective_levels(self.config, self.facts, self.entry, model)[kind]
            raise DirectiveRefused(f"Current {_NAMES[kind]} level: {current}.\nOptions: {', '.join(options)}.")
        if kind == "elevated" and level.value != "off" and (gates := closed_gates(self.config, self.facts)):
            raise DirectiveRefused(elevated_refusal(gates, self.config, self.facts))
        field = ENTRY_FIELD[kind]
        unset = level_unless_set(model, self.config.agents.defaults.thinking_default) if kind == "think" else "off"
        self.fields[field] = stored(field, level.value, unset)

    def _exec(self, exec: ExecDirective) -> None:
        if exec.invalid:
            raise DirectiveRefused(invalid_exec(exec))
        if not exec.options:
            defaults, entry = self.config.tools.exec, self.entry or {}
            shown = ", ".join(
                f"{name}={entry.get(field) or getattr(defaults, name, None) or 'default'}"
                for name, field in _EXEC_FIELDS.items()
            )
            options = ", ".join(f"{name}={'|'.join(values) or '<id>'}" for name, values in EXEC_VALUES.items())
            raise DirectiveRefused(f"Current exec defaults: {shown}.\nOptions: {options}.")
        for name, value in exec.options.items():
            self.fields[_EXEC_FIELDS[name]] = value

    def _acknowledge(self, directives: Directives) -> None:
        acks, notes = self.acks, self.notes
        for kind, level in level_directives(directives):
            assert level.value is not None
            acks.append(_ACKS.get((kind, level.value), f"Thinking level set to {level.value}."))
            if kind == "elevated":
                if not wants_sandbox(self.config, self.agent_id, self.facts.session.key):
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
        model = choose_model(name, self.config, self.catalogue, self.agent_id)
        with_profile = f" with the credential {profile}" if profile else ""
        if "modelOverride" in self.fields and self.fields["modelOverride"] is None:
            self.acks.append(f"Model reset to default ({model.ref}){with_profile}.")
        else:
            label = f"{name} ({model.ref})" if name.lower() in self.catalogue.aliases() else model.ref
            self.acks.append(f"Model set to {label}{with_profile}.")
        try:
            before = current_model(self.entry, self.config, self.catalogue, self.agent_id).ref
        except UnknownModel:
            before = None
        if before != model.ref:
            self.notes.append(f"Model switched to {model.ref}.")


def level_directives(directives: Directives) -> list[tuple[LevelKind, Level]]:
    pairs: list[tuple[LevelKind, Level | None]] = [
        ("think", directives.think),
        ("verbose", directives.verbose),
        ("reasoning", directives.reasoning),
        ("elevated", directives.elevated),
    ]
    return [(kind, level) for kind, level in pairs if level is not None]


def effective_levels(config: Config, facts: Facts, entry: SessionEntry | None, model: Model) -> dict[LevelKind, str]:
    """The levels that hold now: the session's own setting, or else the configured default."""
    defaults, own = config.agents.defaults, entry or SessionEntry(sessionId="")
    elevated = own.get("elevatedLevel") or defaults.elevated_default
    return {
        "think": own.get("thinkingLevel") or defaults.thinking_default or ("low" if model.reasoning else "off"),
        "verbose": own.get("verboseLevel") or defaults.verbose_default,
        "reasoning": own.get("reasoningLevel") or "off",
        "elevated": "off" if closed_gates(config, facts) else elevated,
    }


def model_fields(model: Model, default: Model, profile: str | None = None) -> dict[str, Any]:
    """The entry's fields for a model. The default is stored as no choice, so that it follows the configuration."""
    chosen = model.ref != default.ref
    return {
        "providerOverride": model.provider if chosen else None,
        "modelOverride": model.id if chosen else None,
        "authProfileOverride": profile,
        "authProfileOverrideSource": "user" if profile else None,
        "authProfileOverrideCompactionCount": None,
    }


async def known_profiles(directives: Directives, facts: Facts, context: CommandContext) -> Sequence[str]:
    """The ids of the stored credentials among which ``/model name@profile`` chooses.

    Without a profile in the directive nothing is read.
    """
    wanted, runtime, agent_id = directives.model, context.runtime, facts.session.agent_id
    if wanted is None or not wanted.profile:
        return ()
    try:
        model = choose_model(wanted.name, context.config, context.catalogue, agent_id)
    except UnknownModel:
        return ()
    stored = await runtime.failover.keys.stored(model, context.config, agent_id)
    return [key.credential.id for key in stored]


def unknown_profile(profile: str, model: Model, stored: Sequence[str]) -> str:
    there = f"stored are: {', '.join(stored)}" if stored else "none is stored"
    return f'Auth profile "{profile}" is not stored for {model.provider} ({there}).'


def invalid_exec(exec: ExecDirective) -> str:
    return " ".join(
        f'Unrecognized exec {name} "{value}". Valid: {", ".join(EXEC_VALUES[name])}.'
        for name, value in exec.invalid.items()
    )


def closed_gates(config: Config, facts: Facts) -> list[str]:
    """The paths of the settings that forbid elevated commands. Empty: they are allowed."""
    if "admin" not in facts.rights:
        return ["commands.ownerAllowFrom"]
    agent = agent_config(config, facts.session.agent_id)
    own = agent.tools.elevated if agent and agent.tools else None
    closed = _closed("tools.elevated", config.tools.elevated, facts, list_required=True)
    if own is not None:
        closed += _closed(f"agents.list[{facts.session.agent_id}].tools.elevated", own, facts, list_required=False)
    return closed


def elevated_allowed(config: Config, facts: Facts) -> bool:
    """Whether the sender may use elevated commands. Usually nobody is listed, and one look decides it."""
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


def elevated_refusal(gates: list[str], config: Config, facts: Facts) -> str:
    inside = wants_sandbox(config, facts.session.agent_id, facts.session.key)
    return (
        f"elevated is not available right now (runtime={'sandboxed' if inside else 'direct'}).\n"
        f"Closed by: {', '.join(gates)}. Change these keys of the configuration to allow it."
    )


def honoured(directives: Directives, facts: Facts) -> Directives:
    """Drops what does not count: in a group, a message that loosens the rules for commands must mention the agent."""
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


async def settings_for_run(
    directives: Directives, facts: Facts, context: CommandContext
) -> tuple[MessageBody, list[str]]:
    """The settings for one run, and the complaints about those that cannot be met."""
    complaints: list[str] = []
    wanted, model = directives.model, None
    if wanted is not None and wanted.name.lower() not in QUESTIONS:
        try:
            found = choose_model(wanted.name, context.config, context.catalogue, facts.session.agent_id)
            check_program(found, facts, context.catalogue)
            model = found
        except UnknownModel as unknown:
            complaints.append(str(unknown))
    profile = wanted.profile if wanted and model else None
    if profile and model and profile not in (known := await known_profiles(directives, facts, context)):
        complaints.append(f"{unknown_profile(profile, model, known)} The usual one is used.")
        profile = None
    level = directives.elevated.value if directives.elevated else None
    if level not in (None, "off") and (gates := closed_gates(context.config, facts)):
        complaints.append(elevated_refusal(gates, context.config, facts))
        level = None
    if directives.exec is not None and directives.exec.invalid:
        complaints.append(invalid_exec(directives.exec))
    settings = MessageBody(
        thinking=directives.think.value if directives.think else None,
        verbose=directives.verbose.value if directives.verbose else None,
        reasoning=directives.reasoning.value if directives.reasoning else None,
        elevated=level,
        exec={**directives.exec.options} if directives.exec else {},
        model=model.ref if model else None,
        auth_profile=profile,
    )
    return settings, complaints
