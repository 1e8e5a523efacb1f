"""Log files and console lines."""

import io
import json
import logging
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openclaw import redact
from openclaw.config.schema.system import Logging
from openclaw.gateway import logs as module
from openclaw.gateway.logs import BoundedQueue, DailyFile, Logs, log_path, prune


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("openclaw")
    before = (root.level, own.level)
    yield
    root.setLevel(before[0])
    own.setLevel(before[1])
    redact.configure(None)


def written(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_path(str(state), None).read_text().splitlines()]


def test_a_line_is_json_with_the_fields_parsers_look_for(tmp_path: Path) -> None:
    logs = Logs.start(str(tmp_path), Logging(), console=None)
    logging.getLogger("openclaw.gateway.ws").info("hello %s", "you", extra={"fields": {"conn": "c1", "ms": 5}})
    logs.stop()
    (line,) = written(tmp_path)
    assert (line["level"], line["subsystem"], line["message"]) == ("info", "gateway/ws", "hello you")
    assert line["fields"] == {"conn": "c1", "ms": 5}
    assert (line["0"], line["1"]) == ("gateway/ws", "hello you")
    assert line["_meta"]["logLevelName"] == "INFO"
    assert json.loads(line["_meta"]["name"]) == {"subsystem": "gateway/ws"}
    assert line["_meta"]["date"] == line["time"]


def test_secrets_reach_neither_file_nor_console(tmp_path: Path) -> None:
    console = io.StringIO()
    logs = Logs.start(str(tmp_path), Logging(), console=console)
    log = logging.getLogger("openclaw.x")
    log.warning(
        "OPENAI_API_KEY=%s", "abcdefghijklmnopqrstuv", extra={"fields": {"auth": "Bearer abcdefghijklmnopqrstuv"}}
    )
    try:
        raise ValueError("token=abcdefghijklmnopqrstuv")
    except ValueError:
        log.exception("failed")
    logs.stop()
    text = log_path(str(tmp_path), None).read_text() + console.getvalue()
    assert "abcdefghijklmnopqrstuv" not in text
    assert "abcdef…stuv" in text
    assert "ValueError" in written(tmp_path)[1]["fields"]["trace"]


def test_redaction_can_be_switched_off(tmp_path: Path) -> None:
    logs = Logs.start(str(tmp_path), Logging(redact_sensitive="off"), console=None)
    logging.getLogger("openclaw.x").info("token=abcdefghijkl")
    logs.stop()
    assert written(tmp_path)[0]["message"] == "token=abcdefghijkl"


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    logs = Logs.start(str(tmp_path), Logging(), console=None)
    logging.getLogger("openclaw.x").info("x")
    logs.stop()
    path = log_path(str(tmp_path), None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_levels_of_file_and_console_are_independent(tmp_path: Path) -> None:
    console = io.StringIO()
    logs = Logs.start(str(tmp_path), Logging(level="warn"), console=console, verbose=True)
    logging.getLogger("openclaw.x").debug("detail")
    logging.getLogger("openclaw.x").warning("attention")
    logs.stop()
    assert [line["message"] for line in written(tmp_path)] == ["attention"]
    assert "[x] detail" in console.getvalue()


def test_a_configured_file_is_used_instead(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "my.log"
    logs = Logs.start(str(tmp_path), Logging(file=str(file)), console=None)
    logging.getLogger("openclaw.x").info("x")
    logs.stop()
    assert json.loads(file.read_text())["message"] == "x"


def test_console_lines_have_time_subsystem_text_and_cannot_be_forged(tmp_path: Path) -> None:
    console = io.StringIO()
    logs = Logs.start(str(tmp_path), Logging(), console=console)
    logging.getLogger("openclaw.gateway.ws").info("client\n2026-01-01T00:00:00 [ws] forged \x1b[31m")
    logs.stop()
    (line,) = console.getvalue().splitlines()
    assert line.split(" ", 2)[1] == "[ws]"
    assert "\x1b" not in line


def test_a_new_day_starts_a_new_file_and_old_ones_go(tmp_path: Path) -> None:
    handler = DailyFile(str(tmp_path), None)
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("openclaw-2026-11-01.log", "openclaw-2026-11-14.log", "notes.log", "openclaw-2026-13-99.log"):
        (folder / name).write_text("x")
    noon = time.mktime((2026, 11, 15, 12, 0, 0, 0, 0, -1))
    for moment in (noon, noon + 86_400):
        record = logging.LogRecord("openclaw.x", logging.INFO, "", 0, "m", None, None)
        record.created = moment
        handler.emit(record)
    handler.close()
    names = sorted(path.name for path in folder.iterdir())
    assert names == [
        "notes.log",
        "openclaw-2026-11-14.log",
        "openclaw-2026-11-15.log",
        "openclaw-2026-11-16.log",
        "openclaw-2026-13-99.log",
    ]


def test_pruning_leaves_a_folder_with_other_names_alone(tmp_path: Path) -> None:
    (tmp_path / "openclaw-2020-01-01.log").write_text("x")
    prune(tmp_path, today="custom.log")
    assert (tmp_path / "openclaw-2020-01-01.log").exists()


def test_a_file_that_grows_too_large_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 500)
    handler = DailyFile(str(tmp_path), str(tmp_path / "x.log"))
    for number in range(10):
        handler.emit(logging.LogRecord("openclaw.x", logging.INFO, "", 0, f"line {number}", None, None))
    handler.close()
    assert (tmp_path / "x.log.1").exists()
    assert (tmp_path / "x.log").stat().st_size < 1000


def test_when_the_writer_cannot_keep_up_lines_are_dropped_and_counted() -> None:
    import queue

    lines: queue.Queue[Any] = queue.Queue(2)
    handler = BoundedQueue(lines)
    log = logging.Logger("openclaw.test")
    log.addHandler(handler)
    for number in range(5):
        log.warning("n%d", number)
    assert (lines.qsize(), handler.dropped) == (2, 3)
    lines.get()
    log.warning("again")
    lines.get()
    assert "(3 lines before this one were dropped)" in lines.get().getMessage()


def test_writing_happens_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    emit = DailyFile.emit

    def watched(self: DailyFile, record: logging.LogRecord) -> None:
        threads.append(threading.get_ident())
        emit(self, record)

    monkeypatch.setattr(DailyFile, "emit", watched)
    logs = Logs.start(str(tmp_path), Logging(), console=None)
    logging.getLogger("openclaw.x").info("x")
    logs.stop()
    assert threads and threading.get_ident() not in threads
