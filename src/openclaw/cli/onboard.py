"""``openclaw onboard``: from nothing to a chat. A model that answers, a workspace, the service, a channel.

It can be run again at any time: what is there is shown and kept unless the person chooses otherwise.
"""

from __future__ import annotations

import os
import sys

from openclaw import paths
from openclaw.cli import service
from openclaw.cli.chat import HISTORY, Conversation, open_chat
from openclaw.cli.client import GatewayClient
from openclaw.cli.command import EXIT_FAILURE, EXIT_USAGE, JSON, Action, Flag, UserError, answer, choose, secret, yes
from openclaw.cli.config import change_config, current_config
from openclaw.cli.gateway_target import resolve
from openclaw.cli.models import DEMO, choose_download, fetched, keep_key, model_report
from openclaw.cli.terminal import note, paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from openclaw.cli.answers import InstalledService
    from openclaw.models.calls import Trial

OFFERED = ("anthropic", "openai", "openrouter", "google", "xai", "groq", "mistral", "deepseek")
"""The providers whose key a person is asked for, in this order. ``--provider`` takes others too."""
FIND_S = 5.0
"""How long a server on this computer may take to say what it has. One that is not there is known at once."""
MOST_SERVERS = 3
"""Models of local servers that are offered, per server."""


class Answerer:
    """A model that could answer, and how it comes by its key."""

    def __init__(self, ref: str, source: str, *, words: str = "", provider: str = "", key: str = "") -> None:
        self.ref = ref
        self.source = source
        """``env:NAME``, ``stored``, ``server``, ``local``, ``config`` or ``entered``."""
        self.words = words
        """How it is offered to a person."""
        self.provider = provider or ref.partition("/")[0]
        self.key = key
        """A key that is not stored yet. Empty: the model needs none, or its key is stored."""


def run(args: argparse.Namespace) -> int:
    if args.json and not args.non_interactive:
        raise UserError("--json goes with --non-interactive", EXIT_USAGE)
    if not args.non_interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("openclaw onboard asks questions and needs a terminal; scripts use --non-interactive.")
    _make_home()
    return _by_flags(args) if args.non_interactive else guide(args)


def guide(args: argparse.Namespace | None = None) -> int:
    """Leads a person through it and ends in a chat. ``args`` are those of the command; None: none were given."""
    args = args or COMMANDS["onboard"].parser("openclaw onboard").parse_args([])
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
    note(
        "Later: `openclaw` opens this chat, `openclaw onboard` changes any of this.\n"
        f"Web page: {client.target.http_url}"
    )
    return open_chat(Conversation(client, None, None), HISTORY)


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
    """Return what could answer at once: the configured model, keys, servers, and fetched models."""
    import asyncio

    from openclaw.config import agents
    from openclaw.models.catalogue import find_models
    from openclaw.models.catalogue_data import PROVIDERS
    from openclaw.models.keys import canonical_provider, profiles_path, read_profiles
    from openclaw.models.local.install import installed_models

    config, state = current_config(), paths.state_dir()
    agent = agents.default_agent_id(config)
    found: list[Answerer] = []
    if current := agents.primary_model(config, agent):
        found.append(Answerer(current, "config", words=f"{current}, as it is configured"))
    stored = {canonical_provider(one.provider) for one in read_profiles(profiles_path(config, state, agent))}
    for name, facts in PROVIDERS.items():
        if not facts.default_model:
            continue
        ref = f"{name}/{facts.default_model}"
        variable = next((one for one in facts.key_env if os.environ.get(one, "").strip()), None)
        if variable:
            words = f"{facts.label}: {ref}, with the key in {variable}"
            found.append(Answerer(ref, f"env:{variable}", words=words, key=os.environ[variable].strip()))
        elif name in stored:
            found.append(Answerer(ref, "stored", words=f"{facts.label}: {ref}, with the stored key"))
    offered: dict[str, int] = {}
    for model in asyncio.run(find_models(os.environ, timeout_s=FIND_S)):
        offered[model.provider] = offered.get(model.provider, 0) + 1
        if offered[model.provider] <= MOST_SERVERS:
            words = f"{PROVIDERS[model.provider].label} on this computer: {model.id}"
            found.append(Answerer(model.ref, "server", words=words))
    for model in installed_models(state):
        found.append(Answerer(model.ref, "local", words=f"{model.name}, which is installed here"))
    first: dict[str, Answerer] = {}
    for one in found:
        first.setdefault(one.ref, one)
    return list(first.values())


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
        picked = choose("Choose a model.", options, usual)
        answerer: Answerer | None = None
        if picked < len(found):
            answerer = found[picked]
        elif picked == len(found):
            answerer = _asked_key()
        elif picked == len(found) + 1:
            download = choose_download()
            answerer = _fetched(download.id) if download else None
        elif picked == len(found) + 2:
            answerer = _fetched(DEMO)
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
    return Answerer(f"{facts.name}/{facts.default_model}", "entered", key=key) if key else None


def _fetched(name: str) -> Answerer | None:
    try:
        return Answerer(fetched(name)[0], "local")
    except UserError as error:
        note(str(error))
        return None


def _works(answerer: Answerer) -> bool:
    """Tries the model with one real message. False: the person wants to choose another one."""
    while True:
        note(f"Trying {answerer.ref} with one message …")
        trial = try_model(answerer)
        if trial.ok:
            said = " ".join(trial.said.split())[:200]
            note(paint("It answers", "green", sys.stderr) + f": {said} ({trial.duration_ms / 1000:.1f} s)\n")
            return True
        note(paint("It does not work", "red", sys.stderr) + f": {trial.error}")
        picked = choose("What now?", ["Try again", "Choose something else", "Use it all the same"], 1)
        if picked:
            return picked == 2


def try_model(answerer: Answerer) -> Trial:
    """Sends the model one message from here, with the key it would have."""
    import asyncio

    from openclaw.clock import SystemClock
    from openclaw.models.base import ModelError
    from openclaw.models.calls import ModelCalls, Trial, try_key
    from openclaw.models.catalogue import Catalogue, find_models
    from openclaw.models.keys import Keys

    async def attempt() -> Trial:
        async def at_once() -> None:
            pass

        config, clock, state = current_config(), SystemClock(), paths.state_dir()
        keys = Keys(os.environ, state_dir=state, clock=clock)
        calls = ModelCalls(keys, lambda: config, clock, state, take_turn=at_once, failed=lambda error: None)
        try:
            servers = await find_models(os.environ, timeout_s=FIND_S)
            model = Catalogue(config, os.environ, discovered=servers).resolve(answerer.ref)
            key = answerer.key or await keys.resolve_key(model, config)
            return await try_key(calls.provider_for(model), model, key, clock)
        except ModelError as error:
            return Trial(ok=False, error=str(error), kind=error.kind)
        finally:
            await calls.close()

    return asyncio.run(attempt())


def _keep(answerer: Answerer) -> None:
    """Stores the key, and names the model in the configuration where another one would answer."""
    if answerer.key:
        note(keep_key(answerer.provider, answerer.key))
    if answerer.source == "config" or model_report(None)["resolvedDefault"] == answerer.ref == DEMO:
        return
    change_config(lambda store: store.set_path("agents.defaults.model", answerer.ref))


# The rest


def _workspace(given: str | None) -> str:
    """Makes the agent's folder with its first files. An existing folder keeps what it has."""
    from openclaw.agent.prompt.workspace_files import prepare_workspace
    from openclaw.config import agents

    if given:
        folder = os.path.abspath(os.path.expanduser(given))
        change_config(lambda store: store.set_path("agents.defaults.workspace", folder))
    config = current_config()
    place = agents.workspace_dir(config, paths.state_dir(), agents.default_agent_id(config))
    prepare_workspace(place, seed=not config.agents.defaults.skip_bootstrap)
    return str(place)


def _offer_service(args: argparse.Namespace) -> None:
    if args.skip_service or not service.can_install():
        return
    question = "Start the Gateway whenever you log in?"
    if service.is_installed():
        question = "Renew the service, so that it has the keys of now?"
    if args.install_daemon or yes(question, usual=True):
        done = _install_service()
        note(f"{'Installed and started' if done['enabled'] else 'Wrote'}: {done['path']}")
        note("Waiting for it to answer …")
        if sys.platform == "linux":
            note("It runs while you are logged in. `loginctl enable-linger` keeps it running after that.")


def _install_service() -> InstalledService:
    """Puts the service in place with the keys it needs. A Gateway that runs by itself gives way to it."""
    if not service.manages_gateway():
        service.stop()
    return service.put_in_place("gateway", [], force=True)


def _running_gateway() -> GatewayClient:
    """The Gateway of this computer, running. One that a service starts is waited for, because two cannot run."""
    import time

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
    report: dict[str, object] = {"ok": True, "model": answerer.ref, "provider": answerer.provider}
    report["source"] = answerer.source
    if trial is not None:
        report["trial"] = {"ok": trial.ok, "said": trial.said, "error": trial.error, "durationMs": trial.duration_ms}
        if not trial.ok:
            raise UserError(f"{answerer.ref} does not work, and nothing was changed: {trial.error}")
    _keep(answerer)
    report["workspace"] = _workspace(args.workspace)
    report["config"] = paths.config_path()
    if args.install_daemon:
        report["service"] = _install_service()
    if not args.no_start:
        report["gateway"] = _running_gateway().target.http_url
    if args.channel:
        report["channel"] = {"name": args.channel, "connected": _add_channel(args.channel, args.set or []) == 0}
    rows = (f"{name}: {value}" for name, value in report.items() if isinstance(value, str))
    return answer(args, report, "\n".join(rows))


def _named_model(args: argparse.Namespace) -> Answerer:
    """The model that the flags name, else the best one that is at hand."""
    from openclaw.models.catalogue_data import PROVIDERS
    from openclaw.models.keys import canonical_provider

    if args.local_model:
        return Answerer(fetched(args.local_model)[0], "local")
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
        return Answerer(ref, source, provider=provider, key=key or (known.key if known else ""))
    found = found_answerers()
    if not found:
        raise UserError(
            "No key, no server and no model was found. Name one: --key-env NAME, --provider NAME with --key-stdin, "
            "or --local-model qwen3-0.6b (local: a small demo)."
        )
    return found[0]


COMMANDS = {
    "onboard": Action(
        "Set everything up: a model that answers, the agent's folder, the service, a channel; then chat",
        run,
        (
            Flag("--non-interactive", "ask nothing; take what the flags say and what is found"),
            Flag("--provider NAME", "the provider of the key, such as anthropic", group="model"),
            Flag("--key-env NAME", "take the key from this environment variable and store it", group="model"),
            Flag("--key-stdin", "read the key from standard input and store it", group="model"),
            Flag("--model MODEL", "provider/model that answers", group="model"),
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
            "Existing settings stay unless you choose otherwise, so it can be run again. A model that does not "
            "answer one message changes nothing; --skip-test leaves the try out."
        ),
        example="openclaw onboard --non-interactive --key-env ANTHROPIC_API_KEY --json",
    )
}
