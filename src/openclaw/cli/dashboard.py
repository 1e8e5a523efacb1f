"""``openclaw dashboard``: where the Control UI is."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli import target as targets
from openclaw.cli.args import Action, add_json
from openclaw.cli.terminal import note, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def build(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-open", action="store_true", help="only print the address, open no browser")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    target = targets.resolve()
    base = str((targets.gateway_section(paths.config_path()).get("controlUi") or {}).get("basePath") or "").strip("/")
    clean = f"{target.http_url}/{base}/" if base else f"{target.http_url}/"
    # The secret travels as a fragment, which browsers never send over the network.
    with_token = f"{clean}#token={target.secret}" if target.secret else clean
    if args.json:
        print_json({"url": clean, "urlWithToken": with_token})
        return 0
    sys.stdout.write(f"Control UI: {clean}\nWith token: {with_token}\n")
    if os.environ.get("SSH_CONNECTION") and target.local:
        note(
            f"From your own machine: ssh -N -L {target.port}:127.0.0.1:{target.port} USER@HOST, then open the address."
        )
    elif not args.no_open and sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        import webbrowser

        webbrowser.open(with_token)
    return 0


ACTION = Action("Print the address of the Control UI (and open it)", run, build, example="openclaw dashboard --no-open")
