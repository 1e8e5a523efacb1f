"""Answers in chunks, read without aiohttp; all others, read with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.models import streamed
from openclaw.models.endpoint import AnyResponse, Endpoint, Response
from openclaw.models.streamed import Body, StreamedAnswer, is_plain_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + end


class Script:
    """A server that writes the same pieces for every request, and hangs up after them if it is told to."""

    def __init__(self, *pieces: bytes, hangs_up: bool = False) -> None:
        self.pieces = pieces
        self.hangs_up = hangs_up
        self.connections = 0
        self.gone = asyncio.Event()

    @asynccontextmanager
    async def calls(self, idle_s: float = 5.0) -> AsyncGenerator[tuple[Endpoint, aiohttp.ClientSession]]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            async with aiohttp.ClientSession() as session:
                yield Endpoint(f"http://127.0.0.1:{port}/", {}, idle_s=idle_s), session
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().rpartition(b"content-length: ")[2]))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002)
                if self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.gone.set()


async def whole(body: Body) -> bytes:
    text = b""
    while part := await body.readany():
        text += part
    return text


async def read(response: AnyResponse) -> bytes:
    return await whole(response.content)


async def test_chunks_become_the_text_they_carry_and_the_connection_is_used_again() -> None:
    script = Script(HEAD + b"\r\n" + chunked(b"data: 1\n\n", b"data: 2\n\n"))
    async with script.calls() as (endpoint, session):
        for _ in range(3):
            response = await endpoint.post(session, b"{}")
            assert isinstance(response.content, StreamedAnswer)
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert await read(response) == b"data: 1\n\ndata: 2\n\n"
            assert response.content.at_eof()
            response.release()
    assert script.connections == 1


BODY = [b"data: one\n\n", b"\r\n", b"x" * 300, b"0\r\n\r\n", b"\xf0\x9f\xa6\x9e"]
FIELDS = b"0;last\r\nx-cost: 1\r\nx-more: 2\r\n\r\n"


class Line:
    """The connection's side of an answer."""

    def __init__(self) -> None:
        self.transport = None
        self.read_timeout: float | None = 1.0
        self.parser: object = None
        self.closes = False

    def set_parser(self, parser: object, payload: object) -> None:
        self.parser = parser

    def force_close(self) -> None:
        self.closes = True


def answer_on(line: Line) -> StreamedAnswer:
    return StreamedAnswer(line, streamed.QuietWatch(asyncio.get_running_loop(), 5.0))  # pyright: ignore[reportArgumentType]


@given(
    cuts=st.lists(st.integers(0, 500), max_size=12), end=st.sampled_from([b"0\r\n\r\n", FIELDS]), eager=st.booleans()
)
def test_it_does_not_matter_where_the_network_cuts(cuts: list[int], end: bytes, eager: bool) -> None:
    async def fed() -> None:
        line, data = Line(), chunked(*BODY, end=end)
        answer = answer_on(line)
        answer.feed_data(HEAD + b"\r\n")
        places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
        reading = asyncio.create_task(whole(answer))
        for begin, stop in pairwise(places):
            assert not answer.at_eof()
            answer.feed_data(data[begin:stop])
            if eager:
                await asyncio.sleep(0)
        assert await reading == b"".join(BODY)
        assert answer.at_eof()
        assert line.parser is None and not line.closes

    asyncio.run(fed())


async def test_what_follows_the_end_makes_the_connection_unfit() -> None:
    line = Line()
    answer = answer_on(line)
    answer.feed_data(HEAD + b"\r\n" + chunked(b"a") + b"HTTP/1.1 500 Oops\r\n")
    assert await answer.readany() == b"a"
    assert answer.at_eof() and line.closes


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\ndata",
        b"5\r\nhello5\r\nhello\r\n",
        b"-5\r\nhello",
        b"\n\n",
        b"5" + b";" * 9000,
        b"0\r\n" + b"a: b\r\n" * 2000,
    ],
)
async def test_chunks_that_are_none_fail_the_call(body: bytes) -> None:
    async with Script(HEAD + b"\r\n" + body).calls() as (endpoint, session):
        response = await endpoint.post(session, b"{}")
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(response)
        response.close()


async def test_an_answer_that_breaks_off_gives_what_came_and_then_fails() -> None:
    async with Script(HEAD + b"\r\n", b"5\r\nhel", hangs_up=True).calls() as (endpoint, session):
        response = await endpoint.post(session, b"{}")
        assert await response.content.readany() == b"hel"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.readany()
        response.close()


async def test_a_server_that_hangs_up_without_a_word_is_a_failed_connection() -> None:
    async with Script(hangs_up=True).calls() as (endpoint, session):
        with pytest.raises(aiohttp.ClientError):
            await endpoint.post(session, b"{}")


async def test_silence_in_the_middle_ends_the_call_and_words_put_it_off() -> None:
    words = [chunked(b"data\n\n", end=b"")] * 20
    async with Script(HEAD + b"\r\n", *words).calls(idle_s=0.03) as (endpoint, session):
        response = await endpoint.post(session, b"{}")
        got = b""
        with pytest.raises(TimeoutError):
            while part := await response.content.readany():
                got += part
        assert got == b"data\n\n" * 20
        response.close()


async def test_the_head_alone_is_enough_to_begin() -> None:
    async with Script(HEAD + b"\r\n").calls() as (endpoint, session):
        response = await endpoint.post(session, b"{}")
        assert response.status == 200
        response.close()


async def test_a_reader_that_takes_its_time_holds_the_server_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "MOST_BUFFERED", 100)
    parts = [b"%03d " % number * 50 for number in range(40)]
    script = Script(HEAD + b"\r\n", *(chunked(part, end=b"") for part in parts), b"0\r\n\r\n")
    async with script.calls() as (endpoint, session):
        response = await endpoint.post(session, b"{}")
        assert isinstance(response, Response)
        first = await response.content.readany()
        await asyncio.sleep(0.05)
        assert first + await read(response) == b"".join(parts)
        response.release()
        response = await endpoint.post(session, b"{}")
        assert await read(response) == b"".join(parts)
        response.release()
    assert script.connections == 1


async def test_leaving_an_answer_hangs_up() -> None:
    script = Script(HEAD + b"\r\n" + chunked(b"a", end=b""))
    async with script.calls() as (endpoint, session):
        response = await endpoint.post(session, b"{}")
        response.release()
        await asyncio.wait_for(script.gone.wait(), 5)


PLAIN = HEAD.decode()


@pytest.mark.parametrize(
    ("head", "plain"),
    [
        (PLAIN, True),
        (PLAIN + "Connection: keep-alive\r\n", True),
        (PLAIN.replace("200 OK", "200"), True),
        (PLAIN + "Connection: close\r\n", False),
        (PLAIN + "Content-Encoding: gzip\r\n", False),
        (PLAIN + "Content-Length: 5\r\n", False),
        (PLAIN + "Transfer-Encoding: gzip\r\n", False),
        (PLAIN + "Transfer-Encoding: chunked\r\n", False),
        (PLAIN + " folded\r\n", False),
        (PLAIN.replace("chunked", "gzip, chunked"), False),
        (PLAIN.replace("1.1", "1.0"), False),
        (PLAIN.replace("200 OK", "429 Slow down"), False),
        (PLAIN.replace("text/event-stream", "application/json"), False),
    ],
)
async def test_a_head_out_of_the_ordinary_is_left_to_aiohttp(head: str, plain: bool) -> None:
    assert is_plain_head(head.encode()) is plain


@pytest.mark.parametrize("size", [1, 9, len(HEAD) - 1, len(HEAD) + 1])
async def test_a_head_in_pieces_is_read_all_the_same(size: int) -> None:
    answer = HEAD + b"\r\n" + chunked(b"data: 1\n\n")
    async with Script(answer[:size], answer[size:]).calls() as (endpoint, session):
        for _ in range(2):
            response = await endpoint.post(session, b"{}")
            assert not isinstance(response.content, StreamedAnswer)
            assert await read(response) == b"data: 1\n\n"
            response.release()


async def test_a_connection_serves_answers_of_both_forms_in_turn() -> None:
    plain = HEAD + b"\r\n" + chunked(b"events")
    other = b"HTTP/1.1 429 Slow down\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    script = Script(plain)
    async with script.calls() as (endpoint, session):
        for script.pieces, expected in [((plain,), b"events"), ((other,), b"{}")] * 2:
            response = await endpoint.post(session, b"{}")
            assert await read(response) == expected
            response.release()
    assert script.connections == 1
