"""Commands that act: on the session (``/new``, ``/stop``, ``/resume`` …), and those of owners (``/config`` …)."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyjson5

from openclaw.agent.spend.budget import OVERRIDE, end_of_day_ms, limits_of, overridden, user_zone
from openclaw.agent.spend.spend import cost_text, spent_by_session_and_agent
from openclaw.config.channels import account_settings
from openclaw.config.keypath import MISSING, get_path, overlaps, parse_path
from openclaw.config.load import Snapshot
from openclaw.config.schema import Config
from openclaw.config.secrets import redacted
from openclaw.config.validate import ConfigError
from openclaw.inbound.commands.settings import check_program, leading_model, model_fields, store_settings
from openclaw.inbound.directives import Listening, command_body, read_send_policy, read_usage, strip_mentions
from openclaw.inbound.incoming import CommandContext, Facts, Handled
from openclaw.models.catalogue import UnknownModel
from openclaw.protocol.sessions import EarlierSession
from openclaw.questions.answers import InvalidAnswer, answer_in_chat, may_answer
from openclaw.questions.desk import SLUG, QuestionDesk, UnknownQuestion
from openclaw.runs.history import find_message, load_history
from openclaw.runs.session_change import NotResumable, earlier_sessions, resume_session, set_entry_fields, start_over
from openclaw.runs.why import explain_message, explain_rejected
from openclaw.sessions.prompt_prefix import GREETING_MARK
from openclaw.storage.message_ledger import AbortReason
from openclaw.storage.questions import Question
from openclaw.text import age, counted, shortened
from openclaw.tools.exec.approvals import ApprovalDecision
from openclaw.tools.exec.binding import fenced

_SEND_STORED = {"on": "allow", "off": "deny", "inherit": None}
_NEXT_USAGE = {"off": "tokens", "tokens": "full", "full": "off"}
LISTED = 20


async def stop(context: CommandContext, facts: Facts, _: str = "") -> Handled:
    stopped = await context.runs.abort(facts.session.key, reason=AbortReason.STOP)
    if stopped and await context.entry(facts.session) is not None:
        await set_entry_fields(context.runtime, facts.session, {"abortedLastRun": True})
    workers = await context.subagents.stop_all(facts.session.key)
    also = f" Stopped {counted(workers, 'sub-agent', 'sub-agents')}." if workers else ""
    return Handled(reply=f"⚙️ Agent was aborted.{also}", stopped=stopped)


async def subagents(context: CommandContext, facts: Facts, args: str) -> str:
    guest = not facts.client and "admin" not in facts.rights
    return await context.subagents.answer(facts.session, args, str(uuid.uuid4()), guest=guest, process=context.process)


async def send(context: CommandContext, facts: Facts, args: str) -> str:
    choice = read_send_policy(args)
    if choice is None:
        return "⚙️ Usage: /send on|off|inherit"
    await set_entry_fields(context.runtime, facts.session, {"sendPolicy": _SEND_STORED[choice]})
    return f"⚙️ Send policy set to {choice}."


async def activation(context: CommandContext, facts: Facts, args: str) -> str:
    if not facts.group:
        return "⚙️ Group activation only applies to group chats."
    mode = args.strip().lower()
    if mode not in ("mention", "always"):
        return "⚙️ Usage: /activation mention|always"
    # The agent must learn the new rule before it speaks again.
    changes = {"groupActivation": mode, "groupActivationNeedsSystemIntro": True}
    await set_entry_fields(context.runtime, facts.session, changes)
    return f"⚙️ Group activation set to {mode}."


async def usage(context: CommandContext, facts: Facts, args: str) -> str:
    word = args.strip().lower()
    if word.split()[:1] == ["cost"]:
        totals = await spent_by_session_and_agent(context.runtime, facts.session, await context.entry(facts.session))
        return "\n".join(["💸 Usage cost", *(f"{label} {cost_text(total)}" for label, total in totals.items())])
    entry = await context.entry(facts.session) or {}
    now = read_usage(str(entry.get("responseUsage") or "off")) or "off"
    mode = read_usage(word) if word else _NEXT_USAGE[now]
    if mode is None:
        return "⚙️ Usage: /usage off|tokens|full|cost"
    return await store_settings(
        {"responseUsage": None if mode == "off" else mode}, f"⚙️ Usage footer: {mode}.", facts, context
    )


async def resume(context: CommandContext, facts: Facts, args: str) -> str:
    runtime, session, requested = context.runtime, facts.session, args.strip()
    if requested.lower().split()[:1] == ["list"]:
        return _listing(await earlier_sessions(runtime, session), runtime.clock.now_ms())
    try:
        rotation = await resume_session(runtime, context.runs, session, requested or None)
    except NotResumable as refused:
        return f"{refused} /resume list shows what there is." if requested else str(refused)
    context.notices.announce(session, rotation)
    return f"⏪ {rotation.marker_text}"


def _listing(earlier: list[EarlierSession], now_ms: int) -> str:
    if not earlier:
        return "There is no earlier session to go back to."
    lines = ["Earlier sessions:"]
    for number, session in enumerate(earlier[:LISTED], 1):
        reason = f", {session.reason}" if session.reason else ""
        lines.append(f"{number}. {shortened(session.title, 60)} (ended {age(now_ms - session.ended_at)}{reason})")
    return "\n".join([*lines, "/resume N goes back to one; nothing is lost."])


async def why(context: CommandContext, facts: Facts, args: str) -> str:
    """Return the history of a message of this session. A chat must not tell what was said in another session."""
    runtime, ref, key = context.runtime, args.strip(), facts.session.key
    if not ref:
        matches = await runtime.stores.ledger.recent(session_key=key, limit=1)
        if not matches:
            return "No message of this session is on record yet."
    elif row := await find_message(runtime.stores.ledger, ref, key):
        matches = [row]
    else:
        notes = await runtime.stores.ledger.rejected([ref])
        if here := [note for note in notes if (note.channel, note.chat) == (facts.channel, facts.chat)]:
            return "\n".join(explain_rejected(here, user_zone(context.config)))
        matches = [row for row in await runtime.stores.ledger.runs_beginning(ref, 6) if row.session_key == key]
    if not matches:
        return f'Nothing is known of "{shortened(ref, 80)}".'
    if len(matches) > 1:
        return f'"{ref}" is how several runs begin: {", ".join(row.run_id for row in matches)}.'
    return "\n".join(explain_message(runtime, context.runs, await load_history(runtime, matches[0])))


DEFAULT_TRIGGERS = ("/new", "/reset")
GREETING = (
    f"{GREETING_MARK}. Greet the person in your own voice, in one to three sentences, "
    "and ask what they would like to do. {model}Say nothing about files, tools or other workings."
)


def find_reset(text: str, triggers: Iterable[str], listening: Listening) -> tuple[str, str] | None:
    """Return the trigger that begins a message, and the text after it. None if the message is not a reset."""
    requested = dict.fromkeys((*DEFAULT_TRIGGERS, *(trigger.strip() for trigger in triggers)))
    if "/" not in text and all(trigger.startswith("/") for trigger in requested if trigger):
        return None
    body = command_body(text, listening)
    for trigger in requested:
        if trigger and _begins(body, trigger):
            return trigger, body[len(trigger) :].strip().removeprefix(":").strip()
    return None


def _begins(text: str, trigger: str) -> bool:
    if text[: len(trigger)].lower() != trigger.lower():
        return False
    behind = text[len(trigger) : len(trigger) + 1]
    return not behind or behind.isspace() or (behind == ":" and trigger.startswith("/"))


class Started(msgspec.Struct, frozen=True):
    """A new session that ``/new`` or ``/reset`` began."""

    announcement: str
    rest: str
    """The words after the trigger and the model."""
    greeting: str
    """The prompt that makes the agent say hello. It is used when ``rest`` is empty."""


async def begin_session(trigger: str, rest: str, facts: Facts, context: CommandContext) -> Started:
    """Replace the session, and store the model that the rest begins with."""
    config, catalogue, session = context.config, context.catalogue, facts.session
    default = catalogue.default_for(config, session.agent_id)
    reason = "reset" if trigger.lower() == "/reset" else "new"
    context.notices.announce(session, await start_over(context.runtime, context.runs, session, reason))
    whole = rest
    chosen, rest = leading_model(whole, config, catalogue, session.agent_id)
    if chosen is not None:
        try:
            check_program(chosen, facts, catalogue)
        except UnknownModel:
            chosen, rest = None, whole
    if chosen is not None:
        await set_entry_fields(context.runtime, session, model_fields(chosen, default))
    announcement, greeting = f"✅ New session started · model: {(chosen or default).ref}", GREETING.format(model="")
    if chosen is not None and chosen.ref != default.ref:
        announcement += f" (default: {default.ref})"
        greeting = GREETING.format(model=f"Mention that you run on {chosen.ref} rather than {default.ref}. ")
    return Started(announcement, rest, greeting)


# Of owners

CONFIG_USAGE = "⚙️ Usage: /config show|get [path] · set path=value · unset path"
LONGEST_ANSWER = 3500


async def restart(context: CommandContext, facts: Facts, _: str) -> str:
    if not context.config.commands.restart:
        return switched_off("restart")
    context.restart(f"/restart from {facts.channel}")
    return "⚙️ Restarting. Messages sent meanwhile are kept and answered afterwards."


async def config(context: CommandContext, facts: Facts, args: str) -> str:
    if not context.config.commands.config:
        return switched_off("config")
    store = context.runtime.config
    verb, _, rest = args.strip().partition(" ")
    rest = rest.strip()
    try:
        match verb.lower():
            case "" | "show" | "get":
                return _shown(rest, redacted(store.snapshot.parsed))
            case "set" | "unset" if not _may_write(context.config, facts):
                return f"⚠️ Changes from {facts.channel} are switched off (configWrites)."
            case "set":
                path, _, text = (part.strip() for part in rest.partition("="))
                if not path or not text:
                    return CONFIG_USAGE
                after = await _change(context, lambda: store.set_path(path, read_value(text)))
                doubts = [f"⚠️ {warning}" for warning in after.warnings if overlaps(warning.path, path)]
                return "\n".join([f"⚙️ Set {path} in the configuration.", *doubts])
            case "unset" if rest:
                await _change(context, lambda: store.unset_path(rest))
                return f"⚙️ Removed {rest} from the configuration."
            case _:
                return CONFIG_USAGE
    except (ConfigError, ValueError) as wrong:
        return f"⚠️ {wrong}"
    except KeyError as missing:
        return f"⚠️ Config path not found: {missing.args[0]}"


def switched_off(name: str) -> str:
    return f"⚠️ /{name} is disabled. Set commands.{name} to true in the configuration to allow it."


def _may_write(config: Config, facts: Facts) -> bool:
    """The configuration can forbid a channel to change it."""
    account = account_settings(config, facts.channel)
    return account is None or account.config_writes


async def _change(context: CommandContext, change: Callable[[], Snapshot]) -> Snapshot:
    after = await asyncio.to_thread(change)
    await context.runtime.config.reload()
    return after


def read_value(text: str) -> Any:
    """Return the value that the text means as JSON, or else the text itself."""
    try:
        return pyjson5.decode(text)
    except pyjson5.Json5Exception:
        return text


def _shown(path: str, whole: Any) -> str:
    value = get_path(whole, parse_path(path), MISSING) if path else whole
    if value is MISSING:
        raise KeyError(path)
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) > LONGEST_ANSWER:
        text = text[:LONGEST_ANSWER] + "\n… (ask for a path to see the rest)"
    return f"⚙️ {path or 'Configuration'}:\n{text}"


APPROVE_USAGE = "⚙️ Usage: /approve [id] allow-once|allow-always|deny"
ANSWER_USAGE = "⚙️ Usage: /answer [id] <the number of an option, or a text>"
_DECISIONS: dict[str, ApprovalDecision] = {
    "allow-once": "allow-once",
    "allowonce": "allow-once",
    "allow": "allow-once",
    "once": "allow-once",
    "yes": "allow-once",
    "allow-always": "allow-always",
    "allowalways": "allow-always",
    "always": "allow-always",
    "deny": "deny",
    "no": "deny",
    "reject": "deny",
    "block": "deny",
}


async def approve(context: CommandContext, facts: Facts, args: str) -> str:
    read = read_answer(args)
    if read is None:
        return APPROVE_USAGE
    ref, decision = read
    desk = context.runtime.tools.questions
    try:
        question = await _question_meant(desk, facts, ref)
        if not question.is_approval:
            return f"❌ Question {question.id[:SLUG]} is no approval. Answer it with /answer."
        question = await desk.answer(question.id, decision, answerer(facts))
    except UnknownQuestion as unknown:
        return f'❌ "{ref}": {unknown}.'
    return answered_text(question)


async def answer(context: CommandContext, facts: Facts, args: str) -> str:
    ref, _, text = args.strip().partition(" ")
    desk = context.runtime.tools.questions
    if not ref:
        return ANSWER_USAGE
    try:
        try:
            question = await _question_meant(desk, facts, ref if text else "")
        except UnknownQuestion:
            if len(open_here := desk.open_questions(facts.session.key)) != 1:
                raise
            question, text = open_here[0], args  # The text of an answer, and no id.
        if not may_answer(question, facts.rights, facts.sender_ids):
            return "❌ That question is for somebody else."
        question = await desk.answer(question.id, text.strip() or ref, answerer(facts))
    except (UnknownQuestion, InvalidAnswer) as problem:
        return f"❌ {problem}."
    return answered_text(question)


async def answer_in_words(context: CommandContext, facts: Facts, text: str) -> str | None:
    """Answer the one open question of the session if the message is an answer to it. None: it is not.

    In a group it counts only if it is addressed to the agent, because people say yes to each other there too.
    """
    open_here = context.runtime.tools.questions.open_questions(facts.session.key)
    if len(open_here) != 1 or (facts.group and not facts.mentioned):
        return None
    question = open_here[0]
    if facts.group:
        text = strip_mentions(text, facts.listening.mentions, facts.listening.channel)
    if not may_answer(question, facts.rights, facts.sender_ids):
        return None
    value = answer_in_chat(question, text)
    if value is None:
        return None
    try:
        return answered_text(await context.runtime.tools.questions.answer(question.id, value, answerer(facts)))
    except UnknownQuestion:
        return None  # It ended a moment ago, so the message is one like any other.


async def _question_meant(desk: QuestionDesk, facts: Facts, ref: str) -> Question:
    """Return the open question that a reference names. Without one, it is the only open one of the session."""
    if ref:
        return await desk.find(ref)
    open_here = desk.open_questions(facts.session.key)
    if len(open_here) != 1:
        raise UnknownQuestion(
            f"{len(open_here)} questions are open in this chat; name one by its id"
            if open_here
            else "no question is open in this chat"
        )
    return open_here[0]


def answerer(facts: Facts) -> str:
    """Name who answers."""
    return facts.sender_name or f"{facts.channel}:{facts.sender_ids[0] if facts.sender_ids else 'owner'}"


def answered_text(question: Question) -> str:
    """Confirm an answer."""
    if not question.is_approval:
        label = next((one.label for one in question.options if one.value == question.answer), question.answer)
        return f"✅ Answered: {label}"
    outcome = {"allow-once": "allowed once", "allow-always": "allowed from now on", "deny": "denied"}[
        question.answer or "deny"
    ]
    once_only = question.details.get("onceOnly")
    if question.answer == "allow-always" and once_only:
        outcome = f"allowed once, and not for good: {once_only}"
    command = fenced(str(question.details.get("command", "")))
    return f"✅ Exec approval {question.id[:SLUG]}: {outcome}. Command:\n{command}"


def read_answer(args: str) -> tuple[str, ApprovalDecision] | None:
    """Return the id and the decision. They may be written in either order, and the id may be missing."""
    words = args.split()
    if len(words) == 1 and (decision := _DECISIONS.get(words[0].lower())):
        return "", decision
    if len(words) != 2:
        return None
    for ref, word in (words, reversed(words)):
        if (decision := _DECISIONS.get(word.lower())) and ref.lower() not in _DECISIONS:
            return ref, decision
    return None


async def budget(context: CommandContext, facts: Facts, args: str) -> str:
    runtime, session = context.runtime, facts.session
    now = runtime.clock.now_ms()
    match args.strip().lower():
        case "":
            entry = await context.entry(session)
            limits = await limits_of(runtime, session, entry)
            if not limits:
                return "💰 No limits are set (agents.defaults.budget)."
            lines = [f"{limit.key}: {limit.text}{' — used up' if limit.reached else ''}" for limit in limits]
            note = ["This session may go on past them today."] if overridden(entry, now) else []
            return "\n".join(["💰 Budget", *lines, *note])
        case "override":
            until = end_of_day_ms(now, user_zone(context.config))
            await set_entry_fields(runtime, session, {OVERRIDE: until})
            return "⚙️ The limits do not hold in this session until the day ends. /budget enforce puts them back."
        case "enforce":
            await set_entry_fields(runtime, session, {OVERRIDE: None})
            return "⚙️ The limits hold again."
        case _:
            return "⚙️ Usage: /budget [override|enforce]"
