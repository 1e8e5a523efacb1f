"""``openclaw models``: lists models, shows or sets the one that answers, installs the small local one."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, JSON, Action, Flag, Group, UserError
from openclaw.cli.terminal import note, print_json, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

LOCAL = "local"
BAR_WIDTH = 30


def list_models(args: argparse.Namespace) -> int:
    client = from_args(args)
    listed = client.call("models.list").get("models") or []
    defaults = client.call("sessions.list", {"limit": 1}).get("defaults") or {}
    default = f"{defaults.get('modelProvider')}/{defaults.get('model')}"
    rows = [_row(model, default) for model in listed]
    rows = [row for row in rows if not args.provider or row["key"].startswith(f"{args.provider}/")]
    rows = [row for row in rows if not args.local or row["local"]]
    rows = [row for row in rows if args.all or row["available"] is not False]
    if args.json:
        print_json({"count": len(rows), "models": rows})
    elif args.plain:
        sys.stdout.write("".join(f"{printable(row['key'])}\n" for row in rows))
    else:
        for row in rows:
            window = f"{row['contextWindow'] // 1000}k" if isinstance(row["contextWindow"], int) else "?"
            tags = ", ".join(row["tags"])
            sys.stdout.write(
                printable(f"{row['key']:<50} {window:>6}  {'+'.join(row['input']):<12} {tags}").rstrip() + "\n"
            )
    return 0


def _row(model: dict[str, Any], default: str) -> dict[str, Any]:
    key = f"{model.get('provider')}/{model.get('id')}"
    tags = ["default"] if key == default else []
    tags += ["reasoning"] if model.get("reasoning") else []
    return {
        "key": key,
        "name": model.get("name"),
        "input": model.get("input") or ["text"],
        "contextWindow": model.get("contextWindow"),
        "local": model.get("provider") in (LOCAL, "ollama"),
        "available": model.get("available"),
        "tags": tags,
        "missing": False,
    }


def status(args: argparse.Namespace) -> int:
    report = _report(args.agent)
    if args.json:
        print_json(report)
    elif args.plain:
        sys.stdout.write(f"{report['resolvedDefault']}\n")
    else:
        lines = [
            f"Default model: {report['resolvedDefault']}",
            f"Why: {report['why']}",
            f"Fallbacks: {', '.join(report['fallbacks']) or 'none'}",
            f"Aliases: {', '.join(f'{alias} = {name}' for alias, name in report['aliases'].items()) or 'none'}",
            f"Local model: {'installed' if report['localInstalled'] else 'not here (openclaw models install local)'}",
            f"Config: {report['configPath']}",
        ]
        sys.stdout.write(printable("\n".join(lines)) + "\n")
    return 0


def _report(agent: str | None) -> dict[str, Any]:
    import asyncio

    from openclaw.config import agents
    from openclaw.config.load import read_config
    from openclaw.models.catalogue import Catalogue, UnknownModel
    from openclaw.models.detect import find_models
    from openclaw.models.local.install import is_installed

    config = read_config(paths.config_path(), os.environ).config
    agent_id = agent or agents.default_agent_id(config)
    found = asyncio.run(find_models(os.environ))
    catalogue = Catalogue(config, os.environ, found=found)
    try:
        choice = catalogue.choose(config, agent_id)
    except UnknownModel as error:
        raise UserError(str(error)) from error
    return {
        "configPath": paths.config_path(),
        "agentDir": paths.agent_dir(paths.state_dir(), agent_id),
        "defaultModel": agents.primary_model(config, agent_id),
        "resolvedDefault": choice.model.ref,
        "why": choice.why,
        "fallbacks": agents.fallback_models(config, agent_id),
        "aliases": dict(agents.model_aliases(config)),
        "localInstalled": is_installed(paths.state_dir()),
    }


def set_(args: argparse.Namespace) -> int:
    """Sets the default model and leaves configured fallbacks as they are."""
    from openclaw.cli.config import change_config
    from openclaw.config.load import read_config
    from openclaw.models.catalogue import Catalogue, UnknownModel

    snapshot = read_config(paths.config_path(), os.environ)
    try:
        model = Catalogue(snapshot.config, os.environ).resolve(args.model)
    except UnknownModel as error:
        raise UserError(str(error)) from error
    defaults = (snapshot.merged.get("agents") or {}).get("defaults") or {}
    path = "agents.defaults.model.primary" if isinstance(defaults.get("model"), dict) else "agents.defaults.model"
    change_config(lambda store: store.set_path(path, model.ref))
    note(f"Default model: {model.ref}")
    return 0


def install(args: argparse.Namespace) -> int:
    if args.if_needed:
        report = _report(None)
        if not report["resolvedDefault"].startswith(f"{LOCAL}/"):
            note(f"Model: {report['resolvedDefault']} ({report['why']})")
            return 0
        note("No model key and no local Ollama was found: the small built-in model will answer.")
        if report["localInstalled"]:
            return 0
    sys.stdout.write(fetch_local() + "\n")
    return 0


def fetch_local() -> str:
    """Installs the embedded model with a progress bar, and returns the path of its weights."""
    from openclaw.models.local.install import InstallError, install_local

    bar = _Progress()
    try:
        return install_local(bar, state_dir=paths.state_dir())
    except InstallError as error:
        raise UserError(str(error)) from error
    finally:
        bar.end()


class _Progress:
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
                bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done // 1_000_000}/{total // 1_000_000} MB"
            sys.stderr.write(f"\r{label} {bar}\x1b[K")
            sys.stderr.flush()
            self._open = True
        self._label = label

    def end(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False


_ACTIONS = {
    "list": Action(
        "List the models the Gateway knows",
        list_models,
        (
            Flag("--all", "also models that have no key yet"),
            Flag("--provider NAME", "only models of this provider"),
            Flag("--local", "only models that run on this computer"),
            Flag("--plain", "only the names"),
            *CLIENT,
        ),
        example="openclaw models list --json",
    ),
    "status": Action(
        "Which model answers, and why",
        status,
        (
            Flag("--agent ID", "for this agent (default: the default agent)"),
            Flag("--plain", "only the default model's name"),
            JSON,
        ),
        example="openclaw models status",
    ),
    "set": Action(
        "Choose the default model",
        set_,
        (Flag("model MODEL", "provider/model, or an alias"),),
        example="openclaw models set anthropic/claude-sonnet-4-5",
    ),
    "install": Action(
        "Install the small model that runs on this computer",
        install,
        (
            Flag("what", "the small model that runs on this computer", choices=(LOCAL,)),
            Flag("--if-needed", "only when no other model is at hand; says which is"),
        ),
        example="openclaw models install local",
    ),
}
COMMANDS = {"models": Group(_ACTIONS, default="status")}
