"""What parameter records have in common: camelCase on the wire, nothing unknown, nothing positional."""

from __future__ import annotations

from typing import Annotated

import msgspec

NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Params(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    pass
