"""What stays the same from call to call: where a model is reached, and the JSON of its prompt and its tools."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from openclaw.models.base import Model
from openclaw.models.endpoint import Endpoint
from openclaw.models.message_builder import encode_body

MOST_ENDPOINTS = 64
MOST_ENCODED = 64


class Standing:
    """Made at the first call, kept for the next ones."""

    def __init__(self) -> None:
        self._endpoints: OrderedDict[str, tuple[Model, str, Endpoint]] = OrderedDict()
        self._encoded: OrderedDict[tuple[int, Hashable], tuple[object, msgspec.Raw]] = OrderedDict()

    def endpoint(self, model: Model, api_key: str, make: Callable[[Model, str], Endpoint]) -> Endpoint:
        """Another one when the model's settings or its key have changed."""
        known = self._endpoints.get(model.ref)
        if known is None or known[1] != api_key or known[0] != model:
            known = self._endpoints[model.ref] = (model, api_key, make(model, api_key))
            if len(self._endpoints) > MOST_ENDPOINTS:
                self._endpoints.popitem(last=False)
        return known[2]

    def encoded(self, source: object, form: Hashable, build: Callable[[], Any]) -> msgspec.Raw:
        """The JSON that ``build`` makes of the source, which is known by identity: it must never be changed."""
        key = (id(source), form)
        known = self._encoded.get(key)
        if known is None:
            # The source is held, so that no other can come to stand at its address.
            known = self._encoded[key] = (source, msgspec.Raw(encode_body(build())))
            if len(self._encoded) > MOST_ENCODED:
                self._encoded.popitem(last=False)
        else:
            self._encoded.move_to_end(key)
        return known[1]


def once(standing: Standing | None, source: object, form: Hashable, build: Callable[[], Any]) -> Any:
    """What ``build`` makes of the source: encoded and kept, or as it is where nothing is kept."""
    return build() if standing is None else standing.encoded(source, form, build)
