"""Questions to the person at the terminal. An empty answer takes what is usual."""

from __future__ import annotations

import sys

from openclaw.cli.command import UserError
from openclaw.cli.terminal import note

STOPPED = "There was no answer, so this stops here. What was done stays; run the command again to go on."
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
