"""What a node may ask."""

from __future__ import annotations

from typing import Any

from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, method


class SkillsBins(Params):
    pass


@method("skills.bins", SkillsBins)
async def skills_bins(_call: Call) -> Any:
    """Programs that skills need on a node; no skill asks for any."""
    return {"bins": []}
