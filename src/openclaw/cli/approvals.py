"""``openclaw approvals``: show and change which commands the agents may run on this machine without a question."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openclaw.cli.client import GatewayClient, from_args
from openclaw.cli.command import CLIENT, Action, Flag, Group, UserError, answer, query
from openclaw.cli.terminal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from openclaw.cli.answers import AllowedProgram, ExecRules, RulesAnswer, RulesFileAnswer


def set_rules(args: argparse.Namespace) -> int:
    try:
        text = Path(args.file).read_text(encoding="utf-8") if args.file else sys.stdin.read()
        file: RulesFileAnswer = json.loads(text)
    except OSError as error:
        raise UserError(f"{args.file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{args.file or 'stdin'} is not valid JSON: {error}") from None
    if not isinstance(file, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"{args.file or 'stdin'} must hold a JSON object with version, defaults and agents")
    gateway = from_args(args)
    return _save(args, gateway, gateway.call("exec.approvals.get", {}), file)


def allowlist(args: argparse.Namespace) -> int:
    if not args.pattern.startswith(("/", "~/")) and not (args.verb == "remove" and args.pattern.startswith("=")):
        raise UserError(f'"{args.pattern}" is not a full path; names alone can be planted. Example: /usr/bin/git')
    gateway = from_args(args)
    now: RulesAnswer = gateway.call("exec.approvals.get", {})
    rules = now["file"].setdefault("agents", {}).setdefault(args.agent, {})
    entries = rules.get("allowlist") or []
    known = [entry["pattern"] for entry in entries]
    if args.verb == "add":
        pattern = _program_of(args.pattern) if gateway.target.local else args.pattern
        rules["allowlist"] = entries if pattern in known else [*entries, {"pattern": pattern}]
    elif args.pattern not in known:
        listed = ", ".join(known) or "nothing"
        raise UserError(f'"{args.pattern}" is not on the list of {args.agent}; on it: {listed}')
    else:
        rules["allowlist"] = [entry for entry in entries if entry["pattern"] != args.pattern]
    return _save(args, gateway, now, now["file"])


def _program_of(pattern: str) -> str:
    """The path that a rule for this program of this computer needs: that of the file behind all links."""
    from openclaw.tools.exec.binding import resolve_program, runs_arguments

    if any(mark in pattern for mark in "*?["):
        return pattern
    path = str(Path(pattern).expanduser())
    program = resolve_program(path, "", "/")
    if program is None:
        note(f"There is no program at {path} yet.")
        return pattern
    if runs_arguments(program):
        raise UserError(
            f"{path} can run any other program, as a shell or an interpreter does. A rule for it would allow "
            "everything, so its commands are always asked about."
        )
    if program.real == path:
        return pattern
    note(f"{path} is a link; the rule is for the program behind it.")
    return program.real


def _save(args: argparse.Namespace, gateway: GatewayClient, now: RulesAnswer, file: RulesFileAnswer) -> int:
    """Replaces the rules, unless someone else changed them since ``now`` was read."""
    params: dict[str, object] = {"file": file}
    if now["exists"]:
        params["baseHash"] = now["hash"]
    payload = gateway.call("exec.approvals.set", params)
    return answer(args, payload, "\n".join(_show(payload, args)))


def _show(payload: RulesAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield f"Rules: {payload['path']}{'' if payload['exists'] else ' (not made yet)'}"
    yield f"Defaults: {_settings(payload['file'].get('defaults') or {})}"
    for agent, rules in sorted((payload["file"].get("agents") or {}).items()):
        yield f"Agent {agent}: {_settings(rules)}"
        yield from (f"  {_entry(entry)}" for entry in rules.get("allowlist") or [])


def _entry(entry: AllowedProgram) -> str:
    """A program with all its arguments, or a whole command in its folder."""
    fixed = " while its files stay as they are" if entry.get("files") else ""
    if not entry["pattern"].startswith("="):
        return f"{entry['pattern']}{fixed}"
    return f"{entry['pattern']}  (only this command, in {entry.get('cwd')}{fixed})"


def _settings(rules: ExecRules) -> str:
    settings = {"security": rules.get("security"), "ask": rules.get("ask"), "askFallback": rules.get("askFallback")}
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value) or "as configured"


_ACTIONS = {
    "get": query("Show the rules", "exec.approvals.get", show=_show, example="openclaw approvals get"),
    "set": Action(
        "Replace the rules",
        set_rules,
        (
            Flag("--file FILE", "the new rules as JSON; without it they are read from stdin"),
            Flag("--stdin", "read them from stdin"),
            *CLIENT,
        ),
        example="openclaw approvals set --file rules.json",
    ),
    "allowlist": Action(
        "Add or remove a program that may always run",
        allowlist,
        (
            Flag("verb", "what to do with the program", choices=("add", "remove")),
            Flag("pattern PATTERN", 'full path of a program, with * as in "/usr/bin/git*"'),
            Flag("--agent ID", "for this agent only; otherwise for all", default="*"),
            *CLIENT,
        ),
        example="openclaw approvals allowlist add /usr/bin/git --agent main",
    ),
}
COMMANDS = {"approvals": Group(_ACTIONS, default="get")}
