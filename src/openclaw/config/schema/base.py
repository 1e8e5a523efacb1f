"""The pieces every section of the configuration is made of.

A field's documentation is the string under it: it is read from the source when a JSON Schema is asked for, so it is
written once. The annotations must stay evaluated (no ``from __future__ import annotations`` in this package): the
validator walks them.
"""

from typing import Annotated, Any, ClassVar, TypeAlias, dataclass_transform

import msgspec
from msgspec import Meta


@dataclass_transform(field_specifiers=(msgspec.field,), frozen_default=True, kw_only_default=True)
class _RecordMeta(msgspec.StructMeta):
    """Makes every section frozen and keyword-only without repeating so a hundred times."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
        return super().__new__(mcls, name, bases, namespace, rename="camel", frozen=True, kw_only=True)


class Record(msgspec.Struct, metaclass=_RecordMeta):
    """A section of the configuration. An absent key, or ``null``, means the default."""

    catch_all: ClassVar[str] = ""
    """Name of the field that takes the keys which are not fields (ids chosen by the user); not a key itself."""


Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Ratio: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Amount: TypeAlias = Annotated[float, Meta(ge=0)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Sensitive: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "password", "writeOnly": True})]
OpenMap: TypeAlias = dict[str, Any]
Sender: TypeAlias = str | int
"""An id on an allow list; numbers are accepted because people paste numeric ids without quotes."""


class SecretRef(msgspec.Struct, frozen=True, kw_only=True):
    """Where a secret is kept, in place of the secret itself. Exactly one of the three."""

    env: Name | None = None
    """Name of an environment variable."""
    file: Name | None = None
    """Path of a file that holds nothing but the secret; ``~`` is expanded."""
    command: list[str] | None = None
    """Program and arguments; its standard output is the secret."""

    def __post_init__(self) -> None:
        given = [name for name in ("env", "file", "command") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError('a secret reference needs exactly one of "env", "file" or "command"')


Secret: TypeAlias = Sensitive | SecretRef
