"""``openclaw models``: lists models, shows or sets the one that answers, stores keys and tries them."""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.client import from_args
from openclaw.cli.command import CLIENT, GATEWAY, JSON, Action, Flag, Group, UserError, answer, yes
from openclaw.cli.local_models import install, list_local, refresh_gateway, remove
from openclaw.cli.terminal import note, paint, print_json
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.config.schema import Config
    from openclaw.models.base import Model

ON_THIS_MACHINE = ("local", "ollama", "lmstudio", "llamacpp", "vllm")
EXPIRES_SOON_MS = 24 * 3_600_000
"""``--check`` warns this long before a credential expires."""


def list_models(args: argparse.Namespace) -> int:
    if args.local and not args.provider:
        return list_local(args)
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
        "local": model.get("provider") in ON_THIS_MACHINE,
        "available": model.get("available"),
        "tags": tags,
        "missing": False,
    }


def status(args: argparse.Namespace) -> int:
    report = model_report(args.agent)
    if args.check:
        return report["auth"]["check"]
    client = from_args(args)
    running = client.alive()
    told: dict[str, Any] = {}
    if running:
        told = client.call("models.status", {"refresh": True, **({"agentId": args.agent} if args.agent else {})})
        report |= {"resolvedDefault": told["defaultModel"] or report["resolvedDefault"], "why": told["why"]}
    report["gateway"] = told if running else None
    report["notInGateway"] = unknown_to_gateway(told) if running and client.target.local else []
    if args.probe or args.probe_provider:
        report["probe"] = _probe(args, running)
    if args.json:
        print_json(report)
    elif args.plain:
        sys.stdout.write(f"{report['resolvedDefault']}\n")
    else:
        sys.stdout.write("\n".join(_status_lines(report)) + "\n")
        if sys.stdin.isatty() and sys.stdout.isatty():
            offer_keys(report["notInGateway"])
    failed = [row for row in report.get("probe", ()) if not row["ok"]]
    return 1 if failed else 0


def _probe(args: argparse.Namespace, running: bool) -> list[dict[str, Any]]:
    """Has the Gateway try its keys, because its keys count. Without a Gateway this is not possible."""
    if not running:
        raise UserError("No Gateway is running, and its keys are the ones to try: openclaw gateway start")
    params = {"timeoutMs": args.probe_timeout, **({"provider": args.probe_provider} if args.probe_provider else {})}
    params |= {"agentId": args.agent} if args.agent else {}
    return from_args(args).call("models.probe", params, timeout_ms=args.probe_timeout * 4)["results"]


def _status_lines(report: dict[str, Any]) -> list[str]:
    """The report for people. Names from outside are made safe for the terminal."""
    here = "the Gateway" if report["gateway"] else "a Gateway started from here (none is running)"
    lines = [
        f"Default model of {here}: {report['resolvedDefault']}",
        f"Why: {report['why']}",
        f"Fallbacks: {', '.join(report['fallbacks']) or 'none'}",
        f"Image model: {', '.join([report['imageModel'] or 'none', *report['imageFallbacks']])}",
        *_rest_lines(report["auth"]["unusableProfiles"]),
        f"Aliases: {', '.join(f'{alias} = {name}' for alias, name in report['aliases'].items()) or 'none'}",
        f"Local model: {'installed' if report['localInstalled'] else 'not here (openclaw models install)'}",
        f"Config: {report['configPath']}",
    ]
    lines = [printable(line) for line in lines]
    for row in (report["gateway"] or {}).get("providers", ()):
        keys = ", ".join(_key_words(key) for key in row["keys"])
        lines.append(printable(f"Key for {row['label']}: {keys}"))
    for row in report.get("probe", ()):
        verdict = paint("works", "green") if row["ok"] else paint("does not work", "red")
        detail = f"{row.get('durationMs', 0) / 1000:.1f} s" if row["ok"] else row.get("error") or row.get("kind")
        lines.append(printable(f"{row['model']} with {row['key']['id']}: ") + verdict + printable(f" ({detail})"))
    for offer in report["notInGateway"]:
        lines.append(printable(_offer_words(offer)))
    return lines


def _key_words(key: dict[str, Any]) -> str:
    words = {"unneeded": "none needed", "config": "in the configuration", "profile": "stored"}
    source, where = str(key["source"]), str(key.get("where") or "")
    return f"{words.get(source, source)}{f' ({where})' if where else ''}"


def unknown_to_gateway(told: dict[str, Any]) -> list[dict[str, str]]:
    """The keys in this terminal's environment that the Gateway does not have, because it was started without them.

    ``told`` is the answer of ``models.status``. A provider whose key the Gateway has from elsewhere is left out.
    """
    from openclaw.models.catalogue_data import PROVIDERS

    supplied = {row["provider"] for row in told.get("providers", ()) if _has_key(row)}
    offers: list[dict[str, str]] = []
    for name, facts in PROVIDERS.items():
        variable = next((one for one in facts.key_env if os.environ.get(one, "").strip()), None)
        if variable and facts.default_model and name not in supplied and variable not in told.get("variables", ()):
            offers.append({"provider": name, "label": facts.label, "variable": variable})
    return offers


def _has_key(row: dict[str, Any]) -> bool:
    return any(key["source"] not in ("unneeded", "missing") for key in row["keys"])


def _offer_words(offer: dict[str, str]) -> str:
    return (
        f"{offer['variable']} is set in this terminal, but the Gateway was started without it. Store it: "
        f"openclaw models auth add --provider {offer['provider']} --from-env {offer['variable']}"
    )


def offer_keys(offers: list[dict[str, str]]) -> bool:
    """Asks the person at the terminal whether to give the Gateway the keys that it lacks. True: it got one."""
    stored = False
    for offer in offers:
        question = f"The Gateway does not have your {offer['label']} key ({offer['variable']}). Store it for it?"
        if yes(question, usual=True):
            note(keep_key(offer["provider"], os.environ[offer["variable"]].strip()))
            stored = True
    return stored


def keep_key(provider: str, key: str, *, agent: str | None = None, profile: str = "") -> str:
    """Stores a key where the Gateway finds it, tells the Gateway, and returns a sentence about it."""
    from openclaw.config import agents
    from openclaw.config.load import read_config
    from openclaw.models.cooldowns import UnreadableProfiles
    from openclaw.models.keys import is_key, profiles_path, store_key

    if not is_key(key):
        raise UserError("That is not a key: it is empty, or has blanks or characters that no key has.")
    config = read_config(paths.config_path(), os.environ).config
    path = profiles_path(config, paths.state_dir(), agent or agents.default_agent_id(config))
    try:
        name = store_key(path, provider, key, profile)
    except (OSError, UnreadableProfiles) as error:
        raise UserError(f"The key was not stored: {error}") from error
    default = refresh_gateway().get("defaultModel")
    return f"Stored as {name} in {path} (only you can read it)." + (f" {default} answers." if default else "")


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


def model_report(agent: str | None) -> dict[str, Any]:
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
    return _set_primary(args, "model", "Default model")


def set_image(args: argparse.Namespace) -> int:
    return _set_primary(args, "imageModel", "Image model")


def _set_primary(args: argparse.Namespace, key: str, what: str) -> int:
    from openclaw.cli.config import change_config, changed

    ref, setting = _known(args.model), _setting(key)
    path = f"agents.defaults.{key}.primary" if isinstance(setting, dict) else f"agents.defaults.{key}"
    warnings = change_config(lambda store: store.set_path(path, ref))
    return changed(args, f"{what}: {ref}", path=path, model=ref, warnings=warnings)


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
    """Stores and forgets keys, and shows or changes the order in which an agent's are used."""
    if args.what == "add":
        return _add_key(args)
    if args.what == "remove":
        return _remove_key(args)
    if args.action not in ("get", "set", "clear"):
        raise UserError("openclaw models auth order: name what to do, get, set or clear.")
    return _auth_order(args)


def _add_key(args: argparse.Namespace) -> int:
    from openclaw.models.catalogue_data import PROVIDERS
    from openclaw.models.keys import canonical_provider

    provider = canonical_provider(args.provider)
    label = PROVIDERS[provider].label if provider in PROVIDERS else provider
    if args.from_env:
        key = os.environ.get(args.from_env, "").strip()
        if not key:
            raise UserError(f"The environment variable {args.from_env} is not set here.")
    elif sys.stdin.isatty():
        import getpass

        key = getpass.getpass(f"Key for {label} (it is not shown): ").strip()
    else:
        key = sys.stdin.readline().strip()
    told = keep_key(provider, key, agent=args.agent, profile=args.profile or "")
    return answer(args, {"ok": True, "provider": provider, "profile": args.profile or f"{provider}:default"}, told)


def _remove_key(args: argparse.Namespace) -> int:
    from openclaw.config import agents
    from openclaw.config.load import read_config
    from openclaw.models.keys import canonical_provider, forget_key, profiles_path

    config = read_config(paths.config_path(), os.environ).config
    path = profiles_path(config, paths.state_dir(), args.agent or agents.default_agent_id(config))
    name = args.profile or f"{canonical_provider(args.provider)}:default"
    removed = forget_key(path, name)
    refresh_gateway()
    told = f"The key {name} is forgotten." if removed else f"There is no stored key {name}."
    return answer(args, {"ok": True, "profile": name, "removed": removed}, told)


def _auth_order(args: argparse.Namespace) -> int:
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
        "Which model answers and why, and whether the keys work",
        status,
        (
            Flag("--agent ID", "for this agent (default: the default agent)"),
            Flag("--plain", "only the default model's name"),
            Flag("--check", "exit with 1 if the model has no usable key, with 2 if it expires within a day"),
            Flag("--probe", "have the Gateway try each of its keys with one real message"),
            Flag("--probe-provider NAME", "try only the keys of this provider"),
            Flag("--probe-timeout MS", "milliseconds for each try (60000)", type=int, default=60_000),
            JSON,
            *GATEWAY,
        ),
        example="openclaw models status --probe",
    ),
    "set": Action(
        "Choose the default model",
        set_,
        (Flag("model MODEL", "provider/model, or an alias"), JSON),
        example="openclaw models set anthropic/claude-sonnet-4-5",
    ),
    "set-image": Action(
        "Choose the model for pictures that the default model cannot see",
        set_image,
        (Flag("model MODEL", "provider/model, or an alias"), JSON),
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
        "Store or forget a key, and the order in which stored keys of a provider are used",
        auth,
        (
            Flag("what", "add or remove a key; order of the keys", choices=("add", "remove", "order")),
            Flag("action", "with order: show, set or remove it", nargs="?", choices=("get", "set", "clear")),
            Flag("profiles PROFILE", "with order set: the keys, the preferred one first", nargs="*"),
            Flag("--provider NAME", "the provider, such as anthropic", required=True),
            Flag("--from-env NAME", "take the key from this environment variable (default: it is asked for)"),
            Flag("--profile ID", "the name of the key (default: PROVIDER:default)"),
            Flag("--agent ID", "for this agent (default: the default agent)"),
            JSON,
        ),
        example="openclaw models auth add --provider anthropic",
    ),
    "install": Action(
        "Fetch a model that runs on this computer, without a name: show which there are",
        install,
        (
            Flag("name NAME", "qwen3-0.6b, qwen3-1.7b, qwen3-4b, or local (a small demo)", nargs="?"),
            Flag("--if-needed", "with local: only when no other model is at hand; says which is"),
            JSON,
        ),
        example="openclaw models install qwen3-0.6b",
    ),
    "remove": Action(
        "Delete a fetched model from this computer",
        remove,
        (Flag("name NAME", "as `openclaw models list --local` shows it"), JSON),
        example="openclaw models remove qwen3-0.6b",
    ),
}
COMMANDS = {"models": Group(_ACTIONS, default="status")}
