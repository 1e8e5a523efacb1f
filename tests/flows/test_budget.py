"""A budget holds before every model call, and an owner can lift it."""

from __future__ import annotations

from pathlib import Path

from tests.support.gateway import GatewayProcess, model_config, text_of
from tests.support.model_server import ModelServer


async def test_a_used_up_budget_stops_every_call_until_an_owner_lifts_it(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["budget"] = {"sessionTokens": 1}
    async with GatewayProcess(tmp_path / "state", config) as gateway, gateway.client() as client:
        assert text_of(await client.chat("/budget")) == "💰 Budget\nsessionTokens: 0 of 1"
        assert text_of(await client.chat("hello [[reply:Hi.]]")) == "Hi."
        refused = await client.chat("hello [[reply:Not said.]]")
        assert refused["state"] == "error"
        assert refused["errorMessage"].startswith("This session has used up its budget: ")
        assert len(models.requests) == 1
        assert "used up" in text_of(await client.chat("/budget"))
        assert "until the day ends" in text_of(await client.chat("/budget override"))
        assert text_of(await client.chat("hello [[reply:Again.]]")) == "Again."
        await client.chat("/budget enforce")
        assert (await client.chat("hello [[reply:No.]]"))["state"] == "error"
        assert text_of(await client.chat("hello [[reply:Other.]]", "agent:main:other")) == "Other."


async def test_a_run_stops_between_its_calls(tmp_path: Path, models: ModelServer) -> None:
    config = model_config(models.base_url, models.api_key)
    config["agents"]["defaults"]["budget"] = {"runTokens": 1}
    async with GatewayProcess(tmp_path / "state", config) as gateway, gateway.client() as client:
        ended = await client.chat('look [[tool:read {"path":"AGENTS.md"}]][[next]][[reply:Never.]]')
        assert ended["state"] == "error"
        assert "agents.defaults.budget.runTokens" in ended["errorMessage"]
        assert len(models.requests) == 1
