"""Adapters that make methods and followers of what extensions add."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING, Any

from openclaw.extensions.api import MessageSent, MethodRequest
from openclaw.extensions.points import LONGEST_COMMAND_S, ExtensionPoints, OwnMethod
from openclaw.gateway.server.registry import Handler, MethodCall, MethodError
from openclaw.runs.run import Run, RunEvent, RunFinished

if TYPE_CHECKING:
    pass

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


class SentMessages:
    """Follows a run and notifies extensions of its answer."""

    def __init__(self, run: Run, points: ExtensionPoints) -> None:
        self._run = run
        self._points = points

    def event(self, event: RunEvent) -> None:
        if not isinstance(event, RunFinished):
            return
        run = self._run
        said = run.result.shown if run.result is not None else []
        self._points.message_sent(
            MessageSent(
                agent_id=run.row.agent_id,
                session_key=run.row.session_key,
                channel=run.row.route.channel or run.row.source,
                run_id=run.run_id,
                state=run.state,
                text="\n\n".join(one.text for one in said if one.text),
            )
        )
