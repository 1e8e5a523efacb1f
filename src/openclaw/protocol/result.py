"""The base of every record that a WebSocket method answers with."""

from __future__ import annotations

import msgspec


class Result(msgspec.Struct, rename="camel", omit_defaults=True):
    """A result of a method, or a record inside one: camelCase on the wire, keys in the order of the fields.

    A field without a default is always sent, even when it is null. A field that equals its default is left out.
    """


class Success(Result):
    """The method did what its name says."""

    ok: bool
