"""Every method names the type of its result, so that the docs and the CLI can rely on it."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import pytest

from openclaw.gateway.assemble import METHOD_FAMILIES
from openclaw.gateway.server.registry import OpenObject
from openclaw.protocol.result import Result

FAMILIES = {family.__name__.rsplit(".", 1)[-1]: family.methods.registered() for family in METHOD_FAMILIES}


def _is_declared(kind: Any) -> bool:
    """Whether a result is a ``Result``, a list or union of them, null, or ``OpenObject``."""
    if get_origin(kind) in (Union, types.UnionType, list):
        return all(map(_is_declared, get_args(kind)))
    return kind in (OpenObject, type(None), None) or (isinstance(kind, type) and issubclass(kind, Result))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_handler_names_its_result(family: str) -> None:
    plain = [method.name for method in FAMILIES[family] if not _is_declared(method.result)]
    assert not plain
