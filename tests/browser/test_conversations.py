"""The list of conversations, the composer and the messages, as a person uses them."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from openclaw.messages import UserMessage, user_text
from tests.browser.support import Tab, WebGateway, new_tab

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def begin(tab: Tab, text: str, answer: str, *, seen: str = "") -> None:
    await tab.button("New chat").click()
    tab.gateway.model.queue(answer)
    await tab.say(text)
    await tab.sees(seen or answer)
    await expect(tab.conversation(text)).to_be_visible()
    await expect(tab.button("Stop")).to_have_count(0)


async def choose(tab: Tab, title: str, action: str) -> None:
    """Opens the menu of a conversation in the list and chooses an action."""
    row = tab.page.get_by_role("navigation", name="Conversations").get_by_role("listitem").filter(has_text=title)
    await row.hover()
    await row.get_by_role("button", name=f"Actions for {title}").click()
    await tab.button(action).click()


async def test_a_new_chat_is_named_by_its_first_message_and_renamed_pinned_and_archived(tab: Tab) -> None:
    await begin(tab, "Plan the garden", "With beans.")
    await expect(tab.page.get_by_role("heading", name="Plan the garden", level=1)).to_be_visible()
    assert "agent:main:chat-" in tab.page.url
    assert "agent:" not in await tab.page.locator("body").inner_text()
    await begin(tab, "Write a letter", "Dear all.")
    await choose(tab, "Plan the garden", "Rename")
    await tab.page.get_by_role("textbox", name="Title").fill("Beans")
    await tab.button("Save").click()
    await expect(tab.conversation("Beans")).to_be_visible()
    await choose(tab, "Beans", "Pin")
    await expect(tab.page.get_by_role("heading", name="Pinned")).to_be_visible()
    await choose(tab, "Write a letter", "Archive")
    await expect(tab.conversation("Write a letter")).to_have_count(0)
    await tab.button("Undo").click()
    await expect(tab.conversation("Write a letter")).to_be_visible()
    await tab.page.reload()
    await expect(tab.page.get_by_role("heading", name="Pinned")).to_be_visible()


async def test_what_is_typed_at_once_into_a_new_chat_stays(tab: Tab) -> None:
    await begin(tab, "Plan the garden", "With beans.")
    # Types as soon as the new chat is drawn in the document, before the browser paints it.
    await tab.page.evaluate(
        """async () => {
          [...document.querySelectorAll("button")].find((one) => one.textContent === "New chat").click();
          for (let turn = 0; turn < 20; turn++) await null;
          const box = document.querySelector("textarea[aria-label=Message]");
          box.value = "Typed at once";
          box.dispatchEvent(new Event("input", { bubbles: true }));
        }"""
    )
    await expect(tab.page.get_by_role("heading", name=re.compile("What can"))).to_be_visible()
    await expect(tab.box).to_have_value("Typed at once")
    await tab.button("Send").click()
    await tab.sees("Typed at once")


async def test_a_deletion_can_be_undone_and_then_happens(tab: Tab) -> None:
    await begin(tab, "For a moment", "Gone soon.")
    await choose(tab, "For a moment", "Delete")
    await expect(tab.conversation("For a moment")).to_have_count(0)
    await tab.button("Undo").click()
    await expect(tab.conversation("For a moment")).to_be_visible()
    await choose(tab, "For a moment", "Delete")
    await expect(tab.conversation("For a moment")).to_have_count(0)
    await expect(tab.button("Undo")).to_have_count(0)
    await tab.page.reload()
    await expect(tab.page.get_by_role("navigation", name="Conversations")).to_be_visible()
    await expect(tab.conversation("For a moment")).to_have_count(0)


async def test_search_finds_titles_and_text(tab: Tab) -> None:
    await begin(tab, "Birds of the lake", "Herons nest in the reeds.")
    await begin(tab, "Something else", "Nothing of note.")
    search = tab.page.get_by_role("searchbox", name="Search conversations")
    await search.fill("birds")
    await expect(tab.conversation("Birds of the lake").first).to_be_visible()
    await search.fill("reeds")
    hit = tab.page.get_by_role("navigation", name="Conversations").get_by_role("link").filter(has_text="reeds")
    await hit.click()
    await tab.sees("Herons nest")
    await search.fill("nothing like this anywhere")
    await expect(tab.page.get_by_text("Nothing matches")).to_be_visible()


async def test_the_list_shows_what_runs_and_what_is_unread(tab: Tab) -> None:
    await begin(tab, "First talk", "Yes.")
    hold = tab.gateway.model.held("A slow answer. " * 4)
    await tab.say("Go on")
    await tab.sees("A slow answer.")
    await begin_other(tab)
    row = tab.page.get_by_role("navigation", name="Conversations").get_by_role("listitem").filter(has_text="First talk")
    await expect(row).to_contain_text("(running)")
    hold.set()
    await expect(row).to_contain_text("(unread)")
    await tab.conversation("First talk").click()
    await expect(row).not_to_contain_text("(unread)")


async def begin_other(tab: Tab) -> None:
    await tab.button("New chat").click()
    await expect(tab.page.get_by_role("heading", name=re.compile("What can"))).to_be_visible()


async def test_the_command_palette_goes_to_a_page_and_to_a_conversation(tab: Tab) -> None:
    await begin(tab, "Plan the garden", "With beans.")
    await tab.page.keyboard.press("Control+k")
    palette = tab.page.get_by_role("dialog", name="Command palette")
    await palette.get_by_role("combobox").fill("usage")
    await expect(palette.get_by_role("option", name="Usage", selected=True)).to_be_visible()
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    await tab.page.keyboard.press("Control+k")
    await palette.get_by_role("combobox").fill("garden")
    await palette.get_by_role("option", name="Plan the garden").click()
    await tab.sees("With beans.")


async def test_an_answer_is_made_again_and_both_versions_stay(tab: Tab) -> None:
    tab.gateway.model.queue("The first answer.", "The second answer.")
    await tab.say("Tell me")
    await tab.sees("The first answer.")
    await tab.button("Regenerate").click()
    await tab.sees("The second answer.")
    await expect(tab.log.get_by_text("2/2")).to_be_visible()
    await expect(tab.log).not_to_contain_text("The first answer.")
    await tab.button("Previous version").click()
    await tab.sees("The first answer.")
    await expect(tab.log.get_by_text("1/2")).to_be_visible()
    await tab.button("Next version").click()
    await tab.sees("The second answer.")


async def test_a_conversation_is_forked_and_the_original_stays(tab: Tab) -> None:
    await begin(tab, "Root", "The trunk.")
    origin = tab.page.url
    await tab.button("Fork from here").click()
    await expect(tab.page.get_by_text("This is a copy")).to_be_visible()
    await tab.sees("The trunk.")
    tab.gateway.model.queue("A twig.")
    await tab.say("Only here")
    await tab.sees("A twig.")
    await tab.page.goto(origin)
    await tab.sees("The trunk.")
    await expect(tab.log).not_to_contain_text("A twig.")


async def test_why_and_what_the_model_saw_lead_to_the_run(tab: Tab) -> None:
    tab.gateway.model.queue("One.", "Two.")
    for text, answer in (("Say one", "One."), ("Say two", "Two.")):
        await tab.say(text)
        await tab.sees(answer)
        await expect(tab.button("Stop")).to_have_count(0)
    first = tab.log.get_by_role("article", name="Agent").first
    await first.hover()
    await first.get_by_role("button", name="Why?").click()
    await expect(tab.page.get_by_role("dialog", name="Why?")).to_contain_text("Say one")
    await tab.page.go_back()
    await first.hover()
    await first.get_by_role("button", name="What did the model see?").click()
    await expect(tab.page.get_by_role("heading", name="Context", exact=True)).to_be_visible()
    assert "run=" in tab.page.url


async def test_a_waiting_message_is_sent_now_and_stop_leaves_what_waits(tab: Tab) -> None:
    tab.gateway.model.held("A slow answer. " * 4)
    await tab.say("Begin")
    await tab.sees("A slow answer.")
    await tab.say("This waits")
    waiting = tab.page.get_by_role("region", name="Waiting messages")
    await expect(waiting).to_contain_text("This waits")
    tab.gateway.model.held("Another slow one. " * 4)
    await waiting.get_by_role("button", name="Send now").click()
    await tab.sees("Another slow one.")
    await tab.say("And this waits")
    await expect(waiting).to_contain_text("And this waits")
    tab.gateway.model.queue("Its answer.")
    await tab.button("Stop").click()
    await tab.sees("Its answer.")


async def test_a_text_file_reaches_the_agent(tab: Tab) -> None:
    note = {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"plant beans"}
    await tab.page.locator("input[type=file]").set_input_files([note])  # type: ignore[list-item]
    await expect(tab.button("Remove plan.txt")).to_be_visible()
    await tab.say("Read this")
    await tab.sees("ok")
    asked = [one for one in tab.gateway.model.requests[0].messages if isinstance(one, UserMessage)]
    path = re.search(r"\[media attached: (media/inbound/\S+plan\.txt) \(text/plain\)\]", user_text(asked[-1]))
    assert path is not None
    assert (tab.gateway.state_dir / "workspace" / path[1]).read_bytes() == b"plant beans"
    mine = tab.log.get_by_role("article", name="You")
    await expect(mine).to_contain_text("plan.txt")
    await expect(mine).not_to_contain_text("media attached")


MARKDOWN = """| left | right | centre |
|:--|--:|:-:|
| a | b | c |

- [x] finished
- [ ] not yet

See README.md and https://example.com/page and a note[^1]. It costs $5 or $6.

[^1]: The small print.

```python
def greet(): return "hello"
```

$$
x^2
$$
"""


async def test_an_answer_has_tables_tasks_footnotes_code_and_formulas(tab: Tab) -> None:
    tab.gateway.model.queue(MARKDOWN)
    await tab.say("Show me")
    await expect(tab.log.get_by_role("cell", name="b")).to_have_css("text-align", "right")
    await expect(tab.log.get_by_role("cell", name="c")).to_have_css("text-align", "center")
    await expect(tab.log.get_by_role("checkbox", name="done")).to_be_checked()
    await expect(tab.log.get_by_role("checkbox", name="open")).not_to_be_checked()
    await expect(tab.log.get_by_role("link")).to_have_text(["https://example.com/page"])
    await tab.log.get_by_role("button", name="Footnote 1").click()
    await expect(tab.log.get_by_text("The small print.")).to_be_visible()
    await expect(tab.log.locator(".hl-keyword").first).to_have_text("def")
    await expect(tab.log.locator(".katex-mathml")).to_have_count(1)
    await expect(tab.log.get_by_text("It costs $5 or $6.")).to_be_visible()
    await tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=tab.gateway.url)
    await tab.button("Copy code").click()
    assert await tab.page.evaluate("navigator.clipboard.readText()") == 'def greet(): return "hello"'


async def test_a_conversation_is_exported(tab: Tab) -> None:
    await begin(tab, "Plan the garden", "With **beans**.", seen="With beans.")
    for name, text in (
        ("Markdown", "With **beans**."),
        ("HTML", "With <strong>beans</strong>."),
        ("JSON", '"role":"user"'),
    ):
        await tab.page.get_by_role("main").get_by_role("button", name="Actions for Plan the garden").click()
        await tab.button("Export").click()
        async with tab.page.expect_download() as download:
            await tab.page.get_by_role("dialog", name="Export").get_by_role("button", name=name).click()
        file = await download.value
        assert file.suggested_filename.startswith("Plan-the-garden.")
        assert text in (await file.path()).read_text()


async def test_the_shell_opens_while_the_gateway_is_away_and_holds_no_conversation(
    browser: Browser, gateway: WebGateway
) -> None:
    tab = await (await new_tab(browser, gateway)).open("/chat")
    gateway.model.queue("A secret answer.")
    await tab.say("Say it")
    await tab.sees("A secret answer.")
    await tab.page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    await tab.page.reload()
    await tab.sees("A secret answer.")
    await tab.page.reload()  # Now the service worker has seen every file.
    await tab.sees("A secret answer.")
    stored = await tab.page.evaluate(
        """async () => {
          const cache = await caches.open("openclaw-shell-1");
          const keys = await cache.keys();
          const text = async (one) => (await cache.match(one)).text();
          return Promise.all(keys.map(async (one) => [new URL(one.url).pathname, await text(one)]));
        }"""
    )
    assert stored and all(re.match(r"/(chat$|assets/|chunks/)", path) for path, _ in stored)
    assert not any("A secret answer." in text for _, text in stored)
    await gateway.stop()
    await tab.page.reload()
    await expect(tab.page.get_by_text("Connecting…")).to_be_visible()
    await gateway.start()
    await tab.sees("A secret answer.")
    await tab.page.context.close()
