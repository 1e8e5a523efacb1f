from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

import openclaw.path_opener as opener_module
from openclaw.path_opener import FileMissing, PathOpener, PathRefused


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "outside" / "secret.txt"
    path.parent.mkdir()
    path.write_text("secret")
    return path


@pytest.fixture
def confined(workspace: Path) -> PathOpener:
    return PathOpener(workspace, confine=True)


def read(opener: PathOpener, path: str) -> bytes:
    with opener.open_read(path) as file:
        return file.read()


def write(opener: PathOpener, path: str, data: bytes) -> None:
    with opener.open_write_atomic(path) as file:
        file.write(data)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a.txt", "{ws}/a.txt"),
        ("@a.txt", "{ws}/a.txt"),
        ("a\u00a0b\u202fc.txt", "{ws}/a b c.txt"),
        ("sub/../a.txt", "{ws}/a.txt"),
        ("~/a.txt", "{home}/a.txt"),
        ("~", "{home}"),
        ("~other/a", "{ws}/~other/a"),
        ("/etc/hosts", "/etc/hosts"),
    ],
)
def test_what_a_model_writes_becomes_an_absolute_path(workspace: Path, given: str, expected: str) -> None:
    resolved = PathOpener(workspace, confine=False).resolve(given)
    assert resolved == expected.format(ws=workspace, home=Path.home())


@pytest.mark.parametrize("path", ["", "  ", "@", "a\0b"])
def test_paths_that_mean_nothing_are_refused(confined: PathOpener, path: str) -> None:
    with pytest.raises(PathRefused):
        confined.resolve(path)


@pytest.mark.parametrize("path", ["../outside/secret.txt", "{secret}", "a/../../outside/secret.txt", "~/x", "/", ".."])
def test_a_path_that_leaves_the_workspace_is_refused(confined: PathOpener, secret: Path, path: str) -> None:
    for action in (confined.open_read, lambda p: write(confined, p, b"")):
        with pytest.raises(PathRefused, match="path leaves the workspace"):
            action(path.format(secret=secret))
    assert secret.read_text() == "secret"


def test_a_workspace_with_a_similar_name_is_outside(tmp_path: Path, confined: PathOpener) -> None:
    twin = tmp_path / "workspace-twin"
    twin.mkdir()
    (twin / "a").write_text("x")
    with pytest.raises(PathRefused, match="leaves the workspace"):
        confined.open_read(str(twin / "a"))


def test_links_that_stay_inside_are_followed(confined: PathOpener, workspace: Path) -> None:
    (workspace / "real").mkdir()
    (workspace / "real" / "a.txt").write_text("inside")
    (workspace / "deep").mkdir()
    (workspace / "link").symlink_to("real")
    (workspace / "deep" / "up").symlink_to("../real/./a.txt")
    (workspace / "absolute").symlink_to(workspace / "link" / "a.txt")
    for path in ("link/a.txt", "deep/up", "absolute", str(workspace / "link" / "a.txt")):
        assert read(confined, path) == b"inside"
    write(confined, "absolute", b"changed")
    assert (workspace / "real" / "a.txt").read_bytes() == b"changed"
    assert (workspace / "absolute").is_symlink()


@pytest.mark.parametrize("target", ["{secret}", "../outside/secret.txt", "sub/../../outside/secret.txt"])
def test_a_link_that_leads_outside_is_refused(confined: PathOpener, workspace: Path, secret: Path, target: str) -> None:
    (workspace / "sub").mkdir()
    (workspace / "out").symlink_to(target.format(secret=secret))
    (workspace / "folder").symlink_to(secret.parent)
    for path in ("out", "folder/secret.txt"):
        with pytest.raises(PathRefused, match="leaves the workspace"):
            read(confined, path)
        with pytest.raises(PathRefused, match="leaves the workspace"):
            write(confined, path, b"overwritten")
    with pytest.raises(PathRefused, match="leaves the workspace"):
        write(confined, "folder/new/file.txt", b"")
    assert secret.read_text() == "secret"
    assert sorted(secret.parent.iterdir()) == [secret]


def test_a_ring_of_links_ends_with_an_error(confined: PathOpener, workspace: Path) -> None:
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    with pytest.raises(PathRefused, match="Too many symbolic links"):
        confined.open_read("a")


def test_a_workspace_that_is_itself_a_link_works_by_both_names(tmp_path: Path, workspace: Path) -> None:
    (workspace / "a.txt").write_text("x")
    (tmp_path / "alias").symlink_to(workspace)
    opener = PathOpener(tmp_path / "alias", confine=True)
    assert read(opener, "a.txt") == read(opener, str(workspace / "a.txt")) == b"x"


def test_extra_roots_may_be_read_and_not_written(workspace: Path, secret: Path) -> None:
    opener = PathOpener(workspace, confine=True, extra_roots=[secret.parent])
    (workspace / "out").symlink_to(secret)
    assert read(opener, str(secret)) == read(opener, "out") == b"secret"
    for path in (str(secret), "out"):
        with pytest.raises(PathRefused, match="leaves the workspace"):
            write(opener, path, b"x")


def test_swapping_a_link_never_gets_anything_outside_opened(
    confined: PathOpener, workspace: Path, secret: Path
) -> None:
    """A thread flips a directory and a file between real ones and links to the outside while we read and write."""
    inside, ready, done = b"inside", threading.Event(), threading.Event()
    (workspace / "kept").mkdir()
    (workspace / "kept" / "secret.txt").write_bytes(inside)

    def flip() -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            for name, target in (
                ("dir", secret.parent if turn % 2 else "kept"),
                ("file", secret if turn % 2 else "kept/secret.txt"),
            ):
                (workspace / f"{name}.new").symlink_to(target)
                os.replace(workspace / f"{name}.new", workspace / name)
            ready.set()

    thread = threading.Thread(target=flip)
    thread.start()
    outcomes = {"refused": 0, "read": 0}
    try:
        ready.wait()
        for turn in range(3000):
            path = ("dir/secret.txt", "file")[turn % 2]
            try:
                assert read(confined, path) == inside
                if turn % 10 == 0:
                    write(confined, path, inside)
                outcomes["read"] += 1
            except PathRefused:
                outcomes["refused"] += 1
    finally:
        done.set()
        thread.join()
    assert secret.read_text() == "secret"
    assert list(secret.parent.iterdir()) == [secret]
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("name", ["dir", "secret.txt"])
def test_a_swap_at_the_last_possible_moment_is_noticed(
    confined: PathOpener, workspace: Path, secret: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the walk has looked and before it opens, the component becomes a link to the outside."""
    victim = workspace / "dir" if name == "dir" else workspace / "dir" / "secret.txt"
    (workspace / "dir").mkdir()
    (workspace / "dir" / "secret.txt").write_bytes(b"inside")
    original = opener_module._open_final

    def swap_then_open(part: str, flags: int, parent: int) -> int:
        if part == name and not victim.is_symlink():
            os.rename(victim, workspace / "aside")
            victim.symlink_to(secret.parent if name == "dir" else secret)
        return original(part, flags, parent)

    monkeypatch.setattr(opener_module, "_open_final", swap_then_open)
    with pytest.raises(PathRefused, match="leaves the workspace"):
        read(confined, "dir/secret.txt")


@pytest.mark.parametrize(("swapped", "path"), [("dir", "dir/secret.txt"), ("dir/secret.txt", "dir/secret.txt")])
def test_swapping_the_real_thing_with_a_link_to_the_outside_does_not_help_either(
    confined: PathOpener, workspace: Path, secret: Path, swapped: str, path: str
) -> None:
    done = threading.Event()
    (workspace / "dir").mkdir()
    (workspace / "dir" / "secret.txt").write_bytes(b"inside")
    outside = secret if swapped == path else secret.parent

    def flip() -> None:
        while not done.is_set():
            os.rename(workspace / swapped, workspace / "aside")
            (workspace / swapped).symlink_to(outside)
            os.unlink(workspace / swapped)
            os.rename(workspace / "aside", workspace / swapped)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(2000):
            try:
                assert read(confined, path) == b"inside"
            except PathRefused:
                continue
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("confine", [True, False])
def test_fifos_devices_and_directories_are_refused_without_waiting(workspace: Path, confine: bool) -> None:
    opener = PathOpener(workspace, confine=confine)
    os.mkfifo(workspace / "fifo")
    (workspace / "dir").mkdir()
    for path, words in (("fifo", "not a regular file"), ("dir", "is a directory"), (".", "is a directory")):
        with pytest.raises(PathRefused, match=words):
            opener.open_read(path)
        with pytest.raises(PathRefused, match=words):
            write(opener, path, b"")
    if not confine:
        with pytest.raises(PathRefused, match="not a regular file"):
            opener.open_read("/dev/zero")


@pytest.mark.parametrize("confine", [True, False])
def test_missing_files_say_so(workspace: Path, confine: bool) -> None:
    opener = PathOpener(workspace, confine=confine)
    with pytest.raises(FileMissing) as caught:
        opener.open_read("no/such.txt")
    assert str(caught.value) == f"ENOENT: no such file or directory, access '{workspace}/no/such.txt'"
    (workspace / "plain").write_text("")
    with pytest.raises(PathRefused, match="Not a directory"):
        opener.open_read("plain/below")


@pytest.mark.parametrize("confine", [True, False])
def test_new_files_and_directories_are_private_and_old_modes_are_kept(workspace: Path, confine: bool) -> None:
    opener = PathOpener(workspace, confine=confine)
    write(opener, "a/b/new.txt", b"x")
    assert stat.S_IMODE((workspace / "a" / "b" / "new.txt").stat().st_mode) == 0o600
    assert stat.S_IMODE((workspace / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((workspace / "a" / "b").stat().st_mode) == 0o700
    script = workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o755)
    write(opener, "run.sh", b"new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o755


@pytest.mark.parametrize("confine", [True, False])
def test_a_write_that_fails_leaves_the_old_file_and_no_trace(workspace: Path, confine: bool) -> None:
    opener = PathOpener(workspace, confine=confine)
    (workspace / "a.txt").write_text("old")
    with pytest.raises(RuntimeError), opener.open_write_atomic("a.txt") as file:
        file.write(b"half")
        raise RuntimeError
    assert (workspace / "a.txt").read_text() == "old"
    assert os.listdir(workspace) == ["a.txt"]


def test_names_as_macos_spells_them_are_found(confined: PathOpener, workspace: Path) -> None:
    (workspace / "Screenshot at 9.41\u202fAM.txt").write_text("1")
    (workspace / "It\u2019s.txt").write_text("2")
    (workspace / "cafe\u0301.txt").write_text("3")
    assert read(confined, "Screenshot at 9.41 AM.txt") == b"1"
    assert read(confined, "It's.txt") == b"2"
    assert read(confined, "caf\u00e9.txt") == b"3"


def test_no_descriptor_is_left_open(confined: PathOpener, workspace: Path, secret: Path) -> None:
    (workspace / "out").symlink_to(secret)
    (workspace / "ok").symlink_to(workspace / "a" / "f")
    write(confined, "a/f", b"x")
    before = set(os.listdir("/proc/self/fd"))
    for path in ("ok", "out", "a/f", "a/nothing", "a/f/below", "a"):
        try:
            read(confined, path)
            write(confined, path, b"x")
        except PathRefused:
            continue
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_hard_link_may_be_a_file_from_elsewhere_and_is_not_read(
    confined: PathOpener, workspace: Path, secret: Path
) -> None:
    os.link(secret, workspace / "notes.md")
    with pytest.raises(PathRefused, match="hard link"):
        read(confined, "notes.md")
    write(confined, "notes.md", b"mine")
    assert (read(confined, "notes.md"), secret.read_text()) == (b"mine", "secret")


def test_a_root_inside_the_workspace_is_no_way_out(workspace: Path, secret: Path) -> None:
    (workspace / "skills").symlink_to(secret.parent)
    opener = PathOpener(workspace, confine=True, extra_roots=[workspace / "skills"])
    for path in ("skills/secret.txt", str(secret)):
        with pytest.raises(PathRefused, match="leaves the workspace"):
            read(opener, path)
    with pytest.raises(PathRefused, match="leaves the workspace"):
        opener.scan("skills")


def test_a_folder_is_listed_without_following_links(confined: PathOpener, workspace: Path, secret: Path) -> None:
    (workspace / "folder").mkdir()
    (workspace / "folder" / "a").write_text("a")
    (workspace / "folder" / "b").mkdir()
    (workspace / "folder" / "c").symlink_to(secret)
    assert confined.scan("folder") == [("a", "file"), ("b", "folder"), ("c", "link")]
