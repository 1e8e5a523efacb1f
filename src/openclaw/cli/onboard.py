"""``openclaw onboard``: from nothing to a chat. A model that answers, a workspace, the service, a channel.

It can be run again at any time: what is there is shown and kept unless the person chooses otherwise.
"""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.chat import DEMO
from openclaw.cli.command import EXIT_FAILURE, EXIT_USAGE, JSON, Action, Flag, UserError, choose, secret, yes
from openclaw.cli.terminal import note, paint, print_json
from openclaw.printable import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from openclaw.cli.client import GatewayClient
    from openclaw.config.schema import Config
    from openclaw.models.base import Model
    from openclaw.models.calls import Trial

OFFERED = ("anthropic", "openai", "openrouter", "google", "xai", "groq", "mistral", "deepseek")
"""The providers whose key a person is asked for, in this order. ``--provider`` takes others too."""
FIND_S = 5.0
"""How long a server on this computer may take to say what it has. One that is not there is known at once."""
MOST_SERVERS = 3
"""Models of local servers that are offered, per server."""


class Answerer:
    """A model that could answer, and how it comes by its key."""

    def __init__(self, ref: str, words: str, *, provider: str = "", key: str = "", source: str = "") -> None:
        self.ref = ref
        self.words = words
        self.provider = provider or ref.partition("/")[0]
        self.key = key
        """A key that is not stored yet. Empty: the model needs none, or its key is stored."""
        self.source = source
        """``env:NAME``, ``stored``, ``server``, ``local``, ``config`` or ``entered``."""

    def report(self) -> dict[str, Any]:
        return {"model": self.ref, "provider": self.provider, "source": self.source}


def run(args: argparse.Namespace) -> int:
    if args.json and not args.non_interactive:
        raise UserError("--json goes with --non-interactive", EXIT_USAGE)
    if not args.non_interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("openclaw onboard asks questions and needs a terminal; scripts use --non-interactive.")
    _make_home()
    if args.non_interactive:
        return _by_flags(args)
    return guide(args)


def guide(args: argparse.Namespace | None = None) -> int:
    """Leads a person through it and ends in a chat. ``args`` are those of the command; None: none were given."""
    args = args or _no_flags()
    note(paint("Welcome to OpenClaw.", "bold", sys.stderr))
    note(
        f"A few questions, then a chat. An empty line takes what stands in brackets.\nSettings: {paths.config_path()}\n"
    )
    _make_home()
    answerer = _chosen_model()
    if answerer is not None:
        if answerer.source.startswith("env:") and not yes(
            "Store this key for the Gateway, so that it has it after a restart too?", usual=True
        ):
            answerer.key = ""
        _keep(answerer)
    workspace = _workspace(args.workspace)
    note(f"The agent's folder is {workspace}.\nAGENTS.md there says how it works, and you may edit it.\n")
    _offer_service(args)
    client = _running_gateway()
    if not args.skip_channels and yes("Connect a chat platform now (Telegram, Discord, WhatsApp …)?", usual=False):
        _add_channel(None, [])
    if args.skip_chat:
        return 0
    from openclaw.cli.chat import HISTORY, Conversation, open_chat

    note(
        "Later: `openclaw` opens this chat, `openclaw onboard` changes any of this.\n"
        f"Web page: {client.target.http_url}"
    )
    return open_chat(Conversation(client, None, None), HISTORY)


def _no_flags() -> argparse.Namespace:
    return COMMANDS["onboard"].parser("openclaw onboard").parse_args([])


def _make_home() -> None:
    """Makes the state directory and a configuration with a token, unless they are there."""
    from openclaw.clock import SystemClock
    from openclaw.config.store import ConfigStore
    from openclaw.config.validate import ConfigInvalid

    paths.make_private_dir(paths.state_dir())
    try:
        ConfigStore(paths.config_path(), SystemClock(), os.environ).load_or_create()
    except ConfigInvalid as invalid:
        first = next(iter(invalid.issues), "")
        raise UserError(f"{paths.config_path()} is not valid: {first}. `openclaw doctor` tells more.") from invalid


# The model


def found_answerers() -> list[Answerer]:
    """What could answer at once: the configured model, keys of the environment or stored, servers, fetched models."""
    import asyncio

    from openclaw.config import agents
    from openclaw.models.catalogue_data import PROVIDERS
    from openclaw.models.detect import find_models
    from openclaw.models.keys import canonical_provider, profiles_path, read_profiles
    from openclaw.models.local.downloads import installed_models

    config, state = _config(), paths.state_dir()
    agent = agents.default_agent_id(config)
    found: list[Answerer] = []
    if current := agents.primary_model(config, agent):
        found.append(Answerer(current, f"{current}, as it is configured", source="config"))
    stored = {canonical_provider(one.provider) for one in read_profiles(profiles_path(config, state, agent))}
    for name, facts in PROVIDERS.items():
        if not facts.default_model:
            continue
        ref = f"{name}/{facts.default_model}"
        variable = next((one for one in facts.key_env if os.environ.get(one, "").strip()), None)
        if variable:
            words = f"{facts.label}: {ref}, with the key in {variable}"
            key = os.environ[variable].strip()
            found.append(Answerer(ref, words, key=key, source=f"env:{variable}"))
        elif name in stored:
            found.append(Answerer(ref, f"{facts.label}: {ref}, with the stored key", source="stored"))
    offered: dict[str, int] = {}
    for model in asyncio.run(find_models(os.environ, timeout_s=FIND_S)):
        offered[model.provider] = offered.get(model.provider, 0) + 1
        if offered[model.provider] <= MOST_SERVERS:
            label = PROVIDERS[model.provider].label
            found.append(Answerer(model.ref, f"{label} on this computer: {model.id}", source="server"))
    for model in installed_models(state):
        found.append(Answerer(model.ref, f"{model.name}, which is installed here", source="local"))
    unique = {one.ref: one for one in reversed(found)}
    return [one for one in found if unique.pop(one.ref, None) is not None]


def _chosen_model() -> Answerer | None:
    """Asks which model is to answer until one does. None: the person wants to choose later."""
    from openclaw.models.local.install import is_installed

    for _ in range(100):
        found = found_answerers()
        demo = "The small demo model" + ("" if is_installed(paths.state_dir()) else " (100 MB to fetch)")
        options = [
            *(one.words for one in found),
            "Enter the key of a provider (Anthropic, OpenAI, OpenRouter …)",
            "Fetch a model that runs on this computer: free, and nothing leaves it",
            f"{demo}: shows how it works, knows little",
            "Choose later",
        ]
        usual = 0 if found else len(options) - 2 if is_installed(paths.state_dir()) else len(found)
        picked = choose("Which model shall answer?", options, usual)
        answerer: Answerer | None = None
        if picked < len(found):
            answerer = found[picked]
        elif picked == len(found):
            answerer = _asked_key()
        elif picked == len(found) + 1:
            answerer = _fetched()
        elif picked == len(found) + 2:
            answerer = _demo()
        else:
            note("Later: openclaw onboard, or openclaw models auth add --provider NAME\n")
            return None
        if answerer is not None and _works(answerer):
            return answerer
    raise UserError("That was the hundredth choice; nothing was changed.")


def _asked_key() -> Answerer | None:
    from openclaw.models.catalogue_data import PROVIDERS

    picked = choose("Whose key?", [PROVIDERS[name].label for name in OFFERED], 0)
    facts = PROVIDERS[OFFERED[picked]]
    key = secret(f"Key for {facts.label} (it is not shown)")
    return Answerer(f"{facts.name}/{facts.default_model}", facts.label, key=key, source="entered") if key else None


def _fetched() -> Answerer | None:
    from openclaw.cli.local_models import choose_download, fetch_model

    if (wanted := choose_download()) is None:
        return None
    try:
        fetch_model(wanted)
    except UserError as error:
        note(str(error))
        return None
    return Answerer(wanted.ref, wanted.name, source="local")


def _demo() -> Answerer | None:
    from openclaw.cli.local_models import fetch_local

    try:
        fetch_local()
    except UserError as error:
        note(str(error))
        return None
    return Answerer(DEMO, "the demo", source="local")


def _works(answerer: Answerer) -> bool:
    """Tries the model with one real message. False: the person wants to choose another one."""
    while True:
        note(f"Trying {answerer.ref} with one message …")
        trial = try_model(answerer)
        if trial.ok:
            said = " ".join(trial.said.split())[:200]
            note(paint("It answers", "green", sys.stderr) + printable(f": {said} ({trial.duration_ms / 1000:.1f} s)\n"))
            return True
        note(paint("It does not work", "red", sys.stderr) + printable(f": {trial.error}"))
        picked = choose("What now?", ["Try again", "Choose something else", "Use it all the same"], 1)
        if picked:
            return picked == 2


def try_model(answerer: Answerer) -> Trial:
    """Sends the model one message from here, with the key it would have."""
    import asyncio

    from openclaw.models.base import ModelError
    from openclaw.models.calls import Trial

    async def attempt() -> Trial:
        from openclaw.clock import SystemClock
        from openclaw.models.calls import ModelCalls, try_key
        from openclaw.models.keys import Keys

        async def at_once() -> None:
            pass

        config, clock, state = _config(), SystemClock(), paths.state_dir()
        keys = Keys(os.environ, state_dir=state, clock=clock)
        calls = ModelCalls(keys, lambda: config, clock, state, take_turn=at_once, failed=lambda error: None)
        try:
            model = await _resolved(answerer.ref, config)
            key = answerer.key or await keys.resolve_key(model, config)
            return await try_key(calls.provider_for(model), model, key, clock)
        except ModelError as error:
            return Trial(ok=False, error=str(error), kind=error.kind)
        finally:
            await calls.close()

    return asyncio.run(attempt())


async def _resolved(ref: str, config: Config) -> Model:
    from openclaw.models.catalogue import Catalogue
    from openclaw.models.detect import find_models

    return Catalogue(config, os.environ, found=await find_models(os.environ, timeout_s=FIND_S)).resolve(ref)


def _keep(answerer: Answerer) -> None:
    """Stores the key, and names the model in the configuration where another one would answer."""
    from openclaw.cli.config import change_config
    from openclaw.cli.models import keep_key, model_report

    if answerer.key:
        note(keep_key(answerer.provider, answerer.key))
    if answerer.source == "config" or model_report(None)["resolvedDefault"] == answerer.ref == DEMO:
        return
    change_config(lambda store: store.set_path("agents.defaults.model", answerer.ref))


# The rest


def _config() -> Config:
    from openclaw.config.load import read_config

    return read_config(paths.config_path(), os.environ).config


def _workspace(given: str | None) -> str:
    """Makes the agent's folder with its first files. An existing folder keeps what it has."""
    from openclaw.cli.config import change_config
    from openclaw.config import agents
    from openclaw.storage.files.workspace import ready_workspace

    if given:
        folder = os.path.abspath(os.path.expanduser(given))
        change_config(lambda store: store.set_path("agents.defaults.workspace", folder))
    config = _config()
    place = agents.workspace_dir(config, paths.state_dir(), agents.default_agent_id(config))
    ready_workspace(place, seed=not config.agents.defaults.skip_bootstrap)
    return str(place)


def _offer_service(args: argparse.Namespace) -> None:
    if args.skip_service or not service.can_install():
        return
    there = service.is_installed()
    question = (
        "Renew the service, so that it has the keys of now?" if there else "Start the Gateway whenever you log in?"
    )
    if args.install_daemon or yes(question, usual=True):
        note(_install_service()["text"])
        note("Waiting for it to answer …")
        if sys.platform == "linux":
            note("It runs while you are logged in. `loginctl enable-linger` keeps it running after that.")


def _install_service() -> dict[str, Any]:
    """Puts the service in place with the keys it needs. A Gateway that runs by itself gives way to it."""
    if not service.manages_gateway():
        service.stop()
    report = service.put_in_place("gateway", [], force=True)
    words = "Installed and started" if report["enabled"] else "Wrote"
    return {**report, "text": f"{words}: {report['path']}"}


def _running_gateway() -> GatewayClient:
    """The Gateway of this computer, running. One that a service starts is waited for, because two cannot run."""
    import time

    from openclaw.cli.client import GatewayClient
    from openclaw.cli.target import resolve

    client = GatewayClient(resolve())
    if not client.target.local:
        return client
    if not (service.manages_gateway() or (sys.platform == "darwin" and service.is_installed())):
        service.ensure_running(client)
        return client
    deadline = time.monotonic() + service.START_TIMEOUT_S
    while not client.alive():
        if time.monotonic() > deadline:
            raise UserError("The service does not answer yet. `openclaw gateway status` and `openclaw logs` tell more.")
        time.sleep(service.POLL_S)
        client = GatewayClient(resolve())
    return client


def _add_channel(name: str | None, settings: list[str]) -> int:
    from openclaw.cli.channels import COMMANDS as CHANNELS

    words = [*([name] if name else []), *(word for pair in settings for word in ("--set", pair))]
    action = CHANNELS["channels"].actions["add"]
    try:
        return action.run(action.parser("openclaw channels add").parse_args(words))
    except UserError as error:
        note(f"{error}\nLater: openclaw channels add")
        return EXIT_FAILURE


# Without questions


def _by_flags(args: argparse.Namespace) -> int:
    answerer = _named_model(args)
    trial = None if args.skip_test else try_model(answerer)
    report: dict[str, Any] = {"ok": True, **answerer.report()}
    if trial is not None:
        report["trial"] = {"ok": trial.ok, "said": trial.said, "error": trial.error, "durationMs": trial.duration_ms}
        if not trial.ok:
            raise UserError(f"{answerer.ref} does not work, and nothing was changed: {trial.error}")
    _keep(answerer)
    report["workspace"] = _workspace(args.workspace)
    report["config"] = paths.config_path()
    if args.install_daemon:
        report["service"] = {key: value for key, value in _install_service().items() if key != "text"}
    if not args.no_start:
        report["gateway"] = _running_gateway().target.http_url
    if args.channel:
        report["channel"] = {"name": args.channel, "connected": _add_channel(args.channel, args.set or []) == 0}
    if args.json:
        print_json(report)
    else:
        rows = (f"{name}: {value}" for name, value in report.items() if isinstance(value, str))
        sys.stdout.write(printable("\n".join(rows)) + "\n")
    return 0


def _named_model(args: argparse.Namespace) -> Answerer:
    """The model that the flags name, else the best one that is at hand."""
    from openclaw.models.catalogue_data import PROVIDERS
    from openclaw.models.keys import canonical_provider

    if args.local_model:
        return _fetched_by_name(args.local_model)
    key = ""
    if args.key_env:
        key = os.environ.get(args.key_env, "").strip()
        if not key:
            raise UserError(f"The environment variable {args.key_env} is not set here.")
    elif args.key_stdin:
        key = sys.stdin.readline().strip()
    provider = canonical_provider(args.provider or (args.model or "").partition("/")[0])
    if args.key_env and not provider:
        provider = next((name for name, facts in PROVIDERS.items() if args.key_env in facts.key_env), "")
    if key and not provider:
        raise UserError("Whose key is it? Add --provider NAME.")
    if args.model or provider:
        facts = PROVIDERS.get(provider)
        ref = args.model or (f"{provider}/{facts.default_model}" if facts and facts.default_model else "")
        if not ref:
            raise UserError(f"Which model of {provider}? Add --model {provider}/NAME.")
        known = next((one for one in found_answerers() if one.provider == provider and one.key), None)
        source = f"env:{args.key_env}" if args.key_env else "entered" if key else known.source if known else "config"
        return Answerer(ref, ref, provider=provider, key=key or (known.key if known else ""), source=source)
    found = found_answerers()
    if not found:
        raise UserError(
            "No key, no server and no model was found. Name one: --key-env NAME, --provider NAME with --key-stdin, "
            "or --local-model qwen3-0.6b (local: a small demo)."
        )
    return found[0]


def _fetched_by_name(name: str) -> Answerer:
    from openclaw.cli.local_models import DEMO_NAMES, fetch_local, fetch_model, named_download

    if name.lower() in DEMO_NAMES:
        fetch_local()
        return Answerer(DEMO, "the demo", source="local")
    wanted = named_download(name)
    fetch_model(wanted)
    return Answerer(wanted.ref, wanted.name, source="local")


COMMANDS = {
    "onboard": Action(
        "Set everything up: a model that answers, the agent's folder, the service, a channel; then chat",
        run,
        (
            Flag("--non-interactive", "ask nothing; take what the flags say and what is found"),
            Flag("--provider NAME", "the provider of the key, such as anthropic", group="model"),
            Flag("--key-env NAME", "take the key from this environment variable and store it", group="model"),
            Flag("--key-stdin", "read the key from standard input and store it", group="model"),
            Flag("--model MODEL", "provider/model that shall answer", group="model"),
            Flag("--local-model NAME", "fetch this model to this computer (local: a small demo)", group="model"),
            Flag("--skip-test", "do not try the model with a message", group="model"),
            Flag("--workspace DIR", "the agent's folder"),
            Flag("--install-daemon", "install the service that starts the Gateway at log-in"),
            Flag("--skip-service", "do not ask about the service"),
            Flag("--channel NAME", "connect this chat platform"),
            Flag("--set KEY=VALUE", "a setting of the channel", action="append"),
            Flag("--skip-channels", "do not ask about chat platforms"),
            Flag("--skip-chat", "do not open a chat at the end"),
            Flag("--no-start", "with --non-interactive: do not start a Gateway"),
            Flag("--accept-risk", "taken for scripts that give it; nothing depends on it"),
            JSON,
        ),
        about=(
            "What is there stays unless you choose otherwise, so it can be run again. A model that does not "
            "answer one message changes nothing; --skip-test leaves the try out."
        ),
        example="openclaw onboard --non-interactive --key-env ANTHROPIC_API_KEY --json",
    )
}
