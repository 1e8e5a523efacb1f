"""Agents, Channels, Approvals, Usage, Settings, Logs and Debug, as a person uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from openclaw.messages import ToolCall
from tests.browser.support import Tab, WebGateway, new_tab
from tests.support.scripted_model import Answer

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_command_is_allowed_in_the_chat_and_denied_on_its_page(browser: Browser, tmp_path: Path) -> None:
    tools = {"exec": {"host": "gateway", "security": "allowlist", "ask": "always"}}
    async with WebGateway(tmp_path / "state", tools=tools) as gateway:
        assert isinstance(gateway, WebGateway)
        made, workspace = "made-by-the-agent.txt", gateway.state_dir / "workspace"
        tab = await (await new_tab(browser, gateway)).open("/chat")
        for name, answer in ((made, "Allow once"), ("never.txt", "Deny")):
            call = ToolCall(id=f"c-{name}", name="exec", arguments={"command": f"echo hello > {name}"})
            gateway.model.queue(Answer("I ask.", calls=[call]), f"Heard about {name}.")
            await tab.say(f"Make {name}")
            if answer == "Deny":
                await tab.go("Approvals")
            question = tab.page.get_by_role("alertdialog", name="May this command run?")
            await expect(question.get_by_label("Command")).to_contain_text(f"echo hello > {name}")
            await question.get_by_role("button", name=answer).click()
            await expect(question).to_have_count(0)
            await tab.go("Chat")
            await tab.sees(f"Heard about {name}.")
        assert (workspace / made).read_text() == "hello\n"
        assert not (workspace / "never.txt").exists()
        assert tab.errors == []
        await tab.page.context.close()


async def test_the_files_of_an_agent_and_a_scheduled_job(tab: Tab) -> None:
    await tab.go("Agents")
    await tab.page.get_by_role("button", name="SOUL.md").click()
    dialog = tab.page.get_by_role("dialog")
    await dialog.get_by_label("SOUL.md").fill("You love herons.\n")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_have_count(0)
    assert (tab.gateway.state_dir / "workspace" / "SOUL.md").read_text() == "You love herons.\n"
    await tab.button("New job").click()
    await dialog.get_by_label("Name").fill("Morning")
    await dialog.get_by_label("What the agent is told").fill("Say good morning")
    await dialog.get_by_label("Cron expression").fill("not a schedule")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await dialog.get_by_label("Cron expression").fill("0 7 * * *")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_have_count(0)
    await expect(tab.page.get_by_role("heading", name="Morning")).to_be_visible()
    await tab.button("Run now").click()
    await tab.gateway.model.asked(1, 45)
    await tab.button("History").click()
    await expect(dialog).to_contain_text("Morning")
    await tab.page.keyboard.press("Escape")
    await tab.button("Switch off").click()
    await expect(tab.button("Switch on")).to_be_visible()
    await tab.button("Remove").click()
    await tab.button("Really? Remove").click()
    await expect(tab.page.get_by_text("No job is scheduled.")).to_be_visible()


async def test_channels_and_who_asks_to_be_let_in(browser: Browser, tmp_path: Path) -> None:
    signal = {"account": "+15550001111", "httpUrl": "http://127.0.0.1:9"}
    async with WebGateway(tmp_path / "state", channels={"signal": signal}) as gateway:
        assert isinstance(gateway, WebGateway)
        tab = await (await new_tab(browser, gateway)).open("/channels")
        await expect(tab.page.get_by_role("heading", name="Signal")).to_be_visible()
        await expect(tab.page.get_by_role("listitem").filter(has_text="no message yet")).to_have_count(1)
        await gateway.gateway.pairing.ask("signal", "+15552223333", {"name": "Ann"})
        await tab.page.reload()
        asks = tab.page.get_by_role("listitem").filter(has_text="+15552223333")
        await tab.page.get_by_label("Tell them on their channel").uncheck()
        await asks.get_by_role("button", name="Approve").click()
        await expect(asks).to_have_count(0)
        assert "+15552223333" in await gateway.gateway.pairing.allowed("signal")
        assert tab.errors == []
        await tab.page.context.close()


async def test_no_channel_is_said(tab: Tab) -> None:
    await tab.go("Channels")
    await expect(tab.page.get_by_text("No channel is configured.")).to_be_visible()


async def test_usage_counts_what_was_used(tab: Tab) -> None:
    await tab.say("Cost me something")
    await tab.sees("ok")
    await tab.go("Usage")
    await expect(tab.page.get_by_role("definition").first).to_have_text("110")
    await expect(tab.page.get_by_text("mock/mock-1")).to_be_visible()
    await tab.page.get_by_label("Unit").select_option("cost")
    await expect(tab.page.get_by_role("listitem").filter(has_text="mock/mock-1")).to_contain_text("$0.00")
    await tab.page.get_by_label("Unit").select_option("tokens")
    await expect(tab.page.get_by_role("img", name=": 110").locator("canvas")).to_be_visible()
    await tab.page.get_by_text("As a table").click()
    await expect(tab.page.get_by_role("cell", name="110")).to_be_visible()


async def test_a_setting_is_found_changed_and_checked(tab: Tab) -> None:
    path = tab.gateway.state_dir / "openclaw.json"
    await tab.go("Settings")
    await tab.page.get_by_label("Find a setting").fill("agents.defaults.userTimezone")
    await tab.page.get_by_role("textbox", name="agents.defaults.userTimezone").fill("Europe/Madrid")
    await tab.button("Save and apply").click()
    await expect(tab.page.get_by_text("Saved and applied")).to_be_visible()
    assert json.loads(path.read_text())["agents"]["defaults"]["userTimezone"] == "Europe/Madrid"
    await tab.button("File").click()
    file = tab.page.get_by_label("Configuration file")
    text = await file.input_value()
    assert "test-token" not in text, "secrets are never shown"
    await file.fill(text.replace('"Europe/Madrid"', '"Europe/Madrid", nonsense'))
    await tab.button("Save and apply").click()
    await expect(tab.page.get_by_role("alert")).to_be_visible()
    await file.fill(text.replace("Europe/Madrid", "Europe/Paris"))
    await tab.button("Save and apply").click()
    await expect(tab.button("Save and apply")).to_be_disabled()
    saved = json.loads(path.read_text())
    assert saved["agents"]["defaults"]["userTimezone"] == "Europe/Paris"
    assert saved["gateway"]["auth"]["token"].startswith("test-token"), "a mark that stays keeps its secret"


async def test_logs_are_live_and_filtered(tab: Tab) -> None:
    await tab.go("Logs")
    lines = tab.page.get_by_role("log", name="Log lines")
    await expect(lines).to_contain_text("listening on")
    await tab.page.get_by_role("searchbox").fill("no such words anywhere")
    await expect(lines).to_contain_text("No line fits.")
    await tab.page.get_by_role("searchbox").fill("")
    await tab.page.get_by_label("Level").select_option("error")
    await expect(lines).not_to_contain_text("listening on")


async def test_any_method_can_be_called(tab: Tab) -> None:
    await tab.go("Debug")
    await tab.page.get_by_label("Method").fill("sessions.resolve")
    await tab.page.get_by_label("Parameters (JSON)").fill("{}")
    await tab.button("Call").click()
    await expect(tab.page.get_by_role("alert")).to_contain_text("Either key, sessionId, or label is required")
    await tab.page.get_by_label("Method").fill("health")
    await tab.button("Call").click()
    await expect(tab.page.get_by_label("Answer")).to_contain_text('"ok": true')
    await tab.page.get_by_label("Method").fill("system-event")
    await tab.page.get_by_label("Parameters (JSON)").fill('{"text": "Node: somebody"}')
    await tab.button("Call").click()
    await expect(tab.page.get_by_role("log", name="Events")).to_contain_text("presence")
