"""The schemas that models see, compared with those recorded when they were still written by hand."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import openclaw
from openclaw.mcp import serve
from openclaw.tools.arguments import Hidden, RecordTool, ToolArguments, schema_of

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))
REORDERED = {"cron"}
"""Tools whose schema says the same as the recorded one, with ``required`` before ``properties``."""


def built_in() -> Iterator[type[RecordTool[Any]]]:
    for room in ("tools", "teamwork", "scheduler"):
        for module in pkgutil.walk_packages([f"{openclaw.__path__[0]}/{room}"], f"openclaw.{room}."):
            for member in vars(importlib.import_module(module.name)).values():
                if inspect.isclass(member) and issubclass(member, RecordTool) and member.__module__ == module.name:
                    yield typing.cast("type[RecordTool[Any]]", member)


TOOLS = {tool.name: tool for tool in built_in() if not inspect.isabstract(tool)}


def test_every_built_in_tool_was_recorded() -> None:
    assert sorted(TOOLS) == sorted(RECORDED["agents"])


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_a_model_sees_the_recorded_schema_byte_for_byte(name: str) -> None:
    spec, recorded = TOOLS[name].spec, RECORDED["agents"][name]
    assert spec.description == recorded["description"]
    assert spec.parameters == recorded["parameters"]
    if name not in REORDERED:
        assert json.dumps(spec.parameters) == json.dumps(recorded["parameters"])


def test_other_agents_see_the_recorded_schemas() -> None:
    specs = {tool.spec.name: tool.spec for tool in serve.TOOLS}
    assert sorted(specs) == sorted(RECORDED["mcp serve"])
    for name, recorded in RECORDED["mcp serve"].items():
        assert specs[name].description == recorded["description"]
        # An empty list of required arguments is left out.
        assert {"required": [], **specs[name].parameters} == recorded["parameters"]


class CityArguments(ToolArguments):
    city: str
    day: int | None = None
    town: Hidden = None


def test_a_hidden_argument_is_accepted_but_not_offered() -> None:
    assert schema_of(CityArguments) == {
        "type": "object",
        "required": ["city"],
        "properties": {"city": {"type": "string"}, "day": {"type": "integer"}},
    }
    assert msgspec.convert({"city": "Rome", "town": ["x"]}, CityArguments).town == ["x"]
