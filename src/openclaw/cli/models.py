"""``openclaw models``: which model answers and why, which there are, their keys, and those that run on this computer.

The keys that count are the Gateway's. A key that only this terminal has is reported and can be stored for the Gateway.
"""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli.client import GatewayClient, from_args
from openclaw.cli.command import (
    CLIENT,
    JSON,
    Action,
    Flag,
    Group,
    UserError,
    answer,
    choose,
    nearest,
    report,
    secret,
    yes,
)
from openclaw.cli.config import change_config, changed, current_config, read_file
from openclaw.cli.terminal import note, paint, show_progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from openclaw.cli.answers import (
        AuthReport,
        KeyOffer,
        ModelEntry,
        ModelReport,
        ModelRow,
        ModelRows,
        ModelsStatusAnswer,
        ProviderKey,
    )
    from openclaw.config.schema import Config
    from openclaw.models.base import Model
    from openclaw.models.local.install import Download

ON_THIS_MACHINE = ("local", "ollama", "lmstudio", "llamacpp", "vllm")
EXPIRES_SOON_MS = 24 * 3_600_000
"""``--check`` warns this long before a credential expires."""
DEMO = "local/smollm2-135m-instruct"
DEMO_NAMES = ("local", "demo", "smollm2-135m-instruct", DEMO)
BAR_WIDTH = 30
LONG_LABEL = 36
"""A label of this length says why it waits, and leaves no room for the bar."""


def _listed(args: argparse.Namespace) -> ModelRows:
    if args.local and not args.provider:
        rows = local_rows()
    else:
        client = from_args(args)
        listed = client.call("models.list").get("models") or []
        defaults = client.call("sessions.list", {"limit": 1}).get("defaults") or {}
        default = f"{defaults.get('modelProvider')}/{defaults.get('model')}"
        rows = [_row(model, default) for model in listed]
        rows = [row for row in rows if not args.provider or row["key"].startswith(f"{args.provider}/")]
        rows = [row for row in rows if not args.local or row["local"]]
        rows = [row for row in rows if args.all or row["available"] is not False]
    return {"count": len(rows), "models": rows}


def _row(model: ModelEntry, default: str) -> ModelRow:
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


def _show_list(found: ModelRows, args: argparse.Namespace) -> Iterator[str]:
    rows = found["models"]
    if args.plain:
        yield from (row["key"] for row in rows)
    elif args.local and not args.provider:
        yield from _show_local(rows)
    else:
        # The name is last and whole, so that it can be given to `models set` and the rest fits 80 characters with it.
        for row in rows:
            window = f"{row['contextWindow'] // 1000}k" if isinstance(row["contextWindow"], int) else "?"
            default = "*" if "default" in row["tags"] else " "
            sees = "+image" if "image" in row["input"] else ""
            thinks = "reasoning" if "reasoning" in row["tags"] else ""
            yield f"{default} {window:>6}  {'text' + sees:<11} {thinks:<10} {row['key']}"
        if any("default" in row["tags"] for row in rows):
            note("* answers unless a session says otherwise")


def status(args: argparse.Namespace) -> int:
    found = model_report(args.agent)
    if args.check:
        return found["auth"]["check"]
    client = from_args(args)
    running = client.alive()
    told: ModelsStatusAnswer = {}
    if running:
        told = client.call("models.status", {"refresh": True, **({"agentId": args.agent} if args.agent else {})})
        found["resolvedDefault"] = told.get("defaultModel") or found["resolvedDefault"]
        found["why"] = told.get("why") or found["why"]
    found["gateway"] = told if running else None
    found["notInGateway"] = unknown_to_gateway(told) if running and client.target.local else []
    if args.probe or args.probe_provider:
        # The Gateway tries its keys, because its keys count.
        if not running:
            raise UserError("No Gateway is running, and its keys are the ones to try: openclaw gateway start")
        wanted = {"timeoutMs": args.probe_timeout, "provider": args.probe_provider, "agentId": args.agent}
        given = {name: value for name, value in wanted.items() if value}
        found["probe"] = client.call("models.probe", given, timeout_ms=args.probe_timeout * 4)["results"]
    answer(args, found, found["resolvedDefault"] if args.plain else "\n".join(_status_lines(found)))
    if not args.json and not args.plain and sys.stdin.isatty() and sys.stdout.isatty():
        offer_keys(found.get("notInGateway", []))
    return 0 if all(row["ok"] for row in found.get("probe", ())) else 1


def _status_lines(found: ModelReport) -> list[str]:
    from openclaw.models.errors import failure_text
    from openclaw.text import duration

    here = "the Gateway" if found.get("gateway") else "a Gateway started from here (none is running)"
    lines = [
        f"Default model of {here}: {found['resolvedDefault']}",
        f"Why: {found['why']}",
        f"Fallbacks: {', '.join(found['fallbacks']) or 'none'}",
        f"Image model: {', '.join([found['imageModel'] or 'none', *found['imageFallbacks']])}",
        *(
            f"Resting: {row['profileId']}{' for ' + row['model'] if row['model'] else ''}: "
            f"{failure_text(row['failure'])}; used again in {duration(row['remainingMs'])}"
            for row in found["auth"]["unusableProfiles"]
        ),
        f"Aliases: {', '.join(f'{alias} = {name}' for alias, name in found['aliases'].items()) or 'none'}",
        f"Local model: {'installed' if found['localInstalled'] else 'not here (openclaw models install)'}",
        f"Config: {found['configPath']}",
    ]
    for row in (found.get("gateway") or {}).get("providers", ()):
        keys = ", ".join(_key_words(key) for key in row["keys"])
        lines.append(f"Key for {row['label']}: {keys}")
    for row in found.get("probe", ()):
        verdict = paint("works", "green") if row["ok"] else paint("does not work", "red")
        detail = f"{row.get('durationMs', 0) / 1000:.1f} s" if row["ok"] else row.get("error") or row.get("kind")
        lines.append(f"{row['model']} with {row['key'].get('id')}: " + verdict + f" ({detail})")
    for offer in found.get("notInGateway", ()):
        lines.append(
            f"{offer['variable']} is set in this terminal, but the Gateway was started without it. Store it: "
            f"openclaw models auth add --provider {offer['provider']} --from-env {offer['variable']}"
        )
    return lines


def _key_words(key: ProviderKey) -> str:
    words = {"unneeded": "none needed", "config": "in the configuration", "profile": "stored"}
    source, where = key["source"], key.get("where")
    return f"{words.get(source, source)}{f' ({where})' if where else ''}"


def model_report(agent: str | None) -> ModelReport:
    import asyncio

    from openclaw.config import agents
    from openclaw.models.catalogue import Catalogue, UnknownModel, find_models
    from openclaw.models.keys import profiles_path
    from openclaw.models.local.install import is_installed

    config = current_config()
    agent_id = agent or agents.default_agent_id(config)
    found = asyncio.run(find_models(os.environ))
    catalogue = Catalogue(config, os.environ, discovered=found)
    try:
        choice = catalogue.choose(config, agent_id)
    except UnknownModel as error:
        raise UserError(str(error)) from error
    images = agents.image_models(config)
    return {
        "configPath": paths.config_path(),
        "agentDir": os.path.dirname(profiles_path(config, paths.state_dir(), agent_id)),
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


def _auth_report(config: Config, agent_id: str, model: Model) -> AuthReport:
    """The stored credentials, and the keys that rest after failed calls."""
    from openclaw.clock import SystemClock
    from openclaw.models.keys import canonical_provider, find_source, profiles_path, provider_config, read_profile_file

    now, own = SystemClock().now_ms(), profiles_path(config, paths.state_dir(), agent_id)
    shared = profiles_path(config, paths.state_dir(), "main")
    file, main = read_profile_file(own), read_profile_file(shared)
    path, file = (own, file) if file.profiles else (shared, main)
    resting = {name: stats for name, stats in (file.stats | main.stats).items() if stats.latest_cooldown_end() > now}
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
                "until": stats.latest_cooldown_end(),
                "remainingMs": stats.latest_cooldown_end() - now,
            }
            for name, stats in resting.items()
        ],
        "check": 1 if missing else 2 if expiring else 0,
    }


def unknown_to_gateway(told: ModelsStatusAnswer) -> list[KeyOffer]:
    """The keys in this terminal's environment that the Gateway does not have, because it was started without them.

    ``told`` is the answer of ``models.status``. A provider whose key the Gateway has from elsewhere is left out.
    """
    from openclaw.models.catalogue_data import PROVIDERS

    supplied = {
        row["provider"]
        for row in told.get("providers", ())
        if any(key["source"] not in ("unneeded", "missing") for key in row["keys"])
    }
    offers: list[KeyOffer] = []
    for name, facts in PROVIDERS.items():
        variable = next((one for one in facts.key_env if os.environ.get(one, "").strip()), None)
        if variable and facts.default_model and name not in supplied and variable not in told.get("variables", ()):
            offers.append({"provider": name, "label": facts.label, "variable": variable})
    return offers


def offer_keys(offers: list[KeyOffer]) -> None:
    """Asks the person at the terminal whether to give the Gateway the keys that it lacks."""
    for offer in offers:
        question = f"The Gateway does not have your {offer['label']} key ({offer['variable']}). Store it for it?"
        if yes(question, usual=True):
            note(keep_key(offer["provider"], os.environ[offer["variable"]].strip()))


def _profiles_file(agent: str | None) -> str:
    """The file with the stored keys of an agent, or of the default agent."""
    from openclaw.config.agents import default_agent_id
    from openclaw.models.keys import profiles_path

    config = current_config()
    return profiles_path(config, paths.state_dir(), agent or default_agent_id(config))


def keep_key(provider: str, key: str, *, agent: str | None = None, profile: str = "") -> str:
    """Stores a key where the Gateway finds it, tells the Gateway, and returns a sentence about it."""
    from openclaw.models.keys import UnreadableProfiles, is_key, store_key

    if not is_key(key):
        raise UserError("That is not a key: it is empty, or has blanks or characters that no key has.")
    path = _profiles_file(agent)
    try:
        name = store_key(path, provider, key, profile)
    except (OSError, UnreadableProfiles) as error:
        raise UserError(f"The key was not stored: {error}") from error
    default = refresh_gateway().get("defaultModel")
    return f"Stored as {name} in {path} (only you can read it)." + (f" {default} answers." if default else "")


def refresh_gateway() -> ModelsStatusAnswer:
    """Asks a running Gateway to look at its models and keys again, and returns what it uses. Empty: none runs."""
    from openclaw.cli.gateway_target import resolve

    client = GatewayClient(resolve())
    try:
        return client.call("models.status", {"refresh": True}) if client.alive() else {}
    except UserError:
        return {}


def _set_primary(args: argparse.Namespace, key: str, what: str) -> int:
    """Sets the first model and leaves configured fallbacks as they are."""
    ref, setting = _known(args.model), _setting(key)
    path = f"agents.defaults.{key}.primary" if isinstance(setting, dict) else f"agents.defaults.{key}"
    warnings = change_config(lambda store: store.set_path(path, ref))
    return changed(args, f"{what}: {ref}", path=path, model=ref, warnings=warnings)


def _known(name: str) -> str:
    """The full name of a model. Raises ``UserError`` if there is none of this name."""
    from openclaw.models.catalogue import Catalogue, UnknownModel

    try:
        return Catalogue(current_config(), os.environ).resolve(name).ref
    except UnknownModel as error:
        raise UserError(str(error)) from error


def _setting(key: str) -> Any:
    """``agents.defaults.model`` or ``agents.defaults.imageModel`` as the config file has it."""
    return ((read_file().merged.get("agents") or {}).get("defaults") or {}).get(key)


def _fallbacks(args: argparse.Namespace, key: str) -> int:
    """Lists or changes the models that are asked when the first one fails."""
    setting = _setting(key)
    listed: list[str] = list((setting.get("fallbacks") or []) if isinstance(setting, dict) else [])
    if args.what in ("add", "remove") and not args.model:
        raise UserError(f"Name the model to {args.what}: provider/model, or an alias.")
    if args.what == "list":
        return answer(args, {"fallbacks": listed}, "\n".join(listed) or "No fallbacks.")
    wanted: list[str] = []
    if args.what == "add":
        wanted = list(dict.fromkeys([*listed, _known(args.model)]))
    elif args.what == "remove":
        gone = args.model if args.model in listed else _known(args.model)
        if gone not in listed:
            raise UserError(f"{gone} is not among the fallbacks: {', '.join(listed) or 'there are none'}.")
        wanted = [name for name in listed if name != gone]
    primary = setting.get("primary") if isinstance(setting, dict) else setting
    value = {**({"primary": primary} if primary else {}), "fallbacks": wanted}
    change_config(lambda store: store.set_path(f"agents.defaults.{key}", value))
    return answer(args, {"fallbacks": wanted}, f"Fallbacks: {', '.join(wanted) or 'none'}", sys.stderr)


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
        key = secret(f"Key for {label} (it is not shown)")
    else:
        key = sys.stdin.readline().strip()
    told = keep_key(provider, key, agent=args.agent, profile=args.profile or "")
    return answer(args, {"ok": True, "provider": provider, "profile": args.profile or f"{provider}:default"}, told)


def _remove_key(args: argparse.Namespace) -> int:
    from openclaw.models.keys import canonical_provider, forget_key

    name = args.profile or f"{canonical_provider(args.provider)}:default"
    removed = forget_key(_profiles_file(args.agent), name)
    refresh_gateway()
    told = f"The key {name} is forgotten." if removed else f"There is no stored key {name}."
    return answer(args, {"ok": True, "profile": name, "removed": removed}, told)


def _auth_order(args: argparse.Namespace) -> int:
    from openclaw.models.keys import UnreadableProfiles, canonical_provider, edit_profiles, read_profile_file

    path, provider = _profiles_file(args.agent), canonical_provider(args.provider)
    file, facts = read_profile_file(path), {"provider": provider, "storePath": path}
    if args.action == "get":
        order = file.order.get(provider) or list(current_config().auth.order.get(provider, []))
        return answer(args, {**facts, "order": order or None}, "\n".join(order) or "No order is set.")
    order = list(dict.fromkeys(args.profiles)) if args.action == "set" else []
    if args.action == "set":
        stored = [one.id for one in file.profiles if canonical_provider(one.provider) == provider]
        if not order:
            raise UserError("Name the credentials in the order in which they are to be used.")
        if unknown := [name for name in order if name not in stored]:
            there = ", ".join(stored) or "none"
            raise UserError(f"Not stored for {provider}: {', '.join(unknown)}. Stored: {there}.")

    def change(document: dict[str, object]) -> None:
        before = document.get("order")
        kept = {name: ids for name, ids in before.items() if name != provider} if isinstance(before, dict) else {}
        document["order"] = {**kept, provider: order} if order else kept

    try:
        edit_profiles(path, change)
    except (OSError, UnreadableProfiles) as error:
        raise UserError(f"Not changed: {error}") from error
    told = f"Order of {provider}: {', '.join(order) or 'none'}"
    return answer(args, {**facts, "order": order or None}, told, sys.stderr)


# Models that run on this computer


def local_rows() -> list[ModelRow]:
    """What runs here, what a server on this computer has, and what can be fetched. It needs no Gateway."""
    import asyncio

    from openclaw.models.catalogue import find_models
    from openclaw.models.catalogue_data import local_model
    from openclaw.models.local.install import DOWNLOADS, WEIGHTS_BYTES, is_installed

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


def _show_local(rows: list[ModelRow]) -> Iterator[str]:
    for row in rows:
        size = f"{size / 1e9:.1f} GB" if (size := row.get("size")) else ""
        state = "installed" if row["available"] else "not installed"
        yield f"{row['key']:<28} {size:>7}  {state:<14} {row.get('about')}".rstrip()
    if not all(row["available"] for row in rows):
        note("Install one: openclaw models install qwen3-0.6b")


def install(args: argparse.Namespace) -> int:
    name = args.name
    if name is None:
        if args.json or not sys.stdin.isatty():
            rows = local_rows()
            return answer(args, {"count": len(rows), "models": rows}, "\n".join(_show_local(rows)))
        if (chosen := choose_download()) is None:
            return 0
        name = chosen.id
    demo = name.lower() in DEMO_NAMES
    if demo and args.if_needed and not _needs_demo():
        return 0
    ref, path = fetched(name)
    if demo:
        return answer(args, {"ok": True, "model": ref, "path": path}, path)
    default = str(refresh_gateway().get("defaultModel") or model_report(None)["resolvedDefault"])
    note(f"{ref} answers from now on." if default == ref else f"{ref} is installed. Use it: openclaw models set {ref}")
    return answer(args, {"ok": True, "model": ref, "path": path, "default": default}, path)


def _needs_demo() -> bool:
    """Whether the demo model would answer and is not here. Says which model answers otherwise."""
    found = model_report(None)
    if found["resolvedDefault"] != DEMO:
        note(f"Model: {found['resolvedDefault']} ({found['why']})")
        return False
    note("No model key and no local server was found: the small demo model will answer.")
    return not found["localInstalled"]


def fetched(name: str) -> tuple[str, str]:
    """Installs the model that a person names, with a progress bar. Returns its full name and the path of its file."""
    from openclaw.models.local.install import InstallError, install_download, install_local

    bar, state = Progress(), paths.state_dir()
    try:
        if name.lower() in DEMO_NAMES:
            return DEMO, install_local(bar, state_dir=state)
        wanted = named_download(name)
        return wanted.ref, install_download(wanted, bar, state_dir=state, environ=os.environ)
    except InstallError as error:
        raise UserError(str(error)) from error
    except KeyboardInterrupt:
        bar.end()
        if name.lower() not in DEMO_NAMES:
            note(f"Stopped. The downloaded part is kept: `openclaw models install {name}` resumes.")
        raise
    finally:
        bar.end()


def named_download(name: str) -> Download:
    """The model of the list that a person means. Raises ``UserError`` if there is none."""
    from openclaw.models.local.install import DOWNLOADS, find_download

    wanted = find_download(name)
    if wanted is None:
        names = [one.id for one in DOWNLOADS]
        guess = nearest(name, names)
        hint = f"Did you mean {guess}?" if guess else f"There are: {', '.join(names)}, and local (a small demo)."
        raise UserError(f"There is no model {name!r} to install. {hint}")
    return wanted


def choose_download() -> Download | None:
    """Lets a person choose a model. None: they want none."""
    from openclaw.models.local.install import DOWNLOADS, fitting

    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        memory = 4_000_000_000
    best, rows = fitting(memory), list[str]()
    for one in DOWNLOADS:
        fits = " (fits this computer)" if one is best else ""
        here = ", installed" if one.is_installed(paths.state_dir()) else ""
        rows.append(f"{one.name}, {one.size / 1e9:.1f} GB: {one.about}{fits}{here}")
    picked = choose("Which one?", [*rows, "None of them"], DOWNLOADS.index(best))
    return DOWNLOADS[picked] if picked < len(DOWNLOADS) else None


def remove(args: argparse.Namespace) -> int:
    """Deletes the file of a model. It can be fetched again."""
    from openclaw.models.local.install import remove_download, weights_path

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


_FALLBACK_FLAGS = (
    Flag("what", "what to do", choices=("list", "add", "remove", "clear")),
    Flag("model MODEL", "provider/model, or an alias", nargs="?"),
    JSON,
)
_ACTIONS = {
    "list": report(
        "List the models the Gateway knows",
        _listed,
        (
            Flag("--all", "also models that have no key yet"),
            Flag("--provider NAME", "only models of this provider"),
            Flag("--local", "only models that run on this computer"),
            Flag("--plain", "only the names"),
            *CLIENT,
        ),
        show=_show_list,
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
            *CLIENT,
        ),
        example="openclaw models status --probe",
    ),
    "set": Action(
        "Choose the default model",
        lambda args: _set_primary(args, "model", "Default model"),
        (Flag("model MODEL", "provider/model, or an alias"), JSON),
        example="openclaw models set anthropic/claude-sonnet-4-5",
    ),
    "set-image": Action(
        "Choose the model for pictures that the default model cannot see",
        lambda args: _set_primary(args, "imageModel", "Image model"),
        (Flag("model MODEL", "provider/model, or an alias"), JSON),
        example="openclaw models set-image google/gemini-3.5-flash",
    ),
    "fallbacks": Action(
        "The models that are asked when the default model fails",
        lambda args: _fallbacks(args, "model"),
        _FALLBACK_FLAGS,
        example="openclaw models fallbacks add openai/gpt-5.4",
    ),
    "image-fallbacks": Action(
        "The models that are asked when the image model fails",
        lambda args: _fallbacks(args, "imageModel"),
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
