"""What directives do: alone they are stored with the session, inside other text they are settings for one run.

``inbound/directives.py`` reads them. Two of them do more: ``/queue`` also shows and changes the list of waiting
messages, and ``/model`` finds a model by what a person calls it; ``/models`` lists those on offer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from openclaw.agent.model_choice import current_model
from openclaw.config.agents import agent_config, fallback_models, primary_model, wants_sandbox
from openclaw.config.schema import Config
from openclaw.config.schema.tools import Elevated
from openclaw.inbound.access import normal_id
from openclaw.inbound.directives import (
    ENTRY_FIELD,
    EXEC_VALUES,
    Directives,
    ExecDirective,
    ExecField,
    Level,
    LevelKind,
    QueueDirective,
    level_values,
    stored,
)
from openclaw.inbound.incoming import CommandContext, Facts, current_session
from openclaw.models.base import Model
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.keys import canonical_provider, find_source, provider_config
from openclaw.models.thinking import level_unless_set, supported_levels
from openclaw.runs.queue_settings import queue_settings
from openclaw.runs.run import Run
from openclaw.runs.session_change import set_entry_fields
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.prompt_prefix import typed_text
from openclaw.storage.message_ledger import AbortReason, MessageBody
from openclaw.text import redact_urls, shortened

PAGE = 20
SHOWN = 20
QUESTIONS = frozenset({"", "list", "status"})
"""The words after ``/model`` that are a question and not a model."""
SHORTEST_FRAGMENT = 6
"""A part of a model's name in running text must have at least this length."""
SHORTEST_PART = 3
"""A part of a model's name after ``/model`` must have at least this length."""
OPTIONS = (
    "Options: modes steer, followup, collect, steer-backlog, interrupt; "
    "debounce:<ms|s|m|h>, cap:<n>, drop:old|new|summarize; reset."
)
LIST_HINT = "/queue drop N lets one go, /queue now N puts it first."
_QUEUE_OPTIONS = (
    ("mode", "queueMode", "mode", ""),
    ("debounce_ms", "queueDebounceMs", "debounce", "ms"),
    ("cap", "queueCap", "cap", ""),
    ("drop", "queueDrop", "drop", ""),
)
"""The options of ``/queue``: the field of the wish, that of the entry, the name for people, the unit."""
_EXEC_FIELDS: dict[ExecField, str] = {
    "host": "execHost",
    "security": "execSecurity",
    "ask": "execAsk",
    "node": "execNode",
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


class DirectiveAnswer(Exception):
    """The text is the reply: a directive asked for the present value, or cannot be carried out. Nothing is stored."""


async def store_directives(directives: Directives, facts: Facts, context: CommandContext) -> str:
    """Check every directive, then store them all, and answer with one sentence per setting."""
    changes = _Changes(facts, context, await context.entry(facts.session))
    try:
        changes.profiles = await known_profiles(directives, facts, context)
        changes.read(directives)
    except DirectiveAnswer as answer:
        return str(answer)
    reply = await store_settings(changes.fields, " ".join(changes.acks), facts, context)
    for note in changes.notes:
        context.runtime.notes.add(facts.session.key, note)
    return reply


async def store_settings(fields: dict[str, Any], acknowledgement: str, facts: Facts, context: CommandContext) -> str:
    """Set fields of the session's entry and return the reply.

    A session that has expired is replaced first, because the settings are meant for the new one. The reply says so
    where the chat does not show it by itself.
    """
    runtime = context.runtime
    _, rotation = await current_session(facts, runtime, context.runs)
    if rotation is not None:
        context.notices.announce(facts.session, rotation)
        if facts.channel != "webchat":
            acknowledgement = f"{rotation.marker_text}\n{acknowledgement}"
    await set_entry_fields(runtime, facts.session, {**fields, "updatedAt": runtime.clock.now_ms()})
    return acknowledgement


class _Changes:
    """Turns directives into changes. ``read`` raises ``DirectiveAnswer`` at the first one that changes nothing."""

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
        for kind, level in directives.levels:
            self._level(kind, level, model)
        if directives.exec is not None:
            self._exec(directives.exec)
        queue, think = directives.queue, directives.think
        if queue is not None:
            if queue.invalid:
                raise DirectiveAnswer(invalid_options(queue))
            if not queue.has_content:
                raise DirectiveAnswer(queue_overview(self.facts, self.context, self.entry))
            values = {field: getattr(queue.wish, option) for option, field, _, _ in _QUEUE_OPTIONS}
            # A reset removes the fields that are not set again.
            self.fields |= {field: value for field, value in values.items() if queue.reset or value is not None}
        if think and think.value == "xhigh" and "xhigh" not in supported_levels(model):
            raise DirectiveAnswer(
                f'Thinking level "xhigh" is not available with {model.ref}; high is the most it offers.'
            )
        self._acknowledge(directives, model)

    def _model(self, directives: Directives) -> Model:
        """Return the model that the session will have. Choosing another one is part of the change."""
        requested = directives.model
        if requested is None or requested.name.lower() in QUESTIONS:
            if requested is not None:
                raise DirectiveAnswer(model_info(requested.name.lower(), self.facts, self.context, self.entry))
            try:
                return current_model(self.entry, self.config, self.catalogue, self.agent_id)
            except UnknownModel as unknown:
                raise DirectiveAnswer(f"{unknown} /model default goes back to the configured one.") from None
        if requested.name.isdigit():
            raise DirectiveAnswer(
                f'Models have no numbers, so "{requested.name}" names none. '
                "/models shows the names; then write /model <name>."
            )
        try:
            model = named_model(requested.name, self.config, self.catalogue, self.agent_id)
            check_program(model, self.facts, self.catalogue)
        except UnknownModel as unknown:
            raise DirectiveAnswer(str(unknown)) from None
        if requested.profile and requested.profile not in self.profiles:
            raise DirectiveAnswer(f"{unknown_profile(requested.profile, model, self.profiles)} The model is unchanged.")
        default = self.catalogue.default_for(self.config, self.agent_id)
        self.fields.update(model_fields(model, default, requested.profile))
        return model

    def _level(self, kind: LevelKind, level: Level, model: Model) -> None:
        if level.value is None and level.word:
            raise DirectiveAnswer(invalid_level(kind, level, model))
        if level.value is None:
            name, options = "thinking" if kind == "think" else kind, ", ".join(_offered_levels(kind, model))
            current = effective_levels(self.config, self.facts, self.entry, model)[kind]
            raise DirectiveAnswer(f"Current {name} level: {current}.\nOptions: {options}.")
        if kind == "elevated" and level.value != "off" and (forbidding := forbids_elevated(self.config, self.facts)):
            raise DirectiveAnswer(elevated_refusal(forbidding, self.config, self.facts))
        field = ENTRY_FIELD[kind]
        unset = level_unless_set(model, self.config.agents.defaults.thinking_default) if kind == "think" else "off"
        self.fields[field] = stored(field, level.value, unset)

    def _exec(self, exec: ExecDirective) -> None:
        if exec.invalid or exec.unknown:
            raise DirectiveAnswer(invalid_exec(exec))
        if not exec.options:
            defaults, entry = self.config.tools.exec, self.entry or {}
            shown = ", ".join(
                f"{name}={entry.get(field) or getattr(defaults, name, None) or 'default'}"
                for name, field in _EXEC_FIELDS.items()
            )
            options = ", ".join(f"{name}={'|'.join(values) or '<id>'}" for name, values in EXEC_VALUES.items())
            raise DirectiveAnswer(f"Current exec defaults: {shown}.\nOptions: {options}.")
        for name, value in exec.options.items():
            self.fields[_EXEC_FIELDS[name]] = value

    def _acknowledge(self, directives: Directives, model: Model) -> None:
        acks, notes = self.acks, self.notes
        for kind, level in directives.levels:
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
            self._acknowledge_model(model, directives.model.name, directives.model.profile)
        if directives.queue is not None:
            acks += ["⚙️ Queue mode reset to default."] if directives.queue.reset else []
            for option, _, name, unit in _QUEUE_OPTIONS:
                if (value := getattr(directives.queue.wish, option)) is not None:
                    acks.append(f"⚙️ Queue {name} set to {value}{unit}.")

    def _acknowledge_model(self, model: Model, name: str, profile: str | None) -> None:
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


async def settings_for_run(
    directives: Directives, facts: Facts, context: CommandContext
) -> tuple[MessageBody, list[str]]:
    """Return the settings for one run, and the complaints about those that cannot be met."""
    complaints: list[str] = []
    requested, model = directives.model, None
    if requested is not None and requested.name.lower() not in QUESTIONS:
        try:
            result = named_model(requested.name, context.config, context.catalogue, facts.session.agent_id)
            check_program(result, facts, context.catalogue)
            model = result
        except UnknownModel as unknown:
            complaints.append(str(unknown))
    profile = requested.profile if requested and model else None
    if profile and model and profile not in (existing := await known_profiles(directives, facts, context)):
        complaints.append(f"{unknown_profile(profile, model, existing)} The usual one is used.")
        profile = None
    if unknown := [named for named in directives.levels if named[1].word and named[1].value is None]:
        entry, agent_id = await context.entry(facts.session), facts.session.agent_id
        answering = model or current_model(entry, context.config, context.catalogue, agent_id)
        complaints += [invalid_level(*named, answering) for named in unknown]
    level = directives.elevated.value if directives.elevated else None
    if level not in (None, "off") and (forbidding := forbids_elevated(context.config, facts)):
        complaints.append(elevated_refusal(forbidding, context.config, facts))
        level = None
    if directives.exec is not None and (directives.exec.invalid or directives.exec.unknown):
        complaints.append(invalid_exec(directives.exec))
    if directives.queue is not None and directives.queue.invalid:
        complaints.append(invalid_options(directives.queue))
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


def honoured(directives: Directives, facts: Facts) -> Directives:
    """Drop what does not count: in a group, a message that loosens the rules for commands must mention the agent."""
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


def effective_levels(config: Config, facts: Facts, entry: SessionEntry | None, model: Model) -> dict[LevelKind, str]:
    """Return the levels that hold now: the session's own setting, or else the configured default."""
    defaults, own = config.agents.defaults, entry or SessionEntry(sessionId="")
    elevated = own.get("elevatedLevel") or defaults.elevated_default
    return {
        "think": own.get("thinkingLevel") or level_unless_set(model, defaults.thinking_default),
        "verbose": own.get("verboseLevel") or defaults.verbose_default,
        "reasoning": own.get("reasoningLevel") or "off",
        "elevated": "off" if forbids_elevated(config, facts) else elevated,
    }


def invalid_exec(exec: ExecDirective) -> str:
    if exec.unknown:
        return f'Unrecognized exec option "{exec.unknown}". Valid: {", ".join(f"{name}=…" for name in EXEC_VALUES)}.'
    return " ".join(
        f'Unrecognized exec {name} "{value}". Valid: {", ".join(EXEC_VALUES[name])}.'
        for name, value in exec.invalid.items()
    )


def invalid_level(kind: LevelKind, level: Level, model: Model) -> str:
    name = "thinking" if kind == "think" else kind
    return f'Unrecognized {name} level "{level.word}". Valid levels: {", ".join(_offered_levels(kind, model))}.'


def _offered_levels(kind: LevelKind, model: Model) -> tuple[str, ...]:
    values = level_values(kind)
    return values[:-1] if kind == "think" and "xhigh" not in supported_levels(model) else values


# Commands outside the sandbox


def forbids_elevated(config: Config, facts: Facts) -> list[str]:
    """Return the paths of the settings that forbid elevated commands. Empty: they are allowed."""
    if "admin" not in facts.rights:
        return ["commands.ownerAllowFrom"]
    agent = agent_config(config, facts.session.agent_id)
    own = agent.tools.elevated if agent and agent.tools else None
    forbidding = _forbidding("tools.elevated", config.tools.elevated, facts, list_required=True)
    if own is not None:
        forbidding += _forbidding(
            f"agents.list[{facts.session.agent_id}].tools.elevated", own, facts, list_required=False
        )
    return forbidding


def elevated_allowed(config: Config, facts: Facts) -> bool:
    """Return whether the sender may use elevated commands. Usually nobody is listed, and one look decides it."""
    return bool(config.tools.elevated.allow_from) and not forbids_elevated(config, facts)


def _forbidding(path: str, settings: Elevated, facts: Facts, *, list_required: bool) -> list[str]:
    if not settings.enabled:
        return [f"{path}.enabled"]
    listed = settings.allow_from.get(facts.channel)
    if listed is None and not list_required:
        return []
    existing = {normal_id(facts.channel, str(entry)) for entry in listed or ()}
    allowed = "*" in existing or not existing.isdisjoint(facts.sender_ids)
    return [] if allowed else [f"{path}.allowFrom.{facts.channel}"]


def elevated_refusal(forbidding: list[str], config: Config, facts: Facts) -> str:
    inside = wants_sandbox(config, facts.session.agent_id, facts.session.key)
    return (
        f"elevated is not available right now (runtime={'sandboxed' if inside else 'direct'}).\n"
        f"Closed by: {', '.join(forbidding)}. Change these keys of the configuration to allow it."
    )


# The queue


async def queue(context: CommandContext, facts: Facts, args: str) -> str | None:
    """Show what waits, drop one of it or puts one first. None: the words are a setting, which is a directive."""
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
            run = waiting[int(number) - 1]
            if verb == "now":
                done = context.runs.promote(key, run.run_id)
            else:
                # A message that is about to run is neither running nor waiting, and is not dropped.
                waits = run in context.runs.waiting(key)
                done = waits and bool(await context.runs.abort(key, run.run_id, AbortReason.REMOVED))
            if not done:
                return f"“{_typed(run)}” is no longer waiting."
            return f"⚙️ “{_typed(run)}” runs next." if verb == "now" else f"⚙️ Dropped “{_typed(run)}”."
        case _:
            return None


def running_and_waiting(context: CommandContext, facts: Facts) -> tuple[Run | None, list[Run]]:
    runs = context.runs.active(facts.session.key)
    running = next((run for run in runs if run.state == "running"), None)
    return running, [run for run in runs if run is not running]


def _typed(run: Run) -> str:
    """Return the beginning of what the person wrote."""
    return shortened(run.row.body.written or typed_text(run.row.body.prompt or ""))


def _listing(context: CommandContext, facts: Facts) -> str:
    running, waiting = running_and_waiting(context, facts)
    now = context.runtime.clock.now_ms()

    def line(run: Run) -> str:
        seconds = max(0, now - run.row.accepted_at) // 1000
        minutes = f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"
        return f"{_typed(run)} ({minutes if seconds >= 60 else f'{seconds} s'})"

    lines = [f"Running: {line(running)}"] if running else []
    if not waiting:
        return "\n".join([*lines, "Nothing is waiting."])
    lines.append(f"Waiting ({len(waiting)}):")
    lines += [f"{number}. {line(run)}" for number, run in enumerate(waiting[:SHOWN], 1)]
    if len(waiting) > SHOWN:
        lines.append(f"… and {len(waiting) - SHOWN} more")
    return "\n".join([*lines, LIST_HINT])


def queue_overview(facts: Facts, context: CommandContext, entry: SessionEntry | None) -> str:
    settings = queue_settings(context.config.messages.queue, entry, facts.channel)
    current = (
        f"Current queue settings: mode={settings.mode}, debounce={settings.debounce_ms}ms, "
        f"cap={settings.cap}, drop={settings.drop}."
    )
    return f"{current}\n{OPTIONS}\n{_listing(context, facts)}"


def invalid_options(queue: QueueDirective) -> str:
    if word := queue.invalid.get("mode"):
        return f'Unrecognized queue option "{word}".\n{OPTIONS}\nAlso: /queue list, drop N, now N.'
    advice = {
        "debounce": "Write a time such as 1500ms, 2s or 1m.",
        "cap": "Write a whole number of at least 1.",
        "drop": "Write old, new or summarize.",
    }
    names = {"debounce": "debounce", "cap": "cap", "drop": "drop policy"}
    return " ".join(f'Invalid {names[name]} "{value}". {advice[name]}' for name, value in queue.invalid.items())


# Models


async def models(context: CommandContext, facts: Facts, args: str) -> str:
    offered = offered_models(context.config, context.catalogue, facts.session.agent_id)
    words = args.split()
    if not words:
        return providers_text(offered)
    provider = canonical_provider(words[0])
    own = [model for model in offered if model.provider == provider]
    if not own:
        return f'No models of "{words[0]}" are on offer.\n{providers_text(offered)}'
    return _page(provider, own, words[1].lower() if len(words) > 1 else "1")


def providers_text(offered: list[Model]) -> str:
    if not offered:
        return "No model can be used yet: set a provider's key or run openclaw models install local."
    counts = Counter(model.provider for model in offered)
    lines = [f"- {provider} ({count})" for provider, count in counts.items()]
    return "\n".join(["Providers:", *lines, "", "/models <provider> shows its models, /model <name> chooses one."])


def _page(provider: str, own: list[Model], wanted: str) -> str:
    pages = -(-len(own) // PAGE)
    if wanted == "all":
        shown, head = own, f"Models of {provider} ({len(own)}):"
    elif wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= pages:
        page = int(wanted)
        shown, head = own[(page - 1) * PAGE : page * PAGE], f"Models of {provider} (page {page} of {pages}):"
    else:
        return f'There is no page "{wanted}"; write a number from 1 to {pages}, or all.'
    lines = [head, *(f"- {model.ref}" for model in shown)]
    if len(shown) < len(own):
        lines += ["", f"More: /models {provider} <page|all>"]
    return "\n".join(lines)


def model_info(what: str, facts: Facts, context: CommandContext, entry: SessionEntry | None) -> str:
    """The answer to ``/model list``, to ``/model status``, and to ``/model`` alone (``what`` is empty then)."""
    config, catalogue, agent_id = context.config, context.catalogue, facts.session.agent_id
    if what == "list":
        return providers_text(offered_models(config, catalogue, agent_id))
    default = catalogue.default_for(config, agent_id)
    try:
        model = current_model(entry, config, catalogue, agent_id)
    except UnknownModel as unknown:
        return f"{unknown} /model default goes back to {default.ref}."
    if not what:
        return "\n".join(
            [f"Current: {model.ref}", "", "Switch: /model <name>", "Browse: /models", "Details: /model status"]
        )
    lines = [f"Current: {model.ref}", f"Default: {default.ref}", f"Agent: {agent_id}"]
    lines.append(f"Credential: {(entry or {}).get('authProfileOverride') or key_label(model, context)}")
    if fallbacks := fallback_models(config, agent_id):
        lines.append(f"Fallbacks: {', '.join(fallbacks)}")
    lines.append(f"Endpoint: {redact_urls(model.base_url) or 'built in'} ({model.api})")
    lines.append(f"Context window: {model.context_window:,} tokens")
    return "\n".join(lines)


def key_label(model: Model, context: CommandContext) -> str:
    """Report where the model's key comes from. The key itself is never shown."""
    source = find_source(model, provider_config(context.config, model.provider), context.environ)
    return {"unneeded": "no key needed", "missing": "no key"}.get(source.kind, f"{source.kind} {source.where}".strip())


def offered_models(config: Config, catalogue: Catalogue, agent_id: str) -> list[Model]:
    """The models of ``agents.defaults.models`` and the agent's own. Without such a list it is every usable model."""
    listed = config.agents.defaults.models
    if not listed:
        return catalogue.available()
    names = [*listed, primary_model(config, agent_id), *fallback_models(config, agent_id)]
    matches: dict[str, Model] = {}
    for name in names:
        try:
            model = catalogue.resolve(name) if name else catalogue.default_for(config, agent_id)
        except UnknownModel:
            continue
        matches.setdefault(model.ref, model)
    return list(matches.values())


def named_model(name: str, config: Config, catalogue: Catalogue, agent_id: str) -> Model:
    """Return the model that a reference, an alias or an unambiguous part of a name means.

    Raises ``UnknownModel``, whose text says what is on offer.
    """
    if name.lower() == "default":
        return catalogue.default_for(config, agent_id)
    offered = offered_models(config, catalogue, agent_id)
    try:
        model = catalogue.resolve(name)
    except UnknownModel:
        model = fuzzy_model(name, offered, only=True) if len(name) >= SHORTEST_PART else None
        if model is None:
            raise
    if config.agents.defaults.models and model.ref not in {each.ref for each in offered}:
        names = ", ".join(each.ref for each in offered[:10])
        raise UnknownModel(
            f"Model {model.ref} is not on the list agents.defaults.models. On offer: {names}. "
            "Add it there, or choose one of these.",
            model.ref,
        )
    return model


def check_program(model: Model, facts: Facts, catalogue: Catalogue) -> None:
    """Raise ``UnknownModel`` if the model is a program that the sender may not choose."""
    if "admin" not in facts.rights:
        catalogue.check_choice(model, facts.session.agent_id)


def fuzzy_model(fragment: str, models: Sequence[Model], *, provider: str = "", only: bool = False) -> Model | None:
    """The model whose id fits the fragment best. With ``only`` the result is None when several fit equally well."""
    requested = fragment.lower()
    candidates = [model for model in models if not provider or model.provider == provider]
    for fits in (str.__eq__, str.startswith, str.__contains__):
        matches = [model for model in candidates if fits(model.id.lower(), requested)]
        if matches:
            return matches[0] if len(matches) == 1 or not only else None
    return None


def leading_model(text: str, config: Config, catalogue: Catalogue, agent_id: str) -> tuple[Model | None, str]:
    """Return the model that the first one or two words name, and the text after them. Only models on offer count."""
    words = text.split(None, 2)
    if not words:
        return None, text
    offered = offered_models(config, catalogue, agent_id)
    providers = {model.provider for model in offered}
    first = words[0]
    provider = canonical_provider(first)
    if provider in providers and len(words) > 1:
        model = fuzzy_model(words[1], offered, provider=provider)
        if model is not None:
            return model, _after(text, 2)
    model = _exact(first, offered, catalogue)
    if model is None and provider in providers:
        model = next(each for each in offered if each.provider == provider)
    if model is None and len(first) >= SHORTEST_FRAGMENT:
        # A word such as "thinking" is part of many names and means none of them.
        model = fuzzy_model(first, offered, only=True)
    return (model, _after(text, 1)) if model is not None else (None, text)


def _exact(name: str, offered: Sequence[Model], catalogue: Catalogue) -> Model | None:
    if "/" not in name and name.lower() not in catalogue.aliases():
        return next((model for model in offered if model.id.lower() == name.lower()), None)
    try:
        ref = catalogue.resolve(name).ref
    except UnknownModel:
        return None
    return next((model for model in offered if model.ref == ref), None)


def _after(text: str, words: int) -> str:
    """Return the text after its first words, with its line breaks."""
    parts = text.split(None, words)
    return parts[words] if len(parts) > words else ""


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
    """Return the ids of the stored credentials among which ``/model name@profile`` chooses.

    Without a profile in the directive nothing is read.
    """
    requested, runtime, agent_id = directives.model, context.runtime, facts.session.agent_id
    if requested is None or not requested.profile:
        return ()
    try:
        model = named_model(requested.name, context.config, context.catalogue, agent_id)
    except UnknownModel:
        return ()
    stored = await runtime.models.failover.keys.stored(model, context.config, agent_id)
    return [key.credential.id for key in stored]


def unknown_profile(profile: str, model: Model, stored: Sequence[str]) -> str:
    there = f"stored are: {', '.join(stored)}" if stored else "none is stored"
    return f'Auth profile "{profile}" is not stored for {model.provider} ({there}).'
