"""``models.list``: the models a session may choose from."""

from __future__ import annotations

from typing import Any

from openclaw.gateway.params import Params
from openclaw.gateway.registry import Call, method
from openclaw.models.catalogue import public_row


class NoParams(Params):
    pass


@method("models.list", NoParams)
async def list_models(call: Call) -> Any:
    """All models; ``available`` says whether one could be called now."""
    catalogue = call.gateway.catalogue
    usable = {model.ref for model in catalogue.available()}
    return {"models": [{**public_row(model), "available": model.ref in usable} for model in catalogue.all()]}
