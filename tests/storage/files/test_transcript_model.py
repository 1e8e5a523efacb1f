"""Random lives of a transcript against a naive model: live, reopened and tail views agree with it at every moment."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openclaw.messages import TextBlock, UserMessage
from openclaw.storage.files.transcript import FileTranscriptStore
from openclaw.storage.transcripts import TranscriptRef
from tests.storage.still_clock import StillClock

REF = TranscriptRef(agent_id="main", session_id="s")

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["say", "say", "say", "custom", "shown", "hidden", "branch", "root", "label", "compact", "reopen"]
        ),
        st.integers(0, 30),
    ),
    max_size=30,
)


class Naive:
    """Entries as (id, parent, kind, text or first kept id)."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str | None, str, str]] = {}
        self.leaf: str | None = None
        self.last: str | None = None

    def add(self, own: str, kind: str, text: str) -> None:
        self.entries[own] = (self.leaf, kind, text)
        self.leaf = self.last = own

    def path(self) -> list[str]:
        walked, at = [], self.leaf
        while at is not None:
            walked.append(at)
            at = self.entries[at][0]
        return walked[::-1]

    def seen(self) -> list[str]:
        path = self.path()
        kinds = [self.entries[own][1] for own in path]
        spoken = ("say", "shown", "hidden")
        if "compact" not in kinds:
            return [own for own in path if self.entries[own][1] in spoken]
        at = len(kinds) - 1 - kinds[::-1].index("compact")
        kept = self.entries[path[at]][2]
        start = path.index(kept) if kept in path[:at] else at
        rest = [*path[start:at], *path[at + 1 :]]
        return [path[at], *(own for own in rest if self.entries[own][1] in spoken)]

    def shown(self) -> list[str]:
        return [own for own in self.path() if self.entries[own][1] in ("say", "shown", "compact")]


def fields(kind: str, text: str) -> dict:
    match kind:
        case "say":
            return {"type": "message", "message": UserMessage(content=[TextBlock(text=text)])}
        case "custom":
            return {"type": "custom", "customType": "x", "data": {"n": text}}
        case "compact":
            return {"type": "compaction", "summary": "s", "firstKeptEntryId": text, "tokensBefore": 1}
        case _:
            return {"type": "custom_message", "customType": "x", "content": text, "display": kind == "shown"}


@example([("say", 0), ("say", 0), ("branch", 0), ("say", 0)])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_transcript_behaves_like_the_naive_tree(plan):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder), plan))


async def live(state: Path, plan: list[tuple[str, int]]) -> None:
    store = FileTranscriptStore(str(state), clock=StillClock())
    transcript = await store.open(REF)
    naive = Naive()
    for what, number in plan:
        known = list(naive.entries)
        target = known[number % len(known)] if known else None
        match what:
            case "branch" if target:
                await transcript.branch(target)
                naive.leaf = target
            case "root":
                await transcript.branch(None)
                naive.leaf = None
            case "label" if target:
                naive.add(await transcript.label(target, str(number)), "label", target)
            case "reopen":
                await store.close()
                store = FileTranscriptStore(str(state), clock=StillClock())
                if naive.last:
                    tail = await store.tail(REF, 1000)
                    naive.leaf = naive.last
                    assert [entry.id for entry in tail] == naive.shown()
                transcript = await store.open(REF)
                naive.leaf = naive.last
            case "branch" | "label":
                pass
            case kind:
                text = (target or "none") if kind == "compact" else str(number)
                naive.add(await transcript.append(fields(kind, text)), kind, text)
        assert transcript.leaf_id == naive.leaf
        assert transcript.context().entry_ids == naive.seen()
    assert [(own, parent) for own, parent, _ in transcript.tree()] == [
        (own, parent) for own, (parent, _, _) in naive.entries.items()
    ]
    assert [entry.id for entry in await transcript.path_entries()] == naive.path()
    for limit in (1, 3, 1000):
        assert [entry.id for entry in await store.tail(REF, limit)] == naive.shown()[-limit:]
    assert await store.tail(REF, 0) == []
    await store.close()
    cold = FileTranscriptStore(str(state), clock=StillClock())
    naive.leaf = naive.last
    for limit in (1, 3, 1000):
        assert [entry.id for entry in await cold.tail(REF, limit)] == naive.shown()[-limit:]
