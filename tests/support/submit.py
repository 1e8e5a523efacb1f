"""The shortest way in for tests: a text goes to a session as it stands, with no command read in it."""

from __future__ import annotations

from openclaw.gateway.gateway import Gateway
from openclaw.inbound.incoming import Facts, Incoming
from openclaw.inbound.pipeline import Accepted
from openclaw.messages import Route
from openclaw.runs.accept import Submission
from openclaw.sessions.keys import SessionRef
from openclaw.storage.message_ledger import MessageBody

MAIN = SessionRef("main", "agent:main:main")


async def submit(
    gateway: Gateway,
    text: str,
    run_id: str,
    *,
    session: SessionRef = MAIN,
    source: str = "webchat",
    route: Route | None = None,
    body: MessageBody | None = None,
) -> Submission:
    message = Incoming(
        facts=Facts(session=session),
        text=text,
        door="program",
        run_id=run_id,
        source=source,
        route=route or Route(channel=source),
        reads_commands=False,
        body=body or MessageBody(),
    )
    result = await gateway.pipeline.process(message)
    assert isinstance(result, Accepted)
    return result.submission
