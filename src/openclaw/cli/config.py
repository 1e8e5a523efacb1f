"""``openclaw config``: read and change openclaw.json. A running Gateway picks changes up by itself."""

from __future__ import annotations

import contextlib
import os
import sys

from openclaw import paths
from openclaw.cli.command import EXIT_FAILURE, JSON, Action, Flag, Group, UserError, answer, report
from openclaw.cli.gateway_target import config_text, loose_json, resolve, running_gateway
from openclaw.cli.terminal import note, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from openclaw.config.load import Snapshot
    from openclaw.config.schema import Config
    from openclaw.config.store import ConfigStore

TAKE_OVER_MS = 3000


def get(args: argparse.Namespace) -> int:
    try:
        value = configured(args.path)
    except NotSet:
        value = _default(args.path)
        note(f"{args.path} is not set; this is the default.")
    if args.json or not isinstance(value, str):
        print_json(value)
    else:
        sys.stdout.write(f"{value}\n")
    return 0


def configured(path: str) -> Any:
    """The value at a path of the configuration. A section is shown without its secrets, a secret by its own path."""
    from openclaw.config.keypath import MISSING, KeyPathError, get_path

    parsed = _parsed()
    try:
        value = get_path(parsed, path, MISSING)
        if isinstance(value, dict | list):
            from openclaw.config.secrets import redacted

            value = get_path(redacted(parsed), path, MISSING)
    except KeyPathError as error:
        raise UserError(f"{error}") from error
    if value is MISSING:
        raise NotSet(f"Config path not found: {path}")
    return value


class NotSet(UserError):
    """The configuration has no value at this path."""


def _default(path: str) -> Any:
    """Return the default of a key. Raises ``UserError`` for an unknown key."""
    import msgspec

    from openclaw.config.keypath import MISSING, get_path
    from openclaw.config.schema import Config

    value = get_path(msgspec.to_builtins(Config()), path, MISSING)
    if value is MISSING:
        raise UserError(f"Config path not found: {path}")
    return value


def _parsed() -> Any:
    path = paths.config_path()
    text = config_text(path)
    if text is None:
        return {}
    if "$include" in text:
        return read_file().merged
    parsed = loose_json(text)
    if parsed is None:
        raise UserError(f"{path} is not valid JSON5. `openclaw config validate` shows where.")
    return parsed


def set_(args: argparse.Namespace) -> int:
    import pyjson5

    try:
        value = pyjson5.decode(args.value)
    except pyjson5.Json5Exception as error:
        if args.json:
            raise UserError(f"With --json the value must be JSON5 (text in quotes): {error}") from error
        value = args.value
    force: bool = args.force
    warnings = change_config(
        lambda store: store.set_path(args.path, value, even_if_refused=True, even_if_unknown=force), args.path
    )
    return changed(args, f"Set {args.path} in {paths.config_path()}.", path=args.path, warnings=warnings)


def unset(args: argparse.Namespace) -> int:
    configured(args.path)
    warnings = change_config(lambda store: store.unset_path(args.path))
    return changed(args, f"Removed {args.path} from {paths.config_path()}.", path=args.path, warnings=warnings)


def changed(args: argparse.Namespace, told: str, **facts: Any) -> int:
    """Tells what was changed in the configuration: to a person on stderr, to a script with ``--json``.

    A running Gateway has then taken it over, so that the next command meets the new settings.
    """
    _taken_over()
    return answer(args, {"ok": True, "configPath": paths.config_path(), **facts}, told, sys.stderr)


def _taken_over() -> None:
    """Lets a running Gateway of this computer read the file now, and not when its watcher finds the change."""
    if running_gateway() is None or current_config().gateway.reload.mode == "off":
        return
    from openclaw.cli.client import GatewayClient

    with contextlib.suppress(UserError):
        client = GatewayClient(resolve(), TAKE_OVER_MS)
        if client.target.local:
            client.call("config.get")


def change_config(change: Callable[[ConfigStore], Snapshot], path: str = "") -> list[str]:
    """Applies a change through the store, which checks it and keeps comments and backups.

    It tells and returns the warnings that the change adds, and those about the key that was set.
    """
    from openclaw.config.keypath import KeyPathError, overlaps
    from openclaw.config.store import ConfigStore, changed_paths, reload_action
    from openclaw.config.validate import ConfigError, ConfigInvalid, UnknownConfigKey

    try:
        store = ConfigStore(paths.config_path())
        before = store.load_or_create()
        after = change(store)
    except UnknownConfigKey as error:
        lines = [f"  {issue}" for issue in error.issues]
        raise UserError("\n".join(["Not changed: nothing reads this key; --force sets it", *lines])) from error
    except ConfigInvalid as error:
        lines = [f"  {issue}" for issue in error.issues]
        broken = not read_file().valid
        state = "is not valid as it is. `openclaw doctor` helps." if broken else "would not be valid."
        raise UserError("\n".join([f"Not changed: the configuration {state}", *lines])) from error
    except (ConfigError, KeyPathError) as error:
        raise UserError(f"Not changed: {error}") from error
    except OSError as error:
        raise UserError(f"Cannot write {paths.config_path()}: {error.strerror}") from error
    known = {(warning.path, warning.message) for warning in before.warnings}
    told = [
        str(warning)
        for warning in after.warnings
        if (warning.path, warning.message) not in known or overlaps(warning.path, path)
    ]
    for warning in told:
        note(f"Warning: {warning}")
    changes, mode = changed_paths(before.translated, after.translated), after.config.gateway.reload.mode
    restarts = changes and (mode == "restart" or (mode == "hybrid" and reload_action(changes) == "restart"))
    if restarts and running_gateway() is not None:
        note("The Gateway restarts by itself in a moment, to take this over.")
    return told


def read_file() -> Snapshot:
    """The configuration file as it is now, whether it is valid or not."""
    from openclaw.config.load import read_config

    return read_config(paths.config_path(), os.environ)


def current_config() -> Config:
    """What the configuration file says, with defaults. Of a file that is not valid it has the keys that are right."""
    return read_file().config


def validate(args: argparse.Namespace) -> int:
    snapshot = read_file()
    found = {"issues": snapshot.issues, "refusals": snapshot.refusals, "warnings": snapshot.warnings}
    report: dict[str, object] = {"path": snapshot.path, "exists": snapshot.exists}
    report["valid"] = snapshot.valid and not snapshot.refusals
    for name, issues in found.items():
        report[name] = [{"path": issue.path, "message": issue.message, "line": issue.line} for issue in issues]
    state = "is valid"
    if not snapshot.exists:
        state = "does not exist yet"
    elif not snapshot.valid:
        state = "is NOT valid"
    elif snapshot.refusals:
        state = "does not start a Gateway"
    elif snapshot.mistakes:
        state = "can be used, with mistakes"
    lines = [f"error   {issue}" for issue in snapshot.issues]
    lines += [f"{'refused' if issue in snapshot.refusals else 'warning'} {issue}" for issue in snapshot.warnings]
    answer(args, report, "\n".join([*lines, f"{snapshot.path} {state}."]))
    return 0 if snapshot.valid and not snapshot.mistakes and not snapshot.refusals else EXIT_FAILURE


def schema(args: argparse.Namespace) -> int:
    from openclaw.config.reference import config_schema

    print_json(config_schema())
    return 0


def docs(args: argparse.Namespace) -> int:
    import msgspec

    from openclaw.config.keypath import overlaps
    from openclaw.config.reference import all_keys, key_rows

    wanted = [
        key for key in all_keys() if not args.key or (overlaps(key.path, args.key) and len(key.path) >= len(args.key))
    ]
    if not wanted:
        raise UserError(f"No key begins with {args.key}. `openclaw config docs` lists all of them.")
    facts = [
        {
            "key": key.path,
            "default": None if key.default is msgspec.UNSET else msgspec.to_builtins(key.default),
            "required": key.default is msgspec.UNSET,
            "meaning": key.meaning,
        }
        for key in wanted
    ]
    if args.json:
        print_json(facts)
    else:
        sys.stdout.write("\n".join(key_rows(wanted)) + "\n")
    return 0


_ACTIONS = {
    "get": Action(
        "Print one value",
        get,
        (Flag("path PATH", "e.g. gateway.port or agents.list[0].id"), JSON),
        example="openclaw config get gateway.port",
    ),
    "set": Action(
        "Set one value",
        set_,
        (
            Flag("path PATH", "e.g. gateway.port"),
            Flag("value VALUE", "JSON5, or plain text where it is not JSON5"),
            Flag("--force", "set a key that nothing reads, too"),
            Flag("--json", "insist that VALUE is JSON5, and print JSON"),
        ),
        example="openclaw config set agents.defaults.model anthropic/claude-sonnet-4-5",
    ),
    "unset": Action(
        "Remove one value",
        unset,
        (Flag("path PATH", "e.g. agents.defaults.model"), JSON),
        example="openclaw config unset agents.defaults.model",
    ),
    "validate": Action(
        "Check the file and say what is wrong, by line", validate, (JSON,), example="openclaw config validate"
    ),
    "schema": Action(
        "Print the JSON Schema of the configuration", schema, (JSON,), example="openclaw config schema > schema.json"
    ),
    "docs": Action(
        "Print the keys with their defaults and meaning, as a Markdown table",
        docs,
        (Flag("key KEY", "only the keys below this one, e.g. tools.exec", nargs="?"), JSON),
        example="openclaw config docs tools.exec",
    ),
    "path": report(
        "Print where the file is",
        lambda args: {"path": paths.config_path()},
        show=lambda found, args: [found["path"]],
        example="openclaw config path",
    ),
}
COMMANDS = {"config": Group(_ACTIONS)}
