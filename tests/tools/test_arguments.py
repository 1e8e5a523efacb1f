from __future__ import annotations

from typing import Any

import pytest

from openclaw.messages import ToolSpec
from openclaw.tools.arguments import InvalidArguments, required_text, validate_arguments
from openclaw.tools.base import ToolError
from openclaw.tools.edit import EditTool
from openclaw.tools.files import ReadArguments, ReadTool


def spec(properties: dict[str, Any], **rest: Any) -> ToolSpec:
    return ToolSpec(name="t", description="", parameters={"type": "object", "properties": properties, **rest})


@pytest.mark.parametrize(
    ("schema", "given", "expected"),
    [
        ({"type": "string"}, 5, "5"),
        ({"type": "string"}, 5.0, "5"),
        ({"type": "string"}, 2.5, "2.5"),
        ({"type": "string"}, True, "true"),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "number"}, " 2.5 ", 2.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, 1, True),
        ({"type": ["string", "null"]}, None, None),
        ({"type": ["integer", "string"]}, "5", "5"),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"anyOf": [{"type": "integer"}, {"enum": ["all"]}]}, "all", "all"),
        ({"$ref": "#/unknown"}, {"anything": 1}, {"anything": 1}),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}, {"a": "1"}),
    ],
)
def test_values_of_a_neighbouring_type_are_mended(schema: dict[str, Any], given: Any, expected: Any) -> None:
    checked = validate_arguments(spec({"x": schema}), {"x": given})["x"]
    assert checked == expected
    assert type(checked) is type(expected)


@pytest.mark.parametrize(
    ("schema", "given", "problem"),
    [
        ({"type": "integer"}, "5.5", "  - x: must be integer"),
        ({"type": "integer"}, True, "  - x: must be integer"),
        ({"type": "number"}, "nan", "  - x: must be number"),
        ({"type": "number"}, "1_0", "  - x: must be number"),
        ({"type": "boolean"}, "yes", "  - x: must be boolean"),
        ({"type": "integer", "minimum": 1}, 0, "  - x: must be >= 1"),
        ({"type": "integer", "maximum": 3}, 4, "  - x: must be <= 3"),
        ({"type": "string", "minLength": 1}, "", "  - x: must have at least 1 characters"),
        ({"enum": ["a", "b"]}, "c", '  - x: must be one of "a", "b"'),
        ({"type": "array", "items": {"type": "object", "required": ["y"], "properties": {"y": {}}}}, [{}], "x[0].y"),
        ({"type": "object", "properties": {"y": {"type": "integer"}}}, {"y": "z"}, "  - x.y: must be integer"),
    ],
)
def test_what_cannot_be_mended_is_named_with_its_path(schema: dict[str, Any], given: Any, problem: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        validate_arguments(spec({"x": schema}), {"x": given})
    assert problem in str(caught.value)


def test_a_refusal_shows_the_received_arguments_as_indented_json() -> None:
    with pytest.raises(InvalidArguments) as caught:
        validate_arguments(ReadTool.spec, {"offset": 3})
    assert str(caught.value) == (
        'Validation failed for tool "read":\n'
        "  - path: Missing required parameter: path (path or file_path)\n\n"
        'Received arguments:\n{\n  "offset": 3\n}'
    )


def test_a_huge_argument_is_not_echoed_in_full() -> None:
    with pytest.raises(InvalidArguments) as caught:
        validate_arguments(ReadTool.spec, {"junk": "x" * 100_000})
    assert len(str(caught.value)) < 5000


def test_the_original_arguments_are_left_as_they_were() -> None:
    given = {"path": 5, "limit": "3"}
    assert validate_arguments(ReadTool.spec, given) == {"path": "5", "limit": 3}
    assert given == {"path": 5, "limit": "3"}


def test_aliases_take_their_proper_name_and_null_means_not_given() -> None:
    given = {"file_path": "a", "old_string": "b", "new_string": ""}
    assert validate_arguments(EditTool.spec, given) == {"path": "a", "oldText": "b", "newText": ""}
    assert validate_arguments(ReadTool.spec, {"path": "a", "offset": None}) == {"path": "a"}


def test_a_foreign_tool_keeps_its_own_parameter_names() -> None:
    foreign = spec({"path": {}, "file_path": {}})
    assert validate_arguments(foreign, {"file_path": "a"}) == {"file_path": "a"}


def test_an_unexpected_parameter_is_refused_only_where_the_schema_says_so() -> None:
    assert validate_arguments(spec({}), {"y": 1}) == {"y": 1}
    with pytest.raises(InvalidArguments, match="y: is not a parameter"):
        validate_arguments(spec({}, additionalProperties=False), {"y": 1})


def test_a_tool_called_directly_names_the_missing_parameter_and_its_aliases() -> None:
    with pytest.raises(ToolError, match=r"Missing required parameter: path \(path or file_path\)"):
        required_text(" ", "path")
    with pytest.raises(InvalidArguments, match=r"Missing required parameter: path \(path or file_path\)"):
        ReadTool.decode({})
    assert ReadTool.decode({"file_path": "x", "limit": "5"}) == ReadArguments(path="x", limit=5)
