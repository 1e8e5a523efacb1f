"""Random frames and HTTP requests against a real Gateway, while an honest client uses it.

The frames are valid ones that were changed at random: by strangers, and by callers who hold the token. Everything
follows from the seed. ``python -m tests.faults.random_frames 1000000`` runs the long version and prints its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import TOKEN, model_config
from tests.support.model_server import ModelServer

LAG_BAR_S = 0.05
MEMORY_BAR_MB = 200
"""What the attack may add to the memory in use."""
ASK_EVERY_S = 0.02
ANSWER_S = 30.0
BATCH = 16
GIVE_UP = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
"""The Gateway closed the connection, or sent no answer or a long one: the attack goes on with the next."""
LATEST_S = 20.0
NEVER_CALLED = (
    "config.",
    "update.",
    "restart",
    "wizard.",
    "agents.",
    "device.",
    "skills.",
    "sessions.import",
    "secrets.",
)
"""An owner may stop or change the Gateway with these. That is no attack."""
CLIENT = {"id": "test", "version": "1.0.0", "platform": "linux", "mode": "test"}
CONNECT = {"minProtocol": 3, "maxProtocol": 3, "client": CLIENT, "auth": {"token": "wrong-token"}, "caps": ["x"]}
CALLS: list[tuple[str, Any]] = [
    ("health", {}),
    ("status", None),
    ("chat.history", {"sessionKey": "main", "limit": 10}),
    ("chat.send", {"sessionKey": "main", "message": "hello", "idempotencyKey": "k"}),
    ("chat.abort", {"sessionKey": "main"}),
    ("sessions.list", {"limit": 5}),
    ("sessions.preview", {"keys": ["main"]}),
    ("sessions.patch", {"key": "main", "thinkingLevel": "low"}),
    ("agent", {"message": "/status", "sessionKey": "main", "idempotencyKey": "a"}),
    ("agent.wait", {"runId": "none", "timeoutMs": 1}),
    ("logs.tail", {"limit": 5}),
    ("models.list", {}),
    ("system-presence", {}),
    ("system-event", {"text": "Node: a (b) · app 1 · last input 1s ago · mode x · reason y"}),
    ("channels.status", {"probe": False}),
    ("no.such.method", {"a": [1, 2.5, None, True, {"b": "c"}]}),
]
VERBS = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "\x00", "G" * 300]
PATHS = [
    *("/", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/chat/completions", "/v1/responses", "/tools/invoke"),
    *("/__openclaw__/rpc", "/__openclaw__/events?afterSeq=0", "//", "/../..", "/%00", "/\xff", "/" + "a" * 3000),
]
BODIES: list[Any] = [
    {"method": "health", "params": {}},
    {"model": "openclaw", "messages": [{"role": "user", "content": "hi"}], "stream": False},
    {"model": "openclaw", "input": "hi"},
    {"tool": "sessions_list", "args": {}},
]


class Mutator:
    """Makes bytes from valid values by changing them at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        dice, length = self.random, self.random.choice((0, 1, 3, 8, 30, 200, 4000))
        kind = dice.randrange(8)
        if kind == 0:
            return 'token"' + "a" * min(length, 500) + "!"
        if kind == 1:
            return "".join(map(chr, (dice.randrange(0x20) for _ in range(min(length, 50)))))
        if kind == 2:
            return dice.choice(("\u202e", "\ud83e", "\x1b[2J", "é", "中", "\u2028")) * min(length, 100)
        if kind == 3:
            return (
                dice.choice(("[", "{", '"', "\\", "<@", "/* ", " ", "\n", "-----BEGIN PRIVATE KEY-----", "a-")) * length
            )
        if kind == 4:
            return str(dice.randrange(10**9))
        return "".join(dice.choices("abcXYZ019_-./: ", k=min(length, 200)))

    def value(self, depth: int = 0) -> Any:
        dice = self.random
        match dice.randrange(10):
            case 0:
                return None
            case 1:
                return dice.choice((True, False))
            case 2:
                return dice.choice((0, -1, 1, 2**31, 2**63, -(2**64), 1e308, 0.1, 10**40))
            case 3 if depth < 4:
                return [self.value(depth + 1) for _ in range(dice.randrange(5))]
            case 4 if depth < 4:
                return {self.text(): self.value(depth + 1) for _ in range(dice.randrange(5))}
            case 5 if depth == 0:
                return self.nested(dice.choice((50, 110, 500)))
            case _:
                return self.text()

    def nested(self, depth: int) -> Any:
        value: Any = 1
        for _ in range(depth):
            value = [value] if self.random.random() < 0.5 else {"a": value}
        return value

    def changed(self, value: Any) -> Any:
        """The value with one thing changed somewhere in it."""
        dice = self.random
        if isinstance(value, dict) and value and dice.random() < 0.85:
            key = dice.choice(list(value))
            match dice.randrange(5):
                case 0:
                    return {name: item for name, item in value.items() if name != key}
                case 1:
                    return {**value, self.text(): self.value()}
                case 2:
                    return {**value, key: self.value()}
                case _:
                    return {**value, key: self.changed(value[key])}
        if isinstance(value, list) and value and dice.random() < 0.7:
            place = dice.randrange(len(value))
            return [*value[:place], self.changed(value[place]), *value[place + 1 :]]
        return self.value()

    def bytes_of(self, value: Any) -> bytes:
        """Its JSON, now and then damaged."""
        dice = self.random
        raw = bytearray(json.dumps(value).encode("utf-8", "surrogatepass"))
        match dice.randrange(12):
            case 0:
                return bytes(raw[: dice.randrange(len(raw) + 1)])
            case 1:
                for _ in range(dice.randrange(1, 6)):
                    raw[dice.randrange(len(raw))] = dice.randrange(256)
            case 2:
                return dice.randbytes(dice.choice((0, 1, 10, 1000)))
            case 3 if dice.random() < 0.02:
                return b"[" * dice.choice((2000, 60_000, 500_000))
            case _:
                pass
        return bytes(raw)

    def frame(self, number: int, *, method: str | None = None, names: list[str] | None = None) -> bytes:
        """The payload of a request frame."""
        dice = self.random
        name, params = (method, CONNECT) if method else dice.choice(CALLS)
        if names and dice.random() < 0.5:
            name = dice.choice(names)
        frame: dict[str, Any] = {"type": "req", "id": str(number), "method": name}
        if params is not None:
            frame["params"] = params
        for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
            frame = self.changed(frame)
            if not isinstance(frame, dict):
                break
        return self.bytes_of(frame)

    def packed(self, payload: bytes, broken: float = 0.05) -> bytes:
        """A frame of RFC 6455 from a client, now and then one that breaks its rules."""
        dice, size = self.random, len(payload)
        first, masked = 0x81, 0x80
        if dice.random() < broken:
            first = dice.choice((0x01, 0x80, 0x82, 0x83, 0x88, 0x89, 0x8A, 0x8F, 0xC1, 0xF1))
            masked = dice.choice((0x80, 0x80, 0))
            if first in (0x88, 0x89, 0x8A):
                payload = payload[:125]
            size = dice.choice((len(payload), len(payload) + 7, 2**31, 2**62)) if dice.random() < 0.3 else len(payload)
        if size < 126:
            length = bytes((masked | size,))
        elif size < 65536:
            length = bytes((masked | 126,)) + struct.pack("!H", size)
        else:
            length = bytes((masked | 127,)) + struct.pack("!Q", size)
        return bytes((first,)) + length + (bytes(4) if masked else b"") + payload

    def request(self, token: str | None) -> bytes:
        """An HTTP request."""
        dice = self.random
        verb = dice.choice(VERBS) if dice.random() < 0.3 else "POST"
        path = dice.choice(PATHS)
        body = self.bytes_of(self.changed(dice.choice(BODIES)))
        lines = [
            f"{verb} {path} HTTP/1.{dice.choice('1111019')}",
            dice.choice(("Host: 127.0.0.1",) * 6 + ("Host: evil", "X: y")),
        ]
        if token or dice.random() < 0.3:
            lines.append(f"Authorization: Bearer {token or 'wrong-' + str(dice.randrange(9))}")
        match dice.randrange(12):
            case 0:
                lines.append(f"Content-Length: {dice.choice((10**9, -1, '', 'x', 10**30))}")
            case 1:
                lines.append("Transfer-Encoding: chunked")
                body = dice.choice(
                    (b"0\r\n\r\n", b"ffffffffffff\r\nx", b"zz\r\n\r\n", f"{len(body):x}\r\n".encode() + body)
                )
            case 2:
                lines += ["Content-Encoding: gzip", f"Content-Length: {len(body)}"]
            case 3:
                lines += [f"X-{n}: {'y' * dice.choice((1, 100, 8000))}" for n in range(dice.choice((1, 30, 200)))]
            case 4:
                lines += [
                    f"Origin: {dice.choice(('http://evil', 'null', 'http://127.0.0.1'))}",
                    f"Content-Length: {len(body)}",
                ]
            case _:
                lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


class Attack:
    """Sends ``count`` frames and requests through several connections at a time."""

    def __init__(self, port: int, seed: int, count: int, names: list[str]) -> None:
        self.port = port
        self.seed = seed
        self.count = count
        self.names = names
        self.sent: Counter[str] = Counter()

    async def run(self) -> None:
        ways = [self.strangers_frames] * 3 + [self.strangers_requests] * 2
        ways += [self.known_frames] * 2 + [self.known_requests]
        await asyncio.gather(*(self.repeat(way, number) for number, way in enumerate(ways)))

    async def repeat(self, way: Any, number: int) -> None:
        mutator = Mutator(self.seed * 1000 + number)
        while sum(self.sent.values()) < self.count:
            with contextlib.suppress(*GIVE_UP):
                async with asyncio.timeout(LATEST_S):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    try:
                        await way(mutator, reader, writer)
                    finally:
                        writer.transport.abort()

    async def strangers_frames(self, mutator: Mutator, reader: Any, writer: Any) -> None:
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        for number in range(mutator.random.choice((1, 1, 2, 4))):
            writer.write(mutator.packed(mutator.frame(number, method="connect")))
            self.sent["frames of strangers"] += 1
        if mutator.random.random() < 0.2:
            await asyncio.wait_for(reader.read(65536), 0.1)

    async def strangers_requests(self, mutator: Mutator, reader: Any, writer: Any, token: str | None = None) -> None:
        who = "known callers" if token else "strangers"
        for _ in range(BATCH):
            writer.write(mutator.request(token))
            self.sent[f"requests of {who}"] += 1
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 0.1)

    async def known_requests(self, mutator: Mutator, reader: Any, writer: Any) -> None:
        await self.strangers_requests(mutator, reader, writer, TOKEN)

    async def known_frames(self, mutator: Mutator, reader: Any, writer: Any) -> None:
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        hello = {"type": "req", "id": "hello", "method": "connect", "params": {**CONNECT, "auth": {"token": TOKEN}}}
        payload = json.dumps(hello).encode()
        writer.write(b"\x81\xfe" + struct.pack("!H", len(payload)) + bytes(4) + payload)
        number = 0
        while number < 50 * BATCH:
            for _ in range(BATCH):
                number += 1
                writer.write(mutator.packed(mutator.frame(number, names=self.names), broken=0.002))
                self.sent["frames of known callers"] += 1
            await writer.drain()
            # A health call behind the batch is answered in its turn; what comes before it is thrown away.
            marker = f"mark-{number}"
            asked = json.dumps({"type": "req", "id": marker, "method": "health"}).encode()
            writer.write(bytes((0x81, 0x80 | len(asked))) + bytes(4) + asked)
            await asyncio.wait_for(self.until(reader, marker.encode()), 2)

    async def until(self, reader: Any, marker: bytes) -> None:
        tail = b""
        while marker not in tail:
            data = await reader.read(1 << 18)
            if not data:
                raise ConnectionResetError
            tail = tail[-100:] + data


class Report:
    """What the honest client and the Gateway's own metrics saw."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.round_trips: list[float] = []
        self.memory_mb: list[float] = []

    @property
    def problems(self) -> list[str]:
        found: list[str] = []
        if self.figures["lag p99 at most ms"] > LAG_BAR_S * 1000:
            found.append("the event loop was late")
        if self.figures["memory added MB"] > MEMORY_BAR_MB:
            found.append("the memory grew")
        return found


async def attacked(root: Path, count: int, seed: int) -> Report:
    """Starts a Gateway, lets the attack run in a process of its own, and uses the Gateway meanwhile."""
    report = Report()
    async with ModelServer() as models:
        config = model_config(models.base_url, models.api_key, logging={"level": "error", "consoleLevel": "error"})
        # All have one address here, and the wrong secrets must not keep the known callers from attacking.
        config["gateway"]["auth"]["rateLimit"] = {"maxAttempts": 1000, "windowMs": 1000, "exemptLoopback": False}
        config["gateway"]["http"] = {
            "endpoints": {"chatCompletions": {"enabled": True}, "responses": {"enabled": True}}
        }
        async with ForkedGateway(root / "state", config) as gateway, gateway.client() as honest:
            names = [name for name in honest.hello["features"]["methods"] if not name.startswith(NEVER_CALLED)]
            first = await metrics(gateway.url)
            began = time.monotonic()
            command = [sys.executable, "-m", "tests.faults.random_frames", str(count), "--seed", str(seed)]
            attack = await asyncio.create_subprocess_exec(
                *command, "--port", str(gateway.port), "--names", ",".join(names), stdout=subprocess.PIPE
            )
            telling = asyncio.create_task(attack.communicate())
            asked = 0
            while not telling.done():
                start = time.perf_counter()
                await asyncio.wait_for(honest.call("health"), ANSWER_S)
                report.round_trips.append(time.perf_counter() - start)
                honest.events.clear()  # The client keeps them all; nobody asks for them here.
                if asked % 50 == 0:
                    report.memory_mb.append(memory_mb(gateway.pid))
                asked += 1
                await asyncio.wait([telling], timeout=ASK_EVERY_S)
            sent, _ = await telling
            took = time.monotonic() - began
            last = await metrics(gateway.url)
            assert attack.returncode == 0
            assert (await honest.chat("still there?", "honest"))["state"] == "final"
            report.figures = figures(json.loads(sent), took, first, last, report)
            report.figures["gateway stderr"] = gateway.errors()[-500:]
    return report


def figures(sent: dict[str, int], took: float, first: Any, last: Any, report: Report) -> dict[str, Any]:
    trips = sorted(report.round_trips)
    counts = {bound: last[0][bound] - first[0].get(bound, 0) for bound in last[0]}
    total = counts["+Inf"]
    p99 = next((bound for bound, seen in counts.items() if bound != "+Inf" and seen >= 0.99 * total), "inf")
    late = counts["0.05"]
    return {
        "sent": sum(sent.values()),
        **sent,
        "seconds": round(took, 1),
        "lag samples": total,
        "lag p99 at most ms": float(p99) * 1000,
        "lag over 50 ms": total - late,
        "lag worst ms": round(last[1] * 1000, 1),
        "honest calls": len(trips),
        "honest p50 ms": round(trips[len(trips) // 2] * 1000, 1),
        "honest p99 ms": round(trips[int(len(trips) * 0.99)] * 1000, 1),
        "honest worst ms": round(trips[-1] * 1000, 1),
        "memory first MB": report.memory_mb[0],
        "memory most MB": max(report.memory_mb),
        "memory added MB": round(max(report.memory_mb) - report.memory_mb[0], 1),
    }


async def metrics(url: str) -> tuple[dict[str, int], float]:
    """The cumulative counts of the event loop's lag by bound, and the worst lag."""
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}) as response:
                page = await response.text()
            if response.status == 200:
                break
            await asyncio.sleep(1)  # The wrong secrets of the attack may have used up the tries of this address.
    counts: dict[str, int] = {}
    worst = 0.0
    for line in page.splitlines():
        if line.startswith("openclaw_event_loop_lag_seconds_bucket"):
            counts[line.split('"')[1]] = int(line.rsplit(" ", 1)[1])
        elif line.startswith("openclaw_event_loop_lag_worst_seconds "):
            worst = float(line.rsplit(" ", 1)[1])
    return counts, worst


def memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, help="attack the Gateway on this port and print what was sent")
    parser.add_argument("--names", default="")
    args = parser.parse_args()
    if args.port:
        attack = Attack(args.port, args.seed, args.count, args.names.split(","))
        await attack.run()
        print(json.dumps(attack.sent))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = await attacked(Path(folder), args.count, args.seed)
    print(json.dumps(report.figures, indent=2))
    print("; ".join(report.problems) or "the Gateway held")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
