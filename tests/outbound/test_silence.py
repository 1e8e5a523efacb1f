"""Saying nothing by decision: the tokens never reach a person, and real answers always do."""

from __future__ import annotations

import pytest

from openclaw.outbound.silence import SilenceGate, is_silent


def through(*deltas: str, complete: bool = True, ack_max_chars: int | None = None) -> tuple[str, str | None]:
    gate = SilenceGate(ack_max_chars=ack_max_chars)
    said = "".join(gate.feed(delta) for delta in deltas) + gate.close(complete=complete)
    return said, gate.silent


@pytest.mark.parametrize(
    "text",
    [
        "NO_REPLY",
        "  NO_REPLY",
        "NO_REPLY.",
        "NO_REPLY because nothing",
        "NO_REPLY ok then",
        "NO_REPLY\nfoo",
        '"NO_REPLY"',
        "**NO_REPLY**",
        "`NO_REPLY`",
        "_NO_REPLY_",
        "NO_REPLY NO_REPLY",
    ],
)
def test_an_answer_that_starts_with_the_token_or_is_nothing_else_is_silence(text: str) -> None:
    assert is_silent(text)
    assert through(*text) == ("", "NO_REPLY")


@pytest.mark.parametrize(
    "text",
    [
        "NO_REPLYX",
        "NO_REPLY_X",
        "NO",
        "NO_RE",
        "no_reply",
        "xNO_REPLY",
        "The NO_REPLY token is",
        "I said NO_REPLY to him",
        "Write `NO_REPLY`",
        "NO_REPLY_IS_MINE",
        "foo_NO_REPLY",
    ],
)
def test_the_token_inside_a_word_a_sentence_or_code_is_just_text(text: str) -> None:
    assert through(*text) == (text, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello NO_REPLY.", "hello"),
        ("ok, NO_REPLY!!", "ok,"),
        ("Done.\nNO_REPLY", "Done."),
        ("Done. **NO_REPLY**", "Done."),
        ("Done. _NO_REPLY_", "Done."),
        ("Done NO_REPLY NO_REPLY", "Done"),
        ("```\nx = 1\n```\nNO_REPLY", "```\nx = 1\n```"),
        ("Fertig 👍 NO_REPLY", "Fertig 👍"),
        ("All is well. HEARTBEAT_OK", "All is well."),
    ],
)
def test_a_token_at_the_end_of_a_real_answer_is_cut_off(text: str, said: str) -> None:
    assert through(*text) == (said, None)


@pytest.mark.parametrize(
    ("text", "as_message", "as_heartbeat"),
    [
        ("HEARTBEAT_OK", "", ""),
        ("**HEARTBEAT_OK**", "", ""),
        ("HEARTBEAT_OK.", "", ""),
        ("HEARTBEAT_OK all good", "all good", ""),
        ("all good HEARTBEAT_OK", "all good", ""),
        ("<p><b>HEARTBEAT_OK</b></p>", "<p><b>HEARTBEAT_OK</b></p>", ""),
        ("&nbsp;HEARTBEAT_OK&nbsp; all good", "&nbsp;HEARTBEAT_OK&nbsp; all good", ""),
        ("The HEARTBEAT_OK word", "The HEARTBEAT_OK word", "The HEARTBEAT_OK word"),
        ("HEARTBEAT_OK " + "x" * 300, "x" * 300, ""),
        ("HEARTBEAT_OK " + "x" * 301, "x" * 301, "x" * 301),
        ("The disk is full.", "The disk is full.", "The disk is full."),
    ],
)
def test_a_heartbeat_acknowledgement_is_cut_off_at_both_ends(text: str, as_message: str, as_heartbeat: str) -> None:
    assert through(*text)[0] == as_message
    said, silent = through(*text, ack_max_chars=300)
    assert said == as_heartbeat
    assert (silent == "HEARTBEAT_OK") is (as_heartbeat == "")


def test_what_may_become_the_token_is_held_back_and_released_as_soon_as_it_cannot() -> None:
    gate = SilenceGate()
    assert [gate.feed(delta) for delta in ("N", "O", "_RE", "PLA", "CE")] == ["", "", "", "NO_REPLA", "CE"]
    gate = SilenceGate()
    assert [gate.feed(delta) for delta in ("Done", ". NO_", "REPLY", " is said")] == [
        "Done",
        ".",
        "",
        " NO_REPLY is said",
    ]


def test_half_a_token_of_an_answer_that_was_broken_off_stays_unsaid() -> None:
    assert through("NO_", "RE", complete=False) == ("", None)
    assert through("Well", " NO_REP", complete=False) == ("Well", None)
