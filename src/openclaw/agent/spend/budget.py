"""The budget: hard limits on what agents may spend, and the calls that obey them and are charged to a session.

No call is made that could exceed a limit. ``PaidCalls`` makes the calls of a run, whose answers are stored with their
usage. ``BilledCalls`` makes calls outside the conversation, for summaries and notes, ``BilledEmbeddings`` those of the
memory search, and ``BilledSpeech`` those that write down what people said. What these used is written to the
transcript, or to the agent's own file, as an entry that the model never sees, because all sums are computed from these
files. This is also done if the call failed or its answer could not be used.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from openclaw.agent.runtime import Runtime
from openclaw.agent.spend.spend import (
    BILL,
    DAY_MS,
    EXPECTED_OUTPUT,
    LEAST_OUTPUT,
    CallEstimate,
    FileSpend,
    Reservation,
    Totals,
    agent_bill,
    last_days,
    prices,
    sum_of,
    total_of,
    transcript_path,
)
from openclaw.config.agents import agent_config, user_zone
from openclaw.config.schema import Config
from openclaw.config.schema.agents import Budget
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
    added,
    highest_cost,
    priced_usage,
    speech_usage,
)
from openclaw.models.calls import Candidates, for_model
from openclaw.outbound.reply import money, token_count
from openclaw.paths import make_private_dir, sessions_dir
from openclaw.sessions.entry import SessionEntry
from openclaw.sessions.keys import SessionRef
from openclaw.storage.files.disk import append_line
from openclaw.storage.session_query import SessionQuery
from openclaw.storage.sessions import SessionRow
from openclaw.storage.transcripts import Transcript

log = logging.getLogger("openclaw.agent.spend")

OVERRIDE = "budgetOverrideUntil"
"""The field of a session's entry that suspends all limits until the time it holds."""
MOST_LOOKS = 4
"""How often the sums are read again because a call ended meanwhile."""
_SCOPES = (("run", "This run"), ("session", "This session"), ("day", "This agent"))
"""The scopes in the order in which they are checked, each with the words for it in a refusal."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The spending in each of the three scopes."""

    run: Usage | None = None
    session: Totals
    """The session and its sub-agents."""
    day: Totals
    """All sessions of the agent today."""


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """What calls under way may cost in the scopes that several calls share."""

    session: Sequence[Reservation] = ()
    day: Sequence[Reservation] = ()


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and how far it is used up."""

    key: str
    """The name of its field in ``agents.defaults.budget``."""
    used: float
    most: float
    in_money: bool
    unpriced: int = 0
    """The number of calls whose price is unknown. A limit in money does not count them."""
    reserved: float = 0
    """What calls that are under way may cost."""
    under_way: int = 0
    """The number of these calls."""

    @property
    def left(self) -> float:
        return self.most - self.used - self.reserved

    @property
    def reached(self) -> bool:
        return self.used >= self.most

    @property
    def text(self) -> str:
        unseen = f" ({self.unpriced} calls of unknown price not counted)" if self.unpriced else ""
        calls = "1 call" if self.under_way == 1 else f"{self.under_way} calls"
        waiting = f", {self.show(self.reserved)} reserved by {calls} under way" if self.under_way else ""
        return f"{self.show(self.used)} of {self.show(self.most)}{unseen}{waiting}"

    def show(self, amount: float) -> str:
        return money(amount) if self.in_money else token_count(int(amount))

    def output_left(self, call: CallEstimate) -> float:
        """How many tokens of an answer the limit leaves after the prompt of the call."""
        if not self.in_money:
            return self.left - call.prompt
        left, price = self.left - call.prompt_usd, call.output_usd
        return left / price if price > 0 else math.inf if left >= 0 else -1


def budget_of(config: Config, agent_id: str) -> Budget:
    agent = agent_config(config, agent_id)
    return agent.budget if agent and agent.budget else config.agents.defaults.budget


def is_limited(config: Config, agent_id: str) -> bool:
    """Whether the agent has any limit."""
    budget = budget_of(config, agent_id)
    return any(getattr(budget, name) is not None for name in budget.__struct_fields__)


def limits(budget: Budget, spent: Spent, reserved: Reserved | None = None) -> list[Limit]:
    """The limits that are set, in the order run, session, day."""
    run, under_way = spent.run or Usage(), reserved or Reserved()
    used = {
        "run": (run.total_tokens, run.cost.total, 0),
        "session": (spent.session.total_tokens, spent.session.total_cost, spent.session.missing_cost_entries),
        "day": (spent.day.total_tokens, spent.day.total_cost, spent.day.missing_cost_entries),
    }
    waiting = {"run": sum_of(()), "session": sum_of(under_way.session), "day": sum_of(under_way.day)}
    rows: list[Limit] = []
    for scope, _ in _SCOPES:
        (tokens, dollars, unpriced), (more_tokens, more_dollars, calls) = used[scope], waiting[scope]
        if (most := getattr(budget, f"{scope}_tokens")) is not None:
            limit = Limit(key=f"{scope}Tokens", used=tokens, most=most, in_money=False)
            rows.append(msgspec.structs.replace(limit, reserved=more_tokens, under_way=calls))
        if (most := getattr(budget, f"{scope}_usd")) is not None:
            limit = Limit(key=f"{scope}Usd", used=dollars, most=most, in_money=True, unpriced=unpriced)
            rows.append(msgspec.structs.replace(limit, reserved=more_dollars, under_way=calls))
    return rows


def affordable_output(found: Sequence[Limit], call: CallEstimate) -> tuple[int, Limit | None]:
    """How many output tokens the call may reserve, and the limit that allows the fewest."""
    if not found:
        return call.output, None
    tightest = min(found, key=lambda limit: limit.output_left(call))
    left = tightest.output_left(call)
    return int(min(call.output, left, max(EXPECTED_OUTPUT, left / 4))), tightest


def refusal(limit: Limit, call: CallEstimate, resets: str) -> str:
    """The notice for a call that the limit does not allow. ``resets`` says when the limit is reset."""
    who = next(words for scope, words in _SCOPES if limit.key.startswith(scope))
    today = " today" if limit.key.startswith("day") else ""
    least = min(call.output, LEAST_OUTPUT)
    needs = call.prompt_usd + least * call.output_usd if limit.in_money else call.prompt + least
    head = "has used up its budget" if limit.reached else "has too little left of its budget"
    return (
        f"{who} {head}{today}: {limit.text} (agents.defaults.budget.{limit.key}); this call needs at least "
        f"{limit.show(needs)}. Nothing was asked of the model. {resets} An owner can send /budget override to go on in "
        "this session for today, or raise the limit."
    )


def reset_text(key: str, now_ms: int, zone: tzinfo | None) -> str:
    """Describe when a limit is reset."""
    if key.startswith("day"):
        midnight = datetime.fromtimestamp(end_of_day_ms(now_ms, zone) / 1000, UTC).astimezone(zone)
        return f"It resets at {midnight:%Y-%m-%d %H:%M} ({midnight.tzname()})."
    return "It resets with a new session (/new)." if key.startswith("session") else "It resets with the next message."


def end_of_day_ms(now_ms: int, zone: tzinfo | None) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return int(midnight.timestamp() * 1000)


async def family_of(runtime: Runtime, session_key: str) -> tuple[str, list[SessionRow]]:
    """The key of the session that a person talks to, with its row and those of its sub-agents. They share limits."""
    select = runtime.stores.sessions.select
    own = (await select(SessionQuery(key=session_key, limit=1))).rows
    head = own[0].entry.get("spawnedBy", session_key) if own else session_key
    heads = own if head == session_key else (await select(SessionQuery(key=head, limit=1))).rows
    return head, [*heads, *(await select(SessionQuery(spawned_by=head))).rows]


async def spent_so_far(
    runtime: Runtime, transcript: Path, family: Sequence[SessionRow] = (), run: Usage | None = None
) -> Spent:
    """What the transcripts say by now. This includes the finished calls of runs that are still going on."""
    now = runtime.clock.now_ms()
    days = last_days(now, 1, user_zone(runtime.config.current))
    price_of = prices(runtime.models.catalogue())
    paths = [await transcript_path(runtime, SessionRef(row.agent_id, row.key), row.entry) for row in family]
    together = {transcript, *(path for path in paths if path is not None)}
    folder = transcript.parent
    bill = agent_bill(folder)

    def add_up(found: dict[Path, FileSpend]) -> Spent:
        session = total_of((found[path] for path in together if path in found), price_of)
        agents = [spend for path, spend in found.items() if path in (transcript, bill) or path.parent == folder]
        return Spent(run=run, session=session, day=total_of(agents, price_of, days))

    return await runtime.models.spending.compute(add_up, [*together, folder, bill], now - 2 * DAY_MS)


async def limits_of(runtime: Runtime, session: SessionRef, entry: SessionEntry | None) -> list[Limit]:
    """The limits of the session's agent and how far they are used up. Empty: none are set."""
    if not is_limited(runtime.config.current, session.agent_id):
        return []
    # The folder of the transcript names the agent whose day is added up. The transcript need not exist yet.
    nothing = Path(sessions_dir(str(runtime.state_dir), session.agent_id), "none.jsonl")
    transcript = await transcript_path(runtime, session, entry) or nothing
    head, family = await family_of(runtime, session.key)
    reserved = _reserved(runtime.models.spending.reservations.held(), session.agent_id, head)
    budget = budget_of(runtime.config.current, session.agent_id)
    return limits(budget, await spent_so_far(runtime, transcript, family), reserved)


def overridden(entry: SessionEntry | None, now_ms: int) -> bool:
    fields: dict[str, Any] = dict(entry or {})
    until = fields.get(OVERRIDE)
    return isinstance(until, int) and now_ms < until


class RunBill:
    """What the model calls of one run used together, also those for summaries, notes and embeddings."""

    def __init__(self) -> None:
        self.spent: Usage | None = None

    def add(self, usage: Usage) -> None:
        self.spent = added(self.spent, usage)


class Payer(msgspec.Struct, frozen=True, kw_only=True):
    """Who pays for a call."""

    agent_id: str
    session_key: str
    transcript: Path
    bill: RunBill = msgspec.field(default_factory=RunBill)
    """That of the run. It stays empty for calls that belong to no run."""


async def reserve(runtime: Runtime, payer: Payer, call: CallEstimate) -> tuple[Reservation, CallEstimate]:
    """Reserves the cost of a call, with fewer output tokens than asked for if no more can be afforded.

    Raises ``ModelError`` of the kind ``budget`` if the call could exceed a limit and the session has no override.
    """
    config, book, now = runtime.config.current, runtime.models.spending.reservations, runtime.clock.now_ms()
    head, family = await family_of(runtime, payer.session_key)
    free = any(overridden(row.entry, now) for row in family)
    budget = Budget() if free else budget_of(config, payer.agent_id)
    looks = 0
    while True:
        looks += 1
        before, released = book.held(), book.released
        spent = await spent_so_far(runtime, payer.transcript, family, payer.bill.spent)
        # What was released during the look may be missing in both sums, so it still counts.
        held = list(dict.fromkeys([*before, *book.held()]))
        output, limit = affordable_output(limits(budget, spent, _reserved(held, payer.agent_id, head)), call)
        if output >= min(call.output, LEAST_OUTPUT):
            break
        if limit is not None and (book.released == released or looks == MOST_LOOKS):
            problem = refusal(limit, call, reset_text(limit.key, now, user_zone(config)))
            raise ModelError(problem, kind="budget")
    call = msgspec.structs.replace(call, output=output)
    usd = call.prompt_usd + output * call.output_usd
    reservation = Reservation(agent_id=payer.agent_id, family=head, tokens=call.prompt + output, usd=usd)
    book.hold(reservation)
    return reservation, call


def _reserved(held: Sequence[Reservation], agent_id: str, family: str) -> Reserved:
    return Reserved(
        session=[reservation for reservation in held if reservation.family == family],
        day=[reservation for reservation in held if reservation.agent_id == agent_id],
    )


# Calls that are charged


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

        If the budget leaves only a part of the output limit, the request is sent with that, and ``limited`` is called.
        """
        runtime, payer = self._runtime, self._payer
        if not is_limited(runtime.config.current, payer.agent_id):
            return await runtime.models.calls.call(request, payer.agent_id, on_event)
        book = runtime.models.spending.reservations
        estimate = book.estimate(request, payer.session_key)
        reservation, granted = await reserve(runtime, payer, estimate)
        if granted.output < estimate.output:
            request = msgspec.structs.replace(request, output_room=granted.output)
            limited(granted.output)
        used = Usage()

        def watch(event: StreamEvent) -> None:
            nonlocal used
            if isinstance(event, Counted):
                used = event.usage
            on_event(event)

        try:
            message = await runtime.models.calls.call(request, payer.agent_id, watch)
            used = message.usage
        except ModelError as error:
            used = error.partial.usage if error.partial is not None else used
            raise
        finally:
            reservation.tokens, reservation.usd = used.total_tokens, used.cost.total
            self._unwritten.append(reservation)
            book.learn(request.model, payer.session_key, estimate, used)
        return message

    def written(self) -> None:
        """Releases the reservations of all calls that have ended. The transcript holds what they used."""
        while self._unwritten:
            self._runtime.models.spending.reservations.release(self._unwritten.pop())


class BilledCalls:
    """Makes the model calls of one piece of work in one session.

    With ``keep`` each call is charged in the transcript at once. Without it the caller stores the answers itself and
    calls ``stored``, or calls ``persist`` if it does not.
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
                candidates = self._runtime.models.failover.candidates(self._agent_id, request.model)
                self._candidates[request.model.ref] = candidates
                await candidates.begin()
        if self._used_up:
            raise ModelError(f"a {self._purpose} may make {self._most_calls} model calls", kind="other")
        while True:
            count = len(self._unwritten)
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
                self._unseen += self._unwritten[count:]
                del self._unwritten[count:]
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
                await self.persist()
        return message

    async def persist(self) -> None:
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
        await self.persist()


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
        price = prices(runtime.models.catalogue())(embedder.provider, embedder.model)
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
                runtime.models.spending.reservations.release(reservation)


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
            usage = speech_usage(model, spoken, prices(runtime.models.catalogue())(provider, model))
            entry = bill_entry("transcription", provider, model, usage, runtime.clock.now_ms())
            try:
                await asyncio.to_thread(_charge_agent, runtime, agent_id, entry)
            except OSError as error:
                log.warning("what a transcription for %s used is not counted: %s", agent_id, error)
            return spoken
        finally:
            if reservation is not None:
                runtime.models.spending.reservations.release(reservation)


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
    append_line(path, msgspec.json.encode({**entry, "timestamp": now.isoformat()}) + b"\n")


def bill_entry(purpose: str, provider: str, model: str, usage: Usage, at: int) -> dict[str, Any]:
    """The entry of a transcript that says what a call outside the conversation used."""
    data = {"purpose": purpose, "provider": provider, "model": model, "timestamp": at, "usage": usage}
    return {"type": "custom", "customType": BILL, "data": data}
