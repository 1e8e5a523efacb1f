"""How a command is declared, parsed and run, and how it asks the person at the terminal.

A command is an ``Action`` or a ``Group`` of actions. What lists or shows something is made by ``report``, and by
``query`` where one call to the Gateway has the answer. A parser is built only when its action is chosen. An empty
answer to a question takes what is usual.
"""

from __future__ import annotations

import argparse
import os
import sys

from openclaw import paths
from openclaw.cli.terminal import note, print_json, print_line
from openclaw.text import redact_urls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, TextIO, TypeVar

    T = TypeVar("T")
    from openclaw.cli.client import GatewayClient

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_QUESTION = 3
"""A question of the agent is open, and nobody is there to answer it."""
EXIT_INTERRUPTED = 130
TIMEOUT_MS = 10_000
EXIT_CODES = "exit codes:\n  0 success, 1 error (see stderr), 2 invalid usage"


class UserError(Exception):
    """A failure that the person at the keyboard can do something about; it is printed without a traceback."""

    def __init__(self, message: str, code: int = EXIT_FAILURE) -> None:
        super().__init__(redact_urls(message))
        self.code = code
        self.error_code = "USAGE" if code == EXIT_USAGE else "FAILED"
        """What kind of failure it is, for scripts that read ``--json``."""


def failure(error: Exception) -> dict[str, object]:
    """What ``--json`` prints for every failure. It is the shape of a refused call to the Gateway."""
    code = error.error_code if isinstance(error, UserError) else "INTERNAL"
    message = str(error) if isinstance(error, UserError) else f"unexpected {type(error).__name__}: {error}"
    return {"ok": False, "error": {"code": code, "message": redact_urls(message)}}


def explained(error: Exception) -> Exception:
    """A file that cannot be used as a ``UserError`` that says what to do; any other error as it is."""
    if not isinstance(error, OSError) or os.environ.get("OPENCLAW_DEBUG"):
        return error
    import errno

    place = error.filename
    if not place and error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = paths.state_dir()  # A write to an open file names no file.
    if not place:
        return error
    advice = {
        **dict.fromkeys((errno.EACCES, errno.EPERM), "Is it yours? `openclaw doctor` looks into it."),
        errno.EROFS: "The disk is read-only: OPENCLAW_STATE_DIR names another folder.",
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Make room, then try again."),
        **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "Something else is in its place."),
        **dict.fromkeys((errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP), "Check the path."),
    }
    if error.errno not in advice:
        return error
    return UserError(f"{place!s}: {error.strerror}. {advice[error.errno]}")


class Flag:
    """One argument of an action, written as its help shows it: ``-t --target TO``, ``--diff A B``, ``key KEY``.

    An option that names no value, such as ``--force``, is a switch. ``options`` are those of ``add_argument``.
    ``param`` is the parameter of the Gateway call that it fills, and ``session`` says that it is the name of a session,
    of which the call gets the key; only ``query`` uses them.
    """

    def __init__(
        self,
        form: str,
        help: str | None = None,
        *,
        param: str = "",
        group: str = "",
        session: bool = False,
        **options: Any,
    ) -> None:
        words = form.split()
        self.session = session
        self.names = [word for word in words if word.startswith("-")] or words[:1]
        self.param = param
        self.group = group
        self.options: dict[str, object] = {"help": help, **options}
        values = words[len(self.names) :]
        if len(values) > 1:
            self.options |= {"metavar": tuple(values), "nargs": len(values)}
        elif values:
            self.options["metavar"] = values[0]
        elif form.startswith("-") and "choices" not in options:
            self.options["action"] = "store_true"

    @property
    def dest(self) -> str:
        """The name of its attribute in the parsed namespace."""
        long = next((name for name in self.names if name.startswith("--")), self.names[0])
        return str(self.options.get("dest") or long.lstrip("-").replace("-", "_"))


JSON = Flag("--json", "print JSON for scripts")
GATEWAY = (
    Flag("--url URL", "Gateway address, e.g. ws://host:18789 (needs --token or --password)", group="gateway"),
    Flag("--token TOKEN", "Gateway token", group="gateway"),
    Flag("--password PASSWORD", "Gateway password", group="gateway"),
    Flag("--timeout MS", f"milliseconds to wait (default {TIMEOUT_MS})", group="gateway", type=int, default=TIMEOUT_MS),
)
"""Which Gateway to ask, and the secret to show it. ``client.from_args`` reads them."""
CLIENT = (JSON, *GATEWAY)
"""The flags of a command that asks the Gateway and prints its answer."""


class Action:
    """One thing a command does. ``run`` gets the parsed arguments and returns the exit code."""

    def __init__(
        self,
        help: str,
        run: Callable[[argparse.Namespace], int],
        flags: tuple[Flag, ...] = (),
        *,
        example: str,
        rest: str = "",
        about: str = "",
    ) -> None:
        """``rest`` names the argument that gets the words after ``--``, which argparse would read as flags.

        ``about`` is what a person should know beyond the one line of ``help``.
        """
        self.help = help
        self.about = about
        self.rest = rest
        self.run = run
        self.flags = flags
        self.example = example

    @property
    def prints_json(self) -> bool:
        return any(flag.dest == "json" for flag in self.flags)

    def parser(self, prog: str) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=prog,
            description=f"{self.help}\n\n{self.about}".rstrip(),
            epilog=f"example:\n  {self.example}\n\n{EXIT_CODES}",
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("--no-color", action="store_true", help="plain text")
        groups: dict[str, Any] = {}
        for flag in self.flags:
            if flag.group and flag.group not in groups:
                groups[flag.group] = parser.add_argument_group(flag.group)
            groups.get(flag.group, parser).add_argument(*flag.names, **flag.options)
        return parser


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are printed by ``main`` like every other failure."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.format_usage()}{self.prog}: {message}", EXIT_USAGE)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        # An explicit width keeps argparse from importing shutil for each argument it registers.
        super().__init__(prog, max_help_position=30, width=help_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Keeps examples as they are, and breaks the lines of everything else."""
        return "\n".join(line if line.startswith("  ") else filled(line, width=width) for line in text.splitlines())


def help_width() -> int:
    try:
        columns = max(os.get_terminal_size(1).columns, 60)
    except OSError:
        columns = 80
    return min(columns - 2, 110)


def filled(text: str, first: str = "", rest: str = "", *, width: int | None = None) -> str:
    """The text broken into lines that fit the help, after ``first`` and then after ``rest``."""
    import textwrap

    return textwrap.fill(
        text, width or help_width(), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


class Group:
    """A command with sub-commands. ``default`` runs when none is named; without one, the help is printed."""

    def __init__(self, actions: dict[str, Action], default: str | None = None) -> None:
        self.actions = actions
        self.default = default


def report(
    help: str,
    make: Callable[[argparse.Namespace], Any],
    flags: tuple[Flag, ...] = (JSON,),
    *,
    show: Callable[[Any, argparse.Namespace], Iterable[str]],
    example: str,
    failed: Callable[[Any, argparse.Namespace], bool] | None = None,
    view: Callable[[Any], Any] = lambda made: made,
    about: str = "",
) -> Action:
    """Return an action that prints the result of ``make``: its ``view`` with ``--json``, else the lines of ``show``.

    The exit code is 1 if ``failed`` returns True.
    """

    def run(args: argparse.Namespace) -> int:
        made = make(args)
        if args.json:
            print_json(view(made))
        else:
            for line in show(made, args):
                # A name from outside may hold line breaks. They make no line that looks like one of ours.
                print_line(" ".join(line.splitlines()))
        return EXIT_FAILURE if failed is not None and failed(made, args) else 0

    return Action(help, run, flags, example=example, about=about)


def query(
    help: str,
    method: str,
    flags: tuple[Flag, ...] = (),
    *,
    show: Callable[[Any, argparse.Namespace], Iterable[str]],
    example: str,
    params: Callable[[argparse.Namespace], dict[str, object]] | None = None,
    shape: Callable[[Any, argparse.Namespace], Any] | None = None,
    failed: Callable[[Any, argparse.Namespace], bool] | None = None,
    timeout_ms: int | None = None,
    live: bool = False,
    call: Callable[[GatewayClient, dict[str, object]], Any] | None = None,
    hint: str = "",
    about: str = "",
) -> Action:
    """A ``report`` of what the Gateway answers to one call.

    The call's parameters are the flags that have a ``param`` and are set, and what ``params`` returns. ``shape`` turns
    the payload into the answer. ``live``: only a running Gateway can answer. ``call`` stands in for the one plain call,
    where work is done in pieces. ``hint`` says what to do next when the Gateway refuses the call.
    """

    def make(args: argparse.Namespace) -> Any:
        from openclaw.cli.client import from_args

        wanted = given_params(flags, args)
        if params is not None:
            wanted |= params(args)
        client = from_args(args, live=live)
        for flag in flags:
            if flag.session and flag.param in wanted:
                from openclaw.cli.session_lookup import resolve_key

                wanted[flag.param] = resolve_key(client, str(wanted[flag.param]), getattr(args, "agent", None))
        try:
            # A person who says how long to wait knows better than the table.
            wait = timeout_ms if args.timeout == TIMEOUT_MS else args.timeout
            payload = call(client, wanted) if call is not None else client.call(method, wanted, wait)
        except UserError as error:
            if hint and error.error_code == "INVALID_REQUEST":
                error.args = (f"{error}. {hint}",)
            raise
        return payload if shape is None else shape(payload, args)

    return report(help, make, (*flags, *CLIENT), show=show, failed=failed, example=example, about=about)


def decoded(payload: Any, shape: type[T]) -> T:
    """Return the Gateway's answer as the record that its method returns.

    ``--json`` prints the answer without decoding it, so that a script need not wait for the import.
    """
    import msgspec

    try:
        return msgspec.convert(payload, shape, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(
            f"The Gateway answers in another version's form ({error}). Update the older of the two."
        ) from None


def given_params(flags: tuple[Flag, ...], args: argparse.Namespace) -> dict[str, object]:
    """The parameters of a call that flags fill."""
    given = {flag.param: getattr(args, flag.dest) for flag in flags if flag.param}
    return {name: value for name, value in given.items() if value is not None and value is not False}


def answer(args: argparse.Namespace, report: Any, text: str, stream: TextIO | None = None) -> int:
    """Prints the report with ``--json``, otherwise the text; returns the exit code 0. A remark goes to stderr."""
    if args.json:
        print_json(report)
    else:
        print_line(text, stream)
    return 0


def run(command: Action | Group, prog: str, argv: list[str]) -> int:
    """Runs a command with the words that follow its name; returns the exit code."""
    if isinstance(command, Action):
        return _run_action(command, prog, argv)
    actions = command.actions
    if argv and argv[0] in actions:
        return _run_action(actions[argv[0]], f"{prog} {argv[0]}", argv[1:])
    if argv and argv[0] in ("-h", "--help"):
        sys.stdout.write(_group_help(prog, command))
        return 0
    if argv and not argv[0].startswith("-"):
        guess = nearest(argv[0], actions)
        hint = f" Did you mean `{prog} {guess}`?" if guess else f" Known: {', '.join(actions)}."
        raise UserError(f"{prog}: unknown sub-command {argv[0]!r}.{hint}", EXIT_USAGE)
    if command.default is None:
        sys.stderr.write(_group_help(prog, command))
        return EXIT_USAGE
    return _run_action(actions[command.default], prog, argv)


def _run_action(action: Action, prog: str, argv: list[str]) -> int:
    end = argv.index("--") if action.rest and "--" in argv else len(argv)
    try:
        namespace = action.parser(prog).parse_intermixed_args(argv[:end])
        if action.rest:
            setattr(namespace, action.rest, [*(getattr(namespace, action.rest) or []), *argv[end + 1 :]])
        if namespace.no_color:
            os.environ["NO_COLOR"] = "1"
        return action.run(namespace)
    except BrokenPipeError:
        raise
    except Exception as unexplained:
        error = explained(unexplained)
        # A script that asked for JSON gets it also when the command fails.
        if "--json" not in argv[:end] or not action.prints_json or os.environ.get("OPENCLAW_DEBUG"):
            raise error from unexplained
        print_json(failure(error))
        return error.code if isinstance(error, UserError) else EXIT_FAILURE


def _group_help(prog: str, group: Group) -> str:
    width = max(len(name) for name in group.actions) + 4
    rows = "\n".join(
        filled(action.help.partition("\n")[0], f"  {name}".ljust(width), " " * width)
        for name, action in group.actions.items()
    )
    head = f"usage: {prog} <sub-command> …\n\nsub-commands:\n{rows}\n"
    if group.default is None:
        return f"{head}\nexample:\n  {next(iter(group.actions.values())).example}\n"
    default_help = group.actions[group.default].parser(prog).format_help()
    return f"{head}\n`{prog}` alone is `{prog} {group.default}`:\n\n{default_help}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that this one was probably meant to be."""
    import difflib

    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


STOPPED = "There was no answer, so this stops here. Finished steps stay; run the command again to resume."
TRIES = 20


def entered(question: str) -> str:
    """A line of the person. The question goes to stderr, as all remarks do."""
    sys.stderr.write(f"{question} ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise UserError(f"\n{STOPPED}")
    return line.strip()


def yes(question: str, *, usual: bool) -> bool:
    for _ in range(TRIES):
        given = entered(f"{question} [{'Y/n' if usual else 'y/N'}]").lower()
        if given in ("", "y", "yes", "n", "no"):
            return given.startswith("y") if given else usual
        note("Please answer y or n.")
    raise UserError(STOPPED)


def choose(question: str, options: list[str], usual: int) -> int:
    """The place of the option that the person chose by its number."""
    note(question)
    for number, option in enumerate(options, start=1):
        note(f"  {number}. {option}")
    for _ in range(TRIES):
        given = entered(f"Number [{usual + 1}]:")
        if not given:
            return usual
        if given.isascii() and given.isdigit() and 0 < int(given) <= len(options):
            return int(given) - 1
        note(f"Please give a number from 1 to {len(options)}.")
    raise UserError(STOPPED)


def secret(question: str) -> str:
    """A line that is not shown while it is typed. Empty: the person changed their mind."""
    import getpass

    try:
        return getpass.getpass(f"{question}: ").strip()
    except EOFError:
        raise UserError(f"\n{STOPPED}") from None
