"""Names on allow lists. A name never admits: it is resolved to an id once, and from then on it stands for that id.

The first message from a place or person that has a listed name at that moment resolves it. The result is kept in
``credentials/<channel>-names.json`` and shown by ``openclaw channels status``. Whoever takes the name later has another
id and is not admitted; whoever had it first stays admitted under any name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

import msgspec

from openclaw.inbound.access import ChannelSettings, listed_names, may_list_names
from openclaw.inbound.message import ClaimedName, Inbound
from openclaw.sessions.keys import safe_file_name
from openclaw.storage.documents import DocumentStore, SharedDocument
from openclaw.untrusted_text import disarmed_name

log = logging.getLogger("openclaw.inbound.names")

FOLDER, ENDING = "credentials", "-names.json"


class ResolvedName(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    name: ClaimedName

    def is_same_name(self, account: str, name: ClaimedName) -> bool:
        own = self.name
        return (self.account, own.kind, own.space, own.name) == (account, name.kind, name.space, name.name)


class NameBook(msgspec.Struct, kw_only=True):
    version: int = 1
    names: list[ResolvedName] = []


class ResolvedNames:
    """The ids that listed names stand for, per channel and account."""

    def __init__(self, documents: DocumentStore) -> None:
        self._documents = documents
        self._books: dict[str, SharedDocument[NameBook]] = {}

    async def recognise(self, inbound: Inbound, settings: ChannelSettings, people: Collection[str]) -> Inbound:
        """Return the message with the names by which the configuration knows its sender and place.

        A listed name that is new is bound to the id that has it now. ``people``: see ``names_of_people``. Raises
        ``OSError`` if that cannot be stored.
        """
        if not may_list_names(settings, people):
            return inbound
        document = self._book(inbound.channel)
        inbound = _recognised(inbound, await document.latest())
        # A room of a server can be listed by its name only once the server is known.
        for kinds in (("person", "space"), ("room",)):
            listed = [name for name in listed_names(inbound, settings, people) if name.kind in kinds]
            if listed and await self._bind(inbound, listed, document):
                inbound = _recognised(inbound, await document.latest())
        return inbound

    async def _bind(self, inbound: Inbound, listed: Sequence[ClaimedName], document: SharedDocument[NameBook]) -> bool:
        """Bind the names that are new. Return whether there were any."""
        account = inbound.account_id

        def is_new(book: NameBook, name: ClaimedName) -> bool:
            return not any(own.is_same_name(account, name) for own in book.names)

        def add(book: NameBook) -> list[ClaimedName]:
            new = [name for name in listed if is_new(book, name)]
            book.names += [ResolvedName(account=account, name=name) for name in new]
            return new

        book = await document.latest()
        if not any(is_new(book, name) for name in listed):
            return False
        for name in await document.change(add):
            shown = disarmed_name(name.name)
            log.warning("%s: the listed name %s stands for the id %s from now on", inbound.channel, shown, name.id)
        return True

    async def of(self, channel: str, account_id: str) -> dict[str, str]:
        """Return the ids of an account's resolved names, by name."""
        book = await self._book(channel).latest()
        return {own.name.name: own.name.id for own in book.names if own.account == account_id}

    def _book(self, channel: str) -> SharedDocument[NameBook]:
        name = f"{FOLDER}/{safe_file_name(channel.strip().lower())}{ENDING}"
        if name not in self._books:
            self._books[name] = SharedDocument(
                self._documents,
                name,
                NameBook,
                lambda data: msgspec.json.decode(data, type=NameBook),
                lambda book: msgspec.json.format(msgspec.json.encode(book)) + b"\n",
                damaged="aside",
                consequence="names on allow lists are resolved again",
            )
        return self._books[name]


def _recognised(inbound: Inbound, book: NameBook) -> Inbound:
    ids = _ids_of(inbound)
    names = [own.name for own in book.names if own.account == inbound.account_id and own.name.id in ids[own.name.kind]]
    return msgspec.structs.replace(inbound, known_as=tuple(names))


def _ids_of(inbound: Inbound) -> dict[str, Collection[str]]:
    rooms = [inbound.peer.id, *([inbound.parent_peer.id] if inbound.parent_peer is not None else ())]
    return {"person": [inbound.sender.id], "space": [inbound.guild_id or ""], "room": rooms}
