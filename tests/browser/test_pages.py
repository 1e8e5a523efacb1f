"""Sessions, Transcript, Context and Messages, as a person uses them."""

from __future__ import annotations

import asyncio
import os
import re

import pytest
from playwright.async_api import expect

from openclaw.messages import ToolCall
from tests.browser.support import Tab
from tests.support.scripted_model import Answer

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def talk(tab: Tab, *turns: tuple[str, str]) -> None:
    for said, answer in turns:
        tab.gateway.model.queue(answer)
        await tab.say(said)
        await tab.sees(answer)
        await expect(tab.button("Stop")).to_have_count(0)


async def test_sessions_are_found_named_and_started_over(tab: Tab) -> None:
    await talk(tab, ("Where does the heron nest?", "In the reeds."))
    await tab.go("Sessions")
    await expect(tab.page.get_by_role("link", name="Where does the heron nest?")).to_be_visible()
    await tab.button("Settings of agent:main:main").click()
    dialog = tab.page.get_by_role("dialog")
    await dialog.get_by_label("Label").fill("Birds")
    await dialog.get_by_label("Reasoning").select_option("on")
    await dialog.get_by_role("button", name="Save").click()
    await expect(tab.page.get_by_role("link", name="Birds")).to_be_visible()
    row = await tab.gateway.gateway.runtime.stores.sessions.get("main", "agent:main:main")
    assert row is not None and (row.get("label"), row.get("reasoningLevel")) == ("Birds", "on")
    await tab.page.get_by_label("Search in").select_option("words")
    await tab.page.get_by_role("searchbox").fill("reeds")
    await expect(tab.page.get_by_role("listitem").filter(has_text="reeds")).to_contain_text("agent:main:main")
    await tab.page.goto(f"{tab.gateway.url}/sessions")
    await tab.button("Settings of agent:main:main").click()
    await dialog.get_by_role("button", name="Start over").click()
    await dialog.get_by_role("button", name=re.compile("Really")).click()
    await expect(tab.page.get_by_text("A new session has begun")).to_be_visible()
    await tab.page.goto(f"{tab.gateway.url}/sessions")
    await tab.button("Settings of agent:main:main").click()
    await dialog.get_by_role("button", name="Resume").click()
    await expect(tab.page.get_by_text("Resumed")).to_be_visible()
    await tab.page.goto(f"{tab.gateway.url}/chat")
    await tab.sees("In the reeds.")


async def test_old_transcripts_are_packed_piece_by_piece(tab: Tab) -> None:
    folder = tab.gateway.state_dir / "agents" / "main" / "sessions"
    await talk(tab, ("Make the folder", "It is there."))
    for number in range(25):
        path = folder / f"old-{number}.jsonl"
        path.write_text("{}\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
    await tab.go("Sessions")
    await tab.button("Pack old transcripts").click()
    # The Gateway packs by itself too, so the page may have found fewer.
    await expect(tab.page.get_by_text("transcripts were packed.")).to_be_visible()
    for _ in range(600):
        if len(list(folder.glob("old-*.jsonl.zst"))) == 25:
            break
        await asyncio.sleep(0.1)
    assert list(folder.glob("old-*.jsonl")) == []


async def test_a_session_is_deleted_only_after_a_second_word(tab: Tab) -> None:
    await tab.page.goto(f"{tab.gateway.url}/chat?session=passing")
    await talk(tab, ("For a moment", "Gone soon."))
    await tab.go("Sessions")
    await tab.button("Settings of agent:main:passing").click()
    dialog = tab.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Cancel").click()
    await dialog.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Really? Delete").click()
    await expect(tab.button("Settings of agent:main:passing")).to_have_count(0)
    assert await tab.gateway.gateway.runtime.stores.sessions.get("main", "agent:main:passing") is None


async def test_a_conversation_is_condensed_with_preview_and_undo(tab: Tab) -> None:
    long = "A long story about herons. " * 400
    turns = [(f"Tell part {number}", f"{long} Part {number}.") for number in range(4)]
    await talk(tab, *turns)
    await tab.go("Sessions")
    await tab.button("Settings of agent:main:main").click()
    dialog = tab.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Preview").click()
    await expect(dialog.get_by_label("Preview")).to_be_visible()
    await dialog.get_by_role("button", name="Undo").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()


async def test_the_tree_shows_branches_and_goes_back_to_one(tab: Tab) -> None:
    await talk(tab, ("Two and two?", "Four."), ("Tree and three?", "Seven."))
    await tab.button("Edit").last.click()
    await expect(tab.log).not_to_contain_text("Seven.")
    await talk(tab, ("Three and three?", "Six."))
    await tab.go("Transcript")
    entries = tab.page.get_by_role("group", name="Entries")
    await expect(entries.get_by_role("button").filter(has_text="⎇").filter(has_text="Seven.")).to_be_visible()
    await entries.get_by_role("button").filter(has_text="Seven.").click()
    entry = tab.page.get_by_role("complementary", name="Entry")
    await expect(entry.get_by_label("Stored line")).to_contain_text('"role": "assistant"')
    await entry.get_by_label("Label").fill("wrong sum")
    await entry.get_by_role("button", name="Save").click()
    labelled = entries.get_by_role("button").filter(has_text="Seven.")
    await expect(labelled.get_by_text("wrong sum")).to_be_visible()
    await entry.get_by_role("button", name="Continue from here").click()
    await expect(tab.page.get_by_text("The conversation goes on from here.")).to_be_visible()
    await tab.go("Chat")
    await tab.sees("Seven.")
    await expect(tab.log).not_to_contain_text("Six.")


async def test_the_context_of_a_run_and_a_phrase_in_it(tab: Tab) -> None:
    await talk(tab, ("The password of the shed is heron", "Noted."), ("Thanks", "You are welcome."))
    await tab.go("Context")
    await expect(tab.page.get_by_role("img", name=re.compile(r"System prompt \d+ %.*What people said"))).to_be_visible()
    await expect(tab.page.get_by_text("Since the run before")).to_be_visible()
    await tab.page.get_by_role("heading", name="Every piece, in order").click()
    await expect(tab.page.get_by_role("row").filter(has_text="password of the shed")).to_be_visible()
    await tab.page.get_by_label("Phrase").fill("shed is heron")
    await tab.button("Find").click()
    await expect(tab.page.get_by_text("It is in the model's view now")).to_be_visible()
    await expect(tab.page.get_by_text("came into view")).to_be_visible()
    runs = tab.page.get_by_label("Run", exact=True)
    await runs.select_option(index=2)
    await expect(tab.page.get_by_text("Since the run before")).to_have_count(0)


async def test_the_life_of_a_message_and_why(tab: Tab) -> None:
    call = ToolCall(id="c1", name="exec", arguments={"command": "echo seen"})
    tab.gateway.model.queue(Answer("I look.", calls=[call]), "There it is.")
    await tab.say("Look for it")
    await tab.sees("There it is.")
    await tab.go("Messages")
    row = tab.page.get_by_role("row").filter(has_text="Look for it")
    await expect(row).to_contain_text("answered")
    await row.get_by_role("link").click()
    dialog = tab.page.get_by_role("dialog")
    await expect(dialog.get_by_role("listitem").filter(has_text="It called exec once")).to_be_visible()
    await expect(dialog).to_contain_text("There it is.")
    closed = await dialog.element_handle()
    await tab.page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await tab.page.get_by_label("State", exact=True).select_option("failed")
    # The browser tells the end of a dialog a moment later. It must not undo what was chosen meanwhile.
    await closed.evaluate("(one) => one.dispatchEvent(new Event('close'))")
    await expect(tab.page.get_by_text("No message is on record.")).to_be_visible()
    await tab.page.get_by_label("Number, run id or message id").fill("#1")
    await tab.button("Why?").click()
    await expect(dialog).to_contain_text("Accepted on")
