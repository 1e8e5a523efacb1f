"""``POST /tools/invoke``: runs one tool for a program, under the same policies as for a model."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from aiohttp import web

from openclaw.agent.caller import caller_of
from openclaw.agent.model_choice import choose_model
from openclaw.agent.owner_files import owner_files
from openclaw.agent.runtime import Runtime
from openclaw.agent.tool_context import exec_overrides
from openclaw.agent.tool_set import sandbox_of, tools_for
from openclaw.config.agents import workspace_dir
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http.common import HttpRoute, RequestRefused, json_response, read_json, refusal_response
from openclaw.gateway.server.registry import MethodError
from openclaw.gateway.session_directory import SessionDirectory
from openclaw.inbound.commands.settings import elevated_allowed
from openclaw.inbound.incoming import Facts
from openclaw.models.base import ModelError
from openclaw.path_opener import PathRefused
from openclaw.paths import make_private_dir
from openclaw.rights import OWNER
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.message_ledger import MessageBody
from openclaw.tools.arguments import InvalidArguments, validate_arguments
from openclaw.tools.base import Tool, ToolContext, ToolError
from openclaw.tools.exec.settings import ExecOverrides
from openclaw.tools.policy import ToolFilter, allowed_tools, normalize_tool_name
from openclaw.tools.sandbox.boundary import Boundary

MAX_BODY_BYTES = 2 * 1024 * 1024
log = logging.getLogger("openclaw.gateway.http")


class InvokeBody(msgspec.Struct, rename="camel"):
    tool: str | None = None
    action: str | None = None
    args: dict[str, Any] | None = None
    session_key: str | None = None
    dry_run: bool = False
    """Checks the tool and its arguments, and runs nothing."""


class ToolsInvoke:
    """Serves ``POST /tools/invoke``."""

    def __init__(
        self,
        runtime: Runtime,
        directory: SessionDirectory,
        spawn: Callable[[Coroutine[Any, Any, web.Response]], asyncio.Task[web.Response]],
    ) -> None:
        self._runtime = runtime
        self._directory = directory
        self._spawn = spawn

    def routes(self) -> list[HttpRoute]:
        return [HttpRoute("POST", "/tools/invoke", self.invoke, refusal_response)]

    async def invoke(self, request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        try:
            body = await read_json(request, MAX_BODY_BYTES, InvokeBody)
            if not (body.tool or "").strip():
                raise RequestRefused("tools.invoke requires body.tool")
            target = self._directory.target(body.session_key or "main")
            self._directory.require_agent(target.agent_id)
        except RequestRefused as refused:
            return refused.response()
        except MethodError as error:
            return _failed(404, "not_found", str(error))
        name = normalize_tool_name(body.tool or "")
        sandbox = await sandbox_of(self._runtime, target.agent_id, target.key, await self._directory.entry(target))
        tool = await self._tool(target, name, sandbox)
        if tool is None:
            return _failed(404, "not_found", f"Tool not available: {(body.tool or '')[:80]}")
        if sandbox is not None and not body.dry_run and (refusal := await sandbox.refusal()) is not None:
            return _failed(400, "tool_error", refusal)
        args = dict(body.args or {})
        if body.action and "action" in tool.spec.parameters.get("properties", {}):
            args.setdefault("action", body.action)
        try:
            arguments = validate_arguments(tool.spec, args)
        except InvalidArguments as invalid:
            return _failed(400, "tool_error", str(invalid))
        if body.dry_run:
            return json_response(
                {"ok": True, "result": {"content": [], "details": {"dryRun": True, "args": arguments}}}
            )
        # The tool continues when the caller hangs up.
        return await asyncio.shield(self._spawn(self._run(target, tool, arguments, sandbox)))

    async def _tool(self, target: SessionRef, name: str, sandbox: Boundary | None) -> Tool | None:
        """Return the tool if the session's agent may use it and it is offered over HTTP."""
        config = self._runtime.config.current
        entry = await self._directory.entry(target) or SessionEntry(sessionId="")
        try:
            model = choose_model(self._runtime, target.agent_id, entry)
        except ModelError as error:
            log.warning("tools of %s cannot be listed: %s", target.agent_id, error)
            return None
        # The tool is listed even when the model cannot call tools.
        model = msgspec.structs.replace(model, tools=True)
        workspace = workspace_dir(config, self._runtime.state_dir, target.agent_id)
        await asyncio.to_thread(make_private_dir, str(workspace))
        caller = await caller_of(self._runtime, target, entry)
        tools = await tools_for(self._runtime, target, model, caller=caller, sandbox=sandbox)
        offered = allowed_tools([tool.spec.name for tool in tools], [ToolFilter(deny=tuple(config.gateway.tools.deny))])
        by_name = {tool.spec.name: tool for tool in tools if tool.spec.name in offered}
        return self._runtime.extensions.watched(by_name).get(name)

    async def _run(
        self, target: SessionRef, tool: Tool, arguments: dict[str, Any], sandbox: Boundary | None
    ) -> web.Response:
        run_id = f"invoke-{uuid.uuid4()}"

        async def overrides() -> ExecOverrides | None:
            allowed = elevated_allowed(self._runtime.config.current, Facts(session=target, rights=OWNER))
            body = MessageBody(elevated_allowed=allowed)
            default = self._runtime.config.current.agents.defaults.elevated_default
            return exec_overrides(body, await self._directory.entry(target), default)

        caller = await caller_of(self._runtime, target, await self._directory.entry(target))
        context = ToolContext(
            agent_id=target.agent_id,
            session_key=target.key,
            workspace=workspace_dir(self._runtime.config.current, self._runtime.state_dir, target.agent_id),
            run_id=run_id,
            call_id=run_id,
            caller=caller,
            owner_files=owner_files(self._runtime, target.agent_id, caller),
            notify=lambda text: self._runtime.notes.add(target.key, text),
            exec_overrides=overrides,
            sandbox=sandbox,
        )
        try:
            result = await tool.run(arguments, context)
        except (ToolError, PathRefused) as failure:
            return _failed(400, "tool_error", str(failure))
        except Exception as failure:
            log.exception("tool %s failed when invoked over HTTP for %s", tool.spec.name, target.key)
            return _failed(400, "tool_error", f"{type(failure).__name__}: {failure}")
        details = {} if result.details is msgspec.UNSET else {"details": result.details}
        return json_response({"ok": True, "result": {"content": result.content, **details}})


def _failed(status: int, kind: str, message: str) -> web.Response:
    return json_response({"ok": False, "error": {"type": kind, "message": message}}, status=status)
