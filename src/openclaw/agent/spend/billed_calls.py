"""Model calls outside the conversation, for summaries and notes. They obey the budget and are charged to the session.

What such a call used is written to the transcript as an entry that the model never sees, because all sums are computed
from the transcripts. This is also done if the answer could not be used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from openclaw.agent.prepare import agent_settings
from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.budget import check_budget
from openclaw.agent.spend.spend import BILL
from openclaw.messages import AssistantMessage, Usage
from openclaw.models.base import ModelError, ModelRequest, OnEvent
from openclaw.models.fallback import Candidates, for_model
from openclaw.storage.base import Transcript

log = logging.getLogger("openclaw.agents.spend")


class RunBill(msgspec.Struct, frozen=True):
    """How a call is charged to the run that waits for it. The defaults are for calls that no run waits for."""

    spend: Callable[[Usage], None] = lambda usage: None
    """Adds a usage to what the run has spent."""
    spent: Callable[[], Usage | None] = lambda: None
    """Returns what the run has spent so far."""


NO_BILL = RunBill()


class BilledCalls:
    """Makes the model calls of one piece of work in one session.

    With ``keep`` each call is charged in the transcript at once. Without it the caller stores the answers itself, or
    calls ``write_down`` if it does not.
    """

    def __init__(
        self,
        runtime: Runtime,
        agent_id: str,
        session_key: str,
        transcript: Transcript,
        purpose: str,
        *,
        keep: bool = True,
        bill: RunBill = NO_BILL,
        most_calls: int | None = None,
    ) -> None:
        """``most_calls`` bounds the calls together, also those of other models after a failure."""
        self._runtime = runtime
        self._agent_id = agent_id
        self._session_key = session_key
        self._transcript = transcript
        self._purpose = purpose
        self._keep = keep
        self._bill = bill
        self._most_calls = most_calls
        self.made = 0
        """The number of calls so far."""
        self._unwritten: list[AssistantMessage] = []
        self._candidates: dict[str, Candidates] = {}
        """By the model that is asked for: who answers. One piece of work stays with the model that went on."""
        self._choosing = asyncio.Lock()

    async def ask(self, request: ModelRequest, on_event: OnEvent = lambda event: None) -> AssistantMessage:
        """Calls the model, or another one if it fails.

        Raises ``ModelError`` if none answers or the budget is used up.
        """
        async with self._choosing:
            candidates = self._candidates.get(request.model.ref)
            if candidates is None:
                candidates = self._runtime.failover.candidates(self._agent_id, request.model)
                self._candidates[request.model.ref] = candidates
                await candidates.begin()
        if self._used_up:
            raise ModelError(f"a {self._purpose} may make {self._most_calls} model calls", kind="other")
        while True:
            self.made += 1
            model = candidates.current
            try:
                return await self._ask(for_model(request, model), on_event)
            except ModelError as error:
                async with self._choosing:
                    # Another call at the same time may have gone on to the next model already.
                    if candidates.current is model and await candidates.next_step(error) is None:
                        raise
                if self._used_up:
                    raise
                log.warning("a %s of %s goes on with another key or model: %s", self._purpose, self._session_key, error)

    @property
    def _used_up(self) -> bool:
        return self._most_calls is not None and self.made >= self._most_calls

    async def _ask(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        runtime, agent_id = self._runtime, self._agent_id
        if agent_settings(agent_id, runtime).limited:
            path = Path(self._transcript.path)
            await check_budget(runtime, agent_id, self._session_key, path, self._bill.spent())
        message = await runtime.call_model(request, agent_id, on_event)
        usage = message.usage
        if usage.total_tokens or usage.input or usage.output:
            self._bill.spend(usage)
            self._unwritten.append(message)
            if self._keep:
                await self.write_down()
        return message

    async def write_down(self) -> None:
        """Writes the usage of the answers that are not in the transcript."""
        while self._unwritten:
            message = self._unwritten.pop(0)
            data = {
                "purpose": self._purpose,
                "provider": message.provider,
                "model": message.model,
                "timestamp": message.timestamp or self._runtime.clock.now_ms(),
                "usage": message.usage,
            }
            try:
                await self._transcript.append({"type": "custom", "customType": BILL, "data": data})
            except OSError as error:
                log.warning("what a %s of %s used is not counted: %s", self._purpose, self._session_key, error)
