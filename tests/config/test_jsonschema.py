import json
from typing import Any

import msgspec
import pytest

from openclaw.config.reference import config_schema, docs_of, ui_hints
from openclaw.config.schema import Config
from openclaw.config.validate import Shape, fields_of, free_keys, shape_of


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
    assert at(schema, "channels")["additionalProperties"] == {"type": "object", "additionalProperties": {}}
    model = at(schema, "agents", "defaults", "model")
    assert model["type"] == ["object", "string"] and "primary" in model["properties"]
    assert "$ref" not in json.dumps(schema) and '"null"' not in json.dumps(schema)


def test_hints_name_and_mark_secrets() -> None:
    hints = ui_hints()
    assert hints["gateway.auth.token"]["sensitive"] and hints["models.providers.*.apiKey"]["sensitive"]
    assert "sensitive" not in hints["models.providers.*.models.maxTokens"]
    assert hints["gateway.controlUi.basePath"]["label"] == "Base path"
    assert hints["gateway.port"]["help"] and hints["gateway.port"]["group"] == "Gateway"


def undrawable(node: dict[str, Any], path: str = "") -> list[str]:
    """The places that the form of the Control UI refuses to draw. One inside a list or mapping spoils all of it."""
    if "anyOf" in node:
        rest = [branch for branch in node["anyOf"] if "enum" not in branch]
        plain = all(branch.get("type") in ("string", "number", "integer", "boolean") for branch in rest)
        return [] if len(rest) <= 1 or (plain and len(rest) == len(node["anyOf"])) else [path]
    kinds = node.get("type")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    found: list[str] = []
    if kind == "object":
        for name, below in node.get("properties", {}).items():
            found += undrawable(below, f"{path}.{name}")
        extra = node.get("additionalProperties")
        found += [path] if extra is True or (isinstance(extra, dict) and extra and undrawable(extra)) else []
    elif kind == "array":
        found += [path] if not node.get("items") or undrawable(node["items"]) else []
    elif kind not in ("string", "number", "integer", "boolean") and "enum" not in node:
        found.append(path)
    return found


def test_a_form_can_draw_every_setting() -> None:
    assert undrawable(config_schema()) == []
    assert undrawable({"anyOf": [{"type": "string"}, {"type": "object"}]}) == [""]
    assert undrawable({"type": "array", "items": {"type": "object", "additionalProperties": True}}) == [""]
