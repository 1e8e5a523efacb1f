"""The table of HTTP endpoints, made from the parts of a Gateway."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aiohttp import web

from openclaw.config.schema import Config
from openclaw.extensions.points import ExtensionPoints, OwnRoute
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http import control_ui, webhooks
from openclaw.gateway.http.common import HttpRoute, json_response, refusal_response
from openclaw.gateway.http.control_ui import ControlUiPage
from openclaw.gateway.http.monitoring import Monitoring
from openclaw.gateway.http.openai_chat import ChatCompletions
from openclaw.gateway.http.openai_responses import Responses
from openclaw.gateway.http.openai_run import OpenAiRuns
from openclaw.gateway.http.rpc import Rpc
from openclaw.gateway.http.tools_invoke import ToolsInvoke
from openclaw.gateway.http.webhooks import HookEndpoint

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway

extension_log = logging.getLogger("openclaw.extensions")


def http_routes(gateway: Gateway) -> list[HttpRoute]:
    """Return every route. The first one that fits answers; the Control UI fits every path, so it is the last."""
    # The methods import the server, and the server imports this file.
    from openclaw.gateway.methods.agents import identity_of

    runtime, limiter = gateway.runtime, gateway.auth_limiter
    config, clock = runtime.config, runtime.clock
    directory, spawn = gateway.directory, gateway.spawn
    openai = OpenAiRuns(
        runtime,
        directory,
        gateway.runs,
        gateway.pipeline,
        gateway.notices,
        spawn,
        gateway.leaving,
        gateway.cluster,
    )

    async def avatar_of(agent_id: str) -> str:
        return (await identity_of(gateway.runtime, agent_id)).avatar

    monitoring = Monitoring(
        gateway.metrics,
        gateway.loop_lag,
        gateway.runs,
        gateway.broadcaster,
        runtime.stores.ledger,
        gateway.disk,
        clock,
        gateway.started_at,
        lambda: gateway.ready,
    )
    page = ControlUiPage(config, runtime.state_dir, gateway.sign_in_tickets, limiter, gateway.cluster, avatar_of)
    return [
        *map(_extension_route, runtime.extensions.routes),
        *HookEndpoint(config, clock, limiter, gateway.hook_runs, spawn).routes(),
        *monitoring.routes(),
        *ChatCompletions(openai, config, clock, gateway.started_at).routes(),
        *Responses(openai, config, clock).routes(),
        *Rpc(gateway).routes(),
        *ToolsInvoke(runtime, directory, spawn).routes(),
        *page.routes(),
    ]


def reserved_names(config: Config, extensions: ExtensionPoints) -> set[str]:
    """Return the first segments of the paths that the Gateway serves itself. Webhooks of channels have others."""
    chosen = [path for base_path in (webhooks.base_path, control_ui.base_path) if (path := base_path(config))]
    paths = ["healthz", "readyz", "metrics", *chosen, *(route.path for route in extensions.routes)]
    return {"", *control_ui.page_names(), *(path.strip("/*").split("/")[0] for path in paths)}


def _extension_route(route: OwnRoute) -> HttpRoute:
    async def answer(request: web.BaseRequest, _peer: PeerAddress) -> web.StreamResponse:
        try:
            return await route.handler(request)
        except web.HTTPException as response:
            return response
        except Exception:
            extension_log.exception("an extension failed at %s", route.path)
            return json_response({"ok": False, "error": "the extension failed"}, status=500)

    return HttpRoute(route.verb, route.path, answer, "open" if route.auth == "open" else refusal_response)
