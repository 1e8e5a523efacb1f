"""``MEDIA:`` lines: what they name, what stays text, and that nobody sees half of one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw.events import Silent, Spoken
from openclaw.outbound.answer_filter import (
    LONGEST_ADDRESS,
    AnswerText,
    SpeechStream,
    closed_up,
    media_of,
    read_line,
    speech_of,
    visible_message,
)
from tests.outbound.test_answer_filter import cut

LONG = "./" + "a" * LONGEST_ADDRESS


def shaped(text: str) -> tuple[str, tuple[str, ...]]:
    """The words beside the files, as a channel gets them."""
    speech = speech_of(text)
    assert isinstance(speech, Spoken)
    return closed_up(speech.text) if speech.media else speech.text, speech.media


@pytest.mark.parametrize(
    ("text", "words", "media"),
    [
        ("hello\nMEDIA:./out/img.png\nbye", "hello\nbye", ("./out/img.png",)),
        (
            "MEDIA: https://a/1.png https://a/2.png caption words",
            "caption words",
            ("https://a/1.png", "https://a/2.png"),
        ),
        ('MEDIA: "./my file.png"', "", ("./my file.png",)),
        ("MEDIA: './my file.png'", "", ("./my file.png",)),
        ("MEDIA: `./my file.png`", "", ("./my file.png",)),
        ("MEDIA: <https://a/1.png>", "", ("https://a/1.png",)),
        ("MEDIA: ./a.png, ./b.png", "", ("./a.png", "./b.png")),
        ("  MEDIA:./a.png", "", ("./a.png",)),
        ("a\n\nb\nMEDIA:https://x/y.png", "a\nb", ("https://x/y.png",)),
        ("a\n\nMEDIA:./x.png\n\nb", "a\nb", ("./x.png",)),
        ("```\nMEDIA:./in.png\n```\nMEDIA:./out.png", "```\nMEDIA:./in.png\n```", ("./out.png",)),
        ("NO_REPLY\nMEDIA:./x.png", "", ("./x.png",)),
        ("MEDIA: it's ./x.png", "it's", ("./x.png",)),
        ("MEDIA:./x.png\n\n```\na\n\nb\n```", "```\na\n\nb\n```", ("./x.png",)),
    ],
)
def test_what_a_line_names_is_sent_and_the_rest_is_said(text: str, words: str, media: tuple[str, ...]) -> None:
    assert shaped(text) == (words, media)


@pytest.mark.parametrize(
    "text",
    [
        "MEDIA: /etc/passwd",
        "MEDIA: ../x.png",
        "MEDIA: ./a/../../x.png",
        "MEDIA: ~/x.png",
        "MEDIA: file:///etc/passwd",
        "MEDIA: x.png",
        "MEDIA: ftp://a/b.png",
        'MEDIA: "https://a/b c.png"',
        "MEDIA: ./",
        "MEDIA:",
        "text MEDIA: https://a.b/c.png",
        "media: https://a.b/c.png",
        "`MEDIA: ./x.png`",
        "```\nMEDIA:./x.png\n```",
        "~~~sh\nMEDIA:./x.png",
        "- ```\n  MEDIA:./x.png\n  ```",
        f"MEDIA: {LONG}",
        "MEDIA: ./a\x01.png",
    ],
)
def test_what_may_not_be_sent_stays_text(text: str) -> None:
    assert speech_of(text) == Spoken(text)


def test_a_backtick_address_with_a_space_is_one_file_and_leaks_nothing() -> None:
    line = read_line("MEDIA: `./my file.png` and words")
    assert line is not None and (line.media, line.words) == (("./my file.png",), "and words")


def test_silence_without_files_stays_silence() -> None:
    assert speech_of("NO_REPLY\nMEDIA: /etc/passwd") == Silent("NO_REPLY")


SCRAPS = [
    "MEDIA:", "MEDIA: ", "ME", "DIA:", "./x.png", "https://a/b.png", "\n", "\n\n", " ", "word", "```", "~~~", "`", '"',
    "NO_REPLY", "[[reply_to_current]]", "<think>", "</think>", "M",
]  # fmt: skip


@given(scraps=st.lists(st.sampled_from(SCRAPS), max_size=14), data=st.data())
@settings(deadline=None)
def test_how_a_text_is_cut_into_deltas_does_not_matter(scraps: list[str], data: st.DataObject) -> None:
    text = "".join(scraps)
    stream = SpeechStream()
    pieces = [piece for delta in data.draw(cut(text)) for piece in stream.feed(delta)] + stream.close()
    answers = [piece for piece in pieces if isinstance(piece, AnswerText)]
    assert stream.outcome == speech_of(text)
    assert tuple(one for answer in answers for one in answer.media) == stream.media
    assert "".join(answer.text for answer in answers) == stream.said


@pytest.mark.parametrize("size", [1, 4, 200])
def test_a_file_is_told_where_it_stood(size: int) -> None:
    text = "One.\n\nMEDIA: ./a.png of a cat\nTwo.\nMEDIA: ./b.png ./c.png\n\nThree.\nMEDIA: ./d.png"
    stream, told = SpeechStream(), list[str]()
    pieces = [piece for place in range(0, len(text), size) for piece in stream.feed(text[place : place + size])]
    for piece in [*pieces, *stream.close()]:
        assert isinstance(piece, AnswerText)
        told += [piece.text, *(f"<{one}>" for one in piece.media)]
    assert "".join(told) == "One.\n\nof a cat<./a.png>\nTwo.<./b.png><./c.png>\n\nThree.<./d.png>"


@pytest.mark.parametrize("size", [1, 3, 7])
def test_nobody_sees_half_a_line(size: int) -> None:
    text = "Look at this.\n\nMEDIA: ./out/picture.png\n\nNice, is it not?"
    stream, shown = SpeechStream(), ""
    for place in range(0, len(text), size):
        shown += "".join(piece.text for piece in stream.feed(text[place : place + size]))
        assert "MEDI" not in shown and "picture" not in shown
    shown += "".join(piece.text for piece in stream.close())
    assert (shown, stream.media) == ("Look at this.\n\nNice, is it not?", ("./out/picture.png",))


def test_a_line_that_was_cut_off_is_not_shown() -> None:
    stream = SpeechStream()
    pieces = stream.feed("Here it is:\nMEDIA: ./pic") + stream.close(complete=False)
    assert ("".join(piece.text for piece in pieces), stream.media) == ("Here it is:", ())


def test_a_stored_message_shows_its_words_and_names_its_files() -> None:
    from openclaw.messages import AssistantMessage, TextBlock

    message = AssistantMessage(content=[TextBlock(text="see\nMEDIA:./a.png")])
    alone = AssistantMessage(content=[TextBlock(text="MEDIA:./a.png")])
    assert visible_message(message, with_reasoning=False) == AssistantMessage(content=[TextBlock(text="see")])
    assert visible_message(alone, with_reasoning=False) == AssistantMessage(content=[])
    assert media_of(message) == media_of(alone) == ("./a.png",)
