"""Agents at work together: the tools with which they look at sessions, write to each other and start sub-agents."""

from __future__ import annotations

import asyncio

from openclaw.agent.runtime import Runtime
from openclaw.inbound.notices import Notices
from openclaw.inbound.pipeline import Pipeline
from openclaw.runs.runs import Runs
from openclaw.teamwork.send import BetweenSessions, Conversations, Jobs, SessionsSendTool
from openclaw.teamwork.session_tools import (
    AgentsListTool,
    SessionsHistoryTool,
    SessionsListTool,
    SessionsSearchTool,
    SessionStatusTool,
    SessionViews,
)
from openclaw.teamwork.subagents import SessionsSpawnTool, SubagentIndex, Subagents
from openclaw.tools.base import Tool


class Team:
    """Makes the tools and carries their jobs on. ``gateway/assemble.py`` builds it when the message flow is there."""

    def __init__(
        self,
        runtime: Runtime,
        runs: Runs,
        pipeline: Pipeline,
        notices: Notices,
        views: SessionViews,
        index: SubagentIndex,
    ) -> None:
        self.jobs = Jobs(runtime.stores.ledger, runtime.clock, runtime.stores.claims)
        between = BetweenSessions(runtime, pipeline.process, runs)
        conversations = Conversations(runtime, between, self.jobs, notices.send_as_agent)
        self.subagents = Subagents(runtime, index, between, self.jobs, runs, notices.send_as_agent)
        self._tools: list[Tool] = [
            SessionsListTool(views),
            SessionsHistoryTool(views),
            SessionsSearchTool(views),
            SessionsSendTool(views, between, self.jobs, conversations),
            SessionsSpawnTool(views, between, self.subagents),
            SessionStatusTool(views),
            AgentsListTool(views),
        ]
        self._sweeper: asyncio.Task[None] | None = None

    def tools(self) -> list[Tool]:
        return list(self._tools)

    async def start(self) -> None:
        """Goes on with what an earlier process left."""
        await self.jobs.resume()
        self._sweeper = asyncio.create_task(self.subagents.sweep(), name="archive sub-agents")

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await self.jobs.close()
