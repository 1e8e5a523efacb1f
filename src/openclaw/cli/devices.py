"""``openclaw devices``: which devices may talk to the Gateway with a token of their own."""

from __future__ import annotations

import sys
import time

from openclaw.cli import client as clients
from openclaw.cli.args import Action, add_gateway_options, add_json
from openclaw.cli.terminal import age, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def _build_list(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_gateway_options(parser)


def _build_request(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request", metavar="REQUEST", help="id of the pairing request")
    _build_list(parser)


def _build_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="ID", required=True, help="the device")
    parser.add_argument("--role", required=True, help="the role whose token is meant, e.g. operator")
    _build_list(parser)


def _build_rotate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scope", action="append", default=[], help="scope of the new token; may be repeated")
    _build_token(parser)


def list_devices(args: argparse.Namespace) -> int:
    listed = clients.from_args(args).call("device.pair.list")
    if args.json:
        print_json(listed)
        return 0
    now = time.time() * 1000
    lines = [_line(device, now, "requestId", "ts") for device in listed.get("pending") or []]
    sys.stdout.write("\n".join(["Waiting for approval:", *(lines or ["  none"])]) + "\n")
    lines = [_line(device, now, "deviceId", "approvedAtMs") for device in listed.get("paired") or []]
    sys.stdout.write("\n".join(["Paired:", *(lines or ["  none"])]) + "\n")
    return 0


def _line(device: dict[str, Any], now: float, id_field: str, time_field: str) -> str:
    since = device.get(time_field)
    name = device.get("displayName") or device.get("clientId") or "unnamed"
    roles = ", ".join(device.get("roles") or [str(device.get("role"))])
    shown_age = age(now - since) if isinstance(since, int | float) else "unknown"
    return printable(f"  {device.get(id_field)}  {name} ({device.get('platform') or '?'})  {roles}  {shown_age}")


def approve(args: argparse.Namespace) -> int:
    payload = clients.from_args(args).call("device.pair.approve", {"requestId": args.request})
    device = (payload or {}).get("device") or {}
    return _done(args, payload, f"Approved {device.get('deviceId', args.request)}.")


def reject(args: argparse.Namespace) -> int:
    payload = clients.from_args(args).call("device.pair.reject", {"requestId": args.request})
    return _done(args, payload, f"Rejected {args.request}.")


def rotate(args: argparse.Namespace) -> int:
    params: dict[str, Any] = {"deviceId": args.device, "role": args.role}
    if args.scope:
        params["scopes"] = args.scope
    payload = clients.from_args(args).call("device.token.rotate", params)
    return _done(args, payload, f"New token for {args.device} ({args.role}): {(payload or {}).get('token')}")


def revoke(args: argparse.Namespace) -> int:
    payload = clients.from_args(args).call("device.token.revoke", {"deviceId": args.device, "role": args.role})
    return _done(args, payload, f"Revoked the {args.role} token of {args.device}.")


def _done(args: argparse.Namespace, payload: Any, text: str) -> int:
    if args.json:
        print_json(payload)
    else:
        sys.stdout.write(printable(text) + "\n")
    return 0


ACTIONS = {
    "list": Action(
        "List pairing requests and paired devices", list_devices, _build_list, example="openclaw devices list"
    ),
    "approve": Action("Let a device in", approve, _build_request, example="openclaw devices approve adf45644"),
    "reject": Action("Turn a device away", reject, _build_request, example="openclaw devices reject adf45644"),
    "rotate": Action(
        "Give a device a new token; the old one stops working",
        rotate,
        _build_rotate,
        example="openclaw devices rotate --device d9cceedf --role operator",
    ),
    "revoke": Action(
        "Take a device's token away",
        revoke,
        _build_token,
        example="openclaw devices revoke --device d9cceedf --role operator",
    ),
}
DEFAULT = "list"
