"""Ties a command to the files it was allowed with, so that what runs is what a person read and approved.

``bind`` records the program, the script and every existing file that the arguments name, by path and content. ``held``
checks them again when the command starts and keeps them from changing until it has: the program is run from the
descriptor that was checked, a script from a copy. Where the system or the interpreter does not allow that, the file is
checked just before.

``Program`` says which file a name stands for, and whether it runs whatever its arguments name. ``agent_can_write`` says
which files could be changed without a question. ``shown_command`` and its neighbours make the text of the question: the
whole command, with nothing in it invisible.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import unicodedata
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from openclaw.tools.base import ToolError

# Programs

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
    path = str(Path(cwd, name)) if "/" in name else shutil.which(name, path=search_path)
    if not path or not path.startswith("/") or not os.path.isfile(path) or not os.access(path, os.X_OK):  # noqa: PTH113
        return None
    return Program(os.path.realpath(path), path, tuple(link.name.lower() for link in _links(Path(path))))


def _links(path: Path) -> Iterator[Path]:
    """Yield the path and what every link on the way names."""
    for _ in range(MAX_LINKS):
        yield path
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


# What the agent can change

_SYSTEM_TREES = names("""
    /usr /bin /sbin /lib /lib32 /lib64 /opt /etc /nix/store /gnu/store /run/current-system /snap /System /Library
""")
"""Folders that belong to the administrator. For a Gateway that runs as root only these count as out of reach."""
_DEVICES = names("/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty")
_NATIVE = (b"\x7fELF", b"\xfe\xed\xfa", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")


def is_native(path: str) -> bool:
    """Whether the system loads the file itself. An interpreter would run anything else, and load more files."""
    try:
        with Path(path).open("rb") as file:
            return file.read(4).startswith(_NATIVE)
    except OSError:
        return False


def agent_can_write(path: str, workspace: Path | None) -> bool:
    """Whether the agent's own tools can change the file, a link on the way to it, or a folder above it."""
    if path in _DEVICES:
        return False
    hops = [*map(Path, _links(Path(os.path.abspath(path)))), Path(os.path.realpath(path))]  # noqa: PTH100 - a link stays
    if workspace is not None and any(
        hop.is_relative_to(root) for hop in hops for root in (workspace, workspace.resolve())
    ):
        return True
    if os.geteuid() == 0:
        return not all(any(hop.is_relative_to(tree) for tree in _SYSTEM_TREES) for hop in hops)
    if any(hop.is_relative_to(folder) for hop in hops for folder in ("/proc", "/dev")):
        return True  # Other names of any file, for example of one in the workspace.
    return any(os.access(folder, os.W_OK) for hop in hops for folder in (hop, *hop.parents))


# Binding

MAX_FILES = 256
MAX_HASHED_BYTES = 256 << 20
"""A larger file is bound by its inode and times, because it takes too long to read."""
_CHUNK = 1 << 20
_WORD = re.compile(r"[^\s;&|<>()`$\"'{}]+")
_JOINT = re.compile(r"[^\w./~+-]")
_MAX_OPTION, _MAX_JOINTS = 128, 16
_UNREADABLE = "unreadable"
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_F_SETSIG, _F_SETLEASE = 10, 1024
_RUN_PYTHON = (
    "import os,sys;sys.argv.pop(0);fd=int(sys.argv.pop(0));__file__=os.path.abspath(sys.argv[0]);"
    "sys.path[:1]=[os.path.dirname(__file__)] if sys.path[:1]==[''] else sys.path[:1];"
    "_=open(fd,'rb').read();del fd,os,sys;exec(compile(_,__file__,'exec'))"
)


class BoundFile(msgspec.Struct, frozen=True):
    path: str
    sha256: str


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a command runs, as they were when it was allowed."""

    argv: tuple[str, ...] = ()
    """The program and its arguments. Empty for a command that a shell runs."""
    program: BoundFile | None = None
    script: int = 0
    """The place of the script in ``argv``. 0: the program runs none."""
    files: tuple[BoundFile, ...] = ()
    """The script and every file that the command names."""
    folder: tuple[int, int] = (0, 0)
    """The device and inode of the working folder."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is started."""

    argv: list[str]
    executable: str | None = None
    keep: tuple[int, ...] = ()
    """Descriptors that the command inherits."""
    cwd: str


class Changed(ToolError):
    """A file is not what it was when the command was allowed."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not what it was when the command was allowed; have the command asked for again")


def bind(argv: Sequence[str], search_path: str, cwd: str, *, inputs: bool = True) -> Binding | None:
    """Binds a plain command. Returns None if its program does not exist. Raises ``ToolError``. Blocking.

    Without ``inputs`` the arguments are free, and only the program and its script are bound.
    """
    program = resolve_program(argv[0], search_path, cwd)
    if program is None:
        return None
    words, script, runs_code = [program.run, *argv[1:]], 0, runs_arguments(program)
    if interpreter := _shebang(program.real):
        found = resolve_program(interpreter[0], search_path, cwd)
        if found is None:
            return None
        words, script = [found.run, *interpreter[1:], *words], len(interpreter)
        program = found
    elif runs_code:
        script = _script_operand(words, program, cwd)
    executed = [str(Path(cwd, words[script]))] if script else []
    named = [path for word in words[1:] for path in named_paths(word, cwd)] if inputs else []
    if runs_code and inputs:  # The arguments may be a command or a program themselves.
        named += _named_in_text(" ".join(argv[1:]), search_path, cwd)
    files = _bound_files([*executed, *named])
    return Binding(argv=tuple(words), program=_bound(program.real), script=script, files=files, folder=_identity(cwd))


def bind_text(text: str, search_path: str, cwd: str) -> Binding:
    """Binds the programs and files that a command names which only a shell understands. Blocking."""
    return Binding(files=_bound_files(_named_in_text(text, search_path, cwd)), folder=_identity(cwd))


def named_paths(word: str, cwd: str) -> list[str]:
    """Return every existing file or folder that an argument may name, also in an option: ``--opt=FILE``, ``-DFILE``."""
    return [path for part in _parts(word) if os.path.lexists(path := _located(part, cwd))]


def named_programs(word: str, search_path: str, cwd: str) -> list[Program]:
    """Return every program that an argument may name, also as the value of an option."""
    parts = (*_between_joints(word), *([word[2:]] if word.startswith("-") else []))
    return [program for part in parts if part and (program := resolve_program(part, search_path, cwd))]


def _located(part: str, cwd: str) -> str:
    return str(Path(cwd, os.path.expanduser(part) if part.startswith("~") else part))  # noqa: PTH111 - never raises


def _parts(word: str) -> dict[str, None]:
    """The word and everything in it that a program could take for the name of a file."""
    # The letters of short options can be joined, so that their value may begin anywhere.
    values = (word[at:] for at in range(1, min(len(word), _MAX_OPTION))) if word.startswith(("-", "+")) else ()
    return dict.fromkeys(part for part in (*_between_joints(word), *values) if part and (part != "/" or word == "/"))


def _between_joints(word: str) -> Iterator[str]:
    """Yield the word and every part of it that begins and ends at a mark such as ``=``, ``,``, ``:`` or ``@``."""
    joints = [joint.start() for joint in _JOINT.finditer(word)]
    joints = joints[:_MAX_JOINTS] + joints[-1:] if len(joints) > _MAX_JOINTS else joints
    starts, ends = [0, *(at + 1 for at in joints)], [*joints, len(word)]
    yield from (word[start:end] for start in starts for end in ends if start < end)


def _named_in_text(text: str, search_path: str, cwd: str) -> list[str]:
    """The programs and files that the text names, also in folders that it names."""
    words = dict.fromkeys(_WORD.findall(text))
    parts = dict.fromkeys(part for word in words for part in _parts(word))
    folders = [cwd, *(path for part in parts if os.path.isdir(path := _located(part, cwd)))][:8]  # noqa: PTH112
    programs = [program.real for part in parts if (program := resolve_program(part, search_path, cwd))]
    return programs + [path for part in parts for folder in folders if os.path.lexists(path := _located(part, folder))]


def _bound_files(paths: Sequence[str]) -> tuple[BoundFile, ...]:
    """Binds the regular files among the paths. Raises ``ToolError`` if there are too many."""
    files = [path for path in dict.fromkeys(paths) if _is_file(Path(path))]
    if len(files) > MAX_FILES:
        raise ToolError(f"the command names {len(files)} files, and at most {MAX_FILES} can be checked; name fewer")
    return tuple(map(_bound, files))


@contextlib.contextmanager
def held(binding: Binding, cwd: str, *, terminal: bool = False) -> Generator[Launch]:
    """Checks every file and yields how to start the command. Files stay as they are until the block ends.

    Raises ``Changed``. Blocking.
    """
    with contextlib.ExitStack() as stack:

        def opened(path: str) -> int:
            try:
                fd = os.open(path, _OPEN)
            except OSError:
                raise Changed(path) from None
            stack.callback(os.close, fd)
            return fd

        def checked(file: BoundFile, *, copied: bool = False) -> int:
            if (
                file.sha256 == _UNREADABLE
                and not copied
                and not os.access(file.path, os.R_OK)
                and _is_file(Path(file.path))
            ):
                return -1
            fd = opened(file.path)
            _lease(fd, stack)
            fd = _sealed_copy(fd, stack) if copied else fd
            if _digest(fd) != file.sha256:
                raise Changed(file.path)
            return fd

        folder = opened(cwd)
        if binding.folder != (0, 0) and _identity(folder) != binding.folder:
            raise Changed(cwd)
        script = str(Path(cwd, binding.argv[binding.script])) if binding.script and _BY_DESCRIPTOR else ""
        fds = {file.path: checked(file, copied=file.path == script) for file in binding.files}
        where = f"/proc/self/fd/{folder}" if _BY_DESCRIPTOR else cwd
        if binding.program is None:
            yield Launch(argv=[], cwd=where)
            return
        program = checked(binding.program)
        argv, keep = list(binding.argv), [program]
        if script:
            argv = _with_script(argv, binding.script, fds[script])
            keep.append(fds[script])
        # On a terminal a small shell starts the program. It would call it by the name of the descriptor.
        executable = f"/proc/self/fd/{program}" if _BY_DESCRIPTOR and not terminal else None
        yield Launch(argv=argv, executable=executable, keep=tuple(keep), cwd=where)


_BY_DESCRIPTOR = sys.platform == "linux" and Path("/proc/self/fd").is_dir() and hasattr(os, "memfd_create")


def _with_script(argv: list[str], position: int, copy: int) -> list[str]:
    """The arguments with which the interpreter reads the copy and still calls the script by its name."""
    name, before, rest = Path(argv[0]).name, argv[:position], argv[position:]
    if name in SHELLS:
        return [*before, "-c", f". /proc/self/fd/{copy}", *rest]
    if PYTHONS.fullmatch(name):
        return [*before, "-c", _RUN_PYTHON, str(copy), *rest]
    if name in READS_SCRIPT_ANYWHERE:
        return [*before, f"/proc/self/fd/{copy}", *rest[1:]]
    return argv  # Others look for more files beside the script, so they read it themselves.


def _sealed_copy(fd: int, stack: contextlib.ExitStack) -> int:
    copy = os.memfd_create("script", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    stack.callback(os.close, copy)
    offset = 0
    while chunk := os.pread(fd, _CHUNK, offset):
        offset += os.pwrite(copy, chunk, offset)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return copy


def _lease(fd: int, stack: contextlib.ExitStack) -> None:
    """Makes writers wait, where the file is ours. Nobody but the administrator can write the others."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGURG)  # The usual signal would end the Gateway. This one is ignored.
        fcntl.fcntl(fd, _F_SETLEASE, fcntl.F_RDLCK)
        stack.callback(fcntl.fcntl, fd, _F_SETLEASE, fcntl.F_UNLCK)


def _shebang(path: str) -> list[str]:
    """The interpreter of a script and its arguments. Empty for other programs."""
    with Path(path).open("rb") as file:
        head = file.readline(256)
    if not head.startswith(b"#!"):
        return []
    words = head[2:].decode("utf-8", "surrogateescape").strip().split(None, 1)
    if words and Path(words[0]).name == "env":
        words = words[1].removeprefix("-S ").split() if len(words) > 1 else []
    return words


def _script_operand(words: list[str], program: Program, cwd: str) -> int:
    """The place of the script in the arguments of an interpreter. 0 if the program is given in the arguments."""
    name = Path(program.run).name
    inline = set("cs" if name in SHELLS else "cm" if PYTHONS.fullmatch(name) else "eErc")
    if not (name in SHELLS or name in READS_SCRIPT_ANYWHERE or PYTHONS.fullmatch(name)):
        return 0
    for position, word in enumerate(words[1:], 1):
        if word.startswith("-") and not word.startswith("--") and set(word) & inline:
            return 0
        if not word.startswith("-"):
            return position if _is_file(Path(cwd, word)) else 0
    return 0


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - a word that is too long for a file name must not raise


def _bound(path: str) -> BoundFile:
    try:
        fd = os.open(path, _OPEN)
    except PermissionError:
        return BoundFile(path, _UNREADABLE)
    try:
        return BoundFile(path, _digest(fd))
    finally:
        os.close(fd)


def _digest(fd: int) -> str:
    digest, offset, status = hashlib.sha256(), 0, os.fstat(fd)
    if status.st_size > MAX_HASHED_BYTES or not stat.S_ISREG(status.st_mode):
        facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return hashlib.sha256(repr(facts).encode()).hexdigest()
    while chunk := os.pread(fd, _CHUNK, offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.hexdigest()


def _identity(file: str | int) -> tuple[int, int]:
    try:
        status = os.stat(file)  # noqa: PTH116 - it may be a descriptor
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino


# What a person reads

MAX_SHOWN = 6000
"""A longer command is not asked about, because nobody would read it to its end."""
_SAME_BLANKS = re.compile(r"( {16,}|(?:⏎\n){4,})")
_INVISIBLE = frozenset(
    [*"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"]
    + [chr(code) for code in (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))]
)
"""Letters, marks and selectors without a picture. Their Unicode category does not tell them."""
_SWALLOWED = re.compile(
    r"<(?=\s{0,8}/?\s{0,8}(?:think|thought|antthinking|reasoning|final)\b)|\[\[(?=\s{0,8}(?:reply|audio))", re.I
)
"""Beginnings of marks that chat clients take out of a text together with what follows them."""


def visible(text: str) -> str:
    """The text with escapes, controls, and marks of direction, width and selection written out as ``⟨U+202E⟩``.

    A line end is marked. Long runs of blanks are counted instead of shown, since they could push the rest out of sight.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_shown, text))
    text = _SAME_BLANKS.sub(lambda run: f"⟨{_count(run[0])}⟩", text)
    return _SWALLOWED.sub(lambda mark: f"⟨{mark[0]}⟩", text)


def is_visible(text: str) -> bool:
    """Whether a person sees every character of the text."""
    return text.isprintable() and all(_shown(character) == character for character in text)


def _shown(character: str) -> str:
    if character == "\n":
        return "⏎\n"
    category = unicodedata.category(character)
    hidden = category[0] in "CZ" or category == "Me" or character in _INVISIBLE
    return f"⟨U+{ord(character):04X}⟩" if hidden and character != " " else character


def _count(run: str) -> str:
    return f"{len(run)} spaces" if run[0] == " " else f"{run.count(chr(10))} line ends"


def shown_command(command: str, env: Mapping[str, str]) -> str:
    """The command as a person reads it, with the variables that it sets before it."""
    sets = "".join(f"{name}={shlex.quote(value)} " for name, value in env.items())
    return visible(sets + command)


def fenced(text: str) -> str:
    """The text as a code block, which no mark inside can end, hide or turn into something else."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"
