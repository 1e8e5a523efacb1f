"""Whatever meets whatever: each message ends once, in order, on its own route, and nobody reads another's words.

Runs are held on purpose in every phase (before the first token, while streaming, inside a tool, while compacting, just
ended), and messages, redeliveries, commands, changes of mode, lost connections and crashes come then.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from openclaw.agent.recorder import entry_id
from tests.support import stored
from tests.support.forked_gateway import ForkedGateway
from tests.support.gateway import model_config
from tests.support.model_server import Call, ModelServer, Recorded, Reply, last_user_text
from tests.support.signal_daemon import SignalDaemon

US, GROUP = "+15550000001", "Z3JvdXAtb25l"
PEOPLE = {"ann": "+15550000042", "bob": "+15550000043"}
MODES = ("followup", "collect debounce:0", "steer", "interrupt", "steer-backlog")
PHASES = ("quick", "before", "streaming", "tool", "compacting", "ended")
ENDS = {"answered", "silent", "failed", "superseded", "expired"}
SEEDS = int(os.environ.get("OPENCLAW_TEST_SEEDS", "3"))
STEPS = 8
CANARY = re.compile(r"canary-(?:ann|bob)-(?:direct|group)-(\d+)-\w+\.")
REACHED_S = 0.8
MOST_STEPS = 64


@dataclass
class HeldModels(ModelServer):
    """Answers by the number in the newest message, and stops there for as long as a test wants it to."""

    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)

    def _choose(self, api: Any, request: Recorded) -> Reply:
        text, answered = last_user_text(api.name, request.body)
        if "<conversation>" in text:
            self.reached.add("compacting")
            return Reply("## Goal\nTo go on.\n## Progress\nSome.", hold=self.gates.get("compacting"))
        found = re.findall(r"canary-\w+-\w+-(\d+)-(\w+)\.", text)
        if not found:
            return Reply("ok")
        number, phase = found[-1]
        if phase == "tool" and not answered:
            command = f"touch begun-{number}; until test -e gate-{number}; do sleep 0.02; done"
            return Reply(calls=[Call("exec", {"command": command})])
        if phase in ("before", "streaming"):
            self.reached.add(number)
            return Reply(f"re {number}.", hold=self.gates.get(number), hold_after=1 if phase == "streaming" else 0)
        return Reply(f"re {number}.")


class Story:
    """One random life of a Gateway, reproducible by its seed."""

    def __init__(self, seed: int, gateway: ForkedGateway, signal: SignalDaemon, models: HeldModels) -> None:
        self.chance = random.Random(seed)
        self.gateway = gateway
        self.signal = signal
        self.models = models
        self.places: dict[int, tuple[str, str]] = {}
        """Message number to person and place."""
        self.kills = 0
        self.log: list[str] = []

    async def step(self) -> None:
        """A run is brought to a point and held there; something happens; it goes on, mostly."""
        person, place, phase = self._someone(), self._somewhere(), self.chance.choice(PHASES)
        held = await self._hold(person, place, phase)
        for _ in range(self.chance.randint(1, 3)):
            await self._disturb(person, place)
        if self.chance.random() < 0.8:
            self._release(held)

    def _someone(self) -> str:
        return self.chance.choice(list(PEOPLE))

    def _somewhere(self) -> str:
        return self.chance.choice(("direct", "group"))

    async def _hold(self, person: str, place: str, phase: str) -> str:
        if phase == "compacting":
            self.models.gates["compacting"] = asyncio.Event()
            self.models.reached.discard("compacting")
            await self._command("/compact", person, place)
            await self._until(lambda: "compacting" in self.models.reached)
            return "compacting"
        name = str(len(self.places))
        self.models.gates[name] = asyncio.Event()
        await self._say(person, place, phase)
        begun = self.gateway.state_dir / "workspace" / f"begun-{name}"
        match phase:
            case "before" | "streaming":
                await self._until(lambda: name in self.models.reached)
            case "tool":
                await self._until(begun.exists)
            case "ended":
                await self._until(lambda: any(call["message"] == f"re {name}." for call in self.signal.of("send")))
        return name

    async def _until(self, holds: Any) -> None:
        """For a while: behind another run that is held, this one waits its turn."""
        try:
            async with asyncio.timeout(REACHED_S):
                while not holds():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.log.append("  (not reached)")

    def _release(self, name: str) -> None:
        self.log.append(f"release {name}")
        if gate := self.models.gates.pop(name, None):
            gate.set()
        if name.isdigit():
            (self.gateway.state_dir / "workspace").mkdir(exist_ok=True)
            (self.gateway.state_dir / "workspace" / f"gate-{name}").touch()

    def release_all(self) -> None:
        for name in {*self.models.gates, *map(str, self.places)}:
            self._release(name)

    async def _disturb(self, person: str, place: str) -> None:
        kinds = ("same", "other", "again", "mode", "stop", "new", "drop", "cut", "kill", "rest")
        kind = self.chance.choices(kinds, (6, 4, 3, 3, 1, 1, 1, 1, 2, 2))[0]
        self.log.append(kind)
        match kind:
            case "same":
                await self._say(person, place, "quick")
            case "other":
                await self._say(self._someone(), self._somewhere(), "quick")
            case "again":
                await self.signal.repeat_all()
            case "mode":
                await self._command(f"/queue {self.chance.choice(MODES)}", person, place)
            case "stop" | "new":
                await self._command(f"/{kind}", person, place)
            case "drop":
                await self._command("/queue drop 1", person, place)
            case "cut":
                self.signal.disconnect()
                await self.signal.connected()
            case "kill":
                await self.kill()
            case _:
                await asyncio.sleep(self.chance.random() / 20)

    async def kill(self) -> None:
        self.kills += 1
        self.gateway.kill()
        self.signal.disconnect()
        await self.gateway.start()
        await self.signal.connected()

    async def _say(self, person: str, place: str, phase: str) -> None:
        number = len(self.places)
        self.places[number] = (person, place)
        self.log.append(f"say {number} {phase} by {person} in {place}")
        await self._deliver(f"canary-{person}-{place}-{number}-{phase}.", person, place)

    async def _command(self, text: str, person: str, place: str) -> None:
        self.log.append(f"{text} by {person} in {place}")
        await self._deliver(text, person, place)

    async def _deliver(self, text: str, person: str, place: str) -> None:
        group = {"groupInfo": {"groupId": GROUP, "type": "DELIVER"}} if place == "group" else {}
        await self.signal.deliver(self.signal.message(text, sender=PEOPLE[person], name=person, **group))


@dataclass
class Row:
    """A message as the ledger has it."""

    id: int
    run_id: str
    state: str
    code: str
    text: str
    answered_by: str | None


async def settled(gateway: ForkedGateway, numbers: int) -> list[Row]:
    """All messages in the order they were accepted, once every one has an end and all answers have gone out."""
    async with asyncio.timeout(60):
        while True:
            rows, pending = await asyncio.to_thread(read_ledger, gateway)
            if not pending and all(row.state in ENDS for row in rows) and set(owners(rows)) >= set(range(numbers)):
                return rows
            await asyncio.sleep(0.1)


def read_ledger(gateway: ForkedGateway) -> tuple[list[Row], int]:
    found = stored.ledger(gateway, "SELECT id, run_id, state, code, body, result FROM messages ORDER BY id")
    [waiting] = stored.ledger(gateway, "SELECT COUNT(*) AS count FROM outbox WHERE state IN ('pending', 'sending')")
    return [
        Row(
            *(row["id"], row["run_id"], row["state"], row["code"], json.loads(row["body"])["prompt"]),
            json.loads(row["result"] or b"{}").get("answeredBy"),
        )
        for row in found
    ], waiting["count"]


def user_texts(gateway: ForkedGateway) -> dict[str, list[str]]:
    """What people said, by session file."""
    found: dict[str, list[str]] = {}
    for name, data in stored.live_transcripts(gateway).items():
        lines = [json.loads(line) for line in data.splitlines()]
        ids = [line["id"] for line in lines]
        assert len(ids) == len(set(ids))
        found[name] = [
            json.dumps(line["message"]["content"])
            for line in lines
            if line["type"] == "message" and line["message"]["role"] == "user"
        ]
    return found


def assistant_texts(gateway: ForkedGateway) -> dict[str, str]:
    """The complete answers of the model, by entry, also of sessions that were put away."""
    found: dict[str, str] = {}
    for data in stored.transcripts(gateway).values():
        for line in map(json.loads, data.splitlines()):
            if line["type"] == "message" and line["message"].get("stopReason") in ("stop", "toolUse"):
                texts = [block["text"] for block in line["message"]["content"] if block["type"] == "text"]
                found[line["id"]] = "".join(texts)
    return found


def configuration(signal: SignalDaemon, models: ModelServer, *, shared: bool) -> dict[str, Any]:
    section = {
        "enabled": True,
        "account": US,
        "httpUrl": signal.url,
        "autoStart": False,
        "allowFrom": list(PEOPLE.values()),
        "groupPolicy": "open",
        "groups": {"*": {"requireMention": False}},
    }
    config = model_config(models.base_url, models.api_key, channels={"signal": section})
    config["messages"] = {"queue": {"debounceMs": 50}}
    config["session"] = {"dmScope": "main" if shared else "per-channel-peer"}
    config["agents"]["defaults"]["compaction"] = {"keepRecentTokens": 100, "memoryFlush": {"enabled": False}}
    return config


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_message_ends_once_in_order_on_its_own_route(seed: int, tmp_path: Path) -> None:
    shared = seed % 3 == 2
    async with AsyncExitStack() as stack:
        signal = await stack.enter_async_context(SignalDaemon(US, groups=(GROUP,)))
        models = await stack.enter_async_context(HeldModels())
        config = configuration(signal, models, shared=shared)
        gateway = await stack.enter_async_context(ForkedGateway(tmp_path / "state", config))
        await signal.connected()
        story = Story(seed, gateway, signal, models)
        try:
            for _ in range(STEPS):
                await story.step()
            story.release_all()
            await signal.repeat_all()
            rows = await settled(gateway, len(story.places))
            await gateway.stop()
            check(story, rows, user_texts(gateway), assistant_texts(gateway), shared=shared)
        except BaseException:
            print("\n".join(story.log))  # The story that led here, beside the seed, and what became of it.
            print(*await asyncio.to_thread(read_ledger, gateway), sep="\n")
            print(*stored.ledger(gateway, "SELECT * FROM outbox"), sep="\n")
            print(*signal.of("send"), sep="\n")
            raise


def check(story: Story, rows: list[Row], said: dict[str, list[str]], replied: dict[str, str], *, shared: bool) -> None:
    own = owners(rows)
    for number in story.places:
        mine = [row for row in own.get(number, []) if not row.run_id.endswith(":backlog")]
        assert len(mine) == 1, f"message {number} has {len(mine)} rows"
        heard = sum(CANARY.findall(text).count(str(number)) for texts in said.values() for text in texts)
        most = 2 if len(own[number]) > 1 else 1
        assert heard <= most, f"message {number} was said {heard} times"
        assert heard or mine[0].state == "superseded", f"message {number} never reached the agent: {mine[0]}"
    check_order(own, said)
    for texts in said.values():
        whole = "\n".join(texts)
        assert shared or not ("canary-ann-direct" in whole and "canary-bob-direct" in whole), "two people's words met"
        assert not ("-direct-" in whole and "-group-" in whole), "a group's words met a person's"
    check_routes(story, own, replied)


def owners(rows: list[Row]) -> dict[int, list[Row]]:
    """By number, the rows of that message: of words that were put together, the newest are the row's own."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        numbers = CANARY.findall(row.text)
        if numbers:
            found.setdefault(int(numbers[-1]), []).append(row)
    return found


def check_order(own: dict[int, list[Row]], said: dict[str, list[str]]) -> None:
    for name, texts in said.items():
        numbers = list(dict.fromkeys(int(found) for text in texts for found in CANARY.findall(text)))
        accepted = [own[number][0].id for number in numbers]
        assert accepted == sorted(accepted), f"{name}: messages {numbers} were accepted in the order {accepted}"


def check_routes(story: Story, own: dict[int, list[Row]], replied: dict[str, str]) -> None:
    answers: dict[int, int] = {}
    for call in story.signal.of("send"):
        # A reply that was on its way when the Gateway was killed may come only with the mark.
        for found in re.findall(r"^(?:\(possibly sent twice\) )?re (\d+)\.$", call["message"]):
            answers[int(found)] = answers.get(int(found), 0) + 1
            person, place = story.places[int(found)]
            to = (call.get("groupId"), call.get("recipient"))
            assert to == ((GROUP, None) if place == "group" else (None, [PEOPLE[person]])), (
                f"answer {found} went to {to}"
            )
    for number, mine in own.items():
        most = len(mine) + story.kills
        assert answers.get(number, 0) <= most, f"message {number} was answered {answers[number]} times"
        if mine[0].state == "answered":
            spoken = [text for step in range(MOST_STEPS) if (text := replied.get(entry_id(mine[0].run_id, step)))]
            assert spoken, f"message {number} has no answer"
            lost = [text for text in spoken if not answers.get(int(text.removeprefix("re ").removesuffix(".")))]
            assert not lost, f"of the answers to message {number}, {lost} were not sent"
