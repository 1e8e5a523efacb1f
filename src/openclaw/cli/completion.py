"""``openclaw completion``: prints a completion script for the shell, made from the table of commands."""

from __future__ import annotations

import sys

from openclaw.cli.command import Action, Flag
from openclaw.cli.main import TABLE, find_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

GLOBAL_FLAGS = ("--profile", "--dev", "--no-color", "--version", "--help")


def run(args: argparse.Namespace) -> int:
    words = completions()
    script = _fish(words) if args.shell == "fish" else _bash(words)
    if args.shell == "zsh":
        script = "#compdef openclaw\nautoload -U +X bashcompinit && bashcompinit\n" + script
    sys.stdout.write(script)
    return 0


def completions() -> dict[str, list[str]]:
    """The words that may follow ``""`` (nothing yet), a command, or a command and its sub-command."""
    table = {"": [name for name, _, _ in TABLE] + list(GLOBAL_FLAGS)}
    for name, _, _ in TABLE:
        command = find_command(name)
        if isinstance(command, Action):
            table[name] = _flags(command, name)
        elif command is not None:
            default = command.default
            table[name] = list(command.actions) + (_flags(command.actions[default], name) if default else ["--help"])
            for action_name, action in command.actions.items():
                table[f"{name} {action_name}"] = _flags(action, f"{name} {action_name}")
    return table


def _flags(action: Action, name: str) -> list[str]:
    parser = action.parser(f"openclaw {name}")
    flags: list[str] = []
    for argument in parser._actions:  # pyright: ignore[reportPrivateUsage]
        flags += [option for option in argument.option_strings if option.startswith("--")]
        if not argument.option_strings and argument.choices:
            flags += [str(choice) for choice in argument.choices]
    return flags


def _bash(table: dict[str, list[str]]) -> str:
    cases = "\n".join(f'    "{words}") options="{" ".join(options)}" ;;' for words, options in table.items())
    return f"""\
_openclaw() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="" word options=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) ;; *) words="${{words:+$words }}$word" ;; esac
  done
  words="$(echo "$words" | cut -d' ' -f1,2)"
  case "$words" in
{cases}
    *) words="${{words%% *}}"
  esac
  if [ -z "$options" ]; then
    case "$words" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$options" -- "$current"))
  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "$current"))
}}
complete -F _openclaw openclaw
"""


def _fish(table: dict[str, list[str]]) -> str:
    names = " ".join(name for name, _, _ in TABLE)
    helps = {name: help_ for name, _, help_ in TABLE}
    lines = [f"complete -c openclaw -n 'not __fish_seen_subcommand_from {names}' -f"]
    for words, options in table.items():
        command, _, sub = words.partition(" ")
        if not words:
            condition = f"not __fish_seen_subcommand_from {names}"
        else:
            condition = f"__fish_seen_subcommand_from {command}"
            condition += f"; and __fish_seen_subcommand_from {sub}" if sub else ""
        for option in options:
            help_ = helps.get(option, "").replace("'", "\\'") if not words else ""
            about = f" -d '{help_}'" if help_ else ""
            shown = f"-l {option[2:]}" if option.startswith("--") else f"-a {option}"
            lines.append(f"complete -c openclaw -n '{condition}' {shown}{about}")
    return "\n".join(lines) + "\n"


COMMANDS = {
    "completion": Action(
        "Print a completion script for your shell",
        run,
        (Flag("shell", "your shell", choices=("bash", "zsh", "fish")),),
        example="openclaw completion bash > ~/.local/share/bash-completion/completions/openclaw",
    )
}
