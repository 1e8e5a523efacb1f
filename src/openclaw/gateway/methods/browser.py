"""``browser.request``: what the command line and other clients ask of the Gateway's browsers.

A request has the form of a call to a small web service (method, path, query, body), because clients of the protocol
speak so. Each route is one action of the ``browser`` tool, and goes the same way as the agent's own calls.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

from openclaw.config.agents import default_agent_id, workspace_dir
from openclaw.gateway.server.frames import NonEmpty, Params, Positive
from openclaw.gateway.server.registry import MethodCall, MethodError, MethodTable, OpenObject
from openclaw.path_opener import PathRefused
from openclaw.rights import OWNER_CALLER
from openclaw.tools.arguments import InvalidArguments, validate_arguments
from openclaw.tools.base import ToolContext, ToolError
from openclaw.tools.browser.tool import BrowserTool
from openclaw.untrusted_text import disarmed

methods = MethodTable()


class BrowserRequest(Params):
    path: NonEmpty
    method: Literal["GET", "POST", "DELETE"] = "GET"
    query: dict[str, Any] | None = None
    body: dict[str, Any] | None = None
    timeout_ms: Positive | None = None


ROUTES: dict[tuple[str, str], str] = {
    ("GET", "/"): "status",
    ("GET", "/profiles"): "profiles",
    ("POST", "/start"): "start",
    ("POST", "/stop"): "stop",
    ("GET", "/tabs"): "tabs",
    ("POST", "/tabs/open"): "open",
    ("POST", "/tabs/focus"): "focus",
    ("POST", "/navigate"): "navigate",
    ("GET", "/snapshot"): "snapshot",
    ("POST", "/screenshot"): "screenshot",
    ("GET", "/console"): "console",
    ("POST", "/pdf"): "pdf",
    ("POST", "/hooks/file-chooser"): "upload",
    ("POST", "/hooks/dialog"): "dialog",
    ("POST", "/act"): "act",
}
"""Method and path → action. ``DELETE /tabs/<id>`` closes a tab."""
_RENAMED = {"url": "targetUrl", "format": "snapshotFormat"}


def arguments_of(params: BrowserRequest) -> dict[str, Any]:
    """The arguments of the tool for a request. Raises ``MethodError``."""
    path = "/" + params.path.strip("/")
    given = {**(params.query or {}), **(params.body or {})}
    if params.method == "DELETE" and path.startswith("/tabs/"):
        return {**given, "action": "close", "targetId": path.removeprefix("/tabs/")}
    action = ROUTES.get((params.method, path))
    if action is None:
        raise MethodError(f"browser.request has no {params.method} {path[:80]}")
    if action == "act":
        outer = {name: given.pop(name) for name in ("profile", "targetId") if name in given}
        return {"action": "act", "request": given, **outer}
    known = BrowserTool.spec.parameters["properties"]
    renamed = {_RENAMED.get(name, name): value for name, value in given.items()}
    wanted = {"action": action, **{name: value for name, value in renamed.items() if name in known}}
    if params.timeout_ms is not None:
        wanted.setdefault("timeoutMs", params.timeout_ms)
    return wanted


@methods.add("browser.request", BrowserRequest)
async def request(call: MethodCall, params: BrowserRequest) -> OpenObject:
    """One request to the browser that the agent uses."""
    gateway = call.gateway
    config = gateway.runtime.config.current
    agent_id = default_agent_id(config)
    context = ToolContext(
        agent_id=agent_id,
        session_key=gateway.main_session_key(),
        workspace=workspace_dir(config, gateway.runtime.state_dir, agent_id),
        caller=OWNER_CALLER,
    )
    try:
        arguments = validate_arguments(BrowserTool.spec, arguments_of(params))
        done = await gateway.browser_tool.perform(BrowserTool.decode(arguments), context)
    except InvalidArguments as invalid:
        raise MethodError(str(invalid)) from None
    except (ToolError, PathRefused) as problem:
        raise MethodError(str(problem), "UNAVAILABLE") from None
    told = {**done.details, **({"snapshot": disarmed(done.page)} if done.page else {})}
    if done.image is not None:
        data, kind = done.image
        told["image"] = {"mimeType": kind, "data": base64.b64encode(data).decode("ascii")}
    return told
