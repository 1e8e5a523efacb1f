from hypothesis import given
from hypothesis import strategies as st

from openclaw.storage.base import SessionRow
from openclaw.storage.files.row_index import RowIndex

agents, keys = st.sampled_from(["main", "work"]), st.integers(0, 30).map(str)
moments = st.one_of(st.none(), st.integers(-5, 5), st.just("soon"), st.just(float("inf")))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), agents, keys, moments),
        st.tuples(st.just("remove"), agents, keys, st.none()),
        st.tuples(st.just("list"), agents, keys, st.none()),
    ),
    max_size=120,
)


def newest_first(row: SessionRow) -> tuple[int, str, str]:
    at = row.entry.get("updatedAt")
    return -at if isinstance(at, int) else 0, row.key, row.agent_id


@given(steps)
def test_rows_are_listed_newest_first_whatever_changed_between_two_listings(plan):
    index, held = RowIndex(), {}
    for what, agent, key, moment in [*plan, ("list", "", "", None)]:
        match what:
            case "put":
                held[agent, key] = SessionRow(agent, key, {"sessionId": "s", "updatedAt": moment})
                index.put((agent, key), held[agent, key])
            case "remove":
                held.pop((agent, key), None)
                index.remove((agent, key))
            case _:
                assert index.rows() == sorted(held.values(), key=newest_first)
        assert len(index) == len(held) and index.get((agent, key)) is held.get((agent, key))
