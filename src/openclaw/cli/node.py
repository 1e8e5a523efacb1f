"""``openclaw node``: run this machine as a node of a Gateway, here or elsewhere."""

from __future__ import annotations

import os

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.command import EXIT_USAGE, JSON, Action, Flag, Group, UserError, answer
from openclaw.cli.terminal import note

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.node.host import GatewayAddress, NodeHost
    from openclaw.node.identity import NodeIdentity
    from openclaw.tools.exec.settings import ExecSettings

DEFAULT_NAME = "node"


def run(args: argparse.Namespace) -> int:
    import asyncio
    import logging
    import sys

    from openclaw.printable import printable
    from openclaw.url_text import redact_urls

    class Shown(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(redact_urls(super().format(record)))

    told = logging.StreamHandler(sys.stderr)
    told.setFormatter(Shown("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("openclaw.node")
    logger.addHandler(told)
    logger.setLevel(logging.INFO)
    return asyncio.run(_serve(_host(args)))


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


def _settled(args: argparse.Namespace) -> tuple[NodeIdentity, str, GatewayAddress]:
    """Who this node is, what it is called and whom it serves. The next start finds the same."""
    from openclaw.clock import SystemClock
    from openclaw.node.identity import BadIdentity, NodeIdentity

    try:
        identity = NodeIdentity(paths.make_private_dir(paths.state_dir()), SystemClock())
        name = args.display_name or str(_stored().get("displayName") or "") or _hostname()
        address = _address(args)
        _remember(name, address)
    except BadIdentity as bad:
        raise UserError(str(bad)) from None
    return identity, name, address


def _host(args: argparse.Namespace) -> NodeHost:
    from openclaw.clock import SystemClock
    from openclaw.node.commands import NodeCommands
    from openclaw.node.host import NodeHost

    clock = SystemClock()
    identity, name, address = _settled(args)
    commands = NodeCommands(paths.state_dir(), _exec_settings(), clock, os.environ)
    path = os.environ.get("PATH")
    return NodeHost(
        address, identity, commands, clock, display_name=name, platform=os.uname().sysname.lower(), path_env=path
    )


def _exec_settings() -> ExecSettings:
    """``tools.exec`` of this machine's own configuration. A configuration that is not valid is not guessed at."""
    import msgspec

    from openclaw.config.load import read_config
    from openclaw.tools.exec.settings import ExecSettings

    snapshot = read_config(paths.config_path(), os.environ)
    if not snapshot.valid:
        raise UserError(f"{snapshot.path} is not valid. `openclaw config validate` shows where.")
    given = {key: value for key, value in msgspec.to_builtins(snapshot.config.tools.exec).items() if value is not None}
    return msgspec.convert(given, ExecSettings, strict=False)


def _address(args: argparse.Namespace) -> GatewayAddress:
    """The Gateway: from the flags, else the one that the node was last started with, else this machine's."""
    from openclaw.cli import target
    from openclaw.node.host import GatewayAddress

    stored = _stored().get("gateway")
    kept: dict[str, Any] = stored if isinstance(stored, dict) else {}
    secret = args.token or os.environ.get("OPENCLAW_GATEWAY_TOKEN") or None
    if args.host or args.url or kept.get("url"):
        url = args.url or (_url(args) if args.host else str(kept["url"]))
        fingerprint = args.tls_fingerprint or (None if args.host or args.url else kept.get("tlsFingerprint"))
        if fingerprint and not url.startswith("wss://"):
            raise UserError("--tls-fingerprint needs an encrypted address: add --tls", EXIT_USAGE)
        password = args.password or (None if secret else os.environ.get("OPENCLAW_GATEWAY_PASSWORD") or None)
        return GatewayAddress(url=url, token=secret, password=password, tls_fingerprint=fingerprint)
    found = target.resolve(None, args.token, args.password)
    by_password = "password" in found.secret_source.lower()
    return GatewayAddress(
        url=found.url,
        token=None if by_password else found.secret or None,
        password=found.secret if by_password else None,
        tls_fingerprint=found.fingerprint or None,
    )


def _url(args: argparse.Namespace) -> str:
    host = f"[{args.host}]" if ":" in args.host else args.host
    return f"{'wss' if args.tls or args.tls_fingerprint else 'ws'}://{host}:{args.port or paths.DEFAULT_PORT}"


def _stored() -> dict[str, Any]:
    from pathlib import Path

    from openclaw.node.identity import read_object

    return read_object(Path(paths.state_dir()) / "node.json") or {}


def _remember(name: str, address: GatewayAddress) -> None:
    """Keeps name and address for the next start. Secrets are not kept; the device gets a token of its own."""
    from pathlib import Path

    from openclaw.cli.target import running_gateway
    from openclaw.node.identity import write_object

    gateway = {"url": address.url, **({"tlsFingerprint": address.tls_fingerprint} if address.tls_fingerprint else {})}
    wanted: dict[str, Any] = {**_stored(), "version": 1, "displayName": name}
    # This machine's own Gateway is looked up at each start, because its port may change.
    if running_gateway() is None:
        wanted["gateway"] = gateway
    if wanted != _stored():
        write_object(Path(paths.state_dir()) / "node.json", wanted)


def _hostname() -> str:
    import socket

    return socket.gethostname() or DEFAULT_NAME


def install(args: argparse.Namespace) -> int:
    identity, _, _ = _settled(args)
    done = service.install(args, "node", [])
    if not identity.token():
        # The secret of the Gateway is not written into the unit.
        note("Nobody has let this node in yet: run `openclaw node run` with the Gateway's token once.")
    return done


def uninstall(args: argparse.Namespace) -> int:
    return service.uninstall(args, "node")


def status(args: argparse.Namespace) -> int:
    from pathlib import Path

    from openclaw.clock import SystemClock
    from openclaw.node.identity import BadIdentity, NodeIdentity

    state = paths.state_dir()
    try:
        made = (Path(state) / "identity" / "device.json").exists()
        identity = NodeIdentity(state, SystemClock()) if made else None
        stored = _stored()
    except BadIdentity as bad:
        raise UserError(str(bad)) from None
    report = {
        "nodeId": identity.id if identity else None,
        "displayName": stored.get("displayName"),
        "gateway": stored.get("gateway"),
        "hasToken": bool(identity and identity.token()),
        "rules": str(Path(state) / "exec-approvals.json"),
        "service": {"label": service.unit_name("node"), "installed": os.path.exists(service.unit_path("node"))},
    }
    lines = ["This machine has not been a node yet. `openclaw node run` makes it one."]
    if identity is not None:
        url = (stored.get("gateway") or {}).get("url") or "this machine's Gateway"
        lines = [f"Node: {stored.get('displayName') or 'unnamed'} ({identity.id})", f"Gateway: {url}"]
        lines += [f"Let in before: {'yes' if report['hasToken'] else 'no'}", f"Rules for commands: {report['rules']}"]
    installed = "installed" if os.path.exists(service.unit_path("node")) else "not installed"
    lines.append(f"Service: {service.unit_name('node')} ({installed})")
    return answer(args, report, "\n".join(lines))


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
_ACTIONS = {
    "run": Action(
        "Run this machine as a node until it is stopped",
        run,
        _WHERE,
        example="openclaw node run --host gateway.lan --display-name attic",
    ),
    "status": Action(
        "Show who this node is and which Gateway it serves", status, (JSON,), example="openclaw node status"
    ),
    "install": Action(
        "Install this node as a systemd user service",
        install,
        (*_WHERE, Flag("--force", "replace an installed service"), JSON),
        example="openclaw node install --host gateway.lan",
    ),
    "uninstall": Action("Remove the service", uninstall, (JSON,), example="openclaw node uninstall"),
}
COMMANDS = {"node": Group(_ACTIONS)}
