"""``openclaw pairing`` and ``openclaw devices``: let people on channels, and devices, talk to the agent."""

from __future__ import annotations

import time

from openclaw.cli.command import EXIT_USAGE, Flag, Group, UserError, query
from openclaw.cli.terminal import note
from openclaw.text import age, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from openclaw.cli.answers import ApprovedPerson, DevicesAnswer, PairingRequests
    from openclaw.cli.client import GatewayClient


# People on channels

_REQUEST = Flag("request REQUEST", "the request, or the beginning of its id", param="requestId")
_TOKEN = (
    Flag("--device ID", "the device", param="deviceId", required=True),
    Flag("--role ROLE", "the role whose token is meant, e.g. operator", param="role", required=True),
)


def _show_people(answer: PairingRequests, args: argparse.Namespace) -> Iterator[str]:
    requests = answer.get("requests") or []
    for request in requests:
        meta = request.get("meta") or {}
        # A stranger chose it: a line break in it would make a row of its own.
        name = shortened(meta.get("name") or meta.get("username") or "")
        who = f"{request['id']} ({name})" if name else str(request["id"])
        yield f"{request['code']}  {request['channel']}  {who}  since {request['createdAt']}"
    if not requests:
        channel = args.channel or args.name
        yield f"Nobody waits{f' on {channel}' if channel else ''}."


def _channel_and_code(args: argparse.Namespace) -> dict[str, object]:
    words: list[str] = args.words
    if len(words) > 2 or (len(words) == 2 and args.channel):
        raise UserError("pairing approve takes a code, or a channel and a code: signal ABCD2345", EXIT_USAGE)
    channel = words[0] if len(words) == 2 else args.channel
    return {"code": words[-1], "notify": args.notify, **({"channel": channel} if channel else {})}


def _show_approved(answer: ApprovedPerson, args: argparse.Namespace) -> Iterator[str]:
    yield f"{answer['id']} may now write on {answer['channel']}."
    if answer.get("notified") is False:
        note(f"The notice could not be sent: {answer.get('notifyError')}")


# DevicesAnswer

_DEVICES_HINT = "`openclaw devices list` shows the requests and the devices with their ids."


def _show_devices(listed: DevicesAnswer, args: argparse.Namespace) -> Iterator[str]:
    pending = [(device, device.get("requestId"), device.get("ts")) for device in listed.get("pending") or []]
    paired = [(device, device.get("deviceId"), device.get("approvedAtMs")) for device in listed.get("paired") or []]
    for title, devices in (("Waiting for approval:", pending), ("Paired:", paired)):
        yield title
        for device, id, since in devices:
            name = shortened(str(device.get("displayName") or device.get("clientId") or "unnamed"))
            platform = shortened(str(device.get("platform") or "?"))
            roles = ", ".join(device.get("roles") or [str(device.get("role"))])
            shown_age = age(time.time() * 1000 - since) if isinstance(since, int | float) else "unknown"
            yield f"  {id}  {name} ({platform})  {roles}  {shown_age}"
        if not devices:
            yield "  none"


def _decided(method: str) -> Callable[[GatewayClient, dict[str, object]], Any]:
    """Decides about the waiting device whose request begins with the words that were given."""

    def call(client: GatewayClient, wanted: dict[str, object]) -> Any:
        pending = (client.call("device.pair.list") or {}).get("pending") or []
        meant = [one["requestId"] for one in pending if str(one.get("requestId")).startswith(str(wanted["requestId"]))]
        return client.call(method, {"requestId": meant[0] if len(meant) == 1 else wanted["requestId"]})

    return call


_PEOPLE = {
    "list": query(
        "List people who wait to be let in",
        "pairing.list",
        (Flag("name CHANNEL", "only this channel, e.g. signal", nargs="?"), Flag("--channel CHANNEL", "the same")),
        params=lambda args: {"channel": args.channel or args.name} if args.channel or args.name else {},
        show=_show_people,
        example="openclaw pairing list signal",
    ),
    "approve": query(
        "Let a person in by the code they were given",
        "pairing.approve",
        (
            Flag("words CODE", "the code, or the channel and the code", nargs="+"),
            Flag("--channel CHANNEL", "the channel the code was given on"),
            Flag("--notify", "tell the person on that channel"),
        ),
        params=_channel_and_code,
        show=_show_approved,
        example="openclaw pairing approve signal ABCD2345",
    ),
}
_DEVICES = {
    "list": query(
        "List pairing requests and paired devices",
        "device.pair.list",
        show=_show_devices,
        example="openclaw devices list",
    ),
    "approve": query(
        "Let a device in",
        "device.pair.approve",
        (_REQUEST,),
        show=lambda payload, args: [f"Approved {((payload or {}).get('device') or {}).get('deviceId', args.request)}."],
        call=_decided("device.pair.approve"),
        hint=_DEVICES_HINT,
        example="openclaw devices approve adf45644",
    ),
    "reject": query(
        "Turn a device away",
        "device.pair.reject",
        (_REQUEST,),
        show=lambda payload, args: [f"Rejected {args.request}."],
        call=_decided("device.pair.reject"),
        hint=_DEVICES_HINT,
        example="openclaw devices reject adf45644",
    ),
    "rotate": query(
        "Give a device a new token; the old one stops working",
        "device.token.rotate",
        (Flag("--scope SCOPE", "scope of the new token; may be repeated", action="append", default=[]), *_TOKEN),
        params=lambda args: {"scopes": args.scope} if args.scope else {},
        show=lambda payload, args: [f"New token for {args.device} ({args.role}): {(payload or {}).get('token')}"],
        hint=_DEVICES_HINT,
        example="openclaw devices rotate --device d9cceedf --role operator",
    ),
    "revoke": query(
        "Take a device's token away",
        "device.token.revoke",
        _TOKEN,
        show=lambda payload, args: [f"Revoked the {args.role} token of {args.device}."],
        hint=_DEVICES_HINT,
        example="openclaw devices revoke --device d9cceedf --role operator",
    ),
    "remove": query(
        "Forget a device; it has to be let in again",
        "device.pair.remove",
        (Flag("device DEVICE", "the device", param="deviceId"),),
        show=lambda payload, args: [f"Removed {args.device}."],
        hint=_DEVICES_HINT,
        example="openclaw devices remove d9cceedf",
    ),
}
COMMANDS = {"pairing": Group(_PEOPLE, default="list"), "devices": Group(_DEVICES, default="list")}
