"""The ``openclaw`` command: a table of commands, each imported only when chosen.

Each import here costs every command time, so this file and the simple commands import only ``os``, ``sys``,
``socket``, ``json`` and ``argparse``. A test checks ``sys.modules``.
"""

from __future__ import annotations

import os
import sys

from openclaw import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from openclaw.cli.command import Action, Group

TABLE: tuple[tuple[str, str, str], ...] = (
    # name, module in openclaw.cli whose COMMANDS has it, one line of help
    ("chat", "chat", "Talk with the agent in this terminal"),
    ("onboard", "onboard", "Set up a model, the agent's folder, the service and a channel, then chat"),
    ("message", "message", "Send one message and print the reply"),
    ("agent", "message", "Run one agent turn, optionally delivering the reply to a channel"),
    ("gateway", "gateway", "Run, start, stop or query the Gateway"),
    ("sessions", "sessions", "List conversations with their model and tokens"),
    ("why", "why", "Tell what became of a message and why"),
    ("context", "why", "Show what the model was sent, and why it knew or forgot something"),
    ("status", "status", "Show the Gateway, its model, channels and recent sessions"),
    ("health", "status", "Ask the Gateway whether it is well"),
    ("doctor", "doctor", "Check the configuration, keys, files and port, and repair what is wrong"),
    ("security", "security", "Look for settings, files and doors that let others in"),
    ("agents", "agents", "List the configured agents"),
    ("models", "models", "List, choose or install models"),
    ("memory", "memory", "Show and search what the agent wrote down"),
    ("cron", "cron", "Schedule jobs and reminders, and see how they went"),
    ("system", "system", "Tell the agent something, and look after its heartbeats"),
    ("skills", "extensions", "List the agent's skills and what they lack"),
    ("config", "config", "Read and change openclaw.json"),
    ("channels", "channels", "Show the chat platforms and whether they are connected"),
    ("cluster", "storage", "Show the Gateways that share one database"),
    ("outbox", "message", "Show replies that wait for their delivery, try them again or drop them"),
    ("devices", "pairing", "Approve, reject, revoke or remove paired devices"),
    ("nodes", "nodes", "Show nodes, let them in and run commands on them"),
    ("node", "nodes", "Run this machine as a node of a Gateway"),
    ("pairing", "pairing", "Let people in who wrote on a channel"),
    ("approvals", "approvals", "Show and edit which commands may run without a question"),
    ("questions", "questions", "Show and answer what the agents ask people"),
    ("browser", "browser", "Look at and drive the browser that the agent uses"),
    ("sandbox", "sandbox", "Show the sandboxes of sessions, and recreate one"),
    ("plugins", "extensions", "List the extensions, whether they are loaded and what they add"),
    ("mcp", "extensions", "Show the MCP servers whose tools the agents use, or be one for other agents"),
    ("backup", "backup", "Make, check and restore backups of everything the Gateway keeps"),
    ("migrate", "migrate", "Move a whole state folder in, of another OpenClaw or of ours"),
    ("export", "migrate", "Write a folder that OpenClaw 2026.9 opens"),
    ("storage", "storage", "Copy everything from files to a PostgreSQL database, or back"),
    ("logs", "logs", "Show what the Gateway does, live with -f"),
    ("dashboard", "status", "Open the web page in your browser, signed in"),
    ("extras", "installation", "Add the libraries that channels, MCP, PostgreSQL and others need"),
    ("update", "installation", "Install the newest version"),
    ("uninstall", "installation", "Remove the service, the program and, if you want, everything it kept"),
    ("completion", "completion", "Print a completion script for bash, zsh or fish"),
)
MOST_GUESSES = 3
ALIASES = {"daemon": "gateway", "tui": "chat"}
DEV_PORT = "19001"

USAGE = "usage: openclaw [--profile NAME | --dev] [--no-color] [-V] [-h] [command] …"


def main(argv: list[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # The terminal shows ^C behind the question or the progress that stands there.
        return 130
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe, which is not an error. Nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    except Exception as error:
        return _report(error, as_json="--json" in args)


def _dispatch(args: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show is printed as "?" and does not end the command.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
    args = _global_flags(args)
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    if not args and sys.stdin.isatty() and sys.stdout.isatty():
        from openclaw.cli.chat import welcome
        from openclaw.cli.terminal import guarded

        with guarded():
            return welcome()
    name = args[0] if args else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(help_text())
        return 0
    if name in ("-V", "--version"):
        sys.stdout.write(f"openclaw {__version__}\n")
        return 0
    from openclaw.cli.command import EXIT_USAGE, UserError, nearest, run
    from openclaw.cli.terminal import guarded

    command = find_command(ALIASES.get(name, name))
    if command is None:
        guess = nearest(name, [known for known, _, _ in TABLE])
        meant = _with_sub_command(name) or ([guess] if guess else [])
        told = " or ".join(f"`openclaw {words}`" for words in meant)
        hint = f"Did you mean {told}?" if told else "`openclaw --help` lists the commands."
        raise UserError(f"openclaw: unknown command {name!r}. {hint}", EXIT_USAGE)
    with guarded():
        return run(command, f"openclaw {name}", args[1:])


def find_command(name: str) -> Action | Group | None:
    """Import the module of a command. Returns None for an unknown command."""
    for known, module, _ in TABLE:
        if known == name:
            return __import__(f"openclaw.cli.{module}", fromlist=["COMMANDS"]).COMMANDS[name]
    return None


def _with_sub_command(name: str) -> list[str]:
    """The commands that have a sub-command of this name, with it: ``gateway start`` for ``start``."""
    from openclaw.cli.command import Group

    groups = [(known, find_command(known)) for known, _, _ in TABLE]
    found = [f"{known} {name}" for known, group in groups if isinstance(group, Group) and name in group.actions]
    return found[:MOST_GUESSES]


def _global_flags(args: list[str]) -> list[str]:
    """Puts the flags before the command into the environment, where this process and its children read them."""
    rest = list(args)
    while rest and rest[0].startswith("--"):
        flag, equals, value = rest[0].partition("=")
        if flag == "--no-color":
            os.environ["NO_COLOR"] = "1"
        elif flag == "--dev":
            use_dev_profile()
        elif flag == "--profile":
            if not equals:
                if len(rest) < 2:
                    _usage_error("--profile needs a name, for example: openclaw --profile work status")
                value = rest.pop(1)
            _use_profile(value)
        else:
            break
        rest.pop(0)
    return rest


def use_dev_profile() -> None:
    _use_profile("dev")
    os.environ["OPENCLAW_GATEWAY_PORT"] = DEV_PORT


def _use_profile(name: str) -> None:
    if not name or not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        _usage_error(f"--profile {name!r}: use letters, digits, '-' and '_' only")
    # The flag wins over directories that the environment names.
    for variable in ("OPENCLAW_STATE_DIR", "CLAWDBOT_STATE_DIR", "OPENCLAW_CONFIG_PATH"):
        os.environ.pop(variable, None)
    os.environ["OPENCLAW_PROFILE"] = name


def _usage_error(message: str) -> None:
    from openclaw.cli.command import EXIT_USAGE, UserError

    raise UserError(message, EXIT_USAGE)


def help_text() -> str:
    from openclaw.cli.command import filled

    width = max(len(name) for name, _, _ in TABLE) + 4
    rows = "\n".join(filled(help_, f"  {name}".ljust(width), " " * width) for name, _, help_ in TABLE)
    return (
        f"{USAGE}\n\n"
        "Your own AI agent, behind a Gateway that never loses or repeats a message.\n"
        "Without a command: starts the Gateway if none runs and opens a chat.\n\n"
        f"commands:\n{rows}\n\n"
        "options:\n"
        "  --profile NAME  use ~/.openclaw-NAME instead of ~/.openclaw\n"
        f"  --dev           use the profile 'dev' on port {DEV_PORT}\n"
        "  --no-color      plain text (NO_COLOR=1 does the same)\n"
        "  -V, --version   print the version\n"
        "  -h, --help      print this help; `openclaw COMMAND --help` tells more\n\n"
        'example:\n  openclaw message send "What is on my list today?"\n'
    )


def _report(error: Exception, *, as_json: bool) -> int:
    """Says what went wrong. A command reports in JSON by itself; one that does not exist cannot."""
    from openclaw.cli.command import EXIT_FAILURE, EXIT_USAGE, UserError, explained, failure
    from openclaw.cli.terminal import note, print_json
    from openclaw.text import printable, redact_urls

    sys.stdout.flush()
    error = explained(error)
    if as_json and isinstance(error, UserError) and error.code == EXIT_USAGE:
        print_json(failure(error))
        return error.code
    text = f"openclaw: unexpected {type(error).__name__}: {error}\nSet OPENCLAW_DEBUG=1 to see where it happened."
    if isinstance(error, UserError):
        text = str(error)
    elif os.environ.get("OPENCLAW_DEBUG"):
        import traceback

        text = "".join(traceback.format_exception(error))
    note(printable(redact_urls(text)))
    return error.code if isinstance(error, UserError) else EXIT_FAILURE
