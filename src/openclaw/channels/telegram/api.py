"""Calls to the Bot API through python-telegram-bot, whose failures become ``BotApiFailed``.

The library is imported when an account starts, in a thread, because that takes a while. Its methods that decode answers
are not used: one update that it cannot decode would hold back all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from openclaw.config.schema.channels import TelegramAccount
from openclaw.outbound.reply import SendFailed

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 60.0
CONNECT_S = 10.0
POLL_S = 30
POLL_SLACK_S = 10.0
"""The server has this long beyond the end of a long poll to answer it."""
UPDATE_KINDS = ("message", "edited_message", "callback_query", "message_reaction")

FailureKind: TypeAlias = Literal[
    "token", "conflict", "moved", "rate", "forbidden", "refused", "server", "unreachable", "unanswered"
]


class BotApiFailed(Exception):
    """A call did not succeed. The message never holds the token.

    ``server`` means that the API says it could not do it now. ``unreachable`` means that nothing was sent.
    ``unanswered`` means that nobody knows whether it was done.
    """

    def __init__(
        self, kind: FailureKind, message: str, *, retry_after_s: float | None = None, new_chat: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.retry_after_s = retry_after_s
        self.new_chat = new_chat

    def says(self, *words: str) -> bool:
        """Whether the API refused the call with one of these words. It has no codes for its reasons."""
        said = str(self).lower()
        return self.kind == "refused" and any(word.lower() in said for word in words)

    def as_send_failure(self) -> SendFailed:
        return SendFailed(
            str(self),
            permanent=self.kind in ("refused", "forbidden"),
            reached=self.kind not in ("unreachable", "token"),
            maybe_sent=self.kind == "unanswered",
            retry_after_s=self.retry_after_s,
        )


class FileRefused(Exception):
    """A file was not fetched. The message says why."""


class BotApi:
    """``open_api`` makes it. Every method but ``close`` may raise ``BotApiFailed``."""

    def __init__(self, bot: Any, requests: tuple[Any, Any], files: httpx.AsyncClient, token: str, root: str) -> None:
        self._bot = bot
        self._requests = requests
        self._files = files
        self._token = token
        self._root = root

    async def call(self, method: str, params: dict[str, Any] | None = None, timeout_s: float | None = None) -> Any:
        """Returns the result. Values may be ``telegram.InputFile`` or ``telegram.InputMedia``."""
        from telegram.error import TelegramError

        try:
            return await self._bot.call(method, dict(params or {}), timeout_s)
        except TelegramError as error:
            raise self._failure(method, error) from None

    async def updates(self, offset: int | None, timeout: int) -> list[Any]:
        """Returns the updates from ``offset`` on, and confirms those before it. Waits ``timeout`` s for the first."""
        params: dict[str, Any] = {"timeout": timeout, "allowed_updates": list(UPDATE_KINDS)}
        if offset is not None:
            params["offset"] = offset
        found = await self.call("getUpdates", params, timeout + POLL_SLACK_S)
        return found if isinstance(found, list) else []

    async def fetch_file(self, file_id: str, limit: int) -> tuple[bytes, str]:
        """Returns the content of a file and its path on the server. Raises ``FileRefused`` as well."""
        import httpx

        found = await self.call("getFile", {"file_id": file_id})
        path = found.get("file_path") if isinstance(found, dict) else None
        if not isinstance(path, str) or not path:
            raise FileRefused("the server gives no path for it")
        size = found.get("file_size")
        if isinstance(size, int) and size > limit:
            raise FileRefused(f"it is larger than {limit / 1024 / 1024:g} MB")
        parts: list[bytes] = []
        total = 0
        address = f"{self._root}/file/bot{self._token}/{quote(path.lstrip('/'))}"
        try:
            async with self._files.stream("GET", address) as answer:
                if answer.status_code != 200:
                    raise FileRefused(f"the server answered {answer.status_code}")
                async for chunk in answer.aiter_bytes():
                    total += len(chunk)
                    if total > limit:
                        raise FileRefused(f"it is larger than {limit / 1024 / 1024:g} MB")
                    parts.append(chunk)
        except httpx.HTTPError as error:
            raise FileRefused(f"the connection broke ({type(error).__name__})") from None
        return b"".join(parts), path

    async def close(self) -> None:
        for request in self._requests:
            await request.shutdown()
        await self._files.aclose()

    def _failure(self, method: str, error: Exception) -> BotApiFailed:
        import httpx
        from telegram.error import (
            BadRequest,
            ChatMigrated,
            Conflict,
            Forbidden,
            InvalidToken,
            NetworkError,
            RetryAfter,
            TelegramError,
        )

        said = f"Telegram {method}: {str(error).replace(self._token, '***')}"
        cause = error.__cause__
        match error:
            case InvalidToken():
                # The API answers 404 to a token of a wrong form, and to a method that it does not know.
                unknown = method != "getMe" and "not found" in said.lower()
                return BotApiFailed("refused" if unknown else "token", said)
            case Conflict():
                return BotApiFailed("conflict", said)
            case ChatMigrated(new_chat_id=new_chat):
                return BotApiFailed("moved", said, new_chat=new_chat)
            case RetryAfter(retry_after=wait):
                seconds = float(wait) if isinstance(wait, int | float) else wait.total_seconds()
                return BotApiFailed("rate", said, retry_after_s=seconds)
            case Forbidden():
                return BotApiFailed("forbidden", said)
            case BadRequest():
                return BotApiFailed("refused", said)
            case NetworkError() if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
                place = f"Telegram at {self._root} cannot be reached ({type(cause).__name__})"
                return BotApiFailed("unreachable", place)
            case NetworkError() if isinstance(cause, httpx.HTTPError):
                return BotApiFailed("unanswered", f"Telegram {method}: no answer ({type(cause).__name__})")
            case NetworkError() if cause is None and "request entity too large" in said.lower():
                return BotApiFailed("refused", said)
            case NetworkError() if cause is None:
                return BotApiFailed("server", said)
            case TelegramError() if isinstance(cause, ValueError | TelegramError):
                # Something between us and the API answered, such as a proxy.
                return BotApiFailed("unanswered", f"Telegram {method}: the answer is not one of the Bot API")
            case _:
                return BotApiFailed("unanswered", said)


def open_api(token: str, settings: TelegramAccount) -> BotApi:
    """Makes the client. It blocks: call it in a thread."""
    import logging

    import httpx
    from telegram import Bot
    from telegram.request import HTTPXRequest

    class PlainBot(Bot):
        async def call(self, method: str, params: dict[str, Any], timeout_s: float | None) -> Any:
            if timeout_s is None:
                return await self._post(method, params)
            return await self._post(method, params, read_timeout=timeout_s)

    for name in ("httpx", "httpcore"):
        # They would write a line with the token for each request.
        logging.getLogger(name).setLevel(logging.WARNING)
    root, timeout = settings.api_root.strip().rstrip("/"), float(settings.timeout_seconds or TIMEOUT_S)

    def request(connections: int) -> HTTPXRequest:
        return HTTPXRequest(
            connection_pool_size=connections,
            read_timeout=timeout,
            write_timeout=timeout,
            media_write_timeout=max(timeout, TIMEOUT_S),
            connect_timeout=min(timeout, CONNECT_S),
            pool_timeout=timeout,
            proxy=settings.proxy or None,
        )

    requests = (request(16), request(2))
    # Braces in the address would be taken for places where the library puts the token.
    bot = PlainBot(
        token,
        base_url=lambda given: f"{root}/bot{given}",
        base_file_url=lambda given: f"{root}/file/bot{given}",
        request=requests[0],
        get_updates_request=requests[1],
    )
    files = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=CONNECT_S), proxy=settings.proxy or None)
    return BotApi(bot, requests, files, token, root)
