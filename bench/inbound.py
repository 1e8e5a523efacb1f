"""One message of a channel, from the raw event to its place in the session's queue, on disk: no run is begun."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from statistics import median

import aiohttp
from tests.faults.platforms import BlueBubbles, Discord, Irc, Matrix, Platform, Signal, Slack, Telegram, WhatsApp
from tests.support.signal_daemon import SignalDaemon

from bench.harness import ROOT, GatewayProcess, prepared
from bench.process import cpu_s
from bench.row import Row, summary

US = "+15550000001"
PEOPLE = [f"+1555000{number:04d}" for number in range(100, 120)]
EACH = 20
BATCHES = 5
MESSAGES = 100
"""Of one person, in a batch on one of the other channels."""
MATRIX_MESSAGES = 40
"""Synapse takes a while for each."""
GROUP = "Z3JvdXAtb25l"


async def measure() -> list[Row]:
    async with SignalDaemon(US, groups=(GROUP,)) as signal, prepared() as gateway:
        configure(gateway, signal)
        await gateway.start()
        await signal.connected()
        for number, person in enumerate(PEOPLE):
            # Every session has a run that never ends, so that what comes now waits behind it.
            await signal.say(f"[[bench hold={number}]]", sender=person)
        await accepted(gateway, len(PEOPLE))
        queued = [await batch(gateway, signal, number) for number in range(BATCHES)]
        overheard = [await unaddressed(gateway, signal) for _ in range(BATCHES)]
    return [
        Row(figure="inbound", what="channel message, accepted and queued, CPU", unit="ms", bar=1, **summary(queued)),
        Row(figure="inbound", what="group message not addressed to us, CPU", unit="ms", bar=1, **summary(overheard)),
        *[await one_channel(kind) for kind in (Telegram, Discord, Slack, WhatsApp, BlueBubbles, Signal, Irc)],
        await matrix(),
    ]


async def one_channel(kind: type[Platform]) -> Row:
    """The same on another channel: one person, one conversation.

    Where the platform calls the Gateway, each message is a request on a new connection, and the next message comes when
    it is answered. The reference is such a request to a path that nobody serves: the HTTP server's share.
    """
    async with kind() as platform, prepared({"channels": {platform.name: platform.section()}}) as gateway:
        await gateway.start()
        platform.reaches(gateway)
        match platform:  # These tell a new connection nothing of what came before it.
            case Discord():
                await platform.discord.connected()
            case Signal():
                await platform.daemon.connected()
            case _:
                pass
        await platform.say("[[bench hold=0]]")
        await accepted(gateway, 1)
        figures: list[float] = []
        alone: list[float] = []
        for number in range(BATCHES):
            before = cpu_s(gateway.pid)
            for place in range(MESSAGES):
                await platform.say(f"and another thing, number {place}, please look at it")
            await accepted(gateway, 1 + MESSAGES * (number + 1))
            figures.append((cpu_s(gateway.pid) - before) / MESSAGES * 1000)
            if isinstance(platform, WhatsApp | BlueBubbles):
                alone.append(await request_ms(gateway))
    return Row(
        figure="inbound",
        what=f"{platform.name} message, until it is queued, CPU",
        unit="ms",
        bar=2,
        reference="its HTTP request" if alone else "",
        reference_value=median(alone) if alone else None,
        **summary(figures),
    )


async def matrix() -> Row:
    """The library checks each answer of the server against a schema. A process with nothing but the library follows the
    same account, and what it takes is no cost of ours.
    """
    async with Matrix() as platform, prepared({"channels": {"matrix": platform.section()}}) as gateway:
        await gateway.start()
        await platform.say("[[bench hold=0]]")
        await accepted(gateway, 1)
        command = [
            sys.executable,
            "-m",
            "bench.nio_alone",
            platform.proxy.url,
            platform.bot.user_id,
            platform.bot.token,
        ]
        library = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert library.stdout is not None and await asyncio.to_thread(library.stdout.readline)
            ours: list[float] = []
            alone: list[float] = []
            for number in range(BATCHES):
                before = cpu_s(gateway.pid), cpu_s(library.pid)
                for place in range(MATRIX_MESSAGES):
                    await platform.say(f"and another thing, number {place}, please look at it")
                await accepted(gateway, 1 + MATRIX_MESSAGES * (number + 1))
                both, its = cpu_s(gateway.pid) - before[0], cpu_s(library.pid) - before[1]
                ours.append((both - its) / MATRIX_MESSAGES * 1000)
                alone.append(its / MATRIX_MESSAGES * 1000)
        finally:
            library.kill()
            library.communicate()
    return Row(
        figure="inbound",
        what="matrix message, until it is queued, without its library, CPU",
        unit="ms",
        bar=2,
        reference="matrix-nio alone, sync and receipt",
        reference_value=median(alone),
        **summary(ours),
    )


async def request_ms(gateway: GatewayProcess) -> float:
    before = cpu_s(gateway.pid)
    for _ in range(MESSAGES):
        async with aiohttp.ClientSession() as http, http.post(f"{gateway.url}/nobody", data=bytes(600)) as answer:
            assert answer.status in (404, 405)
    return (cpu_s(gateway.pid) - before) / MESSAGES * 1000


def configure(gateway: GatewayProcess, signal: SignalDaemon) -> None:
    path = gateway.state_dir / "openclaw.json"
    config = json.loads(path.read_text())
    config["session"] = {"dmScope": "per-channel-peer"}
    config["messages"] = {"queue": {"mode": "followup", "cap": 10_000}}
    config["channels"] = {
        "signal": {
            "enabled": True,
            "account": US,
            "httpUrl": signal.url,
            "autoStart": False,
            "allowFrom": PEOPLE,
            "groupPolicy": "open",
        }
    }
    path.write_text(json.dumps(config))


async def batch(gateway: GatewayProcess, signal: SignalDaemon, number: int) -> float:
    """CPU milliseconds per message."""
    before, count = cpu_s(gateway.pid), EACH * len(PEOPLE)
    for place in range(EACH):
        for person in PEOPLE:
            await signal.say(f"and another thing, number {place}, please look at it /think low", sender=person)
    await accepted(gateway, len(PEOPLE) + count * (number + 1))
    return (cpu_s(gateway.pid) - before) / count * 1000


async def unaddressed(gateway: GatewayProcess, signal: SignalDaemon) -> float:
    before, count = cpu_s(gateway.pid), EACH * len(PEOPLE)
    for place in range(EACH):
        for person in PEOPLE:
            await signal.say(f"nothing for you here, {place}", sender=person, group=GROUP)
    known = await asyncio.to_thread(rows, gateway.state_dir / "ledger.db")
    await signal.say("the last one", sender=PEOPLE[0])
    await accepted(gateway, known + 1)
    return (cpu_s(gateway.pid) - before) / count * 1000


async def accepted(gateway: GatewayProcess, count: int) -> None:
    """Until so many messages are in the ledger."""
    ledger = gateway.state_dir / "ledger.db"
    async with asyncio.timeout(120):
        while True:
            if await asyncio.to_thread(rows, ledger) >= count:
                return
            await asyncio.sleep(0.05)


def rows(ledger: Path) -> int:
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        return int(database.execute("SELECT COUNT(*) FROM messages").fetchone()[0])
