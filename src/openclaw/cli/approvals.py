"""``openclaw approvals``: which commands the agents may run on this machine without being asked about."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.errors import UserError
from openclaw.cli.terminal import print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def _build_get(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_gateway_options(parser)


def _build_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", metavar="FILE", help="the new rules as JSON; without it they are read from stdin")
    parser.add_argument("--stdin", action="store_true", help="read them from stdin")
    _build_get(parser)


def _build_allowlist(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", choices=("add", "remove"), help="what to do with the program")
    parser.add_argument("pattern", metavar="PATTERN", help='full path of a program, with * as in "/usr/bin/git*"')
    parser.add_argument("--agent", metavar="ID", default="*", help="for this agent only; otherwise for all")
    _build_get(parser)


def get(args: argparse.Namespace) -> int:
    return _show(args, clients.from_args(args).call("exec.approvals.get", {}))


def set_rules(args: argparse.Namespace) -> int:
    try:
        text = Path(args.file).read_text(encoding="utf-8") if args.file else sys.stdin.read()
        file = json.loads(text)
    except OSError as error:
        raise UserError(f"{args.file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{args.file or 'stdin'} is no valid JSON: {error}") from None
    if not isinstance(file, dict):
        raise UserError(f"{args.file or 'stdin'} must hold a JSON object with version, defaults and agents")
    gateway = clients.from_args(args)
    return _save(args, gateway, gateway.call("exec.approvals.get", {}), file)


def allowlist(args: argparse.Namespace) -> int:
    if not args.pattern.startswith(("/", "~/")):
        raise UserError(f'"{args.pattern}" is not a full path; names alone can be planted. Example: /usr/bin/git')
    gateway = clients.from_args(args)
    now = gateway.call("exec.approvals.get", {})
    rules = now["file"]["agents"].setdefault(args.agent, {})
    entries = rules.get("allowlist") or []
    known = [entry["pattern"] for entry in entries]
    if args.verb == "add":
        rules["allowlist"] = entries if args.pattern in known else [*entries, {"pattern": args.pattern}]
    elif args.pattern not in known:
        listed = ", ".join(known) or "nothing"
        raise UserError(f'"{args.pattern}" is not on the list of {args.agent}; on it: {listed}')
    else:
        rules["allowlist"] = [entry for entry in entries if entry["pattern"] != args.pattern]
    return _save(args, gateway, now, now["file"])


def _save(args: argparse.Namespace, gateway: clients.Client, now: dict[str, Any], file: dict[str, Any]) -> int:
    params: dict[str, Any] = {"file": file}
    if now["exists"]:
        params["baseHash"] = now["hash"]
    return _show(args, gateway.call("exec.approvals.set", params))


def _show(args: argparse.Namespace, payload: dict[str, Any]) -> int:
    if args.json:
        print_json(payload)
        return 0
    lines = [f"Rules: {payload['path']}{'' if payload['exists'] else ' (not made yet)'}"]
    lines.append(f"Defaults: {_settings(payload['file'].get('defaults') or {})}")
    for agent, rules in sorted((payload["file"].get("agents") or {}).items()):
        lines.append(f"Agent {agent}: {_settings(rules)}")
        lines += [f"  {entry['pattern']}" for entry in rules.get("allowlist") or []]
    sys.stdout.write("\n".join(printable(line) for line in lines) + "\n")
    return 0


def _settings(rules: dict[str, Any]) -> str:
    said = [f"{name}={rules[name]}" for name in ("security", "ask", "askFallback") if rules.get(name)]
    return ", ".join(said) or "as configured"


ACTIONS = {
    "get": Action("Show the rules", get, _build_get, example="openclaw approvals get"),
    "set": Action("Replace the rules", set_rules, _build_set, example="openclaw approvals set --file rules.json"),
    "allowlist": Action(
        "Add or remove a program that may always run",
        allowlist,
        _build_allowlist,
        example="openclaw approvals allowlist add /usr/bin/git --agent main",
    ),
}
DEFAULT = "get"
