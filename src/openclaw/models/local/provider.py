"""The provider of the embedded model, which runs in a process of its own.

The process keeps the model's work and memory out of the Gateway. It starts at the first request and ends after ten
minutes without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from openclaw import paths
from openclaw.clock import Clock, SystemClock
from openclaw.messages import AssistantMessage, ImageBlock, Message, TextBlock, ToolResultMessage, UserMessage
from openclaw.models.base import Model, ModelError, ModelRequest, StreamEvent
from openclaw.models.convert import with_turn_facts
from openclaw.models.http import MessageBuilder
from openclaw.models.local.install import INSTALL_COMMAND, weights_path
from openclaw.models.local.tool_text import (
    TURN_OVERHEAD,
    ChatTurn,
    OutputParser,
    harmless,
    prompt_text,
    system_text,
    tool_turn,
)
from openclaw.models.thinking import output_limit

IDLE_S = 600.0
LOAD_TIMEOUT_S = 120.0
STALL_TIMEOUT_S = 600.0
"""The longest wait for the next word. A slow machine reads a long prompt for minutes."""
SETTLE_S = 0.5
"""A cancelled answer must stop within this time, or its process is killed. While the model reads the prompt it cannot
stop."""
MAX_WAITING = 16
MAX_CONTEXT = 32_768
DEFAULT_MAX_TOKENS = 512
CHARS_PER_TOKEN = 3.5
FIT_ATTEMPTS = 4
# A low temperature suits a model this small best. The penalties break the loops that follow from it. A stronger penalty
# keeps it from answering a greeting with the same greeting, because the words of the prompt count too.
SMALL_SAMPLING: dict[str, Any] = {
    "temperature": 0.1,
    "top_p": 0.9,
    "dry_multiplier": 0.8,
    "dry_allowed_length": 3,
    "repeat_penalty": 1.03,
    "repeat_last_n": 64,
}
ANSWERING: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0}
REASONING: dict[str, Any] = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
"""What the makers of Qwen3 advise for answers without and with reasoning."""
_LINE_LIMIT = 1 << 20
SENTENCE_ENDS = frozenset(".!?\n。！？")
LONGEST_SENTENCE = 120
MOST_SENTENCES = 500
RECENT_SENTENCES = 6
RECENT_WORDS = 12
_PASSED_ON = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"]


class LocalProvider:
    """Answers one request at a time; others wait. Keep one instance and ``close()`` it at the end."""

    def __init__(self, state_dir: str | None = None, *, clock: Clock | None = None, idle_s: float = IDLE_S) -> None:
        self._state_dir = state_dir or paths.state_dir()
        self._clock = clock or SystemClock()
        self._idle_s = idle_s
        self._worker: Worker | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._idle: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()

    @property
    def worker_pid(self) -> int | None:
        """The process id while the model is loaded."""
        return self._worker.process.pid if self._worker and self._worker.alive else None

    async def stream(self, request: ModelRequest, api_key: str = "") -> AsyncGenerator[StreamEvent]:
        await self._take_turn()
        worker: Worker | None = None
        try:
            worker = await self._ready_worker(request.model)
            async for event in self._answer(worker, request):
                yield event
        finally:
            # Nothing is awaited here, so that a cancelled caller returns at once.
            if worker is not None and worker.alive and worker.busy_with is not None:
                task = asyncio.ensure_future(self._settle(worker))
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)
            else:
                self._end_turn()

    async def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        if self._settling:
            await asyncio.gather(*self._settling, return_exceptions=True)

    async def _take_turn(self) -> None:
        if self._waiting >= MAX_WAITING:
            raise ModelError(
                f"The local model is busy and {MAX_WAITING} requests already wait for it; try again later.",
                kind="overloaded",
                retryable=True,
            )
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_turn(self) -> None:
        self._turn.release()
        if self._worker is not None:
            self._idle = asyncio.ensure_future(self._stop_when_idle(self._worker))

    async def _settle(self, worker: Worker) -> None:
        """Ends a cancelled answer. The process is killed when the model does not stop."""
        try:
            await worker.cancel()
        finally:
            self._end_turn()

    async def _stop_when_idle(self, worker: Worker) -> None:
        await self._clock.sleep(self._idle_s)
        if self._worker is worker and not self._turn.locked():
            self._worker = None
            await worker.stop()

    async def _ready_worker(self, model: Model) -> Worker:
        # A configured model may name a GGUF file as ``baseUrl``.
        configured = model.base_url.removeprefix("file://")
        weights = str(Path(configured).expanduser()) if configured else weights_path(self._state_dir)
        context = min(model.context_window, MAX_CONTEXT)
        current = self._worker
        if current is not None and current.alive and (current.weights, current.context) == (weights, context):
            return current
        if current is not None:
            self._worker = None
            await current.stop()
        if not await asyncio.to_thread(Path(weights).is_file):
            if configured:
                raise ModelError(f"The model file {weights}, which is configured for {model.ref}, does not exist.")
            raise ModelError(
                f"The embedded local model is not installed. Run `{INSTALL_COMMAND}` (about 100 MB), "
                "or set a provider's key such as ANTHROPIC_API_KEY."
            )
        self._worker = await Worker.start(weights, context)
        return self._worker

    async def _answer(self, worker: Worker, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        builder = MessageBuilder(request.model, self._clock.now_ms())
        parser = OutputParser(builder, [tool.name for tool in request.tools] if request.model.tools else [])
        guard = None if request.model.tools else LoopGuard()
        prompt = LocalPrompt(request, worker.context)
        try:
            for _ in range(FIT_ATTEMPTS):
                await worker.ask({"body": prompt.body()})
                overflow = 0
                async for line in worker.lines():
                    if "text" in line:
                        parser.feed(line["text"])
                        for event in builder.take():
                            yield event
                        if guard is None or not guard.repeats(line["text"]):
                            continue
                        line = await worker.cancel()
                    if "done" in line:
                        cut = line["done"] == "length"
                        parser.finish(cut=cut)
                        counted = (line.get(name, 0) for name in ("input", "output", "cached"))
                        builder.count(**dict(zip(("input", "output", "cache_read"), counted, strict=True)))
                        builder.done("length" if cut else "stop")
                        for event in builder.take():
                            yield event
                        return
                    overflow = int(line["overflow"])
                prompt.shorten(overflow)
        except ModelError as error:
            error.partial = builder.partial(str(error))
            raise
        raise ModelError(
            f"The conversation does not fit the local model's window of {worker.context} tokens; "
            "start a new session or use a larger model.",
            kind="overflow",
        )


class LocalPrompt:
    """What the library is sent for a request, and how it is made shorter when it does not fit."""

    def __init__(self, request: ModelRequest, context: int) -> None:
        self._request = request
        self._system, turns = turns_of(request)
        self._turns = turns or [ChatTurn("user", "Hello")]
        self._reasons = request.model.reasoning and request.thinking != "off"
        usual = DEFAULT_MAX_TOKENS if not request.model.tools else request.model.max_tokens
        limit = output_limit(request.model, request.max_tokens or usual, request.output_room)
        self._limit = min(limit, context // 2)
        self._room = context - self._limit
        self._budget = int(self._room * CHARS_PER_TOKEN)
        if request.model.tools:
            # The agent has fitted the conversation to the window. Only the library knows whether that was enough.
            whole = sum(turn.size for turn in self._turns) + len(self._system) + TURN_OVERHEAD
            self._budget = max(self._budget, whole)

    def body(self) -> dict[str, Any]:
        request = self._request
        sampling = SMALL_SAMPLING if not request.model.tools else REASONING if self._reasons else ANSWERING
        given = {} if request.temperature is None else {"temperature": request.temperature}
        body = {"max_tokens": self._limit, **sampling, **given}
        if not request.model.tools:
            messages = fit(self._system, self._turns, self._budget)
            return {"messages": messages, "reasoning_format": "none", **body}
        messages = fit(self._system, self._turns, self._budget, whole_system=True)
        return {"prompt": prompt_text(messages, reasons=self._reasons), **body}

    def shorten(self, tokens: int) -> None:
        """Makes the next body smaller. ``tokens`` is the size of the last one. The reserve is for uneven text."""
        self._budget = int(self._budget * min(self._room / max(tokens, 1), 1) * 0.9)


class LoopGuard:
    """Notices that a small model repeats itself: a line or sentence for the third time, or the same few words."""

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._open = ""
        self._seen: dict[str, int] = {}
        self._words: list[str] = []

    def repeats(self, delta: str) -> bool:
        """Takes the next piece of the answer."""
        for character in delta:
            if character not in SENTENCE_ENDS:
                self._open += character
                continue
            sentence, self._open = self._open, ""
            if self._counts(sentence):
                return True
        return len(self._open) > LONGEST_SENTENCE and self._few_words(self._open)

    def _counts(self, sentence: str) -> bool:
        plain = "".join(character for character in sentence.lower() if character.isalpha())
        if not plain:
            return False
        if len(self._seen) < MOST_SENTENCES or plain in self._seen:
            self._seen[plain] = self._seen.get(plain, 0) + 1
        self._words = [*self._words, plain][-RECENT_SENTENCES:]
        crowded = len(self._words) == RECENT_SENTENCES and len(set(self._words)) <= RECENT_SENTENCES // 2
        return self._seen.get(plain, 0) >= self._most or crowded or self._few_words(sentence)

    @staticmethod
    def _few_words(sentence: str) -> bool:
        words = sentence.lower().replace(",", " ").split()[-RECENT_WORDS:]
        return len(words) == RECENT_WORDS and len(set(words)) <= RECENT_WORDS // 3


class Worker:
    """The model's process and the lines to and from it."""

    def __init__(self, process: asyncio.subprocess.Process, weights: str, context: int) -> None:
        self.process = process
        self.weights = weights
        self.context = context
        self.busy_with: int | None = None
        self._last_id = 0

    @classmethod
    async def start(cls, weights: str, context: int, *purpose: str) -> Worker:
        """Starts the process. ``purpose`` is empty for answers; ``worker.py`` lists the others."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "openclaw.models.local.worker",
            weights,
            str(context),
            *purpose,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            limit=_LINE_LIMIT,
            start_new_session=True,
        )
        worker = cls(process, weights, context)
        try:
            await worker._read_line(LOAD_TIMEOUT_S)
        except ModelError:
            await worker.stop()
            raise
        except asyncio.CancelledError:
            worker.kill()
            raise
        return worker

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ask(self, request: dict[str, Any]) -> None:
        """Sends a request under a new id. ``worker.py`` lists the fields."""
        self._last_id += 1
        self.busy_with = self._last_id
        await self._send({"id": self._last_id, **request})

    async def vectors(self, texts: list[str]) -> list[list[float]]:
        """The vectors of the texts. The process must have been started for embeddings."""
        await self.ask({"texts": texts})
        async for line in self.lines():
            return line["vectors"]
        return []

    async def lines(self) -> AsyncIterator[dict[str, Any]]:
        """The lines for the current request, including its last line."""
        while True:
            line = await self._read_line(STALL_TIMEOUT_S)
            if line.get("id") != self.busy_with:
                continue
            if "error" in line:
                self.busy_with = None
                raise ModelError(f"The local model failed: {line['error']}")
            if "text" not in line:
                self.busy_with = None
            yield line
            if self.busy_with is None:
                return

    async def cancel(self) -> dict[str, Any]:
        """Stops the current answer and returns its last line. The process is killed when it does not obey quickly."""
        last: dict[str, Any] = {"done": "cancelled"}
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._send({"cancel": self.busy_with})
                async for line in self.lines():
                    last = line
        except (TimeoutError, ModelError):
            self.kill()
            await self.process.wait()
        finally:
            self.busy_with = None
        return last if "done" in last else {"done": "cancelled"}

    async def stop(self) -> None:
        """Ends the process by closing its input."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 2)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            await self.process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise await self._death() from None

    async def _read_line(self, timeout: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                raw = await self.process.stdout.readline()
        except TimeoutError:
            self.kill()
            raise ModelError(
                f"The local model gave no sign of life for {timeout:.0f} seconds and was stopped.",
                kind="timeout",
                retryable=True,
            ) from None
        if not raw.endswith(b"\n"):
            raise await self._death()
        line: dict[str, Any] = json.loads(raw)
        if "fatal" in line:
            if line["fatal"] == "missing":
                raise ModelError(
                    f"The library that runs the local model (xllamacpp) is not installed. Run `{INSTALL_COMMAND}`."
                )
            raise ModelError(
                f"The local model at {self.weights} could not be loaded ({line.get('detail') or 'no reason given'}). "
                f"Run `{INSTALL_COMMAND}` to check and repair it."
            )
        return line

    async def _death(self) -> ModelError:
        self.kill()
        code = await self.process.wait()
        return ModelError(
            f"The local model's process ended unexpectedly (exit code {code}). It starts again with the next request; "
            "if this repeats, the machine may be short of memory.",
            retryable=True,
        )


CUT_MARK = "\n[…]\n"


def turns_of(request: ModelRequest) -> tuple[str, list[ChatTurn]]:
    """The system text and the turns as plain text. Neighbours of one role are joined; tool results count as user's."""
    turns: list[ChatTurn] = []
    tools = request.model.tools
    for message in with_turn_facts(request.messages, request.turn_facts):
        if tools:
            turn = tool_turn(message, _plain_text(message, named=False).strip())
        else:
            role = "assistant" if isinstance(message, AssistantMessage) else "user"
            turn = ChatTurn(role, harmless(_plain_text(message).strip()))
        if not turn.content:
            continue
        if turns and turns[-1].role == turn.role:
            turns[-1] = ChatTurn(turn.role, turns[-1].content + "\n\n" + turn.content)
        else:
            turns.append(turn)
    system = harmless("\n\n".join(part for part in (request.system, request.system_suffix) if part))
    return (system_text(system, request.tools) if tools else system), turns


def fit(system: str, turns: Sequence[ChatTurn], budget: int, *, whole_system: bool = False) -> list[dict[str, str]]:
    """Chat messages of at most about ``budget`` characters. The oldest turns are dropped; the last one always stays.

    ``whole_system``: the system text, which lists the tools, is not shortened. The cut moves in steps of half the
    budget and not with every turn. So the beginning stays the same for many turns and the model need not read it again.
    """
    system = system if whole_system else shorten(system, budget // 2)
    room = max(budget - len(system) - TURN_OVERHEAD, 1)
    remaining = _drop_oldest(turns, room)
    if remaining and remaining[-1].size > room:
        remaining = [ChatTurn(remaining[-1].role, shorten(remaining[-1].content, max(room - TURN_OVERHEAD, 1)))]
    head = [{"role": "system", "content": system}] if system else []
    return head + [{"role": turn.role, "content": turn.content} for turn in remaining]


def shorten(text: str, limit: int) -> str:
    """The beginning and the end of a long text. The question is usually in one of them."""
    if len(text) <= limit:
        return text
    if limit <= 2 * len(CUT_MARK):
        return text[:limit]
    half = (limit - len(CUT_MARK)) // 2
    return text[:half] + CUT_MARK + text[-half:]


def _drop_oldest(turns: Sequence[ChatTurn], room: int) -> list[ChatTurn]:
    excess = sum(turn.size for turn in turns) - room
    if excess <= 0:
        return list(turns)
    step = max(room // 2, 1)
    to_drop = -(-excess // step) * step
    start, dropped = 0, 0
    while start < len(turns) - 1 and dropped < to_drop:
        dropped += turns[start].size
        start += 1
    if turns[start].role == "assistant" and start < len(turns) - 1:
        start += 1
    return list(turns[start:])


def _plain_text(message: Message, *, named: bool = True) -> str:
    match message:
        case UserMessage():
            blocks = message.content
            return blocks if isinstance(blocks, str) else "\n".join(_block_text(block) for block in blocks)
        case AssistantMessage():
            return message.text
        case ToolResultMessage():
            text = "\n".join(_block_text(block) for block in message.content)
            return f"[{message.tool_name} returned]\n{text}" if named else text


def _block_text(block: TextBlock | ImageBlock) -> str:
    return block.text if isinstance(block, TextBlock) else "[a picture]"
