"""The doors of extensions onto the Gateway: their methods, their HTTP routes, and how they learn of sent messages."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web

from openclaw.events import Event
from openclaw.extensions.api import MessageSent, MethodRequest
from openclaw.extensions.points import LONGEST_COMMAND_S, ExtensionPoints, OwnMethod, OwnRoute
from openclaw.gateway.auth.origin import PeerAddress
from openclaw.gateway.http.common import json_response, refusal_response
from openclaw.gateway.server.registry import Handler, MethodCall, MethodError
from openclaw.runs.queue import RunRecord

if TYPE_CHECKING:
    from openclaw.gateway.gateway import Gateway
    from openclaw.gateway.server.server import Route

log = logging.getLogger("openclaw.extensions")


def extension_method(method: OwnMethod) -> Handler:
    async def answer(call: MethodCall) -> Any:
        params = call.params if isinstance(call.params, dict) else {}
        try:
            async with asyncio.timeout(LONGEST_COMMAND_S):
                said = method.function(MethodRequest(params=params, rights=call.client.rights))
                return await said if inspect.isawaitable(said) else said
        except ValueError as problem:
            raise MethodError(str(problem)) from None
        except TimeoutError:
            raise MethodError(f"{method.name} gave no answer", code="UNAVAILABLE") from None

    return answer


def extension_route(route: OwnRoute) -> Route:
    async def answer(request: web.BaseRequest, _gateway: Gateway, _peer: PeerAddress) -> web.StreamResponse:
        try:
            return await route.handler(request)
        except web.HTTPException as made:
            return made
        except Exception:
            log.exception("an extension failed at %s", route.path)
            return json_response({"ok": False, "error": "the extension failed"}, status=500)

    return route.verb, route.path, answer, "open" if route.auth == "open" else refusal_response


class SentMessages:
    """Observes a run and tells extensions of its answer."""

    def __init__(self, record: RunRecord, points: ExtensionPoints) -> None:
        self._record = record
        self._points = points

    def started(self) -> None:
        pass

    def event(self, event: Event) -> None:
        pass

    def aborted(self, reason: str) -> None:
        pass

    def absorbed(self, by: str) -> None:
        pass

    def finished(self) -> None:
        record = self._record
        said = record.result.shown if record.result is not None else []
        self._points.message_sent(
            MessageSent(
                agent_id=record.row.agent_id,
                session_key=record.row.session_key,
                channel=str(record.row.route.get("channel") or record.row.source),
                run_id=record.run_id,
                state=record.state,
                text="\n\n".join(one.text for one in said if one.text),
            )
        )
