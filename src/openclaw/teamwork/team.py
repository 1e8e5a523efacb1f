"""The tools with which agents look at sessions, write to each other and start sub-agents."""

from __future__ import annotations

from openclaw.teamwork.session_tools import (
    AgentsListTool,
    SessionsHistoryTool,
    SessionsListTool,
    SessionStatusTool,
    SessionViews,
)
from openclaw.tools.base import Tool


class Team:
    """Makes the tools. ``gateway/assemble.py`` builds it once the message flow is there."""

    def __init__(self, views: SessionViews) -> None:
        self._tools: list[Tool] = [
            SessionsListTool(views),
            SessionsHistoryTool(views),
            SessionStatusTool(views),
            AgentsListTool(views),
        ]

    def tools(self) -> list[Tool]:
        return list(self._tools)
