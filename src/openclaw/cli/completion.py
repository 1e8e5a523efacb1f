"""``openclaw completion``: prints a completion script for the shell, made from the table of commands."""

from __future__ import annotations

import sys

from openclaw.cli.command import Action, Flag
from openclaw.cli.main import ALIASES, TABLE, find_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

GLOBAL_FLAGS = {
    "--profile": "use ~/.openclaw-NAME",
    "--dev": "use the profile dev",
    "--no-color": "plain text",
    "--version": "print the version",
    "--help": "print the help",
}


def run(args: argparse.Namespace) -> int:
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](completions()))
    return 0


def completions() -> dict[str, dict[str, str]]:
    """Return the words that may follow ``""`` (nothing yet), a command, or a sub-command, with their meaning."""
    table = {"": {name: help_ for name, _, help_ in TABLE} | GLOBAL_FLAGS}
    for name in [*(name for name, _, _ in TABLE), *ALIASES]:
        command = find_command(ALIASES.get(name, name))
        if isinstance(command, Action):
            table[name] = _flags(command, name)
        elif command is not None:
            subs = {sub: _first_line(action.help) for sub, action in command.actions.items()}
            default = _flags(command.actions[command.default], name) if command.default else {}
            table[name] = subs | (default or {"--help": "print the help"})
            for sub, action in command.actions.items():
                table[f"{name} {sub}"] = _flags(action, f"{name} {sub}")
    return table


def _flags(action: Action, name: str) -> dict[str, str]:
    parser = action.parser(f"openclaw {name}")
    found: dict[str, str] = {}
    for argument in parser._actions:  # pyright: ignore[reportPrivateUsage]
        help_ = _first_line(argument.help or "")
        found |= {option: help_ for option in argument.option_strings if option.startswith("--")}
        if not argument.option_strings and argument.choices:
            found |= {str(choice): "" for choice in argument.choices}
    return found


def _first_line(text: str) -> str:
    return text.replace("%%", "%").partition("\n")[0]


# The words before the cursor are read in the same way in each shell: options are passed over, and the name that follows
# --profile too. The first two that are left are the command and its sub-command.


def _bash(table: dict[str, dict[str, str]]) -> str:
    cases = "\n".join(f'    "{words}") options="{" ".join(options)}" ;;' for words, options in table.items())
    return f"""\
_openclaw() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words="" word before="" options=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$before" in --profile) before="" ; continue ;; esac
    before="$word"
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


def _zsh(table: dict[str, dict[str, str]]) -> str:
    def item(word: str, help_: str) -> str:
        text = f"{word}:{help_}" if help_ else word
        return "'" + text.replace("'", "'\\''") + "'"

    def case(words: str, options: dict[str, str]) -> str:
        flags = " ".join(item(word, help_) for word, help_ in options.items() if word.startswith("-"))
        names = " ".join(item(word, help_) for word, help_ in options.items() if not word.startswith("-"))
        return f"    '{words}') names=({names}) flags=({flags}) ;;"

    subs = " ".join(f"'{words}'" for words in table if " " in words)
    cases = "\n".join(case(words, options) for words, options in table.items())
    return f"""\
#compdef openclaw
_openclaw() {{
  local -a names flags given known
  local word before=""
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    if [[ "$before" == --profile ]]; then before=""; continue; fi
    before="$word"
    [[ "$word" == -* ]] || given+=("$word")
  done
  known=({subs})
  local at="${{given[1]:-}}"
  (( ${{#given}} > 1 && ${{known[(Ie)$given[1] $given[2]]}} )) && at="$given[1] $given[2]"
  case "$at" in
{cases}
  esac
  [[ "$at" == *' '* || ${{#given}} -le 1 ]] || names=()
  (( ${{#flags}} )) && _describe -o -t options option flags
  if (( ${{#names}} )); then _describe -t commands command names; else _files; fi
}}
if [[ "${{funcstack[1]}}" == _openclaw ]]; then _openclaw "$@"; else compdef _openclaw openclaw; fi
"""


def _fish(table: dict[str, dict[str, str]]) -> str:
    subs = " ".join(f"'{words}'" for words in table if " " in words)
    lines = [
        f"""\
function __openclaw_at
    set -l given
    set -l before ''
    for word in (commandline -opc)[2..-1]
        if test "$before" = --profile
            set before ''
            continue
        end
        set before $word
        string match -q -- '-*' $word; or set -a given $word
    end
    set -l at "$given[1]"
    if set -q given[2]; and contains -- "$given[1] $given[2]" {subs}
        set at "$given[1] $given[2]"
    end
    test "$at" = "$argv[1]"
end
complete -c openclaw -n "__openclaw_at ''" -f"""
    ]
    for words, options in table.items():
        condition = f"-n \"__openclaw_at '{words}'\""
        if not options.keys() <= {word for word in options if word.startswith("-")}:
            lines.append(f"complete -c openclaw {condition} -f")
        for option, help_ in options.items():
            about = " -d '" + help_.replace("\\", "\\\\").replace("'", "\\'") + "'" if help_ else ""
            shown = f"-l {option[2:]}" if option.startswith("--") else f"-a {option}"
            lines.append(f"complete -c openclaw {condition} {shown}{about}")
    return "\n".join(lines) + "\n"


COMMANDS = {
    "completion": Action(
        "Print a completion script for your shell",
        run,
        (Flag("shell", "your shell", choices=("bash", "zsh", "fish")),),
        about=(
            "The script offers commands, sub-commands and options with what they mean. It asks nobody while you type."
        ),
        example="openclaw completion bash > ~/.local/share/bash-completion/completions/openclaw\n"
        "  openclaw completion zsh > ~/.zfunc/_openclaw\n"
        "  openclaw completion fish > ~/.config/fish/completions/openclaw.fish",
    )
}
