"""``openclaw update``, ``openclaw uninstall`` and ``openclaw extras``: change the installation itself.

Updating and removing make a plan of steps first. ``--dry-run`` prints the plan, a person is asked before it is carried
out, and a script says ``--yes``.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from openclaw import __version__, paths
from openclaw.cli import service
from openclaw.cli.command import EXIT_FAILURE, EXIT_USAGE, JSON, Action, Flag, Group, UserError, answer, report, yes
from openclaw.cli.terminal import note, paint, print_json, working

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from openclaw.cli.answers import ExtraRow, Extras


NAME = "openclaw"
STDERR = 2
LOOK_S = 60
"""How long the search for a newer version may take."""
METHODS = ("pipx", "uv", "pip", "git")
STATE_SIGNS = ("openclaw.json", "ledger.db", "agents")
"""One of these is in every state folder. A folder without them is never deleted."""
WORKSPACES = ("workspace",)
"""How the folders begin in which agents keep their files."""


class PlannedStep(NamedTuple):
    """One thing to be done. ``run`` returns a sentence that says what was done."""

    text: str
    run: Callable[[], str]


def install_method(prefix: str, package: str) -> str:
    """How this program was installed: from where its Python and its files are."""
    checkout = os.path.dirname(os.path.dirname(package))
    if os.path.isdir(os.path.join(checkout, ".git")) or os.path.isfile(os.path.join(checkout, ".git")):
        return "git"
    parts = os.path.normpath(prefix).split(os.sep)
    if "pipx" in parts and "venvs" in parts:
        return "pipx"
    if "uv" in parts and "tools" in parts:
        return "uv"
    return "pip"


def _package() -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _checkout() -> str:
    return os.path.dirname(os.path.dirname(_package()))


def _method(args: argparse.Namespace) -> str:
    return args.method or install_method(sys.prefix, _package())


# Update


class InstalledFrom(NamedTuple):
    """Where this program came from: a folder, a repository, a file, or else an index that knows it by its name."""

    folder: str = ""
    repository: str = ""
    file: str = ""


def installed_from(direct_url: str | None) -> InstalledFrom:
    """Reads the record that installers leave (``direct_url.json``). There is none for a package from an index."""
    import json
    from urllib.parse import unquote, urlsplit

    try:
        found = json.loads(direct_url or "{}")
        url = urlsplit(found.get("url", ""))
    except (ValueError, RecursionError, AttributeError):
        return InstalledFrom()
    if url.scheme == "file" and "dir_info" in found:
        return InstalledFrom(folder=unquote(url.path))
    if "vcs_info" in found:
        return InstalledFrom(repository=f"git+{url.geturl()}")
    return InstalledFrom(file=url.geturl())


def _installed_from() -> InstalledFrom:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return installed_from(distribution(NAME).read_text("direct_url.json"))
    except PackageNotFoundError:
        return InstalledFrom()


def update_commands(method: str, python: str, checkout: str, source: InstalledFrom) -> list[list[str]]:
    """Return the commands that install the newest version, for each way of installing.

    An installation from a folder is repeated from there, into the same environment, so that added libraries stay.
    """
    if method == "git":
        return [["git", "-C", checkout, "pull", "--ff-only"], ["make", "-C", checkout, "setup"]]
    if source.folder:
        pull = [["git", "-C", source.folder, "pull", "--ff-only"]] if has_upstream(source.folder) else []
        return [*pull, *_install_folder(source.folder)]
    return {
        "pipx": [["pipx", "upgrade", NAME]],
        "uv": [["uv", "tool", "upgrade", NAME]],
        "pip": [[python, "-m", "pip", "install", "--upgrade", source.repository or NAME]],
    }[method]


def _install_folder(folder: str) -> list[list[str]]:
    from openclaw.python_packages import NoInstaller, install_command

    try:
        command = install_command(["--quiet", "--upgrade", folder])
    except NoInstaller as problem:
        raise UserError(str(problem)) from None
    # uv would take what it built from this folder the last time.
    return [[*command, "--reinstall-package", NAME] if command[1] == "pip" else command]


def _output(words: list[str]) -> str | None:
    """What a command prints. None when it cannot be run or fails."""
    import subprocess

    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LOOK_S, check=False, env=environ
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def has_upstream(folder: str) -> bool:
    """Whether a folder is a git checkout whose branch follows one elsewhere."""
    return _output(["git", "-C", folder, "rev-parse", "--abbrev-ref", "@{upstream}"]) is not None


def commits_behind(folder: str) -> int | None:
    """How many commits a checkout lacks of the branch that it follows. None when that cannot be found out."""
    if _output(["git", "-C", folder, "fetch", "--quiet"]) is None:
        return None
    count = (_output(["git", "-C", folder, "rev-list", "--count", "HEAD..@{upstream}"]) or "").strip()
    return int(count) if count.isdigit() else None


def same_program(one: str, other: str) -> bool:
    """Whether two folders hold the same files of this program. What Python made of them is not compared."""

    def files(root: str) -> dict[str, int]:
        return {
            os.path.relpath(os.path.join(folder, name), root): os.path.getsize(os.path.join(folder, name))
            for folder, _, names in os.walk(root)
            for name in names
            if "__pycache__" not in folder
        }

    found = files(one)
    if found != files(other):
        return False
    import filecmp

    return not any(filecmp.cmpfiles(one, other, list(found), shallow=False)[1:])


def latest_in_index(method: str, python: str) -> str | None:
    """The newest version that the package index has. None when that cannot be found out."""
    if method == "uv":
        listed = _output(["uv", "tool", "list", "--outdated"])
        lines = [line for line in (listed or "").splitlines() if line.startswith(f"{NAME} ")]
        if listed is None:
            return None
        return lines[0].partition("[latest: ")[2].rstrip("]") if lines else __version__
    words = ["pipx", "runpip", NAME] if method == "pipx" else [python, "-m", "pip"]
    first = (_output([*words, "index", "versions", NAME]) or "").partition("\n")[0]
    return first.partition("(")[2].rstrip(")") or None


def newer_version(method: str, source: InstalledFrom) -> tuple[bool | None, str]:
    """Whether there is a newer version, and a sentence about it. None: that cannot be found out."""
    folder = _checkout() if method == "git" else source.folder
    if folder:
        import shutil

        lacks_git = shutil.which("git") is None and os.path.exists(os.path.join(folder, ".git"))
        behind = None if lacks_git else commits_behind(folder) if has_upstream(folder) else 0
        if behind is None:
            return None, f"Whether {folder} is behind the branch that it follows could not be found out."
        if behind:
            return True, f"{folder} lacks {behind} commits of the branch that it follows."
        if method == "git" or same_program(_package(), os.path.join(folder, "src", NAME)):
            follows = "" if has_upstream(folder) else " It follows no branch elsewhere, so nothing newer can come."
            return False, f"OpenClaw {__version__} is what {folder} holds.{follows}"
        return True, f"{folder} holds another version than the installed one."
    latest = None if source.repository else latest_in_index(method, sys.executable)
    if latest is None:
        return None, "Whether there is a newer version could not be found out."
    if latest == __version__:
        return False, f"OpenClaw {__version__} is the newest version."
    return True, f"The newest version is {latest}."


def update(args: argparse.Namespace) -> int:
    method, source = _method(args), _installed_from()
    if source.file and method != "git":
        # An index may know somebody else's package by this name.
        raise UserError(f"OpenClaw was installed from {source.file}. Install a newer file of it in the same way.")
    with working("Looking for a newer version"):
        newer, told = newer_version(method, source)
    about: dict[str, object] = {"method": method, "version": __version__, "newer": newer, "told": told}
    if newer is False and not args.force:
        return answer(args, {"ok": True, "dryRun": args.dry_run, **about, "steps": []}, f"{told} Nothing was done.")
    commands = update_commands(method, sys.executable, _checkout(), source)
    steps = [PlannedStep(" ".join(words), _command(words)) for words in commands]
    if service.running_pid() is not None:
        words = [sys.executable, "-m", NAME, "gateway", "restart"]
        steps.append(PlannedStep("restart the Gateway, which resumes its work", _command(words)))
    head = f"OpenClaw {__version__}, installed with {method}. {told} To update it:"
    code = _carry_out(args, head, steps, about)
    if code == 0 and not args.dry_run and not args.json:
        note("`openclaw --version` tells the version; `openclaw doctor` looks whether all is well.")
    return code


def _command(words: list[str]) -> Callable[[], str]:
    def run() -> str:
        import subprocess

        try:
            # What the tool says goes to the terminal as it comes, and never between the lines of an answer.
            done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=STDERR, stderr=STDERR, check=False)
        except OSError as error:
            raise UserError(f"{words[0]} cannot be run: {error.strerror}") from error
        if done.returncode != 0:
            raise UserError(f"`{' '.join(words)}` failed with exit code {done.returncode}; see above.")
        return f"done: {' '.join(words)}"

    return run


# Uninstall


def uninstall(args: argparse.Namespace) -> int:
    everything = args.all
    chosen = any((args.service, args.state, args.workspace, args.app, everything))
    with_app = args.app or everything or not chosen
    with_service = args.service or with_app
    state, steps = paths.state_dir(), list[PlannedStep]()
    if (pid := service.running_pid()) is not None:
        steps.append(PlannedStep(f"stop the Gateway (process {pid})", _stop))
    if with_service and service.is_installed():
        steps.append(
            PlannedStep(f"remove the service {service.service_file()}", lambda: f"Removed {service.remove()}.")
        )
    doomed = _doomed(state, with_state=args.state or everything, with_workspace=args.workspace or everything)
    if doomed and _wants_backup(args):
        steps.append(PlannedStep(f"make a backup of {state} in {state}-backups", _backup))
    steps += [PlannedStep(f"delete {path}", _delete(path)) for path in doomed]
    method = _method(args)
    if with_app:
        steps += _app_steps(method, dry_run=args.dry_run)
    if not steps:
        note("There is nothing to remove.")
        return 0
    kept = [] if args.state or everything or not os.path.isdir(state) else [f"Kept: {state}, with your conversations."]
    head = "\n".join([*kept, "This would be done:" if args.dry_run else "This is going to be done:"])
    return _carry_out(args, head, steps, {"method": method, "stateDir": state})


def _app_steps(method: str, *, dry_run: bool) -> list[PlannedStep]:
    if method == "git":
        text = f"the program is a checkout: delete {_checkout()} yourself when you are done with it"
        return [PlannedStep(text, lambda: text)]
    words = {
        "pipx": ["pipx", "uninstall", NAME],
        "uv": ["uv", "tool", "uninstall", NAME],
        "pip": [sys.executable, "-m", "pip", "uninstall", "--yes", NAME],
    }[method]
    import shutil

    if shutil.which(words[0]) is None and not dry_run:
        raise UserError(f"Nothing was removed: {words[0]} installed the program, and it is not on your PATH here.")
    return [PlannedStep(" ".join(words), _command(words))]


def _doomed(state: str, *, with_state: bool, with_workspace: bool) -> list[str]:
    """Return the paths of the state folder to delete. Raises ``UserError`` if it is not a state folder."""
    if not (with_state or with_workspace) or not os.path.isdir(state):
        return []
    names = sorted(os.listdir(state))
    home, real = os.path.realpath(os.path.expanduser("~")), os.path.realpath(state)
    if real in (home, os.sep) or home.startswith(real + os.sep) or not any(sign in names for sign in STATE_SIGNS):
        raise UserError(f"{state} does not look like a state folder of OpenClaw, so nothing in it is deleted.")
    if with_state and with_workspace:
        return [state]
    chosen = [name for name in names if name.startswith(WORKSPACES) == with_workspace]
    return [os.path.join(state, name) for name in chosen]


def _wants_backup(args: argparse.Namespace) -> bool:
    if args.no_backup or args.dry_run:
        return not args.no_backup
    if args.yes or args.json or not sys.stdin.isatty():
        return True
    return yes("Make a backup first?", usual=True)


def _stop() -> str:
    service.stop()
    return "the Gateway was stopped"


def _backup() -> str:
    from pathlib import Path

    from openclaw.storage.files.backup import BackupError, BackupFolder

    state = paths.state_dir()
    try:
        folder = BackupFolder(Path(f"{state}-backups"), "", create=True)
        backup, _ = folder.create(Path(state), __version__, lambda done, total, name: None)
    except BackupError as error:
        raise UserError(f"No backup was made, and nothing was deleted: {error}") from None
    if backup.skipped:
        lines = "\n".join(f"  {line}" for line in backup.skipped)
        raise UserError(
            f"Not everything could be stored in backup {backup.id}, so nothing was deleted:\n{lines}\n"
            "Repair that, or make your own copy and use --no-backup."
        )
    return f"backup {backup.id} is in {folder.folder} and holds your keys"


def _delete(path: str) -> Callable[[], str]:
    def run() -> str:
        import shutil

        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except OSError as error:
            raise UserError(f"{path} could not be deleted: {error.strerror}") from error
        return f"deleted {path}"

    return run


# Extras


def _extras(args: argparse.Namespace) -> Extras:
    from openclaw.python_packages import extras, has_extra, requirements_of

    rows: list[ExtraRow] = [
        {"name": one, "installed": has_extra(one), "libraries": requirements_of(one)} for one in extras()
    ]
    return {"extras": rows}


def _show_extras(found: Extras, args: argparse.Namespace) -> Iterator[str]:
    for row in found["extras"]:
        yield f"{row['name']:<10} {'installed' if row['installed'] else '-':<10} {', '.join(row['libraries'])}"


def add_extra(args: argparse.Namespace) -> int:
    from openclaw.python_packages import extras, has_extra

    if args.name not in extras():
        raise UserError(f"There is no extra {args.name!r}. There are: {', '.join(extras())}.")
    present = has_extra(args.name)
    if not present:
        install_extra(args.name)
    told = f"{args.name} is installed{' already' if present else ''}."
    if not present and service.running_pid() is not None:
        told += " The Gateway finds it after a restart: openclaw gateway restart"
    return answer(args, {"ok": True, "name": args.name, "added": not present}, told)


def install_extra(name: str) -> None:
    """Installs the libraries of an extra into the environment of this program. Raises ``UserError``."""
    import shlex
    import subprocess

    from openclaw.python_packages import NoInstaller, install_command, locked_arguments, requirements_of

    note(f"Installing {', '.join(requirements_of(name))} …")
    try:
        command = install_command(["--quiet", *locked_arguments(name)])
    except NoInstaller as problem:
        raise UserError(str(problem)) from None
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=STDERR, check=False).returncode != 0:
        raise UserError(f"The installation failed; see above. Try it yourself: {shlex.join(command)}")


# The plan


def _carry_out(args: argparse.Namespace, head: str, steps: list[PlannedStep], about: dict[str, object]) -> int:
    plan = [step.text for step in steps]
    if args.dry_run and args.json:
        print_json({"ok": True, "dryRun": True, **about, "steps": plan})
        return 0
    if not args.json:
        lines = [head, *(f"  {number}. {text}" for number, text in enumerate(plan, 1))]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    if args.dry_run:
        return 0
    if not args.yes:
        if args.json or not sys.stdin.isatty():
            raise UserError(
                "Say --yes to do it without a question, or --dry-run to see what would be done.", EXIT_USAGE
            )
        if not yes("Do it?", usual=False):
            note("Nothing was done.")
            return EXIT_FAILURE
    done: list[str] = []
    for step in steps:
        done.append(step.run())
        if not args.json:
            sys.stdout.write(f"{paint('✓', 'green')} {done[-1]}\n")
            sys.stdout.flush()
    if args.json:
        print_json({"ok": True, **about, "steps": plan, "done": done})
    return 0


_PLAN = (
    Flag("--dry-run", "only say what would be done"),
    Flag("--yes", "do it without a question"),
    Flag("--method", "how it was installed (found out by itself)", choices=METHODS),
    JSON,
)
_EXTRAS = {
    "list": report(
        "List what can be added, and whether it is there", _extras, show=_show_extras, example="openclaw extras list"
    ),
    "add": Action(
        "Install the libraries of an extra where this program runs",
        add_extra,
        (Flag("name NAME", "as `openclaw extras list` shows it, such as mcp"), JSON),
        example="openclaw extras add mcp",
        about="It works for a program that pipx, uv or pip installed, and for a checkout.",
    ),
}
COMMANDS = {
    "extras": Group(_EXTRAS, default="list"),
    "update": Action(
        "Look for a newer version, install it and restart the Gateway",
        update,
        (Flag("--force", "even if this version is the newest"), *_PLAN),
        about=(
            "A newer version is searched for at the origin of the program: the folder or git checkout it was installed "
            "from, else the package index. The commands are shown, and a person is asked before they are carried "
            "out. Libraries that were added for channels and local models stay."
        ),
        example="openclaw update --dry-run",
    ),
    "uninstall": Action(
        "Remove the service and the program; conversations are kept unless you say otherwise",
        uninstall,
        (
            Flag("--service", "remove only the service"),
            Flag("--app", "remove the service and the program"),
            Flag("--state", "delete the state folder too: settings, keys, conversations; not the agents' files"),
            Flag("--workspace", "delete the agents' files"),
            Flag("--all", "remove everything"),
            Flag("--no-backup", "make no backup before files are deleted"),
            *_PLAN,
        ),
        about=(
            "Without an option it removes the service and the program. Before files are deleted, a backup of the "
            "state folder is put beside it. The files to remove are listed, and a person is asked."
        ),
        example="openclaw uninstall --all --dry-run",
    ),
}
