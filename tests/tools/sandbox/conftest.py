"""Removes the control groups that sandboxes of tests made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw.tools.sandbox.launch import remove_control_group

from .support import MADE


@pytest.fixture(autouse=True)
def no_control_groups_left() -> Iterator[None]:
    yield
    while MADE:
        remove_control_group(MADE.pop())
