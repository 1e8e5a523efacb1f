"""``openclaw nodes``: look at the nodes of the Gateway, let them in, and have them carry out commands.

``openclaw node``: run this machine as a node of a Gateway, here or elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
import time

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.client import GatewayClient, GatewayError, from_args, new_id
from openclaw.cli.command import (
    CLIENT,
    EXIT_FAILURE,
    EXIT_USAGE,
    JSON,
    Action,
    Flag,
    Group,
    UserError,
    answer,
    query,
    report,
)
from openclaw.cli.config import read_file
from openclaw.cli.gateway_target import resolve, running_gateway
from openclaw.cli.terminal import note, print_json
from openclaw.text import age, redact_urls, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from openclaw.cli.answers import CommandResult, Device, NodesAnswer, NodeSettings, NodeStatus, PendingNodes
    from openclaw.node.host import GatewayAddress, NodeHost, NodeIdentity
    from openclaw.tools.exec.settings import ExecSettings

INVOKE_MS = 30_000
COMMAND_MS = 600_000
GRACE_MS = 10_000
APPROVAL_MS = 120_000
APPROVAL_REQUIRED = "SYSTEM_RUN_DENIED: approval required"


def _show_nodes(listed: NodesAnswer, args: argparse.Namespace) -> Iterator[str]:
    nodes = listed["nodes"]
    for node in nodes:
        state = "connected" if node.get("connected") else "not connected"
        paired = "paired" if node.get("paired") else "not paired"
        since = node.get("connectedAtMs")
        for_how_long = f" {age(time.time() * 1000 - since)}" if node.get("connected") and since else ""
        name = shortened(str(node.get("displayName") or "unnamed"))
        platform = shortened(str(node.get("platform") or "?"))
        yield f"{name}  {str(node.get('nodeId'))[:12]}  {platform}  {state}{for_how_long}, {paired}"
        if commands := node.get("commands"):
            yield f"  {', '.join(commands)}"
    if not nodes:
        yield "There are no nodes. On another machine: openclaw node run --host <this host> --token <Gateway token>"


def _connected_only(listed: NodesAnswer, args: argparse.Namespace) -> NodesAnswer:
    if not args.connected:
        return listed
    return {**listed, "nodes": [node for node in listed["nodes"] if node.get("connected")]}


def _show_node(node: dict[str, object], args: argparse.Namespace) -> Iterator[str]:
    for name, value in node.items():
        if name == "ts":
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield f"{name}: {json.dumps(shown) if isinstance(shown, dict) else shown}"


def _waiting(gateway: GatewayClient) -> dict[str, list[Device]]:
    """The requests of nodes that want to connect (``device``), and of programs that ask for a node (``node``)."""
    asked: list[Device] = gateway.call("node.pair.list", {})["pending"]
    devices: list[Device] = gateway.call("device.pair.list", {})["pending"]
    return {"device": [one for one in devices if "node" in (one.get("roles") or [one.get("role")])], "node": asked}


def _pending(args: argparse.Namespace) -> PendingNodes:
    waiting = _waiting(from_args(args))
    return {"pending": [*waiting["device"], *waiting["node"]]}


def _show_pending(found: PendingNodes, args: argparse.Namespace) -> Iterator[str]:
    for request in found["pending"]:
        words = [str(request.get("requestId")), shortened(request.get("displayName") or "unnamed")]
        words += [shortened(request.get("platform") or "?"), shortened(request.get("remoteIp") or "this machine")]
        words += [age(time.time() * 1000 - since)] if (since := request.get("ts")) else []
        yield "  ".join(words)
    if not found["pending"]:
        yield "No node waits to be let in."


def _decide(decision: str, said: str) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        gateway = from_args(args)
        families = {str(one.get("requestId")): name for name, some in _waiting(gateway).items() for one in some}
        meant = [id for id in families if id.startswith(args.request)]
        if len(meant) != 1:
            which = "Several requests begin" if meant else "No request begins"
            raise UserError(f"{which} with {args.request!r}. `openclaw nodes pending` shows them.")
        payload = gateway.call(f"{families[meant[0]]}.pair.{decision}", {"requestId": meant[0]})
        return answer(args, payload, f"{said} {meant[0]}.")

    return run


def invoke(args: argparse.Namespace) -> int:
    """Has a node carry out a command and prints what it answers."""
    wanted = {"nodeId": args.node, "command": args.command, "timeoutMs": args.invoke_timeout}
    wanted["idempotencyKey"] = args.idempotency_key or new_id()
    try:
        wanted |= {"params": json.loads(args.params)} if args.params else {}
    except ValueError as error:
        raise UserError(f"--params is not valid JSON: {error}", EXIT_USAGE) from None
    payload = from_args(args).call("node.invoke", wanted, args.invoke_timeout + GRACE_MS)
    return answer(args, payload, json.dumps(payload.get("payload"), indent=2, ensure_ascii=False))


def run(args: argparse.Namespace) -> int:
    """Runs a command on a node, under the rules of that node. Its output is printed, its exit code returned."""
    words: list[str] = args.words
    if not words:
        raise UserError("Which command? Example: openclaw nodes run --node attic -- uname -a", EXIT_USAGE)
    gateway, text = from_args(args), " ".join(words)
    wanted: dict[str, object] = {"command": words, "timeoutMs": args.command_timeout, "runId": new_id()}
    if args.raw:
        wanted |= {"command": ["/bin/sh", "-lc", text], "rawCommand": text}
    if args.cwd:
        wanted["cwd"] = args.cwd
    try:
        payload = _run(gateway, args, wanted)
    except GatewayError as refused:
        if not str(refused).startswith(APPROVAL_REQUIRED):
            raise
        node_error = refused.details.get("nodeError")
        once_only = node_error.get("onceOnly") if isinstance(node_error, dict) else None
        payload = _run(gateway, args, {**wanted, **_approved(gateway, args, text, once_only)})
    if args.json:
        print_json(payload)
    else:
        shown = f"{payload.get('stdout') or ''}{payload.get('stderr') or ''}{payload.get('error') or ''}"
        sys.stdout.write(shown + ("" if not shown or shown.endswith("\n") else "\n"))
    if payload.get("timedOut"):
        note(f"The command was ended after {args.command_timeout} ms.")
    code = payload.get("exitCode")
    return code if isinstance(code, int) and 0 <= code < 256 else EXIT_FAILURE


def _run(gateway: GatewayClient, args: argparse.Namespace, wanted: dict[str, object]) -> CommandResult:
    timeout = args.command_timeout + GRACE_MS
    params = {"nodeId": args.node, "command": "system.run", "params": wanted, "timeoutMs": timeout}
    payload = gateway.call("node.invoke", {**params, "idempotencyKey": new_id()}, timeout + GRACE_MS)["payload"]
    return payload or {}


def _approved(gateway: GatewayClient, args: argparse.Namespace, text: str, once_only: str | None) -> dict[str, object]:
    """Asks a person and waits for the answer. ``once_only`` says why the node would not remember ``allow-always``."""
    id = new_id()
    note(f"The node asks first. Waiting for an answer: /approve {id[:8]} allow-once in a chat.")
    if once_only:
        note(f"It cannot be allowed for good: {once_only}.")
    request: dict[str, object] = {
        "id": id,
        "command": text,
        "host": "node",
        "node": args.node,
        "timeoutMs": APPROVAL_MS,
    }
    request |= {"onceOnly": once_only} if once_only else {}
    decided = gateway.call("exec.approval.request", request, APPROVAL_MS + GRACE_MS)
    if decided.get("decision") not in ("allow-once", "allow-always"):
        raise UserError("Not run: nobody allowed it." if decided.get("decision") is None else "Not run: it was denied.")
    return {"approved": True, "approvalDecision": decided["decision"]}


def _list(help: str, example: str) -> Action:
    return query(
        help,
        "node.list",
        (Flag("--connected", "only nodes that are connected"),),
        shape=_connected_only,
        show=_show_nodes,
        example=example,
    )


# This machine as a node


def run_node(args: argparse.Namespace) -> int:
    import asyncio
    import logging

    from openclaw.clock import SystemClock
    from openclaw.node.host import NodeCommands, NodeHost

    class Shown(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return redact_urls(super().format(record))

    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(Shown("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("openclaw.node")
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    clock = SystemClock()
    identity, name, address = _identified(args)
    commands = NodeCommands(paths.state_dir(), _exec_settings(), clock, os.environ)
    platform, path = os.uname().sysname.lower(), os.environ.get("PATH")
    host = NodeHost(address, identity, commands, clock, display_name=name, platform=platform, path_env=path)
    return asyncio.run(_serve(host))


async def _serve(host: NodeHost) -> int:
    """Serves until a signal says stop. Commands that run then are ended."""
    import asyncio
    import signal

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(host.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return 0 if stop.is_set() else 1


def _identified(args: argparse.Namespace) -> tuple[NodeIdentity, str, GatewayAddress]:
    """Who this node is, what it is called and whom it serves. Name and address are kept for the next start.

    Secrets are not kept; the device gets a token of its own.
    """
    from openclaw.clock import SystemClock
    from openclaw.node.host import BadIdentity, NodeIdentity, write_object

    try:
        identity = NodeIdentity(paths.make_private_dir(paths.state_dir()), SystemClock())
        stored = _stored()
        name = args.display_name or str(stored.get("displayName") or "") or os.uname().nodename or "node"
        address = _address(args, stored)
        wanted: dict[str, object] = {**stored, "version": 1, "displayName": name}
        # This machine's own Gateway is looked up at each start, because its port may change.
        if running_gateway() is None:
            pinned = {"tlsFingerprint": address.tls_fingerprint} if address.tls_fingerprint else {}
            wanted["gateway"] = {"url": address.url, **pinned}
        if wanted != stored:
            write_object(_node_file(), wanted)
    except BadIdentity as bad:
        raise UserError(str(bad)) from None
    return identity, name, address


def _node_file() -> Path:
    from pathlib import Path

    return Path(paths.state_dir()) / "node.json"


def _stored() -> NodeSettings:
    from openclaw.node.host import read_object

    stored: Any = read_object(_node_file()) or {}
    return stored


def _exec_settings() -> ExecSettings:
    """``tools.exec`` of this machine's own configuration. A configuration that is not valid is not guessed at."""
    import msgspec

    from openclaw.tools.exec.settings import ExecSettings

    snapshot = read_file()
    if not snapshot.valid:
        raise UserError(f"{snapshot.path} is not valid. `openclaw config validate` shows where.")
    given = {key: value for key, value in msgspec.to_builtins(snapshot.config.tools.exec).items() if value is not None}
    return msgspec.convert(given, ExecSettings, strict=False)


def _address(args: argparse.Namespace, stored: NodeSettings) -> GatewayAddress:
    """The Gateway: from the flags, else the one that the node was last started with, else this machine's."""
    from openclaw.node.host import GatewayAddress

    last = stored.get("gateway") or {}
    secret = args.token or os.environ.get("OPENCLAW_GATEWAY_TOKEN") or None
    if args.host or args.url or last.get("url"):
        url = args.url or last.get("url")
        if args.host and not args.url:
            host = f"[{args.host}]" if ":" in args.host else args.host
            scheme = "wss" if args.tls or args.tls_fingerprint else "ws"
            url = f"{scheme}://{host}:{args.port or paths.DEFAULT_PORT}"
        fingerprint = args.tls_fingerprint or (None if args.host or args.url else last.get("tlsFingerprint"))
        if fingerprint and not str(url).startswith("wss://"):
            raise UserError("--tls-fingerprint needs an encrypted address: add --tls", EXIT_USAGE)
        password = args.password or (None if secret else os.environ.get("OPENCLAW_GATEWAY_PASSWORD") or None)
        return GatewayAddress(url=str(url), token=secret, password=password, tls_fingerprint=fingerprint)
    found = resolve(None, args.token, args.password)
    by_password = "password" in found.secret_source.lower()
    return GatewayAddress(
        url=found.url,
        token=None if by_password else found.secret or None,
        password=found.secret if by_password else None,
        tls_fingerprint=found.fingerprint or None,
    )


def install(args: argparse.Namespace) -> int:
    identity, _, _ = _identified(args)
    done = service.install(args, "node", [])
    if not identity.token():
        # The secret of the Gateway is not written into the unit.
        note("Nobody has let this node in yet: run `openclaw node run` with the Gateway's token once.")
    return done


def _status(args: argparse.Namespace) -> NodeStatus:
    from openclaw.clock import SystemClock
    from openclaw.node.host import BadIdentity, NodeIdentity

    state = paths.state_dir()
    try:
        made = os.path.exists(os.path.join(state, "identity", "device.json"))
        identity = NodeIdentity(state, SystemClock()) if made else None
        stored = _stored()
    except BadIdentity as bad:
        raise UserError(str(bad)) from None
    return {
        "nodeId": identity.id if identity else None,
        "displayName": stored.get("displayName"),
        "gateway": stored.get("gateway"),
        "hasToken": bool(identity and identity.token()),
        "rules": os.path.join(state, "exec-approvals.json"),
        "service": {"label": service.unit_name("node"), "installed": os.path.exists(service.unit_path("node"))},
    }


def _show_status(found: NodeStatus, args: argparse.Namespace) -> Iterator[str]:
    if found["nodeId"] is None:
        yield "This machine has not been a node yet. `openclaw node run` makes it one."
    else:
        yield f"Node: {found['displayName'] or 'unnamed'} ({found['nodeId']})"
        url = (found["gateway"] or {}).get("url") or "this machine's Gateway"
        yield f"Gateway: {url}"
        yield f"Let in before: {'yes' if found['hasToken'] else 'no'}"
        yield f"Rules for commands: {found['rules']}"
    unit = found["service"]
    yield f"Service: {unit['label']} ({'installed' if unit['installed'] else 'not installed'})"


_NODE = Flag("--node NODE", "the node: its name, its id, or how the id begins", param="nodeId", required=True)
_REQUEST = Flag("request REQUEST", "id of the request, as `openclaw nodes pending` shows it")
_NODES = {
    "list": _list("List the nodes", "openclaw nodes list --connected"),
    "status": _list("The same as list", "openclaw nodes status"),
    "describe": query(
        "Show what a node is and can do",
        "node.describe",
        (_NODE,),
        show=_show_node,
        example="openclaw nodes describe --node attic",
    ),
    "pending": report(
        "List nodes that wait to be let in", _pending, CLIENT, show=_show_pending, example="openclaw nodes pending"
    ),
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
_WHERE = (
    Flag("--host HOST", "Gateway host; without it this machine's Gateway, or the one of the last start"),
    Flag("--port PORT", f"Gateway port (default {paths.DEFAULT_PORT})", type=int),
    Flag("--tls", "connect encrypted"),
    Flag("--tls-fingerprint SHA256", "the only certificate to accept"),
    Flag("--url URL", "Gateway address, e.g. wss://host:18789, instead of --host"),
    Flag("--token TOKEN", "Gateway token; needed until the node was let in once"),
    Flag("--password PASSWORD", "Gateway password"),
    Flag("--display-name NAME", "name of the node (default: the host name)"),
)
_NODE_HERE = {
    "run": Action(
        "Run this machine as a node until it is stopped",
        run_node,
        _WHERE,
        example="openclaw node run --host gateway.lan --display-name attic",
    ),
    "status": report(
        "Show who this node is and which Gateway it serves",
        _status,
        show=_show_status,
        example="openclaw node status",
    ),
    "install": Action(
        "Install this node as a systemd user service",
        install,
        (*_WHERE, Flag("--force", "replace an installed service"), JSON),
        example="openclaw node install --host gateway.lan",
    ),
    "uninstall": Action(
        "Remove the service", lambda args: service.uninstall(args, "node"), (JSON,), example="openclaw node uninstall"
    ),
}
COMMANDS = {"nodes": Group(_NODES, default="list"), "node": Group(_NODE_HERE)}
