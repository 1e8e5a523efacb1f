"""Finds the Gateway that a command talks to, and its secret: from flags, the environment or the configuration."""

from __future__ import annotations

import json
import os
import re

from openclaw import paths
from openclaw.cli.command import UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from openclaw.cli.answers import GatewayLockFile


LOOPBACK = "127.0.0.1"
_COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LOOSE = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])|[A-Za-z_$][\w$]*(?=\s*:)')
_ENV = re.compile(r"(\$?)\$\{([A-Z_][A-Z0-9_]*)\}")


class GatewayTarget:
    """The address and the secret of a Gateway, and where each of them came from."""

    def __init__(self, host: str, port: int, *, tls: bool, local: bool, source: str, bind: str) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        self.local = local
        """Whether it is this computer's Gateway, which a command may start."""
        self.source = source
        self.bind = bind
        self.config_path = paths.config_path()
        self.secret = ""
        self.secret_source = ""
        self.fingerprint = ""
        """SHA-256 of the only certificate that is accepted. Empty: one that this computer's authorities vouch for."""
        self.client_certificate: tuple[str, str] | None = None
        """The certificate and key to show to a Gateway that asks for one."""
        self.owner_key = ""
        """What only processes of this computer's Gateway user can know. It is sent to no other Gateway."""
        self.misconfigured = False
        """Whether remote mode is set without an address; this computer's Gateway is asked then."""

    @property
    def url(self) -> str:
        return f"{'wss' if self.tls else 'ws'}://{self.authority}"

    @property
    def http_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def describe(self) -> str:
        """The lines about the target that end every failure text."""
        lines = [f"Gateway target: {self.url}", f"Source: {self.source}", f"Config: {self.config_path}"]
        return "\n".join([*lines, f"Bind: {self.bind}"] if self.local else lines)


def resolve(url: str | None = None, token: str | None = None, password: str | None = None) -> GatewayTarget:
    if url:
        # The secret of our own Gateway must never be sent to another address.
        if not token and not password:
            raise UserError(
                "gateway url override requires explicit credentials\n"
                "Pass --token or --password together with --url.\n"
                f"Gateway target: {url}\nSource: cli --url\nConfig: {paths.config_path()}"
            )
        target = _from_url(url, "cli --url")
        target.secret, target.secret_source = token or password or "", "--token" if token else "--password"
        return target
    gateway = gateway_section(paths.config_path())
    remote = _section(gateway, "remote")
    if gateway.get("mode") == "remote" and remote.get("url"):
        target = _from_url(str(remote["url"]), "config gateway.remote.url")
        target.fingerprint = substituted(remote.get("tlsFingerprint"))
        if target.fingerprint and not target.tls:
            raise UserError(
                "gateway.remote.tlsFingerprint is set, and gateway.remote.url is not encrypted.\n"
                f"Make it a wss:// address, or remove the fingerprint.\n{target.describe()}"
            )
        in_config = ("gateway.remote", remote)
    else:
        target = _local(gateway)
        target.misconfigured = gateway.get("mode") == "remote"
        if target.misconfigured:
            target.source += " (gateway.mode is remote, but gateway.remote.url is not set)"
        in_config = ("gateway.auth", _section(gateway, "auth"))
    target.secret, target.secret_source = _secret(token, password, in_config, remote_first=not target.local)
    return target


def _local(gateway: dict[str, Any]) -> GatewayTarget:
    tls = _section(gateway, "tls")
    bind = str(gateway.get("bind") or "loopback")
    host, port, source = LOOPBACK, paths.DEFAULT_PORT, "local loopback"
    running: GatewayLockFile = running_gateway() or {"pid": 0}
    explicit = port_from_environment()
    if explicit:
        port, source = explicit, "env OPENCLAW_GATEWAY_PORT"
    elif running_port := running.get("port"):
        port, source = int(running_port), "local loopback (running Gateway)"
    elif explicit is not None:
        # Any free port. Until a Gateway runs it is not known.
        port, source = 0, "env OPENCLAW_GATEWAY_PORT"
    elif isinstance(configured := gateway.get("port"), int):
        port, source = configured, "local loopback (config gateway.port)"
    if running_host := running.get("host"):
        host = running_host
    elif bind == "custom" and gateway.get("customBindHost"):
        host = str(gateway["customBindHost"])
    serves_tls = bool(running["tlsFingerprint"] if "tlsFingerprint" in running else tls.get("enabled"))
    target = GatewayTarget(host, port, tls=serves_tls, local=True, source=source, bind=bind)
    if port == running.get("port"):
        target.owner_key = str(running.get("ownerKey") or "")
    if serves_tls:
        files = paths.tls_files(paths.state_dir(), substituted(tls.get("certPath")), substituted(tls.get("keyPath")))
        target.fingerprint = str(running.get("tlsFingerprint") or "") or _fingerprint(files[0])
        target.client_certificate = files if tls.get("caPath") else None
    return target


def _fingerprint(path: str) -> str:
    """Reads the fingerprint of a certificate file; empty when there is none."""
    import hashlib
    import ssl

    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        with open(path, encoding="ascii") as file:
            block = file.read().partition(begin)[2].partition(end)[0]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(f"{begin}{block}{end}\n")).hexdigest() if block else ""
    except (OSError, ValueError):
        return ""


def port_from_environment() -> int | None:
    text = os.environ.get("OPENCLAW_GATEWAY_PORT", "").strip()
    if text and not is_port(text):
        raise UserError(f"OPENCLAW_GATEWAY_PORT is {text!r}: it must be a port number")
    return int(text) if text else None


def is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= 65535


def _secret(
    token: str | None, password: str | None, in_config: tuple[str, dict[str, Any]], *, remote_first: bool
) -> tuple[str, str]:
    prefix, section = in_config
    flags = [(token, "--token"), (password, "--password")]
    stored = {name: (substituted(section.get(name)), f"{prefix}.{name}") for name in ("token", "password")}
    variables = {"token": "OPENCLAW_GATEWAY_TOKEN", "password": "OPENCLAW_GATEWAY_PASSWORD"}
    environment = {name: (os.environ.get(variable, "").strip(), variable) for name, variable in variables.items()}
    if remote_first:
        ordered = [*flags, *stored.values(), *environment.values()]
    else:
        # The Gateway compares one of the two, and chooses it in the same way.
        has_password = bool(stored["password"][0] or environment["password"][0])
        mode = section.get("mode") or ("password" if has_password else "token")
        kinds = ("password", "token") if mode == "password" else ("token", "password")
        ordered = [*flags, *(place[kind] for kind in kinds for place in (environment, stored))]
    for value, source in ordered:
        if value:
            return value, source
    return "", ""


def _from_url(url: str, source: str) -> GatewayTarget:
    match = re.fullmatch(r"(wss?|https?)://(\[[0-9a-fA-F:.]+\]|[^/:\s]+)(?::(\d{1,5}))?(?:/.*)?", url.strip())
    if match is None:
        raise UserError(f"Not a Gateway address: {url!r}. Use ws://host:port or wss://host:port ({source}).")
    scheme, host, port = match.groups()
    tls = scheme in ("wss", "https")
    number = int(port) if port else (443 if tls else 80)
    return GatewayTarget(host.strip("[]"), number, tls=tls, local=False, source=source, bind="")


def running_gateway() -> GatewayLockFile | None:
    """Returns what the running Gateway wrote into its lock file; ``None`` when its process is gone."""
    try:
        with open(lock_path(), encoding="utf-8") as file:
            lock: GatewayLockFile = json.load(file)
        os.kill(int(lock["pid"]), 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return lock


def start_command() -> str:
    """The command that starts the Gateway of the profile in use."""
    profile = os.environ.get("OPENCLAW_PROFILE", "").strip()
    chosen = {"": "", "default": "", "dev": "--dev "}.get(profile, f"--profile {profile} ")
    return f"openclaw {chosen}gateway start"


def lock_path() -> str:
    return os.path.join(paths.state_dir(), "gateway.lock")


def gateway_section(path: str) -> dict[str, Any]:
    """Reads the ``gateway`` section of the configuration without the schema; ``{}`` when there is none."""
    text = config_text(path)
    if text is None:
        return {}
    parsed = loose_json(text)
    if not isinstance(parsed, dict):
        raise UserError(f"The configuration {path} is not valid JSON5. `openclaw config validate` shows where.")
    section = parsed.get("gateway")
    if "$include" in text:
        from openclaw.config.load import read_config

        section = read_config(path, os.environ).merged.get("gateway")
    return section if isinstance(section, dict) else {}


def config_text(path: str) -> str | None:
    """Reads the configuration file; ``None`` when there is none."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"Cannot read the configuration {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"Cannot read the configuration {path}: {error}.") from error


def loose_json(text: str) -> Any:
    """Parses JSON5. It tries ``json`` first: importing the real parser costs more than the rest of a command."""
    for attempt in (str, _as_json):
        try:
            return json.loads(attempt(text))
        except ValueError:
            continue
    import pyjson5

    try:
        return pyjson5.decode(text) if text.strip() else {}
    except pyjson5.Json5Exception:
        return None


def _as_json(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] == "/":
            return " "
        if token[0] == "'":
            return json.dumps(token[1:-1].replace("\\'", "'")) if "\\" not in token.replace("\\'", "") else token
        return token

    def strict(match: re.Match[str]) -> str:
        token = match.group()
        if token == ",":
            return ""
        return token if token[0] == '"' else f'"{token}"'

    return _STRING_OR_LOOSE.sub(strict, _COMMENT_OR_STRING.sub(plain, text))


def substituted(value: object) -> str:
    """Replaces ``${NAME}`` from the environment; ``$${NAME}`` becomes ``${NAME}``."""
    if not isinstance(value, str):
        return ""

    def replace(match: re.Match[str]) -> str:
        return match.group()[1:] if match.group(1) else os.environ.get(match.group(2), "")

    return _ENV.sub(replace, value)


def _section(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}
