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
    return {"models": [public_row(model) for model in call.gateway.catalogue.all()]}
