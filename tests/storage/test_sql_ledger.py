"""Routes as the ledger stores them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw import json_text
from openclaw.messages import Route
from openclaw.storage.sql_ledger import decode_route

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
STORED = st.fixed_dictionaries(
    {"channel": TEXTS.filter(bool)},
    optional={
        **{name: TEXTS.filter(bool) for name in ("to", "sessionKey", "replyToId")},
        "accountId": TEXTS,
        "threadId": TEXTS | st.integers(-(2**63), 2**63 - 1),
    },
)


@given(STORED)
def test_a_stored_route_is_written_again_as_it_was(stored: dict[str, Any]) -> None:
    assert msgspec.json.decode(json_text.encode(decode_route(json_text.encode(stored)))) == stored


def test_keys_are_written_in_the_order_of_earlier_versions() -> None:
    route = Route(
        channel="telegram", to="1", account_id="home", thread_id=7, session_key="agent:main:main", reply_to_id="42"
    )
    assert json_text.encode(route) == (
        b'{"channel":"telegram","to":"1","accountId":"home","threadId":7,'
        b'"sessionKey":"agent:main:main","replyToId":"42"}'
    )


@pytest.mark.parametrize(
    ("stored", "route"),
    [
        (b'{"channel":"signal","to":"ann","newer":{"x":1}}', Route(channel="signal", to="ann")),
        (b'{"channel":"signal","to":null,"accountId":null,"threadId":null}', Route(channel="signal")),
        (b'{"channel":"signal","to":"","sessionKey":null,"x":1}', Route(channel="signal")),
        (b"{}", Route()),
        (b'{"channel":"signal","to":7}', Route()),
        (b"[]", Route()),
        (b'{"channel":', Route()),
        (b"\xff", Route()),
    ],
)
def test_routes_of_other_versions_and_damaged_ones_are_read(stored: bytes, route: Route) -> None:
    assert decode_route(stored) == route
