"""Errors that every implementation of the stores raises."""

from __future__ import annotations


class Fenced(Exception):
    """Another node has taken over what this one held: everything, or one session. Nothing was written."""


class MessageEnded(ValueError):
    """The message has ended, so that nothing more can happen to it. Nothing was written."""


class UnknownMessage(KeyError):
    """The ledger has no message, or no part of a reply, with this number. Nothing was written."""


class StorageRefused(Exception):
    """A store cannot be used as it is. The text is for the person who starts the Gateway."""
