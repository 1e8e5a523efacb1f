"""The life of a browser: it starts when it is needed, is started again after a crash, and nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from openclaw.config.schema.system import BrowserProfile
from openclaw.rights import GUEST_CALLER
from openclaw.tools.base import ToolError
from openclaw.tools.browser.browsers import MOST_TABS, BrowserUnavailable, find_program
from tests.support.clock import HeldClock
from tests.tools.browser.support import (
    Driver,
    Names,
    Website,
    browser_config,
    chromium,
    needs_chromium,
    processes_of,
)
from tests.tools.browser.support import website as serve


@pytest.fixture
async def site() -> AsyncIterator[Website]:
    async with serve() as made:
        yield made


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    made = Driver(tmp_path / "state", browser_config(), Names(site_test=["127.0.0.1"]))
    yield made
    await made.browsers.close()


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


async def test_a_crash_is_told_and_the_browser_is_started_again(driver: Driver, site: Website) -> None:
    needs_chromium()
    assert (await driver.do("status"))["running"] is False and not processes_of(driver.state)
    assert await driver.do("tabs") == {"running": False, "tabs": []}, "asking starts nothing"
    await driver.do("open", targetUrl=site.url("/form"))
    status = await driver.do("status")
    assert status["running"] and status["tabs"] == 1 and status["product"].startswith("Chrome/")
    await driver.evaluate("() => { document.cookie = 'kept=yes; max-age=86400' }")
    os.kill(status["pid"], signal.SIGKILL)
    await until(lambda: driver.browsers.running("openclaw") is None, "the end is noticed")
    assert (await driver.do("status"))["running"] is False
    again = await driver.do("open", targetUrl=site.url("/form"))
    assert again["title"] == "Order" and (await driver.do("status"))["pid"] != status["pid"]
    assert os.stat(driver.state / "browser").st_mode & 0o077 == 0
    await driver.do("stop")
    assert not processes_of(driver.state) and (await driver.do("status"))["running"] is False


async def test_a_page_that_crashes_takes_no_other_with_it(driver: Driver, site: Website) -> None:
    needs_chromium()
    first = await driver.do("open", targetUrl=site.url("/form"))
    second = await driver.do("open", targetUrl=site.url("/other"))
    browser = driver.browsers.running("openclaw")
    assert browser is not None
    asyncio.ensure_future(browser.tabs[second["targetId"]].call("Page.crash", timeout=1)).add_done_callback(
        lambda done: done.exception()
    )
    await until(lambda: browser.tabs[second["targetId"]].crashed, "the crash is noticed")
    with pytest.raises(ToolError, match="the page crashed; navigate to load it again"):
        await driver.do("snapshot", targetId=second["targetId"])
    assert "Your order" in (await driver.do("snapshot", targetId=first["targetId"]))["snapshot"]
    await driver.do("navigate", targetId=second["targetId"], targetUrl=site.url("/other"))
    assert "this is /other" in (await driver.do("snapshot", targetId=second["targetId"]))["snapshot"]
    with pytest.raises(ToolError, match=f"{MOST_TABS} tabs are open"):
        for _ in range(MOST_TABS):
            await browser.open_tab("agent:main:main")
    await driver.evaluate("() => { for (let n = 0; n < 30; n++) window.open('/popup' + n, 'w' + n) }")
    assert len((await driver.do("tabs"))["tabs"]) <= MOST_TABS + 1


async def test_a_browser_that_nobody_uses_is_ended(tmp_path: Path, site: Website) -> None:
    needs_chromium()
    clock = HeldClock()
    driver = Driver(tmp_path / "state", browser_config(idle_minutes=10), Names(site_test=["127.0.0.1"]), clock)
    await driver.do("open", targetUrl=site.url("/form"))
    pid = (await driver.do("status"))["pid"]
    clock.advance(9 * 60)
    await asyncio.sleep(0)
    assert (await driver.do("status"))["pid"] == pid

    def later() -> bool:
        clock.advance(60)
        return not processes_of(driver.state)

    await until(later, "it is ended")
    assert driver.browsers.running("openclaw") is None
    driver.config = browser_config(enabled=False)
    with pytest.raises(ToolError, match=r"switched off \(browser\.enabled\)"):
        await driver.do("open", targetUrl=site.url("/form"))
    await driver.browsers.close()


async def test_settings_that_change_start_another_browser(driver: Driver, site: Website) -> None:
    needs_chromium()
    await driver.do("start")
    driver.config = browser_config(headless=True, idle_minutes=3)
    await driver.browsers.settings_changed()
    assert (await driver.do("status"))["running"], "it has nothing to do with how it was started"
    driver.config = browser_config(enabled=False)
    await driver.browsers.settings_changed()
    assert not processes_of(driver.state)


ORPHAN = """
import asyncio, os, sys
from pathlib import Path
from tests.tools.browser.support import Driver, Names, browser_config
async def main():
    driver = Driver(Path(sys.argv[1]), browser_config(), Names())
    await driver.do("start")
    print("started", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_killed_gateway_leaves_no_browser_behind(tmp_path: Path) -> None:
    needs_chromium()
    state = tmp_path / "state"
    script = [sys.executable, "-c", ORPHAN, str(state)]
    child = subprocess.Popen(script, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == b"started\n"
    assert processes_of(state)
    child.kill()
    await asyncio.to_thread(child.wait)
    child.stdout.close()
    await until(lambda: not any(pid != child.pid for pid in processes_of(state)), "the browser ends by itself")


async def test_a_browser_that_already_runs_is_driven_over_a_websocket(
    driver: Driver, site: Website, tmp_path: Path
) -> None:
    needs_chromium()
    port, data = tmp_path / "data" / "DevToolsActivePort", tmp_path / "data"
    arguments = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={data}", "--no-first-run"]
    # Its own network reaches this machine by another name. The Gateway still looks at each request.
    arguments += ["--host-resolver-rules=MAP *.test 127.0.0.1"]
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    running = subprocess.Popen(
        [chromium() or "", *arguments, "about:blank"], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        await until(lambda: port.exists() and bool(port.read_text().strip()), "it listens")
        number = port.read_text().split()[0]
        driver.names.answers |= {"inside.test": ["127.0.0.1"], "second.test": ["127.0.0.1"]}
        driver.config = browser_config(profiles={"mine": BrowserProfile(cdp_url=f"http://127.0.0.1:{number}")})
        await driver.do("open", profile="mine", targetUrl=site.url("/form"))
        seen = await driver.do("snapshot", profile="mine")
        assert "Your order" in seen["snapshot"]
        site.pages["/inner"] = f"<img src='{site.url('/secret', 'inside.test')}'>inner"
        site.pages["/img"] = f"{site.pages['/inner']}<iframe src='{site.url('/inner', 'second.test')}'></iframe>"
        await driver.do("navigate", profile="mine", targetUrl=site.url("/img"))
        await until(lambda: "second.test/inner" in site.asked, "a frame of another site is loaded")
        site.pages["/away"] = lambda _: web.Response(status=302, headers={"Location": site.url("/in", "inside.test")})
        with pytest.raises(ToolError, match="was not opened"):
            await driver.do("navigate", profile="mine", targetUrl=site.url("/away"))
        assert not [place for place in site.asked if place.startswith("inside.test")]
        with pytest.raises(ToolError, match="another machine"):
            await driver.do("upload", profile="mine", paths=["a.txt"])
        assert (await driver.do("status", profile="mine"))["cdpUrl"] == f"http://127.0.0.1:{number}"
        await driver.do("stop", profile="mine")
        assert running.poll() is None, "it is not ours to end"
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    with pytest.raises(ToolError, match="cannot be used: it does not answer"):
        await driver.do("start", profile="mine")


# Without a browser


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"executable_path": "/nonexistent/chromium"},
            "browser.executablePath: /nonexistent/chromium is not an executable program",
        ),
        ({"attach_only": True}, "browser.attachOnly is set"),
        ({"enabled": False}, "switched off"),
    ],
)
async def test_why_there_is_no_browser_is_told(driver: Driver, config: dict[str, Any], why: str) -> None:
    driver.config = browser_config(**config)
    with pytest.raises(ToolError, match=why):
        await driver.do("open", targetUrl="http://example.org/")
    assert not driver.browsers.offered()


async def test_a_program_that_is_no_browser_is_told(driver: Driver, tmp_path: Path) -> None:
    program = tmp_path / "fake"
    program.write_text("#!/bin/sh\necho 'cannot open display' >&2\nexit 3\n")
    program.chmod(0o700)
    driver.config = browser_config(executable_path=str(program), no_sandbox=True)
    with pytest.raises(ToolError, match="did not start; it said: cannot open display"):
        await driver.do("start")


def test_a_missing_browser_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BrowserUnavailable, match="apt install chromium"):
        find_program(browser_config(), {"PATH": str(tmp_path)})


async def test_profiles_groups_and_unknown_words(driver: Driver) -> None:
    driver.config = browser_config(default_profile="work", profiles={"far": BrowserProfile(cdp_url="ws://127.0.0.1:9")})
    rows = (await driver.do("profiles"))["profiles"]
    assert [(row["name"], row["isDefault"], row["isRemote"]) for row in rows] == [
        ("work", True, False),
        ("openclaw", False, False),
        ("far", False, True),
    ]
    for arguments, why in (
        ({"profile": "other"}, "unknown browser profile 'other'; profiles: work, openclaw, far"),
        ({"target": "sandbox"}, "only the browser of the host"),
        ({"target": "node"}, "only the browser of the host"),
    ):
        with pytest.raises(ToolError, match=why):
            await driver.do("start", **arguments)
    driver.context.caller = GUEST_CALLER
    for action in ("status", "tabs", "start", "open"):
        with pytest.raises(ToolError, match=r"not for group chats and other people, .* browser\.allowInGroups"):
            await driver.do(action)
    driver.config = browser_config(allow_in_groups=True)
    assert json.dumps(await driver.do("profiles"))
