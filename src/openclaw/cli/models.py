"""``openclaw models``: lists models, shows or sets the one that answers, installs the small local one."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, JSON, Action, Flag, Group, UserError, answer
from openclaw.cli.terminal import note, print_json, show_progress
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.config.schema import Config
    from openclaw.models.base import Model

LOCAL = "local"
BAR_WIDTH = 30
EXPIRES_SOON_MS = 24 * 3_600_000
"""``--check`` warns this long before a credential expires."""


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
        # The name is last and whole, so that it can be given to `models set` and the rest fits 80 characters with it.
        for row in rows:
            window = f"{row['contextWindow'] // 1000}k" if isinstance(row["contextWindow"], int) else "?"
            default = "*" if "default" in row["tags"] else " "
            sees = "+image" if "image" in row["input"] else ""
            thinks = "reasoning" if "reasoning" in row["tags"] else ""
            line = f"{default} {window:>6}  {'text' + sees:<11} {thinks:<10} {row['key']}"
            sys.stdout.write(printable(line) + "\n")
        if any("default" in row["tags"] for row in rows):
            note("* answers unless a session says otherwise")
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
    if args.check:
        return report["auth"]["check"]
    if args.json:
        print_json(report)
    elif args.plain:
        sys.stdout.write(f"{report['resolvedDefault']}\n")
    else:
        lines = [
            f"Default model: {report['resolvedDefault']}",
            f"Why: {report['why']}",
            f"Fallbacks: {', '.join(report['fallbacks']) or 'none'}",
            f"Image model: {', '.join([report['imageModel'] or 'none', *report['imageFallbacks']])}",
            *_rest_lines(report["auth"]["unusableProfiles"]),
            f"Aliases: {', '.join(f'{alias} = {name}' for alias, name in report['aliases'].items()) or 'none'}",
            f"Local model: {'installed' if report['localInstalled'] else 'not here (openclaw models install local)'}",
            f"Config: {report['configPath']}",
        ]
        sys.stdout.write(printable("\n".join(lines)) + "\n")
    return 0


def _rest_lines(resting: list[dict[str, Any]]) -> list[str]:
    from openclaw.models.errors import failure_words
    from openclaw.text import duration

    return [
        f"Resting: {row['profileId']}{' for ' + row['model'] if row['model'] else ''}: "
        f"{failure_words(row['failure'])}; used again in {duration(row['remainingMs'])}"
        for row in resting
    ]


def _auth_report(config: Config, agent_id: str, model: Model) -> dict[str, Any]:
    """The stored credentials, and the keys that rest after failed calls."""
    from openclaw.clock import SystemClock
    from openclaw.models.keys import canonical_provider, find_source, profiles_path, provider_config, read_profile_file

    now, own = SystemClock().now_ms(), profiles_path(config, paths.state_dir(), agent_id)
    shared = profiles_path(config, paths.state_dir(), "main")
    file, main = read_profile_file(own), read_profile_file(shared)
    path, file = (own, file) if file.profiles else (shared, main)
    resting = {name: stats for name, stats in (file.stats | main.stats).items() if stats.latest_end() > now}
    mine = [one for one in file.profiles if canonical_provider(one.provider) == canonical_provider(model.provider)]
    given = find_source(model, provider_config(config, model.provider), os.environ)
    ends = [one.expires_ms for one in mine if not one.expired(now)]
    missing = given.kind == "missing" and not ends
    expiring = given.kind == "missing" and ends and all(end is not None and end - now < EXPIRES_SOON_MS for end in ends)
    return {
        "storePath": path,
        "providers": sorted({one.provider for one in file.profiles}),
        "profiles": [
            {"id": one.id, "provider": one.provider, "type": one.kind, "expires": one.expires_ms}
            for one in file.profiles
        ],
        "order": file.order,
        "unusableProfiles": [
            {
                "profileId": name,
                "provider": name.partition(":")[0].partition("#")[0],
                "kind": "disabled" if stats.disabled_until > now else "cooldown",
                "reason": stats.reason(),
                "failure": stats.kind(),
                "model": stats.cooldown_model,
                "until": stats.latest_end(),
                "remainingMs": stats.latest_end() - now,
            }
            for name, stats in resting.items()
        ],
        "check": 1 if missing else 2 if expiring else 0,
    }


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
    images = agents.image_models(config)
    return {
        "configPath": paths.config_path(),
        "agentDir": paths.agent_dir(paths.state_dir(), agent_id),
        "defaultModel": agents.primary_model(config, agent_id),
        "resolvedDefault": choice.model.ref,
        "why": choice.why,
        "fallbacks": agents.fallback_models(config, agent_id),
        "imageModel": next(iter(images), None),
        "imageFallbacks": images[1:],
        "allowed": list(config.agents.defaults.models),
        "auth": _auth_report(config, agent_id, choice.model),
        "aliases": dict(agents.model_aliases(config)),
        "localInstalled": is_installed(paths.state_dir()),
    }


def set_(args: argparse.Namespace) -> int:
    """Sets the default model and leaves configured fallbacks as they are."""
    return _set_primary("model", args.model, "Default model")


def set_image(args: argparse.Namespace) -> int:
    return _set_primary("imageModel", args.model, "Image model")


def _set_primary(key: str, name: str, what: str) -> int:
    from openclaw.cli.config import change_config

    ref, setting = _known(name), _setting(key)
    path = f"agents.defaults.{key}.primary" if isinstance(setting, dict) else f"agents.defaults.{key}"
    change_config(lambda store: store.set_path(path, ref))
    note(f"{what}: {ref}")
    return 0


def _known(name: str) -> str:
    """The full name of a model. Raises ``UserError`` if there is none of this name."""
    from openclaw.config.load import read_config
    from openclaw.models.catalogue import Catalogue, UnknownModel

    try:
        return Catalogue(read_config(paths.config_path(), os.environ).config, os.environ).resolve(name).ref
    except UnknownModel as error:
        raise UserError(str(error)) from error


def _setting(key: str) -> Any:
    """``agents.defaults.model`` or ``agents.defaults.imageModel`` as the config file has it."""
    from openclaw.config.load import read_config

    merged = read_config(paths.config_path(), os.environ).merged
    return ((merged.get("agents") or {}).get("defaults") or {}).get(key)


def fallbacks(args: argparse.Namespace) -> int:
    return _fallbacks(args, "model")


def image_fallbacks(args: argparse.Namespace) -> int:
    return _fallbacks(args, "imageModel")


def _fallbacks(args: argparse.Namespace, key: str) -> int:
    """Lists or changes the models that are asked when the first one fails."""
    from openclaw.cli.config import change_config

    setting = _setting(key)
    listed: list[str] = list((setting.get("fallbacks") or []) if isinstance(setting, dict) else [])
    if args.what in ("add", "remove") and not args.model:
        raise UserError(f"Name the model to {args.what}: provider/model, or an alias.")
    if args.what == "list":
        if args.json:
            print_json({"fallbacks": listed})
        else:
            sys.stdout.write("".join(f"{printable(name)}\n" for name in listed) or "No fallbacks.\n")
        return 0
    if args.what == "add":
        ref = _known(args.model)
        changed = [*listed, *([ref] if ref not in listed else [])]
    elif args.what == "remove":
        gone = args.model if args.model in listed else _known(args.model)
        if gone not in listed:
            raise UserError(f"{gone} is not among the fallbacks: {', '.join(listed) or 'there are none'}.")
        changed = [name for name in listed if name != gone]
    else:
        changed = []
    primary = setting.get("primary") if isinstance(setting, dict) else setting
    value = {**({"primary": primary} if primary else {}), "fallbacks": changed}
    change_config(lambda store: store.set_path(f"agents.defaults.{key}", value))
    return answer(args, {"fallbacks": changed}, f"Fallbacks: {', '.join(changed) or 'none'}", sys.stderr)


def auth(args: argparse.Namespace) -> int:
    """Shows or changes the order in which an agent's stored credentials of a provider are used."""
    from openclaw.config import agents
    from openclaw.config.load import read_config
    from openclaw.models.cooldowns import UnreadableProfiles, edit_profiles
    from openclaw.models.keys import canonical_provider, profiles_path, read_profile_file

    config = read_config(paths.config_path(), os.environ).config
    path = profiles_path(config, paths.state_dir(), args.agent or agents.default_agent_id(config))
    provider, file = canonical_provider(args.provider), read_profile_file(path)
    if args.action == "get":
        order = file.order.get(provider) or list(config.auth.order.get(provider, []))
        if args.json:
            print_json({"provider": provider, "storePath": path, "order": order or None})
        else:
            sys.stdout.write("".join(f"{printable(name)}\n" for name in order) or "No order is set.\n")
        return 0
    stored = [one.id for one in file.profiles if canonical_provider(one.provider) == provider]
    if args.action == "set":
        if not args.profiles:
            raise UserError("Name the credentials in the order in which they are to be used.")
        if unknown := [name for name in args.profiles if name not in stored]:
            there = ", ".join(stored) or "none"
            raise UserError(f"Not stored for {provider}: {', '.join(unknown)}. Stored: {there}.")

    def change(document: dict[str, Any]) -> None:
        order = document.get("order")
        kept = {name: ids for name, ids in order.items() if name != provider} if isinstance(order, dict) else {}
        document["order"] = {**kept, provider: list(dict.fromkeys(args.profiles))} if args.action == "set" else kept

    try:
        edit_profiles(path, change)
    except (OSError, UnreadableProfiles) as error:
        raise UserError(f"Not changed: {error}") from error
    order = list(dict.fromkeys(args.profiles)) if args.action == "set" else []
    report = {"provider": provider, "storePath": path, "order": order or None}
    return answer(args, report, f"Order of {provider}: {', '.join(order) or 'none'}", sys.stderr)


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
            show_progress(f"{label} {bar}")
            self._open = True
        self._label = label

    def end(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False


_FALLBACK_FLAGS = (
    Flag("what", "what to do", choices=("list", "add", "remove", "clear")),
    Flag("model MODEL", "provider/model, or an alias", nargs="?"),
    JSON,
)
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
            Flag("--check", "exit with 1 if the model has no usable key, with 2 if it expires within a day"),
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
    "set-image": Action(
        "Choose the model for pictures that the default model cannot see",
        set_image,
        (Flag("model MODEL", "provider/model, or an alias"),),
        example="openclaw models set-image google/gemini-3.5-flash",
    ),
    "fallbacks": Action(
        "The models that are asked when the default model fails",
        fallbacks,
        _FALLBACK_FLAGS,
        example="openclaw models fallbacks add openai/gpt-5.4",
    ),
    "image-fallbacks": Action(
        "The models that are asked when the image model fails",
        image_fallbacks,
        _FALLBACK_FLAGS,
        example="openclaw models image-fallbacks list",
    ),
    "auth": Action(
        "The order in which stored credentials of a provider are used",
        auth,
        (
            Flag("what", "the order of the credentials", choices=("order",)),
            Flag("action", "show, set or remove it", choices=("get", "set", "clear")),
            Flag("profiles PROFILE", "the credentials, the preferred one first", nargs="*"),
            Flag("--provider NAME", "the provider", required=True),
            Flag("--agent ID", "for this agent (default: the default agent)"),
            JSON,
        ),
        example="openclaw models auth order set --provider anthropic anthropic:work anthropic:home",
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
