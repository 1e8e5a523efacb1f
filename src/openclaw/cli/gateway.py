"""``openclaw gateway``: runs a Gateway here, or starts, stops and asks the one in the background."""

from __future__ import annotations

import json
import os
import sys

from openclaw import paths
from openclaw.cli import gateway_target, service
from openclaw.cli.client import GatewayClient, from_args
from openclaw.cli.command import CLIENT, EXIT_USAGE, JSON, Action, Flag, Group, UserError, answer, query, report
from openclaw.cli.status import health_query
from openclaw.cli.terminal import note, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from openclaw.cli.answers import (
        ConfigFile,
        CostTotals,
        GatewayAnswers,
        GatewayReport,
        ListenAddress,
        ProcessState,
        UsageCostAnswer,
    )


BINDS = ("loopback", "lan", "tailnet", "auto", "custom")


def _port(text: str) -> int:
    import argparse

    if not gateway_target.is_port(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number")
    return int(text)


def run(args: argparse.Namespace) -> int:
    if args.dev:
        from openclaw.cli.main import use_dev_profile

        use_dev_profile()
    if args.env_file:
        service.use_env(args.env_file, os.environ)
    import gc

    # The start makes almost no garbage, and looking for it takes a tenth of the start's time.
    gc.disable()
    from openclaw.gateway.main import Options
    from openclaw.gateway.main import run as run_gateway

    if args.port is None:
        args.port = gateway_target.port_from_environment()
    if args.force:
        _make_room(args.port)
    return run_gateway(Options(**{name: getattr(args, name) for name in Options.__struct_fields__}))


def _make_room(port: int | None) -> None:
    """Stops the Gateway of this state directory. Another process that has the port is never stopped."""
    import socket

    if (pid := service.stop()) is not None:
        note(f"Stopped the Gateway that was running (process {pid}).")
    target = gateway_target.resolve()
    port = target.port if port is None else port
    try:
        socket.create_connection((target.host, port), timeout=1).close()
    except OSError:
        return
    raise UserError(
        f"Port {port} is taken by a process that is not the Gateway of {paths.state_dir()}; --force stops only that "
        "one. Stop the process, or choose another port with --port."
    )


def start(args: argparse.Namespace) -> int:
    client = GatewayClient(gateway_target.resolve())
    if client.alive():
        report = {"ok": True, "started": False, "pid": service.running_pid()}
        return answer(args, report, f"Already running at {client.target.url}.")
    return _start(args, client)


def _start(args: argparse.Namespace, client: GatewayClient) -> int:
    if service.manages_gateway():
        service.must("start", service.unit_name())
        pid: int | None = service.running_pid()
    else:
        pid = service.start(client, ["--port", str(args.port)] if args.port is not None else None)
    report = {"ok": True, "started": True, "pid": pid, "url": client.target.url}
    return answer(args, report, f"Gateway running at {client.target.url} (process {pid}).")


def stop(args: argparse.Namespace) -> int:
    pid = service.stop()
    text = f"Gateway stopped (process {pid})." if pid else "No Gateway is running."
    return answer(args, {"ok": True, "stopped": pid is not None, "pid": pid}, text)


def restart(args: argparse.Namespace) -> int:
    if service.manages_gateway():
        service.must("restart", service.unit_name())
        return answer(args, {"ok": True, "restarted": True}, "Gateway restarted by systemd.")
    running = gateway_target.running_gateway()
    if running is not None and service.stop() is not None and args.port is None:
        # What was begun with --port, or on any free port, stays there. Otherwise the file may name another one by now.
        any_port = gateway_target.gateway_section(paths.config_path()).get("port") == 0
        args.port = running.get("port") if running.get("portGiven") or any_port else None
    return _start(args, GatewayClient(gateway_target.resolve()))


def _show_status(report: GatewayReport, args: argparse.Namespace) -> Iterator[str]:
    unit, gateway, runtime = report["service"], report["gateway"], report["service"]["runtime"]
    yield f"Service: {unit['label']} ({'installed' if unit['loaded'] else 'not installed'})"
    yield f"Process: {runtime['status']} ({runtime['detail']})"
    yield f"Gateway: {gateway['probeUrl']} (bind {gateway['bindMode']}, from {gateway['portSource']})"
    if fingerprint := gateway.get("tlsFingerprint"):
        yield f"TLS fingerprint (SHA-256): {fingerprint}"
    yield f"Config: {report['config']['cli']['path']}"
    yield from (f"Service file: {issue}" for issue in unit["configAudit"]["issues"])
    if (rpc := report["rpc"]) is not None:
        yield "Answers: yes" if rpc["ok"] else f"Answers: no. {rpc.get('error')}"


def _is_down(report: GatewayReport, args: argparse.Namespace) -> bool:
    rpc = report["rpc"]
    return report["service"]["runtime"]["status"] != "running" if rpc is None else not rpc["ok"]


def _status(args: argparse.Namespace) -> GatewayReport:
    client = from_args(args, live=True)
    target = client.target
    address: ListenAddress = {
        "bindMode": target.bind or "remote",
        "bindHost": target.host,
        "port": target.port,
        "portSource": target.source,
        "probeUrl": target.url,
    }
    if target.fingerprint:
        address["tlsFingerprint"] = target.fingerprint
    rpc: GatewayAnswers | None = None
    if not args.no_probe:
        try:
            client.call("health")
            rpc = {"ok": True, "url": target.url}
        except UserError as error:
            rpc = {"ok": False, "url": target.url, "error": str(error)}
    config: ConfigFile = {"path": paths.config_path(), "exists": os.path.exists(paths.config_path())}
    runtime: ProcessState = {"status": "stopped", "detail": "no Gateway holds the lock of this state directory"}
    if (pid := service.running_pid()) is not None:
        runtime = {"status": "running", "pid": pid, "detail": f"process {pid}"}
    running = gateway_target.running_gateway() or {}
    daemon_path = str(running.get("configPath") or config["path"])
    listening = client.alive()
    issues = service.unit_issues()
    return {
        "service": {
            "label": service.unit_name(),
            "loaded": os.path.exists(service.unit_path()),
            "command": [sys.executable, "-m", "openclaw", "gateway", "run"],
            "runtime": runtime,
            "configAudit": {"ok": not issues, "issues": issues},
        },
        "config": {"cli": config, "daemon": {"path": daemon_path, "exists": os.path.exists(daemon_path)}},
        "gateway": address,
        "port": {
            "port": target.port,
            "status": "busy" if listening else "free",
            "listeners": [{"pid": runtime["pid"]}] if "pid" in runtime else [],
            "hints": [] if listening else [f"Start one with `{gateway_target.start_command()}`."],
        },
        "rpc": rpc,
        "extraServices": service.other_units(),
    }


def call(args: argparse.Namespace) -> int:
    try:
        params = json.loads(args.params)
    except ValueError as error:
        raise UserError(f"--params is not JSON: {error}", EXIT_USAGE) from error
    if not isinstance(params, dict):
        raise UserError("--params must be a JSON object, for example: --params '{\"limit\": 5}'", EXIT_USAGE)
    payload = from_args(args, live=True).call(args.method, params)
    if not args.json:
        sys.stdout.write(f"Gateway call: {args.method}\n")
    print_json(payload)
    return 0


def _show_cost(found: UsageCostAnswer, args: argparse.Namespace) -> Iterator[str]:
    yield f"Usage cost ({found['days']} days)"
    yield f"Total: {_cost(found['totals'])}"
    if found["daily"]:
        latest = found["daily"][-1]
        yield f"Latest day: {latest['date']} · {_cost(latest)}"


def _cost(totals: CostTotals) -> str:
    missing, cost = totals["missingCostEntries"], totals["totalCost"]
    amount = "cost unknown" if missing and not cost else f"${cost:.4f}" if cost < 0.01 else f"${cost:.2f}"
    partial = f" ({missing} calls of unknown price)" if missing and cost else ""
    return f"{amount}{partial} · {totals['totalTokens']:,} tokens"


_PORT = Flag("--port PORT", "port for WebSocket and HTTP", type=_port)

_ACTIONS = {
    "run": Action(
        "Run the Gateway in this terminal",
        run,
        (
            Flag("--port PORT", "port for WebSocket and HTTP (18789)", type=_port),
            Flag("--bind", "which addresses to listen on (loopback)", choices=BINDS),
            Flag("--auth", "which kind of secret clients must show", choices=("token", "password")),
            Flag("--token TOKEN", "the token (better: gateway.auth.token in the configuration)"),
            Flag("--password PASSWORD", "the password (better: gateway.auth.password in the configuration)"),
            Flag("--allow-unconfigured", "start even if gateway.mode is not local"),
            Flag("--dev", "use the profile 'dev'"),
            Flag("--force", "first stop the Gateway that runs with this state directory"),
            Flag("--verbose", "more on the console"),
            Flag("--env-file PATH", "take variables from this file where the environment has none"),
        ),
        example="openclaw gateway run --port 18789",
    ),
    "start": Action(
        "Start the Gateway in the background",
        start,
        (_PORT, JSON),
        example="openclaw gateway start",
        about="If one runs already, the command succeeds. Its console output is in logs/gateway-console.log of the "
        "state folder.",
    ),
    "stop": Action(
        "Stop the Gateway; it finishes what it must",
        stop,
        (JSON,),
        example="openclaw gateway stop",
        about="Only the process that holds the lock of the state folder is signalled. If none runs, the command "
        "succeeds.",
    ),
    "restart": Action("Stop and start again", restart, (_PORT, JSON), example="openclaw gateway restart"),
    "status": report(
        "Is it installed, running, answering?",
        _status,
        (Flag("--no-probe", "do not ask the Gateway itself"), *CLIENT),
        show=_show_status,
        failed=_is_down,
        example="openclaw gateway status --json",
    ),
    "call": Action(
        "Call a method of the Gateway and print its answer",
        call,
        (
            Flag("method METHOD", "e.g. sessions.list"),
            Flag("--params JSON", "the parameters, a JSON object", default="{}"),
            Flag("--expect-final", "wait for the last answer (always done)"),
            *CLIENT,
        ),
        example="openclaw gateway call sessions.list --params '{\"limit\": 5}' --json",
    ),
    "health": health_query("openclaw gateway health"),
    "usage-cost": query(
        "What the models used and cost, by day",
        "usage.cost",
        (Flag("--days N", "today and the days before it (default: 30)", param="days", type=int, default=30),),
        show=_show_cost,
        example="openclaw gateway usage-cost --days 7",
    ),
    "install": Action(
        "Install the Gateway as a systemd user service",
        lambda args: service.install(args, "gateway", ["--port", str(args.port)] if args.port is not None else []),
        (Flag("--force", "replace an installed service"), _PORT, JSON),
        about=(
            "On Linux it is a systemd user service, on macOS an agent of launchd. The service finds its keys in "
            "service.env of the state folder, which only you can read. Where this login cannot start services, "
            "the file is written and the commands to run are printed."
        ),
        example="openclaw gateway install",
    ),
    "uninstall": Action(
        "Remove the service",
        lambda args: service.uninstall(args, "gateway"),
        (JSON,),
        example="openclaw gateway uninstall",
    ),
}
COMMANDS = {"gateway": Group(_ACTIONS, default="run")}
