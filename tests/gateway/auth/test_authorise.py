"""Roles and scopes, as a table and over the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gateway.assemble import METHOD_FAMILIES
from openclaw.gateway.auth.authorise import ACCESS, access_of, refusal
from openclaw.gateway.server.registry import ADVERTISED, MethodError, MethodTable
from tests.gateway.support import Running

SCOPES = ["operator.admin", "operator.read", "operator.write", "operator.pairing", "operator.approvals"]


@pytest.mark.parametrize(
    ("scope", "name", "message"),
    [
        ("operator.read", "health", None),
        ("operator.read", "chat.abort", "missing scope: operator.write"),
        ("operator.read", "config.get", "missing scope: operator.admin"),
        ("operator.write", "sessions.list", None),
        ("operator.write", "sessions.patch", "missing scope: operator.admin"),
        ("operator.pairing", "device.pair.list", None),
        ("operator.pairing", "sessions.list", "missing scope: operator.read"),
        ("operator.read", "exec.approval.resolve", "missing scope: operator.approvals"),
        ("operator.read", "system-event", "missing scope: operator.admin"),
        ("operator.read", "sessions.resolve", "missing scope: operator.admin"),
        ("operator.read", "nope", "missing scope: operator.admin"),
        ("operator.admin", "skills.bins", "unauthorized role: operator"),
    ],
)
def test_scope_matrix(scope: str, name: str, message: str | None) -> None:
    assert refusal("operator", {scope}, access_of(name)) == message


async def test_the_matrix_holds_over_the_wire(running: Running) -> None:
    async with running.client(scopes=["operator.read"]) as socket:
        assert (await socket.call("health"))["ok"]
        answer = await socket.call("config.get")
        assert answer["error"] == {"code": "INVALID_REQUEST", "message": "missing scope: operator.admin"}


async def test_a_node_may_call_its_three_methods_and_no_other(running: Running) -> None:
    async with running.client(role="node") as socket:
        assert (await socket.call("skills.bins"))["payload"] == {"bins": ["curl", "openclaw"]}
        assert (await socket.call("health"))["error"]["message"] == "unauthorized role: node"
        assert (await socket.call("node.event"))["error"]["code"] == "UNAVAILABLE"


async def test_authorisation_comes_before_existence(running: Running) -> None:
    async with running.client() as admin, running.client(scopes=["operator.read"]) as reader:
        assert (await admin.call("nope"))["error"]["message"] == "unknown method: nope"
        assert (await reader.call("nope"))["error"]["message"] == "missing scope: operator.admin"


async def test_an_advertised_name_without_a_handler_says_so(running: Running) -> None:
    async with running.client() as socket:
        answer = await socket.call("tts.status")
        assert answer["error"] == {"code": "UNAVAILABLE", "message": "tts.status is not available in this version"}


@given(st.sets(st.sampled_from(SCOPES[1:])), st.sampled_from([*ADVERTISED, "nope", "config.get.x"]))
def test_no_mixture_of_lesser_scopes_opens_an_admin_method(scopes: set[str], name: str) -> None:
    if access_of(name) == "admin":
        assert refusal("operator", scopes, access_of(name)) == "missing scope: operator.admin"
    assert refusal("node", scopes | {"operator.admin"}, access_of(name)) is None or access_of(name) != "node"


def test_every_registered_method_of_the_protocol_keeps_its_access() -> None:
    methods = MethodTable(*(family.methods for family in METHOD_FAMILIES))

    class Anyone:
        role = "operator"
        scopes: frozenset[str] = frozenset()

    for name in ADVERTISED:
        if name == "connect":
            continue
        with pytest.raises(MethodError) as caught:
            methods.find(Anyone(), name)  # type: ignore[arg-type]
        access = ACCESS.get(name, "admin")
        expected = "unauthorized role: operator" if access == "node" else f"missing scope: operator.{access}"
        assert str(caught.value) == expected


def test_a_method_cannot_be_registered_with_another_access_than_the_protocols() -> None:
    with pytest.raises(ValueError, match="access read in protocol v3"):
        MethodTable().add("health", access="write")
