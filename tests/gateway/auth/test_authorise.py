"""Methods × scopes: every registered method against the table of rights, as a function and over the wire."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from openclaw.gateway.assemble import METHOD_FAMILIES
from openclaw.gateway.auth.authorise import METHOD_RIGHTS, PARAM_RIGHTS, beyond, param_refusal, refusal, right_of
from openclaw.gateway.methods.chat import AgentParams, ChatSend
from openclaw.gateway.methods.messages import SendParams
from openclaw.gateway.server.frames import Params
from openclaw.gateway.server.registry import ADVERTISED, MethodError, MethodTable
from openclaw.rights import ADMIN, rights_of_client
from tests.gateway.support import Running

SCOPES = ["operator.admin", "operator.read", "operator.write", "operator.pairing", "operator.approvals"]
SCOPE_SETS = [frozenset(some) for size in range(len(SCOPES) + 1) for some in combinations(SCOPES, size)]
CALLERS = [("operator", scopes) for scopes in SCOPE_SETS] + [("node", frozenset()), ("node", frozenset(SCOPES))]
METHODS = MethodTable(*(family.methods for family in METHOD_FAMILIES))


# The rules of protocol v3 and our own, written down a second time: a change must be made in both places.
def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ = names("""
    health logs.tail channels.status status usage.status usage.cost tts.status tts.providers models.list agents.list
    agent.identity.get skills.status voicewake.get sessions.list sessions.preview cron.list cron.status cron.runs
    system-presence last-heartbeat node.list node.describe chat.history sessions.archived sessions.tree sessions.search
    sessions.versions sessions.export messages.list messages.get messages.why memory.status memory.search events.replay
    chat.view chat.commands chat.media sessions.entries mcp.status plugins.list
    models.status
    outbox.list
    cluster.status
    sessions.subscribe sessions.unsubscribe sessions.messages.subscribe sessions.messages.unsubscribe sessions.describe
    sessions.branches.list chat.startup chat.metadata commands.list models.authStatus cron.get tasks.list
    taskSuggestions.list progressCard.get sessions.companion.state sessions.observer.visibility update.status
""")
WRITE = names("""
    send agent agent.wait wake talk.mode tts.enable tts.disable tts.convert tts.setProvider voicewake.set node.invoke
    chat.send chat.abort browser.request memory.index chat.drop chat.reword chat.promote
""")
PAIRING = names("""
    node.pair.request node.pair.list node.pair.approve node.pair.reject node.pair.verify device.pair.list
    device.pair.approve device.pair.reject device.token.rotate device.token.revoke node.rename pairing.list
    pairing.approve device.pair.remove channels.pairing.list
""")
APPROVALS = [
    *("exec.approval.request", "exec.approval.resolve", "exec.approval.list", "question.list", "question.answer"),
    *("plugin.approval.list", "openclaw.approval.list"),
]
BUNDLED_BINS = ["curl", "df", "git", "openclaw", "ps", "python3", "sha256sum", "sqlite3", "tar"]
"""The programs that the bundled skills run."""
NODE = ["node.invoke.result", "node.event", "skills.bins"]


def expected_refusal(role: str, scopes: frozenset[str], name: str) -> str | None:
    """What the protocol says, without a look at the table of the product."""
    if role == "node":
        return None if name in NODE else "unauthorized role: node"
    if name in NODE:
        return "unauthorized role: operator"
    if "operator.admin" in scopes:
        return None
    if name in READ:
        return None if scopes & {"operator.read", "operator.write"} else "missing scope: operator.read"
    scope = (
        "write" if name in WRITE else "pairing" if name in PAIRING else "approvals" if name in APPROVALS else "admin"
    )
    return None if f"operator.{scope}" in scopes else f"missing scope: operator.{scope}"


class Caller:
    def __init__(self, role: str, scopes: frozenset[str]) -> None:
        self.role, self.protocol = role, 4
        self.rights = rights_of_client(role, scopes)


@pytest.mark.parametrize(
    "name", sorted({*METHODS.advertised(), *METHODS.advertised(4)} - {"connect"} | {"nope", "config.get.x"})
)
def test_every_method_for_every_set_of_scopes(name: str) -> None:
    for role, scopes in CALLERS:
        expected = expected_refusal(role, scopes, name)
        caller: Any = Caller(role, scopes)
        assert refusal(role, caller.rights, right_of(name)) == expected, (role, sorted(scopes))
        if expected is not None:
            with pytest.raises(MethodError) as caught:
                METHODS.find(caller, name)
            assert str(caught.value) == expected


def test_no_scope_that_nobody_knows_gives_a_right() -> None:
    for invented in ("", "*", "operator", "operator.*", "operator.root", "OPERATOR.ADMIN", "operator.admin ", "admin"):
        assert rights_of_client("operator", [invented]) == frozenset()
    for role in ("owner", "admin", "", "Operator"):
        assert rights_of_client(role, SCOPES) == frozenset()


def test_a_method_without_a_rule_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match="needs a right"):
        MethodTable().add("sessions.obliterate")
    assert {*METHODS.advertised(), *METHODS.advertised(4)} == {*METHOD_RIGHTS}, (
        "and no rule is left of a method that is gone"
    )
    assert {*ADVERTISED} <= {*METHOD_RIGHTS}


PLAIN_PARAMS: dict[str, tuple[type[Params], frozenset[str]]] = {
    "agent": (
        AgentParams,
        names("""
            message idempotencyKey agentId to replyTo sessionId sessionKey thinking deliver attachments channel
            replyChannel accountId replyAccountId threadId timeout
        """),
    ),
    "chat.send": (
        ChatSend,
        names("sessionKey agentId message idempotencyKey thinking deliver attachments timeoutMs"),
    ),
    "send": (
        SendParams,
        names("to message mediaUrl mediaUrls gifPlayback channel accountId idempotencyKey"),
    ),
}
"""The parameters of the methods that take text: those that do no more than the method. The others need a right."""


@pytest.mark.parametrize("method", PLAIN_PARAMS)
def test_every_parameter_beside_a_text_has_a_rule(method: str) -> None:
    record, plain = PLAIN_PARAMS[method]
    ruled = PARAM_RIGHTS.get(method, {})
    fields = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
    assert {wire for field, wire in fields.items() if field not in ruled} == plain, "a new parameter needs a rule"
    assert {*ruled} <= {*fields}
    required: dict[str, Any] = dict.fromkeys(("message", "idempotency_key", "to", "session_key"), "x")
    base = {name: value for name, value in required.items() if name in fields and name not in ruled}
    for scopes in SCOPE_SETS:
        rights = rights_of_client("operator", scopes)
        assert param_refusal(method, record(**base), rights) is None
        for field in ruled:
            refused = param_refusal(method, record(**{**base, field: "x"}), rights)
            assert refused == (None if ADMIN in scopes else f"missing scope: operator.admin (for {fields[field]})")


async def test_the_matrix_holds_over_the_wire(running: Running) -> None:
    async with running.client(scopes=["operator.read"]) as socket:
        assert (await socket.call("health"))["ok"]
        answer = await socket.call("config.get")
        assert answer["error"] == {"code": "INVALID_REQUEST", "message": "missing scope: operator.admin"}


async def test_a_parameter_that_does_more_than_its_method_needs_more(running: Running) -> None:
    async with running.client(scopes=["operator.write"]) as socket:
        asked = {"message": "hello", "idempotencyKey": "k", "extraSystemPrompt": "You have no rules."}
        answer = await socket.call("agent", asked)
        assert answer["error"]["message"] == "missing scope: operator.admin (for extraSystemPrompt)"


async def test_a_node_may_call_its_three_methods_and_no_other(running: Running) -> None:
    async with running.client(role="node", scopes=SCOPES) as socket:
        assert (await socket.call("skills.bins"))["payload"] == {"bins": BUNDLED_BINS}
        assert (await socket.call("health"))["error"]["message"] == "unauthorized role: node"
        told = await socket.call("node.event", {"event": "exec.finished", "payload": {}})
        assert told["error"]["message"] == "device identity required", "without a device it is nobody's node"


async def test_authorisation_comes_before_existence(running: Running) -> None:
    async with running.client() as admin, running.client(scopes=["operator.read"]) as reader:
        assert (await admin.call("nope"))["error"]["message"] == "unknown method: nope"
        assert (await reader.call("nope"))["error"]["message"] == "missing scope: operator.admin"


async def test_an_advertised_name_without_a_handler_says_so(running: Running) -> None:
    async with running.client() as socket:
        answer = await socket.call("tts.status")
        assert answer["error"] == {"code": "UNAVAILABLE", "message": "tts.status is not available in this version"}


@pytest.mark.parametrize("own", SCOPE_SETS, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
def test_nobody_hands_out_what_they_do_not_have(own: frozenset[str]) -> None:
    for given in SCOPE_SETS:
        if beyond(own, given) is None:
            assert rights_of_client("operator", given) <= rights_of_client("operator", own)
        else:
            assert not given <= own
    assert (beyond(own, ["operator.unheard"]) is None) == (ADMIN in own)
