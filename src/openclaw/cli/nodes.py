"""``openclaw nodes``: look at the nodes of the Gateway, let them in, and have them carry out commands."""

from __future__ import annotations

import json
import sys
import time

from openclaw.cli.client import GatewayClient, GatewayError, from_args, new_id
from openclaw.cli.command import CLIENT, EXIT_FAILURE, EXIT_USAGE, Action, Flag, Group, UserError, answer, query
from openclaw.cli.terminal import note, print_json
from openclaw.printable import printable
from openclaw.text import age, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

INVOKE_MS = 30_000
COMMAND_MS = 600_000
GRACE_MS = 10_000
APPROVAL_MS = 120_000
APPROVAL_REQUIRED = "SYSTEM_RUN_DENIED: approval required"
_NODE = Flag("--node NODE", "the node: its name, its id, or how the id begins", param="nodeId", required=True)
_REQUEST = Flag("request REQUEST", "id of the request, as `openclaw nodes pending` shows it")


def _show_nodes(listed: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    nodes: list[dict[str, Any]] = listed["nodes"]
    for node in nodes:
        state = "connected" if node.get("connected") else "not connected"
        paired = "paired" if node.get("paired") else "not paired"
        since = node.get("connectedAtMs")
        for_how_long = f" {age(time.time() * 1000 - since)}" if node.get("connected") and since else ""
        name, platform = (
            shortened(str(node.get("displayName") or "unnamed")),
            shortened(str(node.get("platform") or "?")),
        )
        yield f"{name}  {str(node['nodeId'])[:12]}  {platform}  {state}{for_how_long}, {paired}"
        if node.get("commands"):
            yield f"  {', '.join(node['commands'])}"
    if not nodes:
        yield "There are no nodes. On another machine: openclaw node run --host <this host> --token <Gateway token>"


def _connected_only(listed: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    if not args.connected:
        return listed
    return {**listed, "nodes": [node for node in listed["nodes"] if node.get("connected")]}


def _show_node(node: dict[str, Any], args: argparse.Namespace) -> Iterator[str]:
    for name, value in node.items():
        if name == "ts":
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield f"{name}: {json.dumps(shown) if isinstance(shown, dict) else shown}"


# Letting nodes in


def _waiting(gateway: GatewayClient) -> list[dict[str, Any]]:
    """Both kinds of requests: of nodes that want to connect, and of programs that ask for a node."""
    asked: list[dict[str, Any]] = gateway.call("node.pair.list", {})["pending"]
    devices: list[dict[str, Any]] = gateway.call("device.pair.list", {})["pending"]
    return [*(d for d in devices if "node" in (d.get("roles") or [d.get("role")])), *asked]


def pending(args: argparse.Namespace) -> int:
    found = _waiting(from_args(args))
    lines = list[str]()
    for request in found:
        name, platform, ip = (str(request.get(field) or "") for field in ("displayName", "platform", "remoteIp"))
        words = [str(request["requestId"]), shortened(name or "unnamed"), shortened(platform or "?")]
        words += [shortened(ip or "this machine"), age(time.time() * 1000 - request["ts"]) if request.get("ts") else ""]
        lines.append("  ".join(words).rstrip())
    return answer(args, {"pending": found}, "\n".join(lines) or "No node waits to be let in.")


def _decide(decision: str, said: str) -> Any:
    def run(args: argparse.Namespace) -> int:
        gateway = from_args(args)
        ids = [str(request["requestId"]) for request in _waiting(gateway)]
        meant = [id for id in ids if id.startswith(args.request)]
        if len(meant) != 1:
            which = "Several requests begin" if meant else "No request begins"
            raise UserError(f"{which} with {args.request!r}. `openclaw nodes pending` shows them.")
        devices = {str(request["requestId"]) for request in gateway.call("device.pair.list", {})["pending"]}
        family = "device" if meant[0] in devices else "node"
        payload = gateway.call(f"{family}.pair.{decision}", {"requestId": meant[0]})
        return answer(args, payload, f"{said} {meant[0]}.")

    return run


# Commands


def _params(args: argparse.Namespace) -> dict[str, Any]:
    try:
        given = json.loads(args.params) if args.params else None
    except ValueError as error:
        raise UserError(f"--params is no valid JSON: {error}", EXIT_USAGE) from None
    timeout: int = args.invoke_timeout
    wanted = {"command": args.command, "timeoutMs": timeout, "idempotencyKey": args.idempotency_key or new_id()}
    return wanted if given is None else {**wanted, "params": given}


def invoke(args: argparse.Namespace) -> int:
    """Has a node carry out a command and prints what it answers."""
    params = {"nodeId": args.node, **_params(args)}
    payload = from_args(args).call("node.invoke", params, args.invoke_timeout + GRACE_MS)
    return answer(args, payload, json.dumps(payload.get("payload"), indent=2, ensure_ascii=False))


def run(args: argparse.Namespace) -> int:
    """Runs a command on a node, under the rules of that node. Its output is printed, its exit code returned."""
    words: list[str] = args.words
    if not words:
        raise UserError("Which command? Example: openclaw nodes run --node attic -- uname -a", EXIT_USAGE)
    gateway, text = from_args(args), " ".join(words)
    wanted: dict[str, Any] = {"command": words, "timeoutMs": args.command_timeout, "runId": new_id()}
    if args.raw:
        wanted |= {"command": ["/bin/sh", "-lc", text], "rawCommand": text}
    if args.cwd:
        wanted["cwd"] = args.cwd
    try:
        payload = _run(gateway, args, wanted)
    except GatewayError as refused:
        if not str(refused).startswith(APPROVAL_REQUIRED):
            raise
        payload = _run(gateway, args, {**wanted, **_approved(gateway, args, text)})
    if args.json:
        print_json(payload)
    else:
        shown = f"{payload.get('stdout') or ''}{payload.get('stderr') or ''}{payload.get('error') or ''}"
        sys.stdout.write(printable(shown) + ("" if not shown or shown.endswith("\n") else "\n"))
    if payload.get("timedOut"):
        note(f"The command was ended after {args.command_timeout} ms.")
    code = payload.get("exitCode")
    return code if isinstance(code, int) and 0 <= code < 256 else EXIT_FAILURE


def _run(gateway: GatewayClient, args: argparse.Namespace, wanted: dict[str, Any]) -> dict[str, Any]:
    timeout = args.command_timeout + GRACE_MS
    params = {"nodeId": args.node, "command": "system.run", "params": wanted, "timeoutMs": timeout}
    payload = gateway.call("node.invoke", {**params, "idempotencyKey": new_id()}, timeout + GRACE_MS)["payload"]
    return payload if isinstance(payload, dict) else {}


def _approved(gateway: GatewayClient, args: argparse.Namespace, text: str) -> dict[str, Any]:
    """Asks a person and waits for the answer."""
    id = new_id()
    note(printable(f"The node asks first. Waiting for an answer: /approve {id[:8]} allow-once in a chat."))
    request = {"id": id, "command": text, "host": "node", "node": args.node, "timeoutMs": APPROVAL_MS}
    decided = gateway.call("exec.approval.request", request, APPROVAL_MS + GRACE_MS)
    if decided.get("decision") not in ("allow-once", "allow-always"):
        raise UserError("Not run: nobody allowed it." if decided.get("decision") is None else "Not run: it was denied.")
    return {"approved": True, "approvalDecision": decided["decision"]}


_LIST = query(
    "List the nodes",
    "node.list",
    (Flag("--connected", "only nodes that are connected"),),
    shape=_connected_only,
    show=_show_nodes,
    example="openclaw nodes list --connected",
)
_ACTIONS = {
    "list": _LIST,
    "status": query(
        "The same as list",
        "node.list",
        (Flag("--connected", "only nodes that are connected"),),
        shape=_connected_only,
        show=_show_nodes,
        example="openclaw nodes status",
    ),
    "describe": query(
        "Show what a node is and can do",
        "node.describe",
        (_NODE,),
        show=_show_node,
        example="openclaw nodes describe --node attic",
    ),
    "pending": Action("List nodes that wait to be let in", pending, CLIENT, example="openclaw nodes pending"),
    "approve": Action(
        "Let a node in", _decide("approve", "Approved"), (_REQUEST, *CLIENT), example="openclaw nodes approve adf45644"
    ),
    "reject": Action(
        "Turn a node away",
        _decide("reject", "Rejected"),
        (_REQUEST, *CLIENT),
        example="openclaw nodes reject adf45644",
    ),
    "rename": query(
        "Give a node another name",
        "node.rename",
        (_NODE, Flag("--name NAME", "the new name", param="displayName", required=True)),
        show=lambda payload, args: [f"{payload['nodeId']} is called {payload['displayName']} now."],
        example="openclaw nodes rename --node d9cceedf --name attic",
    ),
    "invoke": Action(
        "Have a node carry out one of its commands",
        invoke,
        (
            _NODE,
            Flag("--command COMMAND", "the command, as `openclaw nodes describe` lists it", required=True),
            Flag("--params JSON", "its parameters"),
            Flag(
                "--invoke-timeout MS", f"milliseconds the node has (default {INVOKE_MS})", type=int, default=INVOKE_MS
            ),
            Flag("--idempotency-key KEY", "a call with the same key is carried out once"),
            *CLIENT,
        ),
        example="""openclaw nodes invoke --node attic --command system.which --params '{"bins": ["git"]}'""",
    ),
    "run": Action(
        "Run a shell command on a node",
        run,
        (
            _NODE,
            Flag("--cwd DIR", "folder to run in"),
            Flag("--raw", "the words are one line for a shell"),
            Flag(
                "--command-timeout MS",
                f"milliseconds after which the command is ended (default {COMMAND_MS})",
                type=int,
                default=COMMAND_MS,
            ),
            Flag("words COMMAND", "the command and its arguments, after --", nargs="*"),
            *CLIENT,
        ),
        rest="words",
        about="It prints the output of the command and exits as the command did.",
        example="openclaw nodes run --node attic -- uname -a",
    ),
}
COMMANDS = {"nodes": Group(_ACTIONS, default="list")}
