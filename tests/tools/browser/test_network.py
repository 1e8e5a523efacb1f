"""What a page can reach: public addresses and nothing else, by whichever way it tries. With a real Chromium."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from openclaw.config.schema.system import BrowserSsrfPolicy
from openclaw.tools.base import ToolError
from tests.tools.browser.support import Driver, Names, Website, browser_config, needs_chromium
from tests.tools.browser.support import website as serve

pytestmark = pytest.mark.asyncio(loop_scope="module")
PUBLIC = "93.184.215.14"
INSIDE = ("127.0.0.1", "localhost", "inside.test", "[::1]", "0x7f.1", "2130706433", "127.0.0.1.")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Website]:
    async with serve() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(site: Website, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Driver]:
    needs_chromium()
    names = Names(site_test=["127.0.0.1"], inside_test=["127.0.0.1"], second_test=["127.0.0.1"])
    made = Driver(tmp_path_factory.mktemp("state"), browser_config(), names)
    yield made
    await made.browsers.close()


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def begin(driver: Driver, site: Website) -> None:
    driver.config = browser_config()
    await driver.do("navigate", targetUrl=site.url("/start"))
    site.asked.clear()


def reached(site: Website) -> list[str]:
    """What was asked of other hosts. The browser asks for an icon of the page when it likes."""
    return [place for place in site.asked if not place.startswith("site.test")]


@pytest.mark.parametrize("host", INSIDE)
async def test_no_private_host_is_opened(driver: Driver, site: Website, host: str) -> None:
    with pytest.raises(ToolError, match="is not a public address"):
        await driver.do("navigate", targetUrl=site.url("/secret", host))
    assert not reached(site)


@pytest.mark.parametrize(
    "address",
    [
        *("file:///etc/passwd", "chrome://version", "data:text/html,<p>x", "view-source:http://site.test/"),
        *("javascript:alert(1)", "ftp://site.test/", "devtools://x", "ws://site.test/", "blob:http://site.test/1"),
        *("about:config", "http://", "//site.test/", "chrome-extension://abc/x.html", "filesystem:http://site.test/x"),
    ],
)
async def test_only_pages_of_the_web_are_opened(driver: Driver, address: str) -> None:
    for action in ("open", "navigate"):
        with pytest.raises(ToolError, match="was not opened"):
            await driver.do(action, targetUrl=address)


async def test_a_redirect_to_a_private_host_is_refused(driver: Driver, site: Website) -> None:
    inside = site.url("/secret", "inside.test")
    site.pages["/redirect"] = lambda _: web.Response(status=302, headers={"Location": inside})
    with pytest.raises(ToolError, match=r"inside\.test is not a public address"):
        await driver.do("navigate", targetUrl=site.url("/redirect"))
    site.pages["/meta"] = f"<meta http-equiv=refresh content='0;url={inside}'>"
    await driver.do("navigate", targetUrl=site.url("/meta"))
    await driver.act("wait", url="inside.test", timeoutMs=60_000)
    site.pages["/link"] = f"<a href='{inside}'>go</a>"
    await driver.do("navigate", targetUrl=site.url("/link"))
    refs = await driver.refs()
    await driver.act("click", ref=refs["link go"])
    clicked = await driver.act("wait", url="inside.test", timeoutMs=60_000)
    assert "inside.test is not a public address" in clicked["pageError"]
    assert "secret" not in (await driver.do("snapshot"))["snapshot"].partition("inside.test")[0]
    assert not reached(site)


async def test_no_request_of_a_page_reaches_a_private_host(driver: Driver, site: Website) -> None:
    """Pictures, scripts, styles, frames, fetch, beacons, WebSockets, event streams and workers."""
    port = site.port
    for host in ("127.0.0.1", "inside.test", "localhost"):
        base = f"{host}:{port}"
        site.pages["/worker.js"] = lambda _, base=base: web.Response(
            text=f"fetch('http://{base}/worker',{{mode:'no-cors'}}).finally(()=>postMessage(1)).catch(()=>0);"
            f"try{{new WebSocket('ws://{base}/workersocket')}}catch(e){{}}",
            content_type="text/javascript",
        )
        site.pages["/all"] = f"""<img src="http://{base}/img"><script src="http://{base}/script"></script>
            <link rel=stylesheet href="http://{base}/style"><link rel=prefetch href="http://{base}/prefetch">
            <iframe src="http://{base}/frame"></iframe><object data="http://{base}/object"></object>"""
        await driver.do("navigate", targetUrl=site.url("/all"))
        tried = await driver.evaluate(
            f"""async () => {{
            const ended = [];
            const note = name => ended.push(name);
            await fetch('http://{base}/fetch', {{mode: 'no-cors'}}).then(() => note('reached'), () => note('fetch'));
            navigator.sendBeacon('http://{base}/beacon', 'x');
            await new Promise(done => {{
              const socket = new WebSocket('ws://{base}/socket');
              socket.onopen = () => {{ note('reached'); done(); }};
              socket.onerror = () => {{ note('socket'); done(); }};
            }});
            await new Promise(done => {{
              const source = new EventSource('http://{base}/events');
              source.onerror = () => {{ note('events'); source.close(); done(); }};
            }});
            await new Promise(done => {{
              const worker = new Worker('/worker.js'); worker.onmessage = () => {{ note('worker'); done(); }};
            }});
            return ended; }}"""
        )
        assert tried == ["fetch", "socket", "events", "worker"]
    assert not reached(site)


async def test_a_service_worker_reaches_no_private_host(driver: Driver, site: Website) -> None:
    """Browsers run them on localhost without a certificate, so the owner opens that one host here."""
    driver.names.answers["localhost"] = ["127.0.0.1"]
    driver.config = browser_config(ssrf_policy=BrowserSsrfPolicy(allowed_hostnames=["localhost"]))
    site.pages["/sw.js"] = lambda _: web.Response(
        text=f"""oninstall = event => event.waitUntil(fetch('{site.url("/secret", "127.0.0.1")}', {{mode: 'no-cors'}})
            .then(() => 'reached', () => 'refused').then(word => self.told = word));
            onfetch = event => {{
              if (event.request.url.endsWith('/told')) event.respondWith(new Response(self.told)) }};
            onactivate = event => event.waitUntil(clients.claim())""",
        content_type="text/javascript",
    )
    await driver.do("navigate", targetUrl=site.url("/worker", "localhost"))
    told = await driver.evaluate(
        """async () => { await navigator.serviceWorker.register('/sw.js'); await navigator.serviceWorker.ready;
        if (!navigator.serviceWorker.controller)
          await new Promise(done => navigator.serviceWorker.addEventListener('controllerchange', done));
        return await (await fetch('/told')).text() }"""
    )
    assert told == "refused" and "localhost/sw.js" in site.asked
    assert not [place for place in site.asked if place.startswith("127.0.0.1")]


async def test_a_name_that_changes_where_it_leads_gains_nothing(driver: Driver, site: Website) -> None:
    driver.names.answers["rebind.test"] = [PUBLIC, "127.0.0.1"]
    before = len(driver.names.asked)
    opened: list[str] = []

    async def connect(addresses: list[str], port: int) -> None:
        opened.extend(addresses)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openclaw.tools.browser.guard._connect", connect)
        for _ in range(3):
            with pytest.raises(ToolError, match="was not opened"):
                await driver.do("navigate", targetUrl=site.url("/secret", "rebind.test"))
    assert set(opened) == {PUBLIC}, "only the address that was checked is connected to"
    asked = driver.names.asked[before:]
    assert asked.count("rebind.test") >= 3 and not reached(site)


async def test_a_host_with_one_private_address_among_public_ones_is_refused(driver: Driver, site: Website) -> None:
    async def both(host: str, port: int, family: object) -> list[dict[str, object]]:
        return [{"host": PUBLIC, "port": port}, {"host": "10.0.0.1", "port": port}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.names, "resolve", both)
        with pytest.raises(ToolError, match=r"mixed\.test is not a public address"):
            await driver.do("navigate", targetUrl=site.url("/", "mixed.test"))


async def test_the_owner_opens_what_he_needs(driver: Driver, site: Website) -> None:
    driver.config = browser_config(ssrf_policy=BrowserSsrfPolicy(dangerously_allow_private_network=True))
    done = await driver.do("navigate", targetUrl=site.url("/inside", "127.0.0.1"))
    assert done["ok"] and "127.0.0.1/inside" in site.asked
    only = BrowserSsrfPolicy(allowed_hostnames=["*.test"], hostname_allowlist=["site.test"])
    driver.config = browser_config(ssrf_policy=only)
    assert (await driver.do("navigate", targetUrl=site.url("/x", "inside.test")))["ok"]
    with pytest.raises(ToolError, match=r"not in browser\.ssrfPolicy\.hostnameAllowlist"):
        await driver.do("navigate", targetUrl="http://elsewhere.example/")
    driver.config = browser_config()
    await driver.browsers.settings_changed()
    with pytest.raises(ToolError, match=r"inside\.test is not a public address"):
        await driver.do("navigate", targetUrl=site.url("/x", "inside.test"))


async def test_nothing_is_downloaded(driver: Driver, site: Website) -> None:
    headers = {"Content-Disposition": "attachment; filename=evil.sh"}
    site.pages["/file"] = lambda _: web.Response(body=b"#!/bin/sh", headers=headers)
    with pytest.raises(ToolError, match="files are not downloaded"):
        await driver.do("navigate", targetUrl=site.url("/file"))
    assert not list(driver.state.rglob("evil.sh"))
