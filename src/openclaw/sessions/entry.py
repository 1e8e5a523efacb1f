"""The row of the session store. A plain mapping, so that fields we do not know survive every rewrite."""

from __future__ import annotations

from typing import Any, Literal, Required, TypedDict


class DeliveryContext(TypedDict, total=False):
    channel: str
    to: str
    accountId: str
    threadId: str | int


class SessionEntry(TypedDict, total=False):
    sessionId: Required[str]
    updatedAt: int
    sessionFile: str
    spawnedBy: str
    systemSent: bool
    abortedLastRun: bool
    chatType: str
    thinkingLevel: str
    verboseLevel: str
    reasoningLevel: str
    elevatedLevel: str
    execHost: str
    execSecurity: str
    execAsk: str
    execNode: str
    responseUsage: str
    provider: str
    providerOverride: str
    modelOverride: str
    authProfileOverride: str
    groupActivation: Literal["mention", "always"]
    sendPolicy: Literal["allow", "deny"]
    queueMode: str
    inputTokens: int
    outputTokens: int
    totalTokens: int
    cacheRead: int
    cacheWrite: int
    contextTokens: int
    modelProvider: str
    model: str
    compactionCount: int
    memoryFlushAt: int
    memoryFlushCompactionCount: int
    label: str
    displayName: str
    channel: str
    groupId: str
    subject: str
    groupChannel: str
    room: str
    space: str
    origin: dict[str, Any]
    deliveryContext: DeliveryContext
    lastChannel: str
    lastTo: str
    lastAccountId: str
    lastThreadId: str | int
    systemPromptReport: dict[str, Any]
    budgetOverrideUntil: int
    """Until this moment the session may spend past its limits."""
    previousSessions: list[dict[str, Any]]
    """Sessions this key had before, newest first; see ``sessions/lifecycle.py``."""
