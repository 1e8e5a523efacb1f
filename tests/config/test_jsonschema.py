import json
from typing import Any

import msgspec
import pytest

from openclaw.config.jsonschema import config_schema, docs_of, ui_hints
from openclaw.config.schema import Config
from openclaw.config.shape import Shape, fields_of, free_keys, shape_of


def records(shape: Shape, found: dict[str, type[msgspec.Struct]] | None = None) -> dict[str, type[msgspec.Struct]]:
    found = {} if found is None else found
    if shape.record and shape.record.__name__ not in found:
        found[shape.record.__name__] = shape.record
        for field in fields_of(shape.record).values():
            records(field.shape, found)
        if free := free_keys(shape.record):
            records(free.shape, found)
    for inner in (shape.items, shape.values):
        if inner:
            records(inner, found)
    return found


@pytest.mark.parametrize("record", records(shape_of(Config)).values(), ids=lambda record: record.__name__)
def test_every_field_is_documented(record: type[msgspec.Struct]) -> None:
    docs = docs_of(record)
    assert [field.name for field in fields_of(record).values() if not docs.get(field.name)] == []


def at(schema: dict[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        schema = schema["properties"][name]
    return schema


def test_the_schema_says_type_default_and_meaning() -> None:
    schema = config_schema()
    port = at(schema, "gateway", "port")
    assert (port["type"], port["minimum"], port["maximum"], port["default"]) == ("integer", 1, 65535, 18789)
    assert "Port" in port["description"]
    assert at(schema, "gateway", "bind")["enum"] == sorted(["loopback", "lan", "tailnet", "auto", "custom"])
    assert at(schema, "agents", "list")["items"]["required"] == ["id"]
    assert at(schema, "channels")["additionalProperties"] == {"type": "object", "additionalProperties": True}
    model = at(schema, "agents", "defaults", "model")["anyOf"]
    assert model[0] == {"type": "string"} and "primary" in model[1]["properties"]
    assert "$ref" not in json.dumps(schema) and '"null"' not in json.dumps(schema)


def test_hints_name_and_mark_secrets() -> None:
    hints = ui_hints()
    assert hints["gateway.auth.token"]["sensitive"] and hints["models.providers.*.apiKey"]["sensitive"]
    assert "sensitive" not in hints["models.providers.*.models.maxTokens"]
    assert hints["gateway.controlUi.basePath"]["label"] == "Base path"
    assert hints["gateway.port"]["help"] and hints["gateway.port"]["group"] == "Gateway"
