from __future__ import annotations

import pytest

from openclaw.tools.policy import PROFILES, ToolPolicy, allowed_tools, profile

NAMES = [
    "read",
    "write",
    "edit",
    "apply_patch",
    "exec",
    "process",
    "browser",
    "sessions_list",
    "session_status",
    "mcp_x",
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (ToolPolicy(), NAMES),
        (ToolPolicy(allow=("read", "WRITE ")), ["read", "write"]),
        (ToolPolicy(allow=("group:fs",), deny=("write",)), ["read", "edit", "apply_patch"]),
        (ToolPolicy(allow=("*",), deny=("group:runtime",)), [n for n in NAMES if n not in ("exec", "process")]),
        (ToolPolicy(deny=("*",)), []),
        (ToolPolicy(allow=("sess*",)), ["sessions_list", "session_status"]),
        (ToolPolicy(allow=("mcp_*", "*ess")), ["process", "mcp_x"]),
        (ToolPolicy(allow=("bash",)), ["apply_patch", "exec"]),
        (ToolPolicy(allow=("exec",), deny=("apply-patch",)), ["exec"]),
        (ToolPolicy(allow=("group:unknown",)), []),
        (ToolPolicy(allow=("re.d",)), []),
    ],
)
def test_one_policy(policy: ToolPolicy, expected: list[str]) -> None:
    assert allowed_tools(NAMES, [policy]) == expected


def test_a_tool_must_pass_every_policy() -> None:
    policies = [None, profile("coding"), ToolPolicy(deny=("exec",)), ToolPolicy(allow=("exec", "read", "browser"))]
    assert allowed_tools(NAMES, policies) == ["read", "apply_patch"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minimal", ["session_status"]),
        ("messaging", ["sessions_list", "session_status"]),
        ("full", NAMES),
    ],
)
def test_profiles(name: str, expected: list[str]) -> None:
    assert allowed_tools(NAMES, [profile(name)]) == expected


def test_a_profile_can_be_widened_and_must_exist() -> None:
    assert allowed_tools(NAMES, [profile("minimal", ["browser"])]) == ["browser", "session_status"]
    assert profile("full", ["browser"]) == PROFILES["full"]
    with pytest.raises(ValueError, match='Unknown tool profile "codng"; use one of minimal'):
        profile("codng")
