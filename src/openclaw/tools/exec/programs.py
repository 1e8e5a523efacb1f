"""Programs: which file a name stands for, and which programs run whatever their arguments name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

MAX_LINKS = 40


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = names("""
    sh bash dash ash zsh ksh mksh yash rbash
""")
"""Shells that read a script with ``.``."""
PYTHONS = re.compile(r"(python|pypy)[\d.]*")
READS_SCRIPT_ANYWHERE = names("""
    perl ruby awk gawk mawk nawk lua luajit tclsh php
""")
"""Interpreters to which it makes no difference where a script is."""
_RUNS_ARGUMENTS = SHELLS | names("""
    fish csh tcsh pwsh powershell elvish nu xonsh env xargs busybox toybox nice ionice timeout sudo doas su runuser
    pkexec setsid nohup stdbuf time strace ltrace gdb lldb watch script expect parallel chroot unshare nsenter flock
    chrt taskset numactl cgexec systemd-run at batch crontab screen tmux ssh sshpass mosh find fd fdfind entr setarch
    linux32 linux64 setpriv capsh prlimit valgrind perf firejail bwrap proot fakeroot dbus-run-session xvfb-run
    faketime tini dumb-init gosu su-exec start-stop-daemon exec eval command builtin source coproc watchexec direnv
    rlwrap socat nc ncat netcat perl ruby node nodejs deno bun php lua luajit tclsh wish expect rscript r julia java
    jshell scala groovy kotlin awk gawk mawk nawk sed ed ex vi vim nvim view emacs nano bc dc m4 gnuplot sqlite3 psql
    mysql mongo guile racket sbcl ghci runghc ocaml erl elixir iex octave swift osascript ts-node tsx npx uvx pipx
    dotnet run-parts ssh-agent ldd choom uclampset catchsegv sg newgrp systemd-nspawn systemd-inhibit systemd-cat
    machinectl lxc-attach chronic ifne pee zrun unbuffer logsave daemonize setlock softlimit chpst runsv proxychains
    torsocks trickle cpulimit hyperfine just task mise nix nix-shell guix prove cpan cpanm perldoc pydoc rename prename
    xdg-open open gtk-launch dbus-launch x-terminal-emulator xterm logrotate anacron run-one mail mailx ftp telnet
    gdbserver
""")
_RUNS_OTHERS = names("""
    git hg svn gh make gmake cmake ninja meson bazel cargo rustc go npm yarn pnpm pip pip3 uv poetry conda docker
    podman nerdctl kubectl helm terraform ansible ansible-playbook vagrant tar bsdtar zip 7z rsync scp sftp man less
    more most tcpdump sort split gcc g++ cc c++ clang tsc eslint jest pytest tox nox rake bundle gem mvn gradle
    systemctl service launchctl journalctl openssl curl wget jq yq rg ag fzf dpkg apt apt-get yum dnf brew snap
    flatpak openclaw
""")

_ENDING = re.compile(r"(?:[-.]?\d[\d.]{0,40}|\.[a-z]{1,40})$")
_MOST_ENDINGS = 8


class Program(msgspec.Struct, frozen=True):
    real: str
    """The file behind all links, which the allowlist is compared with."""
    run: str
    """The path under which it is run. Some programs act by the name under which they are called."""
    names: tuple[str, ...]
    """The names of both and of every link between them, in lower case."""


def resolve_program(name: str, search_path: str, cwd: str) -> Program | None:
    found = str(Path(cwd, name)) if "/" in name else shutil.which(name, path=search_path)
    if not found or not found.startswith("/") or not os.path.isfile(found) or not os.access(found, os.X_OK):  # noqa: PTH113
        return None
    return Program(os.path.realpath(found), found, tuple(_link_names(Path(found))))


def _link_names(path: Path) -> Iterator[str]:
    for _ in range(MAX_LINKS):
        yield path.name.lower()
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def runs_arguments(program: Program) -> bool:
    """Whether it is a shell, a wrapper or an interpreter: to allow it is to allow everything."""
    return _is_one_of(program, _RUNS_ARGUMENTS) or any(
        PYTHONS.fullmatch(name) or name.startswith(("ld-linux", "ld.so", "ld-musl")) for name in program.names
    )


def runs_others(program: Program) -> bool:
    """Whether options, or files in the folder, can make it run other programs."""
    return runs_arguments(program) or _is_one_of(program, _RUNS_OTHERS)


def _is_one_of(program: Program, names: frozenset[str]) -> bool:
    """Also with a version or an ending: ``perl5.36``, ``vim.basic``, ``gcc-12``."""
    return any(name in names or _without_endings(name) in names for name in program.names)


def _without_endings(name: str) -> str:
    for _ in range(_MOST_ENDINGS):
        name = _ENDING.sub("", name)
    return name
