"""What cannot be UTF-8 is written all the same."""

from __future__ import annotations

import json

import msgspec
import pytest

from openclaw.json_text import encode


def test_half_a_surrogate_pair_beside_json_that_was_encoded_before() -> None:
    written = encode({"text": "half \ud83d", "request": msgspec.Raw(b'{"model":"m"}')})
    assert json.loads(written) == {"text": "half \ufffd", "request": {"model": "m"}}


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        encode({"text": "half \ud83d", "odd": object()})
