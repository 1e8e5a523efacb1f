"""Calls that cost money: they obey the budget and are charged to a session.

``PaidCalls`` makes the calls of a run, whose answers are stored with their usage. ``BilledCalls`` makes calls outside
the conversation, for summaries and notes, ``BilledEmbeddings`` those of the memory search, and ``BilledSpeech`` those
that write down what people said. What these used is written to the transcript, or to the agent's own file, as an entry
that the model never sees, because all sums are computed from these files. This is also done if the call failed or its
answer could not be used.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.budget import Payer, RunBill, is_limited, reserve
from openclaw.agent.spend.spend import BILL, CallEstimate, Reservation, agent_bill, prices
from openclaw.memory.embedders import EMBEDDING_PRICES, Embedder, EmbeddingRefused, embedding_tokens
from openclaw.messages import AssistantMessage, Usage
from openclaw.models.base import (
    Counted,
    ModelError,
    ModelRequest,
    OnEvent,
    Price,
    SpokenText,
    StreamEvent,
    highest_cost,
    priced_usage,
    speech_usage,
)
from openclaw.models.calls import Candidates, for_model
from openclaw.paths import make_private_dir, sessions_dir
from openclaw.storage.base import Transcript

log = logging.getLogger("openclaw.agent.spend")


class PaidCalls:
    """Calls models within the budget of one session. The caller stores the answers and then calls ``written``."""

    def __init__(self, runtime: Runtime, payer: Payer) -> None:
        self._runtime = runtime
        self._payer = payer
        self._unwritten: list[Reservation] = []
        """The reservations of calls that have ended and whose usage may not be in the transcript yet."""

    async def ask(
        self,
        request: ModelRequest,
        on_event: OnEvent = lambda event: None,
        limited: Callable[[int], None] = lambda room: None,
    ) -> AssistantMessage:
        """Calls the model. Raises ``ModelError`` if the call could exceed a limit.

        If the budget leaves only a part of the output limit, the request is sent with that, and ``limited`` is told.
        """
        runtime, payer = self._runtime, self._payer
        if not is_limited(runtime.config.current, payer.agent_id):
            return await runtime.call_model(request, payer.agent_id, on_event)
        book = runtime.spending.reservations
        wanted = book.estimate(request, payer.session_key)
        reservation, granted = await reserve(runtime, payer, wanted)
        if granted.output < wanted.output:
            request = msgspec.structs.replace(request, output_room=granted.output)
            limited(granted.output)
        used = Usage()

        def watch(event: StreamEvent) -> None:
            nonlocal used
            if isinstance(event, Counted):
                used = event.usage
            on_event(event)

        try:
            message = await runtime.call_model(request, payer.agent_id, watch)
            used = message.usage
        except ModelError as error:
            used = error.partial.usage if error.partial is not None else used
            raise
        finally:
            reservation.tokens, reservation.usd = used.total_tokens, used.cost.total
            self._unwritten.append(reservation)
            book.learn(request.model, payer.session_key, wanted, used)
        return message

    def written(self) -> None:
        """Releases the reservations of all calls that have ended. The transcript holds what they used."""
        while self._unwritten:
            self._runtime.spending.reservations.release(self._unwritten.pop())


class BilledCalls:
    """Makes the model calls of one piece of work in one session.

    With ``keep`` each call is charged in the transcript at once. Without it the caller stores the answers itself and
    calls ``stored``, or calls ``write_down`` if it does not.
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
        bill: RunBill | None = None,
        most_calls: int | None = None,
    ) -> None:
        """``bill`` is that of the run that waits for the calls; None: no run waits.

        ``most_calls`` bounds the calls together, also those of other models after a failure.
        """
        self._runtime = runtime
        self._agent_id = agent_id
        self._session_key = session_key
        self._transcript = transcript
        self._purpose = purpose
        self._keep = keep
        self._bill = bill or RunBill()
        self._most_calls = most_calls
        self.made = 0
        """The number of calls so far."""
        self._unwritten: list[AssistantMessage] = []
        self._unseen: list[AssistantMessage] = []
        """Answers of calls that failed and were made again with another model. The caller knows nothing of them."""
        path = Path(transcript.path)
        payer = Payer(agent_id=agent_id, session_key=session_key, transcript=path, bill=self._bill)
        self._paid = PaidCalls(runtime, payer)
        self._candidates: dict[str, Candidates] = {}
        """By the model that is asked for: who answers. One piece of work stays with the model that went on."""
        self._choosing = asyncio.Lock()

    async def ask(self, request: ModelRequest, on_event: OnEvent = lambda event: None) -> AssistantMessage:
        """Calls the model, or another one if it fails.

        Raises ``ModelError`` if none answers or the call could exceed the budget.
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
            known = len(self._unwritten)
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
                self._unseen += self._unwritten[known:]
                del self._unwritten[known:]
                log.warning("a %s of %s goes on with another key or model: %s", self._purpose, self._session_key, error)

    @property
    def _used_up(self) -> bool:
        return self._most_calls is not None and self.made >= self._most_calls

    async def _ask(self, request: ModelRequest, on_event: OnEvent) -> AssistantMessage:
        model = request.model
        answer = AssistantMessage(content=[], api=model.api, provider=model.provider, model=model.id)

        def watch(event: StreamEvent) -> None:
            if isinstance(event, Counted):
                answer.usage = event.usage
            on_event(event)

        try:
            answer = message = await self._paid.ask(request, watch)
        except ModelError as error:
            answer = error.partial or answer
            raise
        finally:
            # Also when the caller has stopped waiting: what was counted until then is paid for.
            usage = answer.usage
            if usage.total_tokens or usage.input or usage.output:
                self._bill.add(usage)
                self._unwritten.append(answer)
            if self._keep:
                await self.write_down()
        return message

    async def write_down(self) -> None:
        """Writes the usage of the answers that are not in the transcript."""
        while waiting := self._unseen or self._unwritten:
            message = waiting.pop(0)
            at = message.timestamp or self._runtime.clock.now_ms()
            entry = bill_entry(self._purpose, message.provider, message.model, message.usage, at)
            try:
                await self._transcript.append(entry)
            except OSError as error:
                log.warning("what a %s of %s used is not counted: %s", self._purpose, self._session_key, error)
        self._paid.written()

    async def stored(self) -> None:
        """The caller has stored the answers with their usage."""
        self._unwritten.clear()
        await self.write_down()


class BilledEmbeddings:
    """Makes the calls of an embedder within the budget. ``write`` gets the entry that says what each call used."""

    def __init__(
        self,
        runtime: Runtime,
        payer: Payer,
        write: Callable[[dict[str, Any]], Awaitable[object]],
    ) -> None:
        self._runtime = runtime
        self._payer = payer
        self._write = write

    async def __call__(
        self, embedder: Embedder, texts: Sequence[str], call: Callable[[], Awaitable[list[list[float]]]]
    ) -> list[list[float]]:
        """Raises ``EmbeddingRefused`` if the call could exceed a limit."""
        runtime, reservation = self._runtime, None
        if embedder.provider == "local":
            return await call()
        price = prices(runtime.catalogue())(embedder.provider, embedder.model)
        dollars = EMBEDDING_PRICES.get(embedder.model.removeprefix("models/"))
        if price is None and dollars is not None:
            price = Price(input=dollars)
        if is_limited(runtime.config.current, self._payer.agent_id):
            try:
                estimate = CallEstimate(prompt=embedding_tokens(texts), output=0, price=price)
                reservation, _ = await reserve(runtime, self._payer, estimate)
            except ModelError as refused:
                raise EmbeddingRefused(str(refused)) from None
        before = embedder.tokens_used
        try:
            return await call()
        finally:
            if tokens := embedder.tokens_used - before:
                usage = priced_usage(price, input=tokens)
                self._payer.bill.add(usage)
                now = runtime.clock.now_ms()
                entry = bill_entry("embedding", embedder.provider, embedder.model, usage, now)
                try:
                    await self._write(entry)
                except OSError as error:
                    log.warning("what embeddings of %s used is not counted: %s", self._payer.session_key, error)
            if reservation is not None:
                runtime.spending.reservations.release(reservation)


class BilledSpeech:
    """Makes the calls of speech services within the budget of an agent, and charges them to the agent's day."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def __call__(
        self, agent_id: str, provider: str, model: str, size: int, call: Callable[[], Awaitable[SpokenText]]
    ) -> SpokenText:
        """``size`` is that of the recording. Raises ``ModelError`` if the call could exceed a limit."""
        runtime, reservation = self._runtime, None
        if is_limited(runtime.config.current, agent_id):
            # Reservations are in tokens. A thousand stand for the recording, at a price that makes its highest cost.
            price = Price(input=highest_cost(model, size) * 1000)
            estimate = CallEstimate(prompt=1000, output=0, price=price)
            reservation, _ = await reserve(runtime, _payer_of_agent(runtime, agent_id), estimate)
        try:
            spoken = await call()
            usage = speech_usage(model, spoken, prices(runtime.catalogue())(provider, model))
            entry = bill_entry("transcription", provider, model, usage, runtime.clock.now_ms())
            try:
                await asyncio.to_thread(_charge_agent, runtime, agent_id, entry)
            except OSError as error:
                log.warning("what a transcription for %s used is not counted: %s", agent_id, error)
            return spoken
        finally:
            if reservation is not None:
                runtime.spending.reservations.release(reservation)


def embeddings_of_agent(runtime: Runtime, agent_id: str) -> BilledEmbeddings:
    """Charges embeddings that no session asked for to the agent's day."""

    async def write(entry: dict[str, Any]) -> None:
        await asyncio.to_thread(_charge_agent, runtime, agent_id, entry)

    return BilledEmbeddings(runtime, _payer_of_agent(runtime, agent_id), write)


def _payer_of_agent(runtime: Runtime, agent_id: str) -> Payer:
    # The budget looks at the folder of the transcript. There need not be such a file.
    nothing = Path(sessions_dir(str(runtime.state_dir), agent_id), "none.jsonl")
    return Payer(agent_id=agent_id, session_key="", transcript=nothing)


def _charge_agent(runtime: Runtime, agent_id: str, entry: dict[str, Any]) -> None:
    """Writes down what an agent used outside its sessions. Blocking."""
    path = agent_bill(Path(sessions_dir(str(runtime.state_dir), agent_id)))
    make_private_dir(str(path.parent))
    now = datetime.fromtimestamp(runtime.clock.now_ms() / 1000, UTC)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as file:
        file.write(msgspec.json.encode({**entry, "timestamp": now.isoformat()}) + b"\n")


def bill_entry(purpose: str, provider: str, model: str, usage: Usage, at: int) -> dict[str, Any]:
    """The entry of a transcript that says what a call outside the conversation used."""
    data = {"purpose": purpose, "provider": provider, "model": model, "timestamp": at, "usage": usage}
    return {"type": "custom", "customType": BILL, "data": data}
