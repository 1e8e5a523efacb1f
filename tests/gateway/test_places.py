"""Every method has a place among the nodes."""

from __future__ import annotations

from openclaw.gateway.assemble import METHOD_FAMILIES
from openclaw.gateway.cluster.remote import PLACES
from openclaw.gateway.server.registry import MethodTable


def test_every_method_has_a_place() -> None:
    registered = {method.name for method in MethodTable(*(family.methods for family in METHOD_FAMILIES)).registered()}
    assert set(PLACES) == registered
