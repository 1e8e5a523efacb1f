"""``pairing.list`` and ``pairing.approve`` over the wire."""

from __future__ import annotations

from typing import Any

from tests.gateway.support import Running


async def call(running: Running, method: str, params: Any = None) -> dict[str, Any]:
    _, answer = await running.rpc(method, params)
    return answer


async def test_a_stranger_is_listed_and_let_in(running: Running) -> None:
    asked = await running.gateway.pairing.ask("signal", "+1555", {"name": "Ana"})
    assert asked is not None
    [request] = (await call(running, "pairing.list"))["payload"]["requests"]
    assert (request["channel"], request["id"], request["code"]) == ("signal", "+1555", asked.code)
    assert request["meta"] == {"name": "Ana"} and request["createdAt"].endswith("Z")
    assert (await call(running, "pairing.list", {"channel": "telegram"}))["payload"] == {"requests": []}
    answer = await call(running, "pairing.approve", {"code": asked.code.lower(), "channel": "signal"})
    assert answer["payload"] == {"channel": "signal", "id": "+1555"}
    assert await running.gateway.pairing.allowed("signal") == {"+1555"}


async def test_an_unknown_code_is_an_error_that_names_it(running: Running) -> None:
    answer = await call(running, "pairing.approve", {"code": "NOPE2345"})
    assert not answer["ok"] and "NOPE2345" in answer["error"]["message"]


async def test_a_notice_that_cannot_be_sent_does_not_undo_the_approval(running: Running) -> None:
    asked = await running.gateway.pairing.ask("nowhere", "1")
    assert asked is not None
    answer = await call(running, "pairing.approve", {"code": asked.code, "notify": True})
    assert answer["payload"]["notified"] is False and answer["payload"]["notifyError"]
    assert await running.gateway.pairing.allowed("nowhere") == {"1"}


async def test_who_may_not_talk_to_the_agent_lets_nobody_talk_to_it(running: Running) -> None:
    asked = await running.gateway.pairing.ask("nowhere", "1")
    assert asked is not None
    for scopes in (["operator.pairing"], ["operator.pairing", "operator.write", "operator.approvals"]):
        async with running.client(scopes=scopes) as client:
            assert (await client.call("pairing.list"))["ok"]
            answer = await client.call("pairing.approve", {"code": asked.code})
            assert answer["error"]["message"].startswith("missing scope: operator.admin")
    assert await running.gateway.pairing.allowed("nowhere") == frozenset()


async def test_only_operators_with_the_pairing_scope_may_ask(running: Running) -> None:
    async with running.client(role="operator", scopes=["operator.read", "operator.write"]) as reader:
        for method, params in (("pairing.list", {}), ("pairing.approve", {"code": "X"})):
            answer = await reader.call(method, params)
            assert answer["error"]["message"] == "missing scope: operator.pairing"
