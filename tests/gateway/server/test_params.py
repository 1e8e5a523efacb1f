"""Parameters and the texts that explain what is wrong with them."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gateway.server.frames import (
    BadFrame,
    InvalidParams,
    NonEmpty,
    NotJson,
    Params,
    close_reason,
    decode_params,
    decode_request,
)


class Inner(Params):
    id: NonEmpty
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None


class Sample(Params):
    session_key: NonEmpty
    message: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    mode: Literal["now", "later"] | None = None
    label: Annotated[str, msgspec.Meta(max_length=3)] | None = None
    deliver: bool | None = None
    tags: list[NonEmpty] = []
    flags: dict[str, bool] = {}
    inner: Inner | None = None
    either: str | int | None = None
    anything: Any = None


GOOD = {"sessionKey": "main", "message": "hi"}


def explain(value: Any) -> str:
    with pytest.raises(InvalidParams) as caught:
        decode_params("chat.send", msgspec.json.encode(value), Sample)
    return str(caught.value).removeprefix("invalid chat.send params: ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"sessionKey": "x"}, "must have required property 'message'"),
        ({}, "must have required property 'sessionKey'; must have required property 'message'"),
        ({**GOOD, "bogus": 1}, "at root: unexpected property 'bogus'"),
        ({**GOOD, "session_key": "x"}, "at root: unexpected property 'session_key'"),
        ({**GOOD, "sessionKey": ""}, "at /sessionKey: must NOT have fewer than 1 characters"),
        ({**GOOD, "sessionKey": 5}, "at /sessionKey: must be string"),
        ({**GOOD, "limit": "5"}, "at /limit: must be integer"),
        ({**GOOD, "limit": 1.5}, "at /limit: must be integer"),
        ({**GOOD, "limit": True}, "at /limit: must be integer"),
        ({**GOOD, "limit": 0}, "at /limit: must be >= 1"),
        ({**GOOD, "limit": 1001}, "at /limit: must be <= 1000"),
        ({**GOOD, "mode": "never"}, "at /mode: must be equal to one of the allowed values"),
        ({**GOOD, "label": "long"}, "at /label: must NOT have more than 3 characters"),
        ({**GOOD, "deliver": "yes"}, "at /deliver: must be boolean"),
        ({**GOOD, "tags": "a"}, "at /tags: must be array"),
        ({**GOOD, "tags": ["a", ""]}, "at /tags/1: must NOT have fewer than 1 characters"),
        ({**GOOD, "flags": {"a": 1}}, "at /flags/a: must be boolean"),
        ({**GOOD, "inner": {}}, "at /inner: must have required property 'id'"),
        ({**GOOD, "inner": {"id": "a", "x": 1}}, "at /inner: unexpected property 'x'"),
        ({**GOOD, "inner": {"id": "a", "ratio": 2}}, "at /inner/ratio: must be <= 1"),
        (
            {**GOOD, "either": []},
            "at /either: must be string; at /either: must be integer; at /either: must match a schema in anyOf",
        ),
        ([], "must be object"),
        ("x", "must be object"),
        (
            {"message": 1, "bogus": 1, "limit": 0},
            "must have required property 'sessionKey'; at root: unexpected property 'bogus'; "
            "at /message: must be string; at /limit: must be >= 1",
        ),
    ],
)
def test_every_mistake_is_named(value: Any, text: str) -> None:
    assert explain(value) == text


@pytest.mark.parametrize("raw", [b"", b"null", b" {} "])
def test_absent_params_are_an_empty_object(raw: bytes) -> None:
    class Nothing(Params):
        probe: bool = False

    assert decode_params("health", raw, Nothing) == Nothing()


def test_a_whole_number_written_as_a_float_is_an_integer() -> None:
    assert decode_params("x", msgspec.json.encode({**GOOD, "limit": 5.0}), Sample).limit == 5


def test_a_hostile_heap_of_mistakes_gives_a_bounded_message() -> None:
    text = explain({**GOOD, **{f"k{n}": 1 for n in range(5000)}, "x" * 5000: 1})
    assert len(text) < 3000


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["sessionKey", "message", "limit", "inner", "id", "z"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(values)
def test_the_explanation_agrees_with_the_decoder(value: Any) -> None:
    raw = msgspec.json.encode(value)
    try:
        fast = msgspec.json.decode(raw, type=Sample)
    except msgspec.ValidationError:
        fast = None
    try:
        decoded = decode_params("m", raw, Sample)
    except InvalidParams as error:
        assert fast is None
        assert str(error).startswith("invalid m params: ")
        assert len(str(error)) > len("invalid m params: ")
    else:
        assert fast is None or decoded == fast


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_request_a_bad_frame_or_not_json(raw: bytes) -> None:
    try:
        assert decode_request(raw).method
    except (NotJson, BadFrame):
        pass


@given(st.text())
def test_close_reasons_fit_and_stay_text(text: str) -> None:
    cut = close_reason("".join(c for c in text if not 0xD800 <= ord(c) < 0xE000) * 3)
    assert len(cut) <= 120
    cut.decode()
