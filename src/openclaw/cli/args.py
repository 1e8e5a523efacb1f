"""Arguments of a command: one ``Action`` per thing it does, whose parser is built only when it is chosen."""

from __future__ import annotations

import argparse
import os
import sys

from openclaw.cli.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

DEFAULT_TIMEOUT_MS = 10_000


class Action:
    """``build`` adds the arguments, ``run`` does the work and returns the exit code."""

    __slots__ = ("build", "example", "help", "run")

    def __init__(
        self,
        help: str,
        run: Callable[[argparse.Namespace], int],
        build: Callable[[argparse.ArgumentParser], None] | None = None,
        *,
        example: str,
    ) -> None:
        self.help = help
        self.run = run
        self.build = build
        self.example = example

    def parser(self, prog: str) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=prog,
            description=self.help,
            epilog=f"example:\n  {self.example}",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("--no-color", action="store_true", help="plain text")
        if self.build is not None:
            self.build(parser)
        return parser


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        # An explicit width keeps argparse from importing shutil for each argument it registers.
        super().__init__(prog, max_help_position=30, width=min(_columns() - 2, 110))


def _columns() -> int:
    try:
        return max(os.get_terminal_size(1).columns, 60)
    except OSError:
        return 100


def run(module: ModuleType, prog: str, argv: list[str]) -> int:
    """Runs a command module: either one ``ACTION``, or ``ACTIONS`` by name with an optional ``DEFAULT``."""
    actions: dict[str, Action] | None = getattr(module, "ACTIONS", None)
    if actions is None:
        return _run_action(module.ACTION, prog, argv)
    default: str | None = getattr(module, "DEFAULT", None)
    if argv and argv[0] in actions:
        return _run_action(actions[argv[0]], f"{prog} {argv[0]}", argv[1:])
    if argv and argv[0] in ("-h", "--help"):
        sys.stdout.write(_group_help(prog, actions, default))
        return 0
    if argv and not argv[0].startswith("-"):
        guess = nearest(argv[0], actions)
        hint = f" Did you mean `{prog} {guess}`?" if guess else f" Known: {', '.join(actions)}."
        raise UserError(f"{prog}: unknown sub-command {argv[0]!r}.{hint}", EXIT_USAGE)
    if default is None:
        sys.stderr.write(_group_help(prog, actions, default))
        return EXIT_USAGE
    return _run_action(actions[default], prog, argv)


def _run_action(action: Action, prog: str, argv: list[str]) -> int:
    namespace = action.parser(prog).parse_args(argv)
    if namespace.no_color:
        os.environ["NO_COLOR"] = "1"
    return action.run(namespace)


def _group_help(prog: str, actions: dict[str, Action], default: str | None) -> str:
    width = max(len(name) for name in actions) + 2
    rows = "\n".join(f"  {name:<{width}}{action.help}" for name, action in actions.items())
    head = f"usage: {prog} <sub-command> …\n\nsub-commands:\n{rows}\n"
    if default is None:
        return f"{head}\nexample:\n  {next(iter(actions.values())).example}\n"
    return f"{head}\n`{prog}` alone is `{prog} {default}`:\n\n{actions[default].parser(prog).format_help()}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word this one was probably meant to be."""
    import difflib

    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def add_gateway_options(parser: argparse.ArgumentParser, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
    """Which Gateway, and how to prove who we are."""
    group = parser.add_argument_group("gateway")
    group.add_argument(
        "--url", metavar="URL", help="Gateway address, e.g. ws://host:18789 (needs --token or --password)"
    )
    group.add_argument("--token", metavar="TOKEN", help="Gateway token")
    group.add_argument("--password", metavar="PASSWORD", help="Gateway password")
    group.add_argument(
        "--timeout", metavar="MS", type=int, default=timeout_ms, help=f"milliseconds to wait (default {timeout_ms})"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
