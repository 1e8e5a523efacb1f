"""What was worked out from a configuration lasts exactly as long as it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyjson5
import pytest

from openclaw.config.schema import Config
from openclaw.config.secrets import SENTINEL, redact_raw
from openclaw.config.store import (
    MOST_KEPT,
    ConfigConflict,
    ConfigError,
    ConfigInvalid,
    ConfigStore,
    Derived,
    changed_paths,
    reload_action,
)

TOKEN = re.compile(r'token: "[0-9a-f]{48}"')


class SteppedClock:
    """Time moves when the test says so: one sleeper, one step at a time."""

    def __init__(self) -> None:
        self._asleep = asyncio.Event()
        self._wake = asyncio.Event()

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self._wake.clear()
        self._asleep.set()
        await self._wake.wait()

    async def step(self) -> None:
        """Ends the current sleep and waits until the sleeper sleeps again."""
        await self._asleep.wait()
        self._asleep.clear()
        self._wake.set()
        await self._asleep.wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "openclaw.json"


@pytest.fixture
def write(path: Path) -> Callable[[str], None]:
    path.parent.mkdir(mode=0o700)

    def put(text: str) -> None:
        path.write_text(text)

    return put


def store(path: Path, clock: Any = None, **environ: str) -> ConfigStore:
    return ConfigStore(str(path), clock=clock, environ=environ)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# Start


def test_a_first_start_writes_a_private_file_with_a_token(path: Path) -> None:
    made = store(path)
    snapshot = made.load_or_create()
    assert snapshot.valid and snapshot.exists and TOKEN.search(path.read_text())
    assert (made.current.gateway.mode, made.current.gateway.auth.mode) == ("local", "token")
    assert len(made.current.gateway.auth.token or "") == 48
    assert mode(path) == 0o600 and mode(path.parent) == 0o700
    assert store(path).load_or_create().hash == snapshot.hash


@pytest.mark.parametrize(
    ("name", "auth"), [("OPENCLAW_GATEWAY_TOKEN", "token"), ("OPENCLAW_GATEWAY_PASSWORD", "password")]
)
def test_no_token_is_generated_when_the_environment_has_the_secret(path: Path, name: str, auth: str) -> None:
    made = store(path, **{name: "from-outside"})
    made.load_or_create()
    assert made.current.gateway.auth.token is None and made.current.gateway.auth.mode == auth


def test_a_file_without_a_secret_gets_one_and_keeps_everything_else(path: Path, write: Callable[[str], None]) -> None:
    write("// mine\n{\n  gateway: { mode: 'local' }, // here\n  ui: {},\n}\n")
    store(path).load_or_create()
    text = path.read_text()
    assert (
        TOKEN.search(text)
        and text.startswith("// mine\n{\n  gateway: { mode: 'local', ")
        and "// here\n  ui: {},\n}\n" in text
    )
    assert Path(f"{path}.bak").read_text() == "// mine\n{\n  gateway: { mode: 'local' }, // here\n  ui: {},\n}\n"


@pytest.mark.parametrize(
    "auth", ['token: "t"', 'password: "p"', 'mode: "password"', 'mode: "none"', 'mode: "trusted-proxy"']
)
def test_a_file_that_settles_its_auth_is_left_alone(path: Path, write: Callable[[str], None], auth: str) -> None:
    text = f"{{ gateway: {{ auth: {{ {auth} }} }} }}"
    write(text)
    store(path).load_or_create()
    assert path.read_text() == text


def test_an_empty_file_becomes_a_usable_one(path: Path, write: Callable[[str], None]) -> None:
    write("")
    made = store(path)
    assert made.load_or_create().valid and made.current.gateway.auth.token and made.current.gateway.mode == "local"


def test_a_file_that_was_emptied_does_not_cost_the_configuration(path: Path, write: Callable[[str], None]) -> None:
    write("{ gateway: { port: 4242, auth: { token: 't' } } }")
    store(path).load_or_create()
    write("")
    again = store(path)
    again.load_or_create()
    assert (again.current.gateway.port, again.current.gateway.auth.token) == (4242, "t")
    assert path.read_text() == ""
    assert "4242" in Path(f"{path}.last-good").read_text()


def test_a_bad_file_without_a_predecessor_stops_the_start(path: Path, write: Callable[[str], None]) -> None:
    write("{ gateway: { port: 'x' } }")
    with pytest.raises(ConfigInvalid, match=r"gateway\.port") as caught:
        store(path).load_or_create()
    assert caught.value.issues[0].line == 1
    assert path.read_text() == "{ gateway: { port: 'x' } }"


def test_a_bad_file_is_passed_over_in_favour_of_the_last_good_one(
    path: Path, write: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    write("{ gateway: { port: 4242, auth: { token: 't' } } }")
    store(path).load_or_create()
    assert mode(Path(f"{path}.last-good")) == 0o600
    write("{ gateway: { port: ")
    made = store(path)
    with caplog.at_level(logging.WARNING):
        snapshot = made.load_or_create()
    assert not snapshot.valid and made.current.gateway.port == 4242
    assert "last good" in caplog.text and "end of the file" in caplog.text


def test_the_last_good_copy_holds_what_was_included(path: Path, write: Callable[[str], None]) -> None:
    write('{ gateway: { $include: "g.json5" }, ui: { assistant: { name: "${NAME}" } } }')
    (path.parent / "g.json5").write_text("{ port: 4242, auth: { token: 't' } }")
    store(path, NAME="Al").load_or_create()
    (path.parent / "g.json5").unlink()
    made = store(path, NAME="Bo")
    made.load_or_create()
    assert made.current.gateway.port == 4242 and made.current.ui.assistant.name == "Bo"
    assert "Al" not in Path(f"{path}.last-good").read_text()


# Reload


async def test_a_reload_tells_subscribers_what_changed(path: Path, write: Callable[[str], None]) -> None:
    write("{ gateway: { auth: { token: 't' } }, ui: { seamColor: '#fff' } }")
    made = store(path)
    made.load_or_create()
    seen: list[tuple[str | None, str | None, list[str]]] = []

    def quick(old: Config, new: Config, changed: list[str]) -> None:
        seen.append((old.ui.seam_color, new.ui.seam_color, changed))

    async def slow(old: Config, new: Config, changed: list[str]) -> None:
        await asyncio.sleep(0)
        seen.append((None, None, changed))

    def broken(old: Config, new: Config, changed: list[str]) -> None:
        raise RuntimeError("no")

    made.subscribe(broken)
    unsubscribe = made.subscribe(quick)
    made.subscribe(slow)
    write("{ gateway: { auth: { token: 't' } }, ui: { seamColor: '#000' }, cron: { enabled: false } }")
    assert await made.reload()
    assert seen == [("#fff", "#000", ["ui.seamColor", "cron"]), (None, None, ["ui.seamColor", "cron"])]
    unsubscribe()
    assert await made.reload() and len(seen) == 2, "nothing changed, so nobody is told"


@pytest.mark.parametrize("text", ["{ gateway: { port: 'x' } }", "{ broken", "", None])
async def test_a_bad_reload_changes_nothing_and_warns_once(
    path: Path, write: Callable[[str], None], caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    write("{ gateway: { port: 4242, auth: { token: 't' } } }")
    made = store(path)
    made.load_or_create()
    if text is None:
        path.unlink()
    else:
        write(text)
    with caplog.at_level(logging.WARNING):
        assert not await made.reload()
        assert not await made.reload()
    assert made.current.gateway.port == 4242 and len(caplog.records) == 1
    assert made.snapshot.raw == text


async def test_the_watcher_waits_until_the_file_is_at_rest(path: Path, write: Callable[[str], None]) -> None:
    write("{ gateway: { auth: { token: 't' } } }")
    clock = SteppedClock()
    made = store(path, clock)
    made.load_or_create()
    changes: list[list[str]] = []
    made.subscribe(lambda old, new, changed: changes.append(changed))
    watcher = asyncio.create_task(made.watch())
    await clock.step()
    write("{ gateway: { auth: { token: 't' } }, ui: ")
    await clock.step()  # noticed
    write("{ gateway: { auth: { token: 't' } }, ui: { seamColor: '#000' } }")
    await clock.step()  # still changing
    assert changes == [] and made.snapshot.valid
    await clock.step()  # at rest
    assert changes == [["ui"]] and made.current.ui.seam_color == "#000"
    await clock.step()
    assert len(changes) == 1
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher


async def test_the_watcher_notices_included_files_and_atomic_replacement(
    path: Path, write: Callable[[str], None]
) -> None:
    write('{ gateway: { auth: { token: "t" } }, ui: { $include: "ui.json5" } }')
    included = path.parent / "ui.json5"
    included.write_text("{ seamColor: '#111' }")
    clock = SteppedClock()
    made = store(path, clock)
    made.load_or_create()
    watcher = asyncio.create_task(made.watch())
    replacement = path.parent / "new.json5"
    replacement.write_text("{ seamColor: '#222' }")
    os.utime(replacement, ns=(included.stat().st_atime_ns, included.stat().st_mtime_ns))
    replacement.replace(included)
    await clock.step()
    await clock.step()
    assert made.current.ui.seam_color == "#222"
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher


@pytest.mark.parametrize("broken", ["{ seamColor: ", None])
async def test_the_watcher_notices_that_a_faulty_or_missing_included_file_was_mended(
    path: Path, write: Callable[[str], None], broken: str | None
) -> None:
    write('{ gateway: { auth: { token: "t" } }, ui: { $include: "ui.json5" } }')
    included = path.parent / "ui.json5"
    included.write_text("{ seamColor: '#111' }")
    clock = SteppedClock()
    made = store(path, clock)
    made.load_or_create()
    watcher = asyncio.create_task(made.watch())
    included.unlink()
    if broken is not None:
        included.write_text(broken)
    await clock.step()
    await clock.step()
    assert not made.snapshot.valid and made.current.ui.seam_color == "#111"
    included.write_text("{ seamColor: '#222' }")
    await clock.step()
    await clock.step()
    assert made.snapshot.valid and made.current.ui.seam_color == "#222"
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher


async def test_reload_mode_off_leaves_the_file_alone(path: Path, write: Callable[[str], None]) -> None:
    write("{ gateway: { auth: { token: 't' }, reload: { mode: 'off' } } }")
    clock = SteppedClock()
    made = store(path, clock)
    made.load_or_create()
    watcher = asyncio.create_task(made.watch())
    write("{ gateway: { auth: { token: 't' }, reload: { mode: 'off' } }, ui: { seamColor: '#000' } }")
    await clock.step()
    await clock.step()
    assert made.current.ui.seam_color is None
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher


# Writing

TEXT = """// mine
{
  gateway: {
    auth: { token: "my-long-secret-token" }, // keep
  },
  models: { providers: { a: { apiKey: "key-of-a", models: [{ id: "m" }] } } },
}
"""


@pytest.fixture
def written(path: Path, write: Callable[[str], None]) -> ConfigStore:
    write(TEXT)
    made = store(path)
    made.load_or_create()
    return made


def test_setting_and_unsetting_keeps_comments(written: ConfigStore, path: Path) -> None:
    after = written.set_path("gateway.port", 19000)
    assert path.read_text() == TEXT.replace("// keep\n", "// keep\n    port: 19000,\n") == after.raw
    written.unset_path("gateway.port")
    assert path.read_text() == TEXT and mode(path) == 0o600


async def test_a_written_change_becomes_effective_with_the_reload(written: ConfigStore) -> None:
    written.set_path("ui.seamColor", "#000")
    assert written.current.ui.seam_color is None
    await written.reload()
    assert written.current.ui.seam_color == "#000"


def test_a_change_that_would_not_be_valid_is_refused(written: ConfigStore, path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        written.set_path("gateway.port", "x")
    assert caught.value.issues[0].path == "gateway.port" and path.read_text() == TEXT
    assert not Path(f"{path}.bak").exists()


def test_faults_can_be_mended_one_by_one(path: Path, write: Callable[[str], None]) -> None:
    write("{ gateway: { port: 'x', bind: 'y', auth: { token: 't' } } }")
    made = store(path)
    assert [issue.path for issue in made.set_path("gateway.port", 1).issues] == ["gateway.bind"]
    with pytest.raises(ConfigInvalid):
        made.set_path("gateway.reload.mode", "z")
    assert made.unset_path("gateway.bind").valid


def test_unsetting_what_is_not_there_is_a_key_error(written: ConfigStore) -> None:
    with pytest.raises(KeyError):
        written.unset_path("gateway.bind")


def test_unsetting_what_an_included_file_says_is_refused(path: Path, write: Callable[[str], None]) -> None:
    write('{ ui: { $include: "ui.json5" } }')
    (path.parent / "ui.json5").write_text("{ seamColor: '#111' }")
    with pytest.raises(ConfigError, match="included"):
        store(path).unset_path("ui.seamColor")


def test_a_key_written_twice_is_removed_twice(path: Path, write: Callable[[str], None]) -> None:
    write("{ ui: {}, cron: {}, ui: {} }")
    assert store(path).unset_path("ui").parsed == {"cron": {}}


def test_unsetting_a_list_item_removes_that_item_only(path: Path, write: Callable[[str], None]) -> None:
    write("{ tools: { deny: ['a', 'b', 'c'] } }")
    assert store(path).unset_path("tools.deny[0]").parsed == {"tools": {"deny": ["b", "c"]}}


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{ broken", b"[]"])
def test_a_file_that_cannot_be_understood_is_never_edited(
    path: Path, write: Callable[[str], None], data: bytes
) -> None:
    write("")
    path.write_bytes(data)
    for attempt in (lambda: store(path).set_path("gateway.port", 1), lambda: store(path).load_or_create()):
        with pytest.raises(ConfigInvalid):
            attempt()
    assert path.read_bytes() == data


def test_a_merge_patch_removes_merges_and_replaces(written: ConfigStore, path: Path) -> None:
    patch = {"gateway": {"port": 1}, "models": {"providers": {"a": None}}, "ui": {"assistant": {"name": "Al"}}}
    after = written.merge_patch(patch, written.snapshot.hash)
    assert after.parsed == pyjson5.decode(path.read_text())
    assert after.parsed["models"] == {"providers": {}} and after.parsed["gateway"]["port"] == 1
    assert "// mine" in path.read_text() and "// keep" in path.read_text()


def test_a_merge_into_a_text_with_duplicate_keys_still_means_the_right_thing(
    path: Path, write: Callable[[str], None]
) -> None:
    write("{ ui: { seamColor: '#111' }, ui: { seamColor: '#222' }, gateway: {} }")
    made = store(path)
    after = made.merge_patch({"ui": None}, hash_of(path))
    assert after.parsed == {"gateway": {}} and json.loads(path.read_text()) == {"gateway": {}}


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("base", "words"), [(None, "config base hash required; "), ("0" * 64, "config changed since last load; ")]
)
def test_a_writer_must_have_seen_what_it_replaces(
    written: ConfigStore, path: Path, base: str | None, words: str
) -> None:
    for attempt in (lambda: written.write_raw("{}", base), lambda: written.merge_patch({"ui": {}}, base)):
        with pytest.raises(ConfigConflict) as caught:
            attempt()
        assert str(caught.value).startswith(words)
    assert path.read_text() == TEXT


def test_no_base_is_needed_where_there_is_no_file(path: Path) -> None:
    assert store(path).write_raw("{ ui: {} }", None).valid and path.read_text() == "{ ui: {} }"


def test_what_was_shown_redacted_can_be_sent_back(written: ConfigStore, path: Path) -> None:
    shown = redact_raw(TEXT, written.snapshot.parsed)
    assert "my-long-secret-token" not in shown and "key-of-a" not in shown
    written.write_raw(shown.replace("// mine", "// ours"), written.snapshot.hash)
    assert path.read_text() == TEXT.replace("// mine", "// ours")
    written.merge_patch({"gateway": {"port": 2, "auth": {"token": SENTINEL}}}, hash_of(path))
    assert pyjson5.decode(path.read_text())["gateway"] == {"auth": {"token": "my-long-secret-token"}, "port": 2}


def test_a_sentinel_for_no_stored_secret_is_refused(written: ConfigStore, path: Path) -> None:
    for attempt in (
        lambda: written.write_raw(f'{{ hooks: {{ token: "{SENTINEL}" }} }}', written.snapshot.hash),
        lambda: written.merge_patch({"hooks": {"token": SENTINEL}}, written.snapshot.hash),
        lambda: written.set_path("hooks.token", SENTINEL),
    ):
        with pytest.raises(ConfigInvalid) as caught:
            attempt()
        assert caught.value.issues[0].path == "hooks.token"
    assert path.read_text() == TEXT


def test_five_backups_are_kept(written: ConfigStore, path: Path) -> None:
    for number in range(1, 8):
        written.set_path("gateway.port", number)
    backups = [Path(f"{path}.bak"), *(Path(f"{path}.bak.{number}") for number in range(1, 5))]
    assert [pyjson5.decode(backup.read_text())["gateway"]["port"] for backup in backups] == [6, 5, 4, 3, 2]
    assert {mode(backup) for backup in backups} == {0o600}
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(
        [path.name, f"{path.name}.last-good", *(b.name for b in backups)]
    )


def test_setting_what_is_already_so_writes_nothing(written: ConfigStore, path: Path) -> None:
    before = path.stat().st_mtime_ns
    written.set_path("gateway.auth.token", "my-long-secret-token")
    assert path.stat().st_mtime_ns == before and not Path(f"{path}.bak").exists()


def test_a_link_to_the_file_stays_a_link(tmp_path: Path, path: Path, write: Callable[[str], None]) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "openclaw.json"
    real.write_text("{}")
    path.symlink_to(real)
    store(path).set_path("ui.seamColor", "#000")
    assert path.is_symlink() and "seamColor" in real.read_text()


def test_writers_at_the_same_time_lose_nothing(written: ConfigStore, path: Path) -> None:
    others = [store(path) for _ in range(4)]
    threads = [
        threading.Thread(target=other.set_path, args=(f"env.vars.V{number}", "x"))
        for number, other in enumerate(others)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pyjson5.decode(path.read_text())["env"]["vars"] == {f"V{number}": "x" for number in range(4)}


@pytest.mark.parametrize(
    ("paths", "action"),
    [
        ([], "none"),
        (["agents.defaults.model", "tools.deny", "models.providers.x", "session.reset", "messages.queue.mode"], "none"),
        (["bindings", "skills.entries", "logging.level", "ui.seamColor"], "none"),
        (["gateway.reload.mode", "gateway.remote.url"], "none"),
        (["hooks.token"], "hot"),
        (["cron.enabled", "ui.seamColor"], "hot"),
        (["agents.defaults.heartbeat.every"], "hot"),
        (["agents.list"], "hot"),
        (["channels.telegram.botToken"], "hot"),
        (["browser.enabled"], "hot"),
        (["gateway.port"], "restart"),
        (["gateway.auth.token", "channels.signal"], "restart"),
        (["plugins.enabled"], "restart"),
        (["discovery.mdns"], "restart"),
        (["canvasHost.port"], "restart"),
        (["somethingNew"], "restart"),
    ],
)
def test_a_change_asks_for_no_more_than_it_needs(paths: list[str], action: str) -> None:
    assert reload_action(paths) == action


def test_changes_are_named_by_their_key_paths() -> None:
    old = {"a": {"b": 1, "c": [1]}, "same": {"x": 1}, "gone": {"y": 1}}
    new = {"a": {"b": 2, "c": [1, 2]}, "same": {"x": 1}, "new.key": 5}
    assert changed_paths(old, new) == ["a.b", "a.c", "gone", '"new.key"']


def test_the_same_configuration_is_asked_once_and_a_new_one_again() -> None:
    derived, first, second = Derived(), Config(), Config()
    made: list[str] = []

    def make() -> str:
        made.append("made")
        return f"value {len(made)}"

    assert derived.of(first, "key", make) == derived.of(first, "key", make) == "value 1"
    assert derived.of(first, "other", make) == "value 2"
    assert derived.of(second, "key", make) == "value 3"
    assert derived.of(first, "key", make) == "value 4"


def test_it_never_keeps_more_than_it_may() -> None:
    derived, config = Derived(), Config()
    for number in range(3 * MOST_KEPT):
        assert derived.of(config, number, lambda: [0]) == [0]
        assert len(derived._made) <= MOST_KEPT
