"""Chat, as a person uses it."""

from __future__ import annotations

import asyncio
import base64
import re

import pytest
from playwright.async_api import Browser, WebSocketRoute, expect

from openclaw.messages import AssistantMessage, ImageBlock, ThinkingBlock, ToolCall, UserMessage
from openclaw.models.base import ModelError, ModelRequest, OnEvent, Thinking
from tests.browser.support import LIMIT_MS, Tab, WebGateway, new_tab
from tests.support.scripted_model import Answer, ScriptedModel

pytestmark = pytest.mark.asyncio(loop_scope="package")

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def test_an_answer_streams_in_as_markdown(tab: Tab) -> None:
    hold = tab.gateway.model.held("# Title\n\nSome **bold** words and `code`.\n\n- one\n- two\n\n" + "tail " * 20)
    await tab.say("Hello there")
    await tab.sees("Hello there")
    await expect(tab.log.get_by_role("heading", name="Title")).to_be_visible()
    await expect(tab.button("Stop")).to_be_visible()
    hold.set()
    await expect(tab.button("Stop")).to_have_count(0)
    await expect(tab.log.locator("strong")).to_have_text("bold")
    await expect(tab.log.get_by_role("listitem")).to_have_text(["one", "two"])
    await expect(tab.log.get_by_role("article")).to_have_count(2)


async def test_a_tool_card_shows_output_while_the_tool_runs_and_how_it_ended(tab: Tab) -> None:
    go = tab.gateway.state_dir / "go"
    command = f"echo first; for i in $(seq 1200); do [ -e {go} ] && break; sleep 0.05; done; echo second"
    tab.gateway.model.queue(
        Answer("I look.", calls=[ToolCall(id="c1", name="exec", arguments={"command": command})]), "All seen."
    )
    await tab.say("Look, please")
    card = tab.log.locator("details.tool")
    await expect(card).to_contain_text("running")
    await expect(card.get_by_label("Output")).to_contain_text("first")
    await tab.page.reload()
    await expect(card.get_by_label("Output")).to_contain_text("first")
    go.touch()
    await tab.sees("All seen.")
    await expect(card).to_have_count(1)
    await expect(card).to_contain_text("done")
    await card.locator("summary").click()
    await expect(card.get_by_label("Output")).to_contain_text("second")
    await expect(tab.log.get_by_role("article", name="Agent")).to_have_count(1)


async def test_a_tool_of_a_run_that_ended_while_the_page_was_asking_does_not_begin_it_again(
    browser: Browser, gateway: WebGateway
) -> None:
    """The page asks for its view, hears of a tool, and the run has ended when the question arrives."""
    tab = await new_tab(browser, gateway)
    held: list[tuple[WebSocketRoute, str | bytes]] = []
    holds, asked = False, asyncio.Event()

    def route(page: WebSocketRoute) -> None:
        server = page.connect_to_server()

        def from_page(message: str | bytes) -> None:
            if holds and '"chat.view"' in str(message):
                held.append((server, message))
                asked.set()
            else:
                server.send(message)

        page.on_message(from_page)

    await tab.page.route_web_socket(re.compile("^ws"), route)
    await tab.open("/chat")
    tab.gateway.model.queue("Ready.")
    await tab.say("Hello")
    await tab.sees("Ready.")
    await expect(tab.button("Stop")).to_have_count(0)
    begins, begin = tab.gateway.state_dir / "begins", "for i in $(seq 1200); do [ -e {} ] && break; sleep 0.05; done"
    call = ToolCall(id="c1", name="exec", arguments={"command": begin.format(begins)})
    tab.gateway.model.queue(Answer("I look.", calls=[call]), "All seen.")
    holds = True
    await tab.say("Look, please")
    await asyncio.wait_for(asked.wait(), LIMIT_MS / 1000)
    begins.touch()
    async with asyncio.timeout(LIMIT_MS / 1000):
        while tab.gateway.gateway.runs.busy():
            await asyncio.sleep(0.01)
    holds = False
    for server, message in held:
        server.send(message)
    await tab.sees("All seen.")
    await expect(tab.button("Stop")).to_have_count(0)
    await tab.page.context.close()


async def test_waiting_messages_can_be_dropped_and_edited(tab: Tab) -> None:
    hold = tab.gateway.model.held("A slow answer. " * 4)
    await tab.say("Begin")
    await tab.sees("A slow answer.")
    waiting = tab.page.get_by_role("region", name="Waiting messages")
    for count, text in enumerate(("one too many", "with a mitsake", "and the last"), 1):
        await tab.say(text)
        await expect(waiting.get_by_role("listitem")).to_have_count(count)
    await (
        waiting.get_by_role("listitem")
        .filter(has_text="one too many")
        .get_by_role("button", name="Drop waiting message")
        .click()
    )
    await expect(waiting.get_by_role("listitem")).to_have_count(2)
    await waiting.get_by_role("button", name="Edit waiting message").first.click()
    field = waiting.get_by_role("textbox", name="Waiting message")
    await expect(field).to_have_value("with a mitsake")
    await field.fill("without a mistake")
    await field.press("Enter")
    await expect(waiting.get_by_role("listitem")).to_contain_text(["without a mistake", "and the last"])
    await tab.page.reload()
    await expect(waiting.get_by_role("listitem")).to_contain_text(["without a mistake", "and the last"])
    tab.gateway.model.queue("Understood.", "Understood.")
    hold.set()
    await tab.sees("Understood.")
    said = tab.gateway.model.prompts()
    assert not any("too many" in one or "mitsake" in one for one in said)
    assert any("without a mistake" in one for one in said)


async def test_only_the_last_failure_of_a_message_is_shown_and_the_gateway_speaks_plain_text(tab: Tab) -> None:
    attempts = [ModelError(f"529 too_busy_{number}", status=529, retryable=True) for number in range(4)]
    tab.gateway.model.queue(*(Answer(error=error) for error in attempts))
    await tab.say("Are you there?")
    await tab.sees("529 too_busy_3")
    await expect(tab.button("Stop")).to_have_count(0)
    await expect(tab.log.locator(".notice.error")).to_have_count(1)
    await tab.say("/why")
    story = tab.log.get_by_role("article", name="Answer to a command").last
    await expect(story).to_contain_text("too_busy_3")
    await expect(story.locator("em")).to_have_count(0)
    await expect(tab.log.locator(".notice.error")).to_have_count(1)
    await tab.go("Transcript")
    await expect(tab.page.get_by_label("Entries").get_by_text("529 too_busy_3")).to_be_visible()


async def test_stop_ends_the_run_and_keeps_what_was_said(tab: Tab) -> None:
    tab.gateway.model.held("Half of this is heard, and the rest of it never will be.")
    await tab.say("Talk")
    await tab.sees("Half of this")
    await tab.button("Stop").click()
    await expect(tab.button("Stop")).to_have_count(0)
    await tab.say("Still there?")
    await tab.sees("ok")


async def test_my_last_message_can_be_edited_and_answered_anew(tab: Tab) -> None:
    tab.gateway.model.queue("Four.", "Wrong answer.", "Right answer.")
    await tab.say("Two and two?")
    await tab.sees("Four.")
    await tab.say("Tree and three?")
    await tab.sees("Wrong answer.")
    await tab.button("Edit").last.click()
    await expect(tab.box).to_have_value("Tree and three?")
    await expect(tab.log).not_to_contain_text("Wrong answer.")
    await tab.say("Three and three?")
    await tab.sees("Right answer.")
    said = tab.gateway.model.prompts()
    assert [one for one in said if "Tree" in one] == [] and any("Two and two?" in one for one in said)
    await tab.button("Delete message").click()
    await expect(tab.log).not_to_contain_text("Right answer.")
    await tab.sees("Four.")


async def test_pictures_come_by_button_paste_and_drop(tab: Tab) -> None:
    picture = {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(PNG)}
    await tab.page.locator("input[type=file]").set_input_files([picture])  # type: ignore[list-item]
    await expect(tab.page.locator(".thumbs li")).to_have_count(1)
    give = """([kind, data]) => {
      const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
      const files = new DataTransfer();
      files.items.add(new File([bytes], kind + ".png", { type: "image/png" }));
      const target = document.querySelector("textarea");
      if (kind === "paste") target.dispatchEvent(new ClipboardEvent("paste", { clipboardData: files, bubbles: true }));
      else target.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
    }"""
    await tab.page.evaluate(give, ["paste", PNG])
    await expect(tab.page.locator(".thumbs li")).to_have_count(2)
    await tab.page.evaluate(give, ["drop", PNG])
    await expect(tab.page.locator(".thumbs li")).to_have_count(3)
    await tab.button("Remove drop.png").click()
    await tab.say("What is this?")
    await tab.sees("ok")
    asked = [one for one in tab.gateway.model.requests[0].messages if isinstance(one, UserMessage)]
    assert sum(isinstance(block, ImageBlock) for block in asked[-1].content) == 2
    await tab.log.get_by_role("button", name=re.compile("Show picture")).first.click()
    await expect(tab.log.get_by_role("img", name="Attached picture")).to_have_count(1)


async def test_the_palette_completes_commands_with_the_keyboard(tab: Tab) -> None:
    await tab.box.fill("/sta")
    palette = tab.page.get_by_role("listbox", name="Commands")
    await expect(palette.get_by_role("option", selected=True)).to_contain_text("/status")
    await tab.box.press("Enter")
    await expect(tab.box).to_have_value("/status")
    await tab.box.press("Enter")
    await tab.sees("mock-1")
    await expect(palette).to_have_count(0)
    assert tab.gateway.model.requests == []


async def test_a_command_is_answered_at_once_and_once_while_a_run_is_under_way(tab: Tab) -> None:
    """The transcript gets the answer when the run is over; the page does not wait for that."""
    hold = tab.gateway.model.held("A slow answer. " * 4)
    await tab.say("Begin")
    await tab.sees("A slow answer.")
    await tab.say("/status")
    await tab.sees("Queue:")
    hold.set()
    await expect(tab.button("Stop")).to_have_count(0)
    await expect(tab.log.get_by_text("Queue:")).to_have_count(1)
    await tab.page.reload()
    await expect(tab.log.get_by_text("Queue:")).to_have_count(1)


async def test_sessions_are_switched_and_begun_and_drafts_stay_with_theirs(tab: Tab) -> None:
    tab.gateway.model.queue("In the main one.", "In the other one.")
    await tab.say("Where am I?")
    await tab.sees("In the main one.")
    await tab.box.fill("a draft")
    await tab.button("New chat").click()
    await expect(tab.log).not_to_contain_text("In the main one.")
    await expect(tab.box).to_have_value("")
    await tab.say("And here?")
    await tab.sees("In the other one.")
    await tab.conversation("Where am I?").click()
    await tab.sees("In the main one.")
    await expect(tab.box).to_have_value("a draft")


async def test_a_reload_in_the_middle_of_an_answer_loses_nothing(tab: Tab) -> None:
    text = " ".join(f"word{number}" for number in range(400))
    hold = tab.gateway.model.held(text)
    await tab.say("Many words")
    await tab.sees("word100")
    await tab.page.reload()
    await tab.sees("word100")
    await expect(tab.button("Stop")).to_be_visible()
    hold.set()
    await tab.sees("word399")
    await expect(tab.button("Stop")).to_have_count(0)
    shown = await tab.log.get_by_role("article", name="Agent").locator(".markdown").all_inner_texts()
    assert [one.split() for one in shown] == [text.split()]
    await expect(tab.log.get_by_role("article", name="You")).to_have_count(1)


async def test_two_tabs_show_the_same(tab: Tab) -> None:
    other = Tab(await tab.page.context.new_page(), tab.gateway)
    await other.open("/chat", signed_in=False)
    hold = tab.gateway.model.held("Said to both of them, word by word.")
    await tab.say("For both")
    for one in (tab, other):
        await one.sees("For both")
        await one.sees("Said to both")
    hold.set()
    for one in (tab, other):
        await one.sees("word by word.")
        await expect(one.button("Stop")).to_have_count(0)
        await expect(one.log.get_by_role("article")).to_have_count(2)
    assert other.errors == []


async def test_a_second_tab_learns_at_once_what_waits_and_how_it_changes(tab: Tab) -> None:
    other = Tab(await tab.page.context.new_page(), tab.gateway)
    await other.open("/chat", signed_in=False)
    hold = tab.gateway.model.held("The first answer.")
    tab.gateway.model.queue("The second answer.")
    await tab.say("First")
    await other.sees("First")
    await tab.say("Second thought")
    await tab.say("Third thought")
    waits = [one.page.get_by_role("region", name="Waiting messages") for one in (tab, other)]
    for shown in waits:
        await expect(shown.get_by_text("Second thought")).to_be_visible()
        await expect(shown.get_by_text("Third thought")).to_be_visible()
    await waits[0].get_by_role("button", name="Drop waiting message").nth(1).click()
    await expect(waits[1].get_by_text("Third thought")).to_have_count(0)
    await waits[0].get_by_role("button", name="Edit waiting message").first.click()
    await waits[0].get_by_role("textbox").fill("Better thought")
    await waits[0].get_by_role("textbox").press("Enter")
    await expect(waits[1].get_by_text("Better thought")).to_be_visible()
    hold.set()
    for one in (tab, other):
        await one.sees("The second answer.")
    assert other.errors == []


async def test_a_restart_of_the_gateway_in_the_middle_of_an_answer(tab: Tab) -> None:
    tab.gateway.model.held("This half is lost with the process, and this one too.")
    tab.gateway.model.queue("Said after the restart.", "And again.")
    await tab.say("Survive this")
    await tab.sees("This half")
    await tab.gateway.stop()
    await expect(tab.page.get_by_role("status").filter(has_text="Reconnecting…").first).to_be_visible()
    await tab.box.fill("Written while it was away")
    await tab.button("Send").click()
    await tab.sees("It is sent when the Gateway is back.")
    await tab.gateway.start()
    await tab.sees("Said after the restart.")
    await tab.sees("And again.")
    await expect(tab.log.get_by_text("Survive this")).to_have_count(1)
    await expect(tab.log.get_by_text("Written while it was away")).to_have_count(1)


class ThinkingModel(ScriptedModel):
    """Thinks aloud before every answer, and goes on when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def answer(self, request: ModelRequest, agent_id: str, on_event: OnEvent) -> AssistantMessage:
        on_event(Thinking("Herons eat **fish**."))
        await self.go_on.wait()
        said = await super().answer(request, agent_id, on_event)
        said.content.insert(0, ThinkingBlock(thinking="Herons eat **fish**."))
        return said


async def test_reasoning_is_shown_while_it_comes_and_can_be_hidden(tab: Tab) -> None:
    model = tab.gateway.model = ThinkingModel()
    tab.gateway.gateway.runtime.models.calls.call = model.answer
    model.queue("Fish, mostly.")
    await tab.say("/reasoning stream")
    await tab.sees("easoning")
    await tab.say("What do herons eat?")
    reasoning = tab.log.locator(".thinking")
    await expect(reasoning.locator("strong")).to_have_text("fish")
    model.go_on.set()
    await tab.sees("Fish, mostly.")
    await expect(tab.button("Stop")).to_have_count(0)
    await expect(reasoning).to_have_count(1)
    await expect(reasoning.get_by_role("button", name="Reasoning", expanded=False)).to_be_visible()
    await tab.button("Thinking").click()
    await tab.page.get_by_label("Show reasoning").uncheck()
    await expect(reasoning).to_have_count(0)


async def test_what_is_too_long_is_told_and_the_connection_stays(tab: Tab) -> None:
    await tab.say("€" * 175_000)  # In bytes it is three times as long.
    await tab.sees("This is too long to be sent at once.")
    await tab.log.get_by_role("button", name="Delete").click()
    await tab.say("short")
    await tab.sees("ok")


async def test_the_command_palette_opens_with_the_keyboard(tab: Tab) -> None:
    await tab.box.press("Control+k")
    await expect(tab.page.get_by_role("dialog", name="Command palette").get_by_role("combobox")).to_be_focused()
    await tab.page.keyboard.press("Escape")
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)


async def test_files_that_the_agent_sends_are_shown_and_offered(tab: Tab) -> None:
    workspace = tab.gateway.state_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "dot.png").write_bytes(base64.b64decode(PNG))
    (workspace / "notes.txt").write_text("some notes")
    tab.gateway.model.queue("Three files.\nMEDIA: ./dot.png ./notes.txt https://example.org/far.pdf")
    await tab.say("Send me files")
    await expect(tab.log.get_by_role("img", name="dot.png")).to_be_visible()
    await expect(tab.log.get_by_role("link", name="notes.txt")).to_have_attribute("download", "notes.txt")
    await expect(tab.log.get_by_role("link", name="far.pdf")).to_have_attribute("href", "https://example.org/far.pdf")
    await expect(tab.log.get_by_text("MEDIA:")).to_have_count(0)
    assert not tab.errors
