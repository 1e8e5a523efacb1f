"""Notices to people: another model answers than the chosen one, or only the demo model does."""

from __future__ import annotations

from openclaw.agent.loop import EventSink
from openclaw.agent.prepare import Prepared
from openclaw.events import DemoModelAnswers, Event, ModelSwitched, TextDelta
from openclaw.models.calls import Candidates
from openclaw.models.catalogue_data import is_demo
from openclaw.sessions.entry import SessionEntry


class ModelNotices:
    """Remembers, for one run, what the person knows about the model that answers."""

    def __init__(self, prepared: Prepared, candidates: Candidates) -> None:
        entry, model = prepared.turn.entry, prepared.model
        self._candidates = candidates
        self._reported = switch_in(entry)
        """The models that the person was last notified of."""
        self._demo_reported = (entry.get("modelProvider"), entry.get("model")) == (model.provider, model.id)

    def sink(self, prepared: Prepared, events: EventSink) -> EventSink:
        """Return the sink for one pass of the loop. It announces another model before its first words."""
        chosen, active = self._candidates.chosen, prepared.model.ref
        switch = (chosen, active) if active != chosen else None
        # A person who chose another model meanwhile knows that it answers.
        reported = self._reported
        is_known = switch == reported or (switch is None and reported is not None and reported[0] != chosen)
        watched = prepared.turn.watched
        if is_demo(prepared.model) and watched and not self._demo_reported:
            self._demo_reported = True
            events.emit(DemoModelAnswers(prepared.model.name))
        if is_known or not watched or self._candidates.for_pictures:
            return events
        return _Announcing(self, events, switch)

    def note_in(self, entry: SessionEntry) -> None:
        """Store in the session's entry what the person knows."""
        if self._reported is None:
            for name in ("fallbackNoticeSelectedModel", "fallbackNoticeActiveModel", "fallbackNoticeReason"):
                entry.pop(name, None)
        elif self._reported != switch_in(entry):
            entry["fallbackNoticeSelectedModel"], entry["fallbackNoticeActiveModel"] = self._reported
            entry["fallbackNoticeReason"] = self._candidates.reason()

    def announce(self, events: EventSink, switch: tuple[str, str] | None) -> None:
        """Notify the person of the switch, once."""
        if self._reported != switch:
            self._reported = switch
            chosen, active = switch or (self._candidates.chosen, self._candidates.chosen)
            events.emit(ModelSwitched(chosen, active, self._candidates.reason()))


class _Announcing:
    """Announces a switch of models before the first words."""

    def __init__(self, notices: ModelNotices, events: EventSink, switch: tuple[str, str] | None) -> None:
        self._notices = notices
        self._events = events
        self._switch = switch

    def emit(self, event: Event) -> None:
        if type(event) is TextDelta:
            self._notices.announce(self._events, self._switch)
        self._events.emit(event)


def switch_in(entry: SessionEntry) -> tuple[str, str] | None:
    """Return the chosen model and the one that answers in its place, as the person last learned.

    Returns None if, as far as the person knows, the chosen model answers.
    """
    chosen, active = entry.get("fallbackNoticeSelectedModel"), entry.get("fallbackNoticeActiveModel")
    return (chosen, active) if chosen and active else None
