"""Who may open a link between nodes: whoever proves with a fresh number that it knows the secret, and nobody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from openclaw.cluster.links import NODE, NONCE, PROOF, Links


def links_with(secret: str) -> Links:
    membership: Any = SimpleNamespace(node="b", secret=secret, peers={})
    return Links(membership)


async def knock(links: Links, node: str, proof: str, nonce: str) -> int:
    request: Any = SimpleNamespace(headers={NODE: node, PROOF: proof, "X-OpenClaw-For": nonce, NONCE: "x"})
    answer = await links.accept(request, lambda: pytest.fail("somebody was let in"))
    return cast(int, answer.status)


async def test_whoever_does_not_prove_the_secret_is_asked_again() -> None:
    links = links_with("the secret")
    nonce = (await links.challenge()).headers[NONCE]
    for node, proof in (
        ("a", ""),
        ("a", "0" * 64),
        ("\udcff", "\udcff"),
        ("b", links_with("")._proof("dials", "b", "b", nonce)),
    ):
        assert await knock(links, node, proof, nonce) == 401
        nonce = (await links.challenge()).headers[NONCE]
    right = links._proof("dials", "a", "b", "never asked for")
    assert await knock(links, "a", right, "never asked for") == 401


async def test_a_node_that_has_no_secret_yet_lets_nobody_in() -> None:
    links = links_with("")
    nonce = (await links.challenge()).headers[NONCE]
    assert await knock(links, "a", links._proof("dials", "a", "b", nonce), nonce) == 401


async def test_a_number_is_good_for_one_try() -> None:
    links = links_with("the secret")
    nonce = (await links.challenge()).headers[NONCE]
    assert await knock(links, "a", "wrong", nonce) == 401
    assert await knock(links, "a", links._proof("dials", "a", "b", nonce), nonce) == 401
