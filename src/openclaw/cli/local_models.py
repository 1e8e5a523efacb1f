"""``openclaw models install|remove`` and ``models list --local``: the models that run on this computer."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.command import UserError, answer, choose, nearest
from openclaw.cli.terminal import note, print_json, show_progress
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.models.local.downloads import Download

LOCAL = "local"
DEMO_NAMES = (LOCAL, "demo", "smollm2-135m-instruct", "local/smollm2-135m-instruct")
BAR_WIDTH = 30
LONG_LABEL = 36
"""A label of this length says why it waits, and leaves no room for the bar."""


def list_local(args: argparse.Namespace) -> int:
    """Lists what runs here, what a server on this computer has, and what can be fetched. It needs no Gateway."""
    rows = local_rows()
    if args.json:
        print_json({"count": len(rows), "models": rows})
        return 0
    for row in rows:
        size = f"{row['size'] / 1e9:.1f} GB" if row["size"] else ""
        state = "installed" if row["available"] else "not installed"
        shown = row["key"] if args.plain else f"{row['key']:<28} {size:>7}  {state:<14} {row['about']}".rstrip()
        sys.stdout.write(printable(shown) + "\n")
    if not args.plain and not all(row["available"] for row in rows):
        note("Install one: openclaw models install qwen3-0.6b")
    return 0


def local_rows() -> list[dict[str, Any]]:
    import asyncio

    from openclaw.models.catalogue_data import local_model
    from openclaw.models.detect import find_models
    from openclaw.models.local.downloads import DOWNLOADS
    from openclaw.models.local.install import WEIGHTS_BYTES, is_installed

    state, demo = paths.state_dir(), local_model()
    known = [(one.model(state), one.about, one.size, one.is_installed(state)) for one in DOWNLOADS]
    known.append((demo, "a demo for a first try", WEIGHTS_BYTES, is_installed(state)))
    known += [(model, f"served at {model.base_url}", 0, True) for model in asyncio.run(find_models(os.environ))]
    return [
        {
            "key": model.ref,
            "name": model.name,
            "input": list(model.input),
            "contextWindow": model.context_window,
            "local": True,
            "available": here,
            "tools": model.tools,
            "size": size,
            "about": about,
            "tags": ["reasoning"] if model.reasoning else [],
            "missing": not here,
        }
        for model, about, size, here in known
    ]


def install(args: argparse.Namespace) -> int:
    name = args.name
    if name is None:
        if args.json or not sys.stdin.isatty():
            args.plain = False
            return list_local(args)
        if (chosen := choose_download()) is None:
            return 0
        name = chosen.id
    if name.lower() in DEMO_NAMES:
        if args.if_needed and not _needed():
            return 0
        return answer(args, {"ok": True, "model": f"{LOCAL}/{DEMO_NAMES[2]}", "path": (path := fetch_local())}, path)
    wanted = named_download(name)
    path = fetch_model(wanted)
    default = _default_after(wanted)
    note(
        f"{wanted.ref} answers from now on."
        if default == wanted.ref
        else f"{wanted.ref} is installed. Use it: openclaw models set {wanted.ref}"
    )
    return answer(args, {"ok": True, "model": wanted.ref, "path": path, "default": default}, path)


def remove(args: argparse.Namespace) -> int:
    """Deletes the file of a model. It can be fetched again."""
    from openclaw.models.local.downloads import remove_download
    from openclaw.models.local.install import weights_path

    if args.name.lower() in DEMO_NAMES:
        path, name = weights_path(paths.state_dir()), "The demo model"
        removed = os.path.exists(path)
        if removed:
            os.unlink(path)
    else:
        wanted = named_download(args.name)
        name, removed = wanted.name, remove_download(wanted, paths.state_dir())
    told = f"{name} is gone from this computer." if removed else f"{name} was not installed."
    refresh_gateway()
    return answer(args, {"ok": True, "removed": removed}, told)


def fetch_local() -> str:
    """Installs the embedded demo model with a progress bar, and returns the path of its weights."""
    from openclaw.models.local.install import InstallError, install_local

    bar = Progress()
    try:
        return install_local(bar, state_dir=paths.state_dir())
    except InstallError as error:
        raise UserError(str(error)) from error
    finally:
        bar.end()


def fetch_model(wanted: Download) -> str:
    """Installs a model of the list with a progress bar, and returns the path of its file."""
    from openclaw.models.local.downloads import install_download
    from openclaw.models.local.install import InstallError

    bar = Progress()
    try:
        return install_download(wanted, bar, state_dir=paths.state_dir(), environ=os.environ)
    except InstallError as error:
        raise UserError(str(error)) from error
    except KeyboardInterrupt:
        bar.end()
        note(f"Stopped. What has come is kept: `openclaw models install {wanted.id}` goes on.")
        raise
    finally:
        bar.end()


def memory_here() -> int:
    """Bytes of memory of this computer; a small number when it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 4_000_000_000


def refresh_gateway() -> dict[str, Any]:
    """Asks a running Gateway to look at its models and keys again, and returns what it uses. Empty: none runs."""
    from openclaw.cli.client import GatewayClient
    from openclaw.cli.target import resolve

    client = GatewayClient(resolve())
    if not client.alive():
        return {}
    try:
        return client.call("models.status", {"refresh": True})
    except UserError:
        return {}


def named_download(name: str) -> Download:
    """The model of the list that a person means. Raises ``UserError`` if there is none."""
    from openclaw.models.local.downloads import DOWNLOADS, find_download

    wanted = find_download(name)
    if wanted is None:
        names = [one.id for one in DOWNLOADS]
        guess = nearest(name, names)
        hint = f"Did you mean {guess}?" if guess else f"There are: {', '.join(names)}, and {LOCAL} (a small demo)."
        raise UserError(f"There is no model {name!r} to install. {hint}")
    return wanted


def choose_download() -> Download | None:
    """Lets a person choose a model. None: they want none."""
    from openclaw.models.local.downloads import DOWNLOADS, fitting

    best, rows = fitting(memory_here()), list[str]()
    for one in DOWNLOADS:
        fits = " (fits this computer)" if one is best else ""
        here = ", installed" if one.is_installed(paths.state_dir()) else ""
        rows.append(f"{one.name}, {one.size / 1e9:.1f} GB: {one.about}{fits}{here}")
    picked = choose("Which one?", [*rows, "None of them"], DOWNLOADS.index(best))
    return DOWNLOADS[picked] if picked < len(DOWNLOADS) else None


def _default_after(wanted: Download) -> str:
    """Which model answers now that this one is there."""
    told = refresh_gateway().get("defaultModel")
    if told:
        return str(told)
    from openclaw.cli.models import model_report

    return str(model_report(None)["resolvedDefault"])


def _needed() -> bool:
    """Whether the demo model would answer and is not here. Says which model answers otherwise."""
    from openclaw.cli.models import model_report

    report = model_report(None)
    if report["resolvedDefault"] != f"{LOCAL}/{DEMO_NAMES[2]}":
        note(f"Model: {report['resolvedDefault']} ({report['why']})")
        return False
    note("No model key and no local server was found: the small demo model will answer.")
    return not report["localInstalled"]


class Progress:
    """Shows progress: a bar on a terminal, one line per step elsewhere."""

    def __init__(self) -> None:
        self._label = ""
        self._open = False

    def __call__(self, label: str, done: int | None, total: int | None) -> None:
        if not sys.stderr.isatty():
            if label != self._label:
                note(label)
        else:
            if label != self._label:
                self.end()
            bar = "…"
            if done is not None and total:
                filled = min(BAR_WIDTH, done * BAR_WIDTH // total)
                graph = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] " if len(label) < LONG_LABEL else ""
                bar = f"{graph}{done // 1_000_000}/{total // 1_000_000} MB"
            show_progress(label, bar)
            self._open = True
        self._label = label

    def end(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False
