"""A program on this machine answers in place of a model API, through the Gateway."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import model_config, text_of
from tests.support.gateway_in_process import InProcessGateway
from tests.support.model_server import ModelServer

PROGRAM = """#!{python}
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps({{"args": sys.argv[1:], "cwd": os.getcwd()}}) + "\\n")
print(json.dumps({{"result": "The program says hello.", "session_id": "own-1"}}))
"""


@pytest.fixture
def gateway(tmp_path: Path, models: ModelServer) -> InProcessGateway:
    path = tmp_path / "agent-program"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    config: dict[str, Any] = model_config(models.base_url, models.api_key)
    backend = {
        "command": str(path), "env": {"CALLS": str(tmp_path / "calls")}, "modelArg": "--model",
        "systemPromptArg": "--system", "sessionArg": "--session",
    }  # fmt: skip
    config["agents"]["defaults"] |= {"model": "my-cli/large", "cliBackends": {"my-cli": backend}}
    return InProcessGateway(tmp_path / "state", config)


async def test_a_program_answers_and_another_model_takes_over_what_was_said(
    gateway: InProcessGateway, models: ModelServer, tmp_path: Path
) -> None:
    async with gateway, gateway.client() as client:
        assert text_of(await client.chat("Who are you?")) == "The program says hello."
        assert text_of(await client.chat("And now?")) == "The program says hello."
        first, second = (json.loads(line) for line in (tmp_path / "calls").read_text().splitlines())
        assert first["args"][:3] == ["--model", "large", "--system"] and "Project Context" in first["args"][3]
        assert first["cwd"] == str(gateway.state_dir / "workspace")
        assert "--session" not in first["args"] and "--system" not in second["args"]
        assert second["args"][-3:-1] == ["--session", "own-1"]
        assert "And now?" in second["args"][-1] and "Who are you?" not in second["args"][-1]
        assert "System prompt (estimate)" in text_of(await client.chat("/context list"))
        assert "my-cli/large" in text_of(await client.chat("/status"))
        models.reply("I take over.")
        await client.chat("/model mock/mock-1")
        assert text_of(await client.chat("Go on.")) == "I take over."
        sent = json.dumps(models.requests[-1].body["messages"])
        assert "Who are you?" in sent and "The program says hello." in sent
