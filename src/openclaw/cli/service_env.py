"""The environment of the service: a private file with the variables that the Gateway needs and a service would lack."""

from __future__ import annotations

import os
import re

from openclaw import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

NAME = "service.env"
ALWAYS = (
    *("PATH", "LANG", "LC_ALL", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("OPENCLAW_GATEWAY_TOKEN", "OPENCLAW_GATEWAY_PASSWORD", "OLLAMA_HOST", "HF_ENDPOINT", "SSL_CERT_FILE"),
)
_REFERENCE = re.compile(r"\$\{([A-Z_][A-Z0-9_]{0,100})\}")
_ENV_REFERENCE = re.compile(r"""["']?env["']?\s{0,5}:\s{0,5}["']([A-Z_][A-Z0-9_]{0,100})["']""")


def env_path() -> str:
    return os.path.join(paths.state_dir(), NAME)


def wanted_names(config_text: str) -> set[str]:
    """The variables that a Gateway reads: keys of providers and channels, and those that the configuration names."""
    from openclaw.channels.kind import BUILT_IN, built_in_kind
    from openclaw.models.catalogue_data import PROVIDERS

    keys = {name for facts in PROVIDERS.values() for name in facts.key_env}
    tokens = {field.variable for name in BUILT_IN for field in built_in_kind(name).credentials if field.variable}
    named = {*_REFERENCE.findall(config_text), *_ENV_REFERENCE.findall(config_text)}
    return {*ALWAYS, *keys, *tokens, *named}


def write_env(environ: Mapping[str, str]) -> list[str]:
    """Writes the variables of now into the file, for its owner only, and returns their names."""
    from openclaw.cli.target import config_text
    from openclaw.config.store import write_private

    wanted = wanted_names(config_text(paths.config_path()) or "")
    kept = {name: environ[name] for name in sorted(wanted) if environ.get(name) and "\n" not in environ[name]}
    head = "# Variables of the OpenClaw service. Written anew by `openclaw gateway install --force`.\n"
    write_private(env_path(), head + "".join(f"{name}={value}\n" for name, value in kept.items()))
    return list(kept)


def read_env(path: str) -> dict[str, str]:
    """The variables of a file: a ``NAME=value`` per line, taken as it stands."""
    found: dict[str, str] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, equals, value = line.rstrip("\n").partition("=")
            if equals and not name.startswith("#"):
                found[name.strip()] = value
    return found


def use_env(path: str, environ: MutableMapping[str, str]) -> None:
    """Puts the variables of a file into the environment where it has none of that name. ``PATH`` is taken over."""
    for name, value in read_env(path).items():
        if name == "PATH" or not environ.get(name):
            environ[name] = value
