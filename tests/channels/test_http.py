"""What an answer of a platform means for the next request."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from openclaw.channels.bluebubbles.channel import BbResponse, failure_of
from openclaw.channels.http import retry_after_s
from openclaw.channels.matrix.client import MatrixClient, MatrixFailed
from openclaw.outbound.reply import SendFailed

DATE = "Sun, 15 Nov 2026 18:22:05 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 2.5 "}, 2.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "Sun, 15 Nov 2026 18:24:05 GMT", "Date": DATE}, 120.0),
        ({"Retry-After": "Sun, 15 Nov 2026 18:20:05 GMT", "Date": DATE}, 0.0),
        ({"Retry-After": "Sun, 15 Nov 2026 18:24:05 GMT"}, None),
    ],
)
def test_the_pause_that_an_answer_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(CIMultiDict(headers)) == seconds


async def test_matrix_answers_an_error_with_a_pause(tmp_path: Path) -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503, text="<html>", headers={"Retry-After": "9"})

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", busy)
    async with TestServer(app) as server:
        client = MatrixClient(str(server.make_url("")), "@bot:test", encryption=False, store=tmp_path)
        try:
            with pytest.raises(MatrixFailed) as failed:
                await client.use("token")
        finally:
            await client.close()
    assert (failed.value.reached, failed.value.maybe_sent, failed.value.retry_after_s) == (True, True, 9)


def test_bluebubbles_answers_an_error_with_a_pause() -> None:
    failure: SendFailed = failure_of(503, BbResponse(), 9)
    assert (failure.reached, failure.maybe_sent, failure.retry_after_s) == (True, True, 9)
