"""What a past run was sent comes back byte for byte, whatever the run went through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.flows.test_refused import three_apis
from tests.models.histories import picture
from tests.support.gateway import WireClient, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import Call, ModelServer, Reply


async def rebuilt(client: WireClient, run_id: str, call: int) -> bytes:
    found = await client.call("context.get", {"runId": run_id, "call": call, "wire": True})
    assert found["exact"], found["missing"]
    return found["wire"].encode()


async def compare(client: WireClient, models: ModelServer, run_id: str, since: int) -> None:
    """Every model call of the run against what the server received."""
    for number, request in enumerate(list(models.requests)[since:], 1):
        assert await rebuilt(client, run_id, number) == request.raw, (run_id, number)


def config_of(models: ModelServer) -> dict[str, Any]:
    config = three_apis(models)
    config["agents"]["defaults"] |= {
        "compaction": {"reserveTokensFloor": 0, "memoryFlush": {"enabled": False}},
        "contextPruning": {"mode": "always", "keepLastAssistants": 1, "softTrimRatio": 0, "minPrunableToolChars": 10},
        "models": {"mock/mock-1": {"params": {"maxTokens": 4321, "cacheRetention": "none"}}},
    }
    config["compaction"] = {"keepRecentTokens": 100}
    return config


async def test_every_call_comes_back_byte_for_byte(tmp_path: Path, models: ModelServer) -> None:
    async with InProcessGateway(tmp_path / "state", config_of(models)) as gateway, gateway.client() as client:
        for provider in ("mock", "chat", "resp"):
            await client.call("sessions.patch", {"key": "main", "model": f"{provider}/mock-1", "thinkingLevel": "low"})
            since, run_id = len(models.requests), f"tools-{provider}"
            models.queue(
                Reply(thinking="hm", calls=[Call("read", {"path": "AGENTS.md"}), Call("read", {"path": "none"})]),
                Reply(text="<think>and</think>cut off in the mid", stop="length"),
                Reply(text="dle of a word. NO_REPLY"),
            )
            image = {"type": "image", "mimeType": "image/png", "content": picture(2600, 4, "PNG")}
            await client.chat("read it, é\u2028 and “quote”", run_id=run_id, attachments=[image])
            assert len(models.requests) == since + 3
            await compare(client, models, run_id, since)
        assert models.requests[0].body["max_tokens"] >= 4321
        assert "cache_control" not in models.requests[0].raw.decode()
        for _ in range(3):
            models.reply("## Goal\nRead it.\n## Progress\n### Done\n- [x] AGENTS.md, none\n## Next Steps\n1. go on")
        assert "Compacted" in text_of(await client.chat("/compact"))
        models.forget()
        since = len(models.requests)
        await client.chat("and after that?", run_id="after")
        await compare(client, models, "after", since)
        refused = Reply(status=400, message="messages: something is wrong")
        models.queue(Reply(calls=[Call("read", {"path": "b"})]), refused, Reply(text="plain"))
        since = len(models.requests)
        await client.chat("refuse me", run_id="refused")
        await compare(client, models, "refused", since)
        models.queue(Reply(status=400, message="Supported values are: 'medium' and 'high'."), Reply(text="more"))
        levels = len(models.requests)
        await client.chat("think less", run_id="levels")
        assert models.requests[-1].raw != models.requests[-2].raw
        await compare(client, models, "levels", levels)
    async with gateway, gateway.client() as client:
        assert await rebuilt(client, "after", 1) == models.requests[since - 1].raw, "after a restart as well"


async def test_the_command_line_prints_the_bytes_the_parts_and_what_changed(
    gateway: InProcessGateway, models: ModelServer
) -> None:
    workspace = gateway.state_dir / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "TOOLS.md").write_text("# Mine\n" + "x" * 30_000)

    async def run(*args: str) -> str:
        done = await gateway.command("context", *args)
        return done.stdout + done.stderr

    async with gateway.client() as client:
        await client.chat("the kite is purple", run_id="one")
        await client.chat("second", run_id="two")
    assert (await run("--run", "one", "--wire")).encode() == models.requests[0].raw
    shown = await run("--run", "two")
    assert "Cut: TOOLS.md, 18,000 of 30,007 chars" in shown
    assert "  Safety\n" in shown and f"  {workspace}/TOOLS.md\n" in shown and "  Mine\n" not in shown
    assert "Since run one:\n  messages added: 2\n" in shown
    assert "came into view in run one" in await run("--search", "kite is PURPLE")
