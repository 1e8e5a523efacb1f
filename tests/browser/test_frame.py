"""The frame of the page: who gets in, what text from outside can do, languages, themes, keyboard and phones."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from tests.browser.support import ELSEWHERE, Tab, WebGateway, new_tab
from tests.support.gateway import TOKEN

pytestmark = pytest.mark.asyncio(loop_scope="package")

# fmt: off
PAGES = (
    "Sessions", "Transcript", "Context", "Messages", "Agents", "Channels", "Approvals", "Usage",
    "Logs", "Debug", "Settings",
)
# fmt: on


async def test_signing_in_keeps_the_token_out_of_addresses_and_of_what_stays(
    browser: Browser, gateway: WebGateway
) -> None:
    tab = await (await new_tab(browser, gateway)).open("/", signed_in=False)
    field = tab.page.get_by_label("Gateway token")
    await field.fill("wrong")
    await tab.button("Sign in").click()
    await expect(tab.page.get_by_role("alert")).to_contain_text("The Gateway has another token.")
    await field.fill(TOKEN)
    await field.press("Enter")
    await expect(tab.log).to_be_visible()
    assert TOKEN not in tab.page.url
    kept = "JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage)])"
    assert TOKEN not in await tab.page.evaluate(kept)
    await tab.page.reload()
    await expect(tab.log).to_be_visible()
    await tab.button("Preferences").click()
    await tab.button("Sign out").click()
    await expect(field).to_be_visible()
    await tab.page.reload()
    await expect(field).to_be_visible()
    await tab.page.goto(f"{gateway.url}/chat?session=agent:main:main#token={TOKEN}")
    await expect(tab.log).to_be_visible()
    assert tab.page.url == f"{gateway.url}/chat?session=agent:main:main"
    assert tab.errors == []
    await tab.page.context.close()


async def test_a_page_of_another_origin_is_refused(browser: Browser, gateway: WebGateway) -> None:
    async def evil(_request: web.BaseRequest) -> web.Response:
        return web.Response(text="<title>evil</title>", content_type="text/html")

    # Its name is not the Gateway's, and the browser takes it to be this machine.
    server = await asyncio.get_running_loop().create_server(web.Server(evil), "127.0.0.1", 0)
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(f"http://evil.localhost:{server.sockets[0].getsockname()[1]}/")
    told = await page.evaluate(
        """([url, token]) => new Promise((resolve) => {
          const socket = new WebSocket(url);
          const client = { id: "openclaw-control-ui", version: "1", platform: "web", mode: "webchat" };
          socket.onmessage = ({ data }) => {
            const frame = JSON.parse(data);
            if (frame.type === "res") resolve(frame.error?.message ?? "let in");
            else socket.send(JSON.stringify({ type: "req", id: "1", method: "connect",
              params: { minProtocol: 3, maxProtocol: 3, client, auth: { token } } }));
          };
          socket.onclose = () => resolve("closed");
        })""",
        [gateway.url.replace("http", "ws"), TOKEN],
    )
    assert told.startswith("origin not allowed")
    await context.close()
    server.close()


HOSTILE = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2">

[press me](javascript:window.hacked=3) [and me](data:text/html,<script>window.hacked=4</script>)
[and me](  JaVaScRiPt:window.hacked=5) [fine](https://example.com/a?b=1) <https://example.com/auto>

![x](https://tracker.example/pixel.png) ![y](javascript:window.hacked=6)

"""


async def test_hostile_markdown_is_only_text(tab: Tab) -> None:
    wide = "|" + "column|" * 200 + "\n|" + "-|" * 200 + "\n" + ("|" + "cell|" * 200 + "\n") * 30
    deep = ">" * 300 + " deep\n\n" + "- " * 200 + "deeper\n\n" + "*" * 2000 + "\n\n"
    tab.gateway.model.queue(HOSTILE + wide + "\n" + deep + "\nthe end")
    await tab.say("<img src=x onerror=window.hacked=7> [me](javascript:window.hacked=8)")
    await tab.sees("the end")
    assert await tab.page.evaluate("window.hacked") is None
    assert await tab.log.locator("script, img, iframe, object, [onerror]").count() == 0
    links = await tab.log.locator("a[href]").evaluate_all("(all) => all.map((one) => one.href)")
    assert links and all(re.match(r"https://(example\.com|tracker\.example)/", one) for one in links)
    assert all(
        await tab.log.locator("a[href]").evaluate_all("(all) => all.map((one) => one.rel === 'noopener noreferrer')")
    )
    assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_the_page_speaks_spanish_and_remembers_it(tab: Tab) -> None:
    await tab.button("Preferences").click()
    await tab.page.get_by_label("Language").select_option("es")
    await expect(tab.page.get_by_role("button", name="Enviar")).to_be_visible()
    await expect(tab.page.get_by_role("navigation", name="Conversaciones")).to_be_visible()
    await tab.page.reload()
    await expect(tab.page.get_by_role("textbox", name="Mensaje")).to_be_visible()
    assert await tab.page.evaluate("document.documentElement.lang") == "es"
    await tab.go("Ajustes")
    await expect(tab.page.get_by_text("Proveedores de modelos.", exact=True)).to_be_visible()


async def scan(tab: Tab, where: str) -> None:
    found = await Axe().run(tab.page)
    problems = [(one["id"], one["nodes"][0]["html"][:200]) for one in found.response["violations"]]
    assert problems == [], where


@pytest.mark.parametrize(("scheme", "pages"), [("light", PAGES), ("dark", PAGES)])
async def test_every_page_is_accessible(tab: Tab, scheme: str, pages: tuple[str, ...]) -> None:
    await tab.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    tab.gateway.model.queue(
        "# Title\n\n```\ncode\n```\n\n|a|b|\n|-|-|\n|1|2|\n\n- [x] done\n\n[link](https://example.com)"
    )
    await tab.say("Something to look at")
    await tab.sees("done")
    await expect(tab.button("Stop")).to_have_count(0)
    await scan(tab, f"Chat, {scheme}")
    for name in pages:
        await tab.go(name)
        await expect(tab.page.get_by_role("heading", name=name, exact=True)).to_be_attached()
        await expect(tab.page.get_by_text("Loading…")).to_have_count(0)
        await scan(tab, f"{name}, {scheme}")


async def test_every_page_fits_a_phone(tab: Tab) -> None:
    await tab.page.set_viewport_size({"width": 360, "height": 780})
    tab.gateway.model.queue("An answer with averyveryverylongwordthatcannotbebrokenanywhere" + "x" * 200)
    await tab.say("Something to look at")
    await tab.sees("An answer")
    for name in PAGES:
        await tab.button("Menu").click()
        await tab.go(name)
        await expect(tab.page.get_by_role("heading", name=name, exact=True)).to_be_attached()
        await expect(tab.page.get_by_text("Loading…")).to_have_count(0)
        assert await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


async def test_the_keyboard_is_enough(tab: Tab) -> None:
    await expect(tab.box).to_be_focused()
    await tab.page.keyboard.type("Written by hand")
    await tab.page.keyboard.press("Shift+Enter")
    await tab.page.keyboard.type("in two lines")
    await tab.page.keyboard.press("Enter")
    await tab.sees("ok")
    await expect(tab.log.get_by_role("article", name="You")).to_have_text(re.compile(r"Written by hand\s+in two lines"))
    await tab.page.goto(f"{tab.gateway.url}/sessions")
    await expect(tab.page.get_by_role("heading", name="Sessions")).to_be_visible()
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_role("link", name="Skip to content")).to_be_focused()
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("main")).to_be_focused()


def with_page(**control_ui: Any) -> dict[str, Any]:
    return {"mode": "local", "auth": {"mode": "token", "token": TOKEN}, "controlUi": control_ui}


async def test_the_page_works_below_a_base_path(browser: Browser, tmp_path: Path) -> None:
    async with WebGateway(tmp_path / "state", gateway=with_page(basePath="/claw")) as gateway:
        assert isinstance(gateway, WebGateway)
        tab = await (await new_tab(browser, gateway)).open("/claw/chat")
        await tab.say("Below")
        await tab.sees("ok")
        await tab.go("Messages")
        await expect(tab.page.get_by_role("row").filter(has_text="Below")).to_be_visible()
        assert tab.page.url.startswith(f"{gateway.url}/claw/messages")
        await tab.page.reload()
        await expect(tab.page.get_by_role("row").filter(has_text="Below")).to_be_visible()
        assert tab.errors == []
        await tab.page.context.close()


@pytest.mark.parametrize("allowed", [False, True])
async def test_without_a_secure_context_the_token_alone_is_enough_only_if_that_is_allowed(
    browser: Browser, tmp_path: Path, allowed: bool
) -> None:
    page = with_page(allowInsecureAuth=allowed, allowedOrigins=[f"http://{ELSEWHERE}"])
    async with WebGateway(tmp_path / "state", gateway=page) as gateway:
        assert isinstance(gateway, WebGateway)
        tab = await new_tab(browser, gateway)
        await tab.page.goto(f"http://{ELSEWHERE}:{gateway.port}/chat#token={TOKEN}")
        assert not await tab.page.evaluate("isSecureContext")
        if allowed:
            await tab.say("From elsewhere")
            await tab.sees("ok")
        else:
            await expect(tab.page.get_by_role("alert")).to_contain_text("requires HTTPS or localhost")
        assert tab.errors == []
        await tab.page.context.close()


async def test_an_address_without_a_page_says_so(tab: Tab) -> None:
    await tab.page.goto(f"{tab.gateway.url}/nowhere")
    await expect(tab.page.get_by_text("There is no such page.")).to_be_visible()


async def test_the_dashboard_command_signs_a_browser_in_once_and_without_the_token_in_an_address(
    browser: Browser, gateway: WebGateway
) -> None:
    done = await gateway.command("dashboard", "--json")
    address = json.loads(done.stdout)["signInUrl"]
    assert TOKEN not in address and "?" not in address
    asked: list[str] = []
    tab = await new_tab(browser, gateway)
    tab.page.on("request", lambda request: asked.append(request.url))
    await tab.page.goto(address)
    await expect(tab.page.locator(".frame")).to_be_visible()
    assert "ticket" not in tab.page.url
    assert not [url for url in asked if TOKEN in url or "ticket" in url]
    again = await new_tab(browser, gateway)
    await again.page.goto(address)
    await expect(again.page.get_by_role("heading", name="Sign in to your Gateway")).to_be_visible()
    for opened in (tab, again):
        await opened.page.context.close()
