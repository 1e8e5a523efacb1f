"""What we ask of the daemon, and how its refusals are to be read. Pure."""

from __future__ import annotations

import base64
import re
from typing import Any

from openclaw.channels.signal.rpc import RpcError, RpcUnreachable
from openclaw.outbound.part import SendFailed, Sent

_USER_ERROR, _UNTRUSTED_KEY, _RATE_LIMIT = -1, -4, -5
_BAD_REQUEST = (-32700, -32600, -32601, -32602)
_FOR_GOOD = frozenset({"UNREGISTERED_FAILURE", "IDENTITY_FAILURE", "INVALID_PRE_KEY_FAILURE"})


def data_uri(data: bytes, mime_type: str, file_name: str | None) -> str:
    """An attachment inside the request, so that the daemon need not share a disk with us."""
    mime = mime_type if re.fullmatch(r"[\w.+-]+/[\w.+-]+", mime_type, re.ASCII) else "application/octet-stream"
    name = re.sub(r"[^\w.-]+", "_", file_name or "", flags=re.ASCII).strip("._")[-80:]
    named = f";filename={name}" if name else ""
    return f"data:{mime}{named};base64,{base64.b64encode(data).decode()}"


def failure_of(error: RpcError | RpcUnreachable) -> SendFailed:
    if isinstance(error, RpcUnreachable):
        return SendFailed(str(error), reached=False, maybe_sent=error.sent)
    permanent = error.code in (_USER_ERROR, _UNTRUSTED_KEY, *_BAD_REQUEST)
    wait = _retry_after(error.data) if error.code == _RATE_LIMIT else None
    return SendFailed(str(error), permanent=permanent, retry_after_s=wait)


def sent_of(result: Any) -> Sent:
    """The message's timestamp, which is its id. Raises ``SendFailed`` when it reached nobody."""
    answer: dict[str, Any] = result if isinstance(result, dict) else {}
    results = [entry for entry in _list(answer.get("results")) if isinstance(entry, dict)]
    outcomes = [str(entry.get("type") or "SUCCESS") for entry in results]
    if outcomes and "SUCCESS" not in outcomes:
        permanent = all(outcome in _FOR_GOOD for outcome in outcomes)
        raise SendFailed(
            f"Signal did not take the message: {', '.join(sorted(set(outcomes)))}",
            permanent=permanent,
            retry_after_s=_retry_after({"response": {"results": results}}),
        )
    timestamp = answer.get("timestamp")
    return Sent(message_id=str(timestamp) if isinstance(timestamp, int) else "")


def _retry_after(data: Any) -> float | None:
    match data:
        case {"response": {"results": list(results)}}:
            waits = [entry.get("retryAfterSeconds") for entry in results if isinstance(entry, dict)]
            numbers = [float(wait) for wait in waits if isinstance(wait, int | float) and not isinstance(wait, bool)]
            return max(numbers, default=None)
        case _:
            return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
