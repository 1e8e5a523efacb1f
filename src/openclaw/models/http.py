"""HTTP to model servers: requests, event streams, the message built from a stream, every failure as a ModelError."""

from __future__ import annotations

import abc
import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from openclaw.clock import Clock
from openclaw.json_text import is_deep, may_be_deep
from openclaw.messages import AssistantBlock, AssistantMessage, StopReason, TextBlock, ThinkingBlock, ToolCall
from openclaw.models.base import (
    Counted,
    Done,
    ErrorKind,
    Model,
    ModelError,
    ModelRequest,
    StreamEvent,
    Text,
    Thinking,
    ToolCallStart,
    priced_usage,
)
from openclaw.models.errors import classify, describe_error, redact, status_error
from openclaw.models.keys import is_local_url
from openclaw.net import read_bounded
from openclaw.worker_thread import with_many

MAX_CONNECTIONS = 1000
CONNECT_TIMEOUT_S = 20.0
IDLE_TIMEOUT_S = 120.0
MAX_ERROR_BODY = 64 * 1024
MAX_WHOLE_BODY = 32 * 1024 * 1024
DRAIN_S = 1.0
_SECRET_WORDS = ("auth", "key", "token", "secret", "cookie")


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's request, complete but not sent."""

    url: str
    headers: dict[str, str]
    body: dict[str, Any]
    api_key: str = ""
    """Also part of a header; it is named here so that it can be kept out of errors."""
    idle_s: float = IDLE_TIMEOUT_S
    """How long the server may stay silent."""

    @property
    def host(self) -> str:
        """Host and port, for messages."""
        try:
            return urlsplit(self.url).netloc.rpartition("@")[2] or self.url
        except ValueError:
            return self.url

    @property
    def secrets(self) -> list[str]:
        """Strings that must not appear in an error: the key and every header that looks like one."""
        values = [value for name, value in self.headers.items() if any(word in name.lower() for word in _SECRET_WORDS)]
        bare = [value.removeprefix("Bearer ") for value in values]
        return [secret for secret in (self.api_key, *values, *bare) if len(secret) >= 4]


class ModelHttp:
    """Owns the HTTP session to model servers. Its pool keeps connections warm between turns.

    The session is made at the first call and belongs to the event loop of that call. ``close()`` ends it.
    """

    def __init__(self, connector: aiohttp.BaseConnector | None = None) -> None:
        self._connector = connector
        self._session: aiohttp.ClientSession | None = None
        self._drains: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def stream_reply(
        self, build: Callable[[], WireRequest], reply: ReplyReader, messages: int = 0
    ) -> AsyncGenerator[StreamEvent]:
        """Sends the request and yields the reply's events. A ModelError carries what had come before the failure.

        ``build`` makes the request, in a thread if it has many ``messages``.
        Cancelling the consumer, or closing this generator early, closes the connection at once.
        """
        response: aiohttp.ClientResponse | None = None
        builder, provider = reply.builder, reply.builder.model.provider
        wire = await with_many(messages, build)
        timeout = aiohttp.ClientTimeout(
            total=None, connect=CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=wire.idle_s
        )
        try:
            response = await self._post(wire, "text/event-stream", timeout)
            if response.status >= 300:
                body = await read_bounded(response, MAX_ERROR_BODY)
                raise status_error(provider, response.status, response.headers, body, wire.secrets)
            if response.content_type == "text/html":
                page = (await read_bounded(response, 300)).decode("utf-8", "replace").strip()
                raise ModelError(
                    f"{wire.host} answered with a web page instead of a model's reply; check the provider's baseUrl. "
                    f"It begins: {page[:200]!r}"
                )
            if response.content_type == "application/json":
                for event in reply.feed_whole(await read_bounded(response, MAX_WHOLE_BODY)):
                    yield event
                return
            parser = SseParser()
            while not builder.complete and (chunk := await response.content.readany()):
                for event in reply.feed(parser.feed(chunk)):
                    yield event
            if not builder.complete:
                for event in _last_events(parser, reply):
                    yield event
        except ModelError as error:
            # Events that stood before the failure in the same read have not been handed out yet.
            for event in builder.take():
                yield event
            raise _without_secrets(error, wire.secrets) from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise _without_secrets(_transport_error(error, wire, reply), wire.secrets) from None
        finally:
            # A consumer may stop at the last event instead of running to the end. Both are a finished call.
            if response is not None and builder.complete:
                self._keep_connection(response)
            elif response is not None:
                response.close()

    async def post_json(self, wire: WireRequest, *, provider: str, timeout_s: float) -> bytes:
        """The body of a good answer, for calls that are answered whole. Every other outcome is a ModelError."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with await self._post(wire, "application/json", timeout) as response:
                if response.status < 300:
                    return await read_bounded(response, MAX_WHOLE_BODY)
                body = await read_bounded(response, MAX_ERROR_BODY)
                raise status_error(provider, response.status, response.headers, body, wire.secrets)
        except TimeoutError:
            raise ModelError(
                f"{wire.host} gave no answer within {timeout_s:g} s.", kind="timeout", retryable=True
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = redact(f"Connection error with {wire.host}: {error}", wire.secrets)
            raise ModelError(text, kind="network", retryable=True) from None

    async def _post(self, wire: WireRequest, accept: str, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Returns when the head of the answer is there. Redirects are not followed: they would carry the key along."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector
                or aiohttp.TCPConnector(limit=MAX_CONNECTIONS, ttl_dns_cache=60, keepalive_timeout=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": "openclaw-python"},
            )
        return await self._session.post(
            wire.url,
            data=encode_body(wire.body),
            headers={"content-type": "application/json", "accept": accept, **wire.headers},
            timeout=timeout,
            allow_redirects=False,
            proxy=proxy_for(wire.url),
        )

    def _keep_connection(self, response: aiohttp.ClientResponse) -> None:
        """Returns the connection to the pool. The server's end-of-body often comes a packet after its last event."""
        if response.content.at_eof():
            response.release()
            return
        task = asyncio.get_running_loop().create_task(_drain(response))
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)


class HttpProvider:
    """A provider that is called over HTTP. ``build`` makes its requests, and ``reply`` reads one of its streams."""

    def __init__(
        self,
        http: ModelHttp,
        clock: Clock,
        build: Callable[[ModelRequest, str], WireRequest],
        reply: Callable[[Model, int], ReplyReader],
    ) -> None:
        self._http = http
        self._clock = clock
        self._build = build
        self._reply = reply

    def stream(self, request: ModelRequest, api_key: str) -> AsyncGenerator[StreamEvent]:
        reply = self._reply(request.model, self._clock.now_ms())
        return self._http.stream_reply(lambda: self._build(request, api_key), reply, len(request.messages))


async def _drain(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(DRAIN_S):
            while await response.content.readany():
                pass
        response.release()
    except (aiohttp.ClientError, TimeoutError, OSError):
        pass
    finally:
        response.close()


def _last_events(parser: SseParser, reply: ReplyReader) -> Iterator[StreamEvent]:
    """After the last byte: an event whose blank line is missing still counts, half an event does not."""
    tail = parser.finish()
    if tail is not None:
        try:
            yield from reply.feed([tail])
        except ModelError as error:
            if error.kind != "other":
                raise
    if not reply.builder.complete:
        yield from reply.finish()


def request_to(url: str, model: Model, api_key: str, headers: dict[str, str], body: dict[str, Any]) -> WireRequest:
    """The request to a model's server, with the headers that the configuration gives the model."""
    configured = {name.lower(): value for name, value in model.headers.items()}
    return WireRequest(
        url=url, headers={**headers, **configured}, body=body, api_key=api_key, idle_s=idle_timeout_s(model)
    )


def idle_timeout_s(model: Model) -> float:
    """How long a server may stay silent: ``compat.idleTimeoutMs``, or two minutes when that is not a usable number."""
    configured = model.compat.get("idleTimeoutMs")
    if isinstance(configured, int | float) and configured > 0:
        return configured / 1000
    return IDLE_TIMEOUT_S


def proxy_for(url: str) -> str | None:
    """The environment's proxy. Servers on this machine are never reached through it: a proxy could not reach them."""
    if is_local_url(url):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy_bypass(parts.hostname or "") else proxy


def _cause(error: OSError) -> str:
    """The system's own words: asyncio puts the address in their place, which the sentence has already."""
    number = error.errno or 0  # That of a name that cannot be found is negative.
    return os.strerror(number) if number > 0 else error.strerror or str(error)


def _transport_error(error: Exception, wire: WireRequest, reply: ReplyReader) -> ModelError:
    """What went wrong below HTTP, in words for the person who runs the Gateway."""
    host = wire.host
    kind: ErrorKind = "network"
    retryable = True
    match error:
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            kind, retryable = "other", False
            text = f"The provider's baseUrl {reply.builder.model.base_url!r} is not a valid address."
        case aiohttp.ConnectionTimeoutError():
            kind = "timeout"
            text = f"Connecting to {host} timed out after {CONNECT_TIMEOUT_S:g} s."
        case TimeoutError():
            kind = "timeout"
            text = f"{host} sent nothing for {wire.idle_s:g} s; the call timed out."
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            retryable = False
            text = f"The TLS certificate of {host} was not accepted: {error}"
        case aiohttp.ClientConnectorError():
            text = f"Connection error: cannot reach {host}: {_cause(error.os_error)}."
        case SseTooLarge():
            kind, retryable = "other", False
            text = f"{host} sent an unreadable stream: {error}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | aiohttp.ClientOSError():
            text = f"Connection error: {host} closed the connection before the reply was complete."
        case _:
            text = f"Connection error with {host}: {error}"
    return ModelError(text, kind=kind, retryable=retryable, partial=reply.builder.partial(text))


def _without_secrets(error: ModelError, secrets: list[str]) -> ModelError:
    text = redact(str(error), secrets)
    if text == str(error):
        return error
    if error.partial is not None and isinstance(error.partial.error_message, str):
        error.partial.error_message = redact(error.partial.error_message, secrets)
    error.args = (text,)
    return error


# Server-sent events

MAX_EVENT_BYTES = 8 * 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseTooLarge(ValueError):
    """One event is larger than the limit."""


class SseParser:
    """Takes the byte stream in pieces of any size and returns the data of the events that each piece completes.

    The names of events are skipped, because the protocols of models also name an event in its data.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._pending = bytearray()
        self._begun = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # The second half of a line end that the network cut in two.
        self._after_cr = chunk.endswith(b"\r")
        pending = self._pending
        scan_from = max(0, len(pending) - 1)
        pending += chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = pending.rfind(b"\n\n", scan_from)
        if end < 0:
            if len(pending) > self._max:
                raise self._too_large()
            return []
        complete = bytes(memoryview(pending)[:end])
        del pending[: end + 2]
        if not self._begun:
            complete, self._begun = complete.removeprefix(_BYTE_ORDER_MARK), True
        events = [event for block in complete.split(b"\n\n") if (event := _parse_block(block)) is not None]
        if len(complete) > self._max and any(len(data) > self._max for data in events):
            raise self._too_large()
        return events

    def finish(self) -> bytes | None:
        """The event after the last blank line. Some servers close right after the last line."""
        rest = bytes(self._pending)
        self._pending.clear()
        return _parse_block(rest)

    def _too_large(self) -> SseTooLarge:
        return SseTooLarge(f"An event of the stream is larger than {self._max} bytes.")


def _parse_block(block: bytes) -> bytes | None:
    """The data of one event from its lines, or None for a block without data (comments, keep-alives)."""
    fields = (line.partition(b":") for line in block.split(b"\n"))
    data = [value.removeprefix(b" ") for name, _, value in fields if name == b"data"]
    return b"\n".join(data) if data else None


# The message built from a stream

INVALID_JSON = "__invalid_json__"
"""The only argument of a call whose JSON did not parse; its value is the text. Such a call is never run."""

_T = TypeVar("_T")


class ReplyReader(abc.ABC):
    """Reads one reply: turns a provider's events into ours. It does no I/O and can be fed recorded bytes.

    Each wire protocol has a subclass, which says how one event, a whole document and the end of a reply are read.
    """

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        self.builder = MessageBuilder(model, timestamp)
        self.stop: str | None = None
        """Why the reply ended, in the provider's word. None: the provider has not said it."""

    def feed(self, events: list[bytes]) -> list[StreamEvent]:
        """Our events for the provider's events of one network read. Adjacent deltas become one event."""
        for data in events:
            if self.builder.complete:
                break
            if data.strip():
                self._read_event(data)
        return self.builder.take()

    def feed_whole(self, body: bytes) -> list[StreamEvent]:
        """Our events for one JSON document, from a server that ignored ``stream``."""
        if not self._read_whole(body):
            raise self.builder.failure("The server answered with JSON that is not a model's message; check baseUrl.")
        return self.builder.take()

    def finish(self) -> list[StreamEvent]:
        """Our last events after the end of the bytes. Raises ModelError when the reply is not complete."""
        if self.stop is None:
            raise self.builder.cut()
        self._end()
        return self.builder.take()

    @abc.abstractmethod
    def _read_event(self, data: bytes) -> None:
        """Reads the data of one event of the provider."""

    @abc.abstractmethod
    def _read_whole(self, body: bytes) -> bool:
        """False if the document is not a reply."""

    def _end(self) -> None:  # noqa: B027
        """Ends the reply for the reason in ``stop``. A protocol whose last event says all never sets ``stop``."""


BlockKind: TypeAlias = Literal["text", "thinking", "call"]


class BlockBuilder(msgspec.Struct, kw_only=True):
    """A content block under construction. Deltas are collected and joined once."""

    kind: BlockKind
    parts: list[str] = []
    signature: str | None = None
    redacted: bool = False
    call_id: str = ""
    name: str = ""
    whole_arguments: dict[str, Any] | None = None
    """The arguments, when a server sent them as an object instead of as JSON text."""
    thought_signature: str | None = None
    carry: str = ""
    """Half of a surrogate pair whose other half comes with the next delta."""

    @property
    def joined(self) -> str:
        return "".join(self.parts)


class MessageBuilder:
    """Holds the blocks in order, the tokens used, and the events not yet taken."""

    def __init__(self, model: Model, timestamp: int = 0) -> None:
        self.model = model
        self.timestamp = timestamp
        self.blocks: list[BlockBuilder] = []
        self._counted: dict[str, int] = {}
        self._count_is_new = False
        self.complete = False
        self.started = False
        """Whether the model has begun to answer. Only then is there a partial message."""
        self._ragged = False
        self._out: list[StreamEvent] = []
        self._run: list[str] = []
        self._run_kind: type[Text] | type[Thinking] = Text

    def open(self, kind: BlockKind, *, signature: str | None = None) -> BlockBuilder:
        """Begins a block. A call is begun with ``open_call``."""
        self.started = True
        self.blocks.append(BlockBuilder(kind=kind, signature=signature))
        return self.blocks[-1]

    def open_call(self, call_id: str, name: str) -> BlockBuilder:
        self._flush()
        self._out.append(ToolCallStart(call_id, name))
        block = self.open("call")
        block.call_id, block.name = call_id, name
        return block

    def extend(self, block: BlockBuilder, delta: str) -> None:
        """Adds to the text, the thinking or the JSON of the arguments."""
        if self._ragged:
            delta = _mend(block, delta)
        block.parts.append(delta)
        if delta and block.kind != "call":
            kind = Text if block.kind == "text" else Thinking
            if self._run_kind is not kind:
                self._flush()
                self._run_kind = kind
            self._run.append(delta)

    def extend_last(self, kind: BlockKind, delta: str, *, signature: str | None = None) -> BlockBuilder:
        """Adds to the last block if it is of this kind. Otherwise a new one begins."""
        last = self.blocks[-1] if self.blocks else None
        block = last if last is not None and last.kind == kind else self.open(kind, signature=signature)
        self.extend(block, delta)
        return block

    def count(self, *, input: int = 0, output: int = 0, cache_read: int = 0, cache_write: int = 0) -> None:
        """Sets the tokens used so far. Servers correct the numbers during a stream."""
        self._counted = {"input": input, "output": output, "cache_read": cache_read, "cache_write": cache_write}
        self._count_is_new = True

    def take(self) -> list[StreamEvent]:
        """The events since the last call."""
        self._flush()
        out, self._out = self._out, []
        if self._count_is_new and not self.complete:
            out.insert(0, Counted(priced_usage(self.model.cost, **self._counted)))
        self._count_is_new = False
        return out

    def done(self, reason: StopReason, error: str | None = None) -> None:
        """Ends the reply. Later events are ignored."""
        self.started = True
        self._flush()
        self.complete = True
        self._out.append(Done(self.message(reason, error)))

    def message(self, reason: StopReason, error: str | None = None) -> AssistantMessage:
        content: list[AssistantBlock] = []
        notes = [error] if error else []
        for block in self.blocks:
            match block.kind:
                case "text":
                    if text := block.joined:
                        content.append(TextBlock(text=text, text_signature=block.signature))
                case "thinking":
                    if (thought := block.joined) or block.signature:
                        content.append(
                            ThinkingBlock(thinking=thought, thinking_signature=block.signature, redacted=block.redacted)
                        )
                case "call":
                    call = _finished_call(block, cut=reason in ("length", "error", "aborted"))
                    # At the token limit, arguments can be valid JSON and still be cut.
                    if call is None or (reason == "length" and block is self.blocks[-1]):
                        notes.append(
                            f"The call of `{block.name}` was cut before its arguments were complete: left out."
                        )
                    else:
                        content.append(call)
        # The calls that are present decide, because servers disagree on the reason.
        if reason in ("stop", "toolUse"):
            reason = "toolUse" if any(isinstance(block, ToolCall) for block in content) else "stop"
        return AssistantMessage(
            content=content,
            api=self.model.api,
            provider=self.model.provider,
            model=self.model.id,
            usage=priced_usage(self.model.cost, **self._counted),
            stop_reason=reason,
            error_message=" ".join(notes) if notes else msgspec.UNSET,
            timestamp=self.timestamp,
        )

    def decode(self, decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
        """Decodes one event's JSON. Halves of surrogate pairs, which some servers send, are joined or removed."""
        try:
            return decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            try:
                value = msgspec.convert(json.loads(data.decode("utf-8", "replace")), decoder.type)
            except (ValueError, RecursionError):
                shown = data[:120].decode("utf-8", "replace") + ("…" if len(data) > 120 else "")
                raise self.failure(f"The model's stream held something unreadable: {shown!r}") from None
            self._ragged = True
            return value

    def failure(
        self, text: str, *, kind: ErrorKind = "other", status: int | None = None, retryable: bool = True
    ) -> ModelError:
        """An error that carries the partial message."""
        return ModelError(text, kind=kind, status=status, retryable=retryable, partial=self.partial(text))

    def refused(self, error: Any, status: int | None) -> ModelError:
        """The error for an error that the server sent inside its reply."""
        text = describe_error(error)
        kind = classify(status, text)
        return self.failure(
            f"{status} {text}" if status else text, kind=kind.kind, status=status, retryable=kind.retryable
        )

    def partial(self, error: str) -> AssistantMessage | None:
        return self.message("error", error) if self.started else None

    def cut(self) -> ModelError:
        return self.failure(
            "The model's stream ended before the reply was complete; the connection may have been cut.", kind="network"
        )

    def _flush(self) -> None:
        if self._run:
            self._out.append(self._run_kind("".join(self._run)))
            self._run.clear()


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Return the object in a call's JSON text, or None if it is not a JSON object. Empty text means no arguments."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            value = _without_lone_surrogates(json.loads(text))
        except (ValueError, RecursionError):
            return None
    if value is None:
        return {}
    if may_be_deep(text) and is_deep(value):
        return None
    return value if isinstance(value, dict) else None


def _finished_call(block: BlockBuilder, *, cut: bool) -> ToolCall | None:
    """The call, or None when the reply was cut inside its arguments. Half a call must never run."""
    text = block.joined
    if block.whole_arguments is not None and not text:
        arguments: dict[str, Any] | None = None if is_deep(block.whole_arguments) else block.whole_arguments
    elif cut and not text.strip():
        arguments = None
    else:
        arguments = parse_arguments(text)
    if arguments is None:
        if cut:
            return None
        arguments = {INVALID_JSON: text}
    return ToolCall(id=block.call_id, name=block.name, arguments=arguments, thought_signature=block.thought_signature)


def _mend(block: BlockBuilder, delta: str) -> str:
    text = block.carry + delta
    block.carry = ""
    if text and "\ud800" <= text[-1] <= "\udbff":
        block.carry, text = text[-1], text[:-1]
    return strip_lone_surrogates(text)


# Text, numbers and JSON


def strip_lone_surrogates(text: str) -> str:
    """Joins surrogate pairs and removes single halves, which no JSON reader accepts."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def _without_lone_surrogates(value: Any) -> Any:
    match value:
        case str():
            return strip_lone_surrogates(value)
        case list():
            return [_without_lone_surrogates(item) for item in value]
        case dict():
            return {strip_lone_surrogates(str(key)): _without_lone_surrogates(item) for key, item in value.items()}
        case _:
            return value


def number(data: Any, name: str) -> int:
    """A number of tokens in a server's count. It is 0 when the server did not give it."""
    value = data.get(name) if isinstance(data, dict) else None
    return value if isinstance(value, int) else 0


def encode_body(body: dict[str, Any]) -> bytes:
    """The JSON of a request. Single halves of surrogate pairs are removed."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_lone_surrogates(body))
