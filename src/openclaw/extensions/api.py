"""The extension points: everything that an extension can add to a Gateway. A plugin author reads this file.

An extension is a function ``register(api)``, named by an entry point of a package or written in a Python file:

    [project.entry-points."openclaw.extensions"]
    dice = "dice_plugin:register"

    def register(api: ExtensionApi) -> None:
        api.add_tool(DiceTool(), sessions="all")
        api.add_command("dice", roll, right="read", help="Roll a die.")
        api.add_prompt_section("Dice", "Roll with the dice tool; never make numbers up.")
        api.on("message_received", count)

It is loaded only when the configuration names it (``plugins.entries.dice.enabled: true``), and never from a workspace.
Its code runs inside the Gateway with all of its rights, so what it registers says who may use it: a command, a method,
a route or a tool without that is refused. Functions may be plain or async. Plain ones must return at once, because the
whole Gateway waits for them. A hook that fails or takes too long is logged, counted and passed over.

The hooks of ``api.on(name, function)``, each with the record that the function gets:

    message_received   ``MessageReceived``   A message came in that is not a repetition. Nobody waits for the function.
    before_accept      ``MessageReceived``   The message is about to be accepted. May return ``InstantAnswer``.
    message_sent       ``MessageSent``       A run has ended and its answer was handed on. Nobody waits.
    before_tool_call   ``ToolCalling``       May return ``Block``, or a dict with other arguments.
    after_tool_call    ``ToolCalled``        A tool has returned. The result cannot be changed.
    gateway_started    ``None``              The Gateway accepts messages now.
    gateway_stopping   ``None``              The Gateway is about to stop.

and those around compaction, which ``agent/compaction/compaction.py`` explains: ``session_before_compact``,
``session_compact``, ``before_compaction``, ``after_compaction``, ``before_content_leaves``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from openclaw.rights import Right

if TYPE_CHECKING:
    from aiohttp import web

    from openclaw.channels.base import ChannelKind
    from openclaw.models.base import Provider
    from openclaw.tools.base import Tool, ToolResult


class MessageReceived(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    channel: str
    """``webchat``, ``agent``, or the id of a channel."""
    text: str
    sender_id: str = ""
    sender_name: str = ""
    group: bool = False
    rights: frozenset[Right] = frozenset()
    """What the sender may do besides talking."""
    run_id: str = ""


class InstantAnswer(msgspec.Struct, frozen=True):
    """The message is answered with this text and no model is asked. It is written down like a command."""

    text: str


class MessageSent(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    session_key: str
    channel: str
    run_id: str
    state: str
    """``final``, ``error`` or ``aborted``."""
    text: str


class ToolCalling(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    arguments: Mapping[str, Any]
    agent_id: str
    session_key: str
    run_id: str


class ToolCalled(ToolCalling, frozen=True, kw_only=True):
    result: ToolResult


class Block(msgspec.Struct, frozen=True):
    """The tool is not run. The model reads the reason."""

    reason: str


class PromptAbout(msgspec.Struct, frozen=True, kw_only=True):
    """The run whose system prompt is made."""

    agent_id: str
    session_key: str
    private: bool
    """Only the owner takes part in the conversation."""


class CommandCall(msgspec.Struct, frozen=True, kw_only=True):
    """A command that somebody gave in a chat, with its right."""

    args: str
    agent_id: str
    session_key: str
    channel: str
    sender_id: str
    rights: frozenset[Right]


class MethodRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a WebSocket method by a client that has its right."""

    params: Mapping[str, Any]
    rights: frozenset[Right]


HookName: TypeAlias = Literal[
    "message_received",
    "before_accept",
    "message_sent",
    "before_tool_call",
    "after_tool_call",
    "gateway_started",
    "gateway_stopping",
]
CompactionHookName: TypeAlias = Literal[
    "session_before_compact",
    "session_compact",
    "before_compaction",
    "after_compaction",
    "before_content_leaves",
]
HookFunction: TypeAlias = Callable[[Any], Any]
Sessions: TypeAlias = Literal["owner", "all"]
PromptText: TypeAlias = str | Callable[[PromptAbout], str | Awaitable[str]]
CommandFunction: TypeAlias = Callable[[CommandCall], str | Awaitable[str | None] | None]
"""Returns the reply. None: the command is not answered."""
MethodFunction: TypeAlias = Callable[[MethodRequest], Any]
"""Returns the payload, as JSON values. A ``ValueError`` becomes an error answer with its text."""
RouteHandler: TypeAlias = Callable[["web.BaseRequest"], Awaitable["web.StreamResponse"]]


class ExtensionApi(Protocol):
    """What ``register`` gets. Every call raises ``ValueError`` for something that cannot be added."""

    id: str
    config: Mapping[str, Any]
    """``plugins.entries.<id>.config``."""
    state_dir: Path
    """A folder for this extension alone. Make it before use."""

    def on(self, name: HookName | CompactionHookName, function: HookFunction) -> None:
        """Call the function when something happens."""
        ...

    def add_tool(self, tool: Tool, *, sessions: Sessions) -> None:
        """Offers a tool to the agents, under the tool policies. ``owner``: not to groups, guests and webhooks."""
        ...

    def add_prompt_section(self, title: str, text: PromptText) -> None:
        """Add a section to the system prompt. A text that changes from turn to turn costs the provider's cache."""
        ...

    def add_command(self, name: str, function: CommandFunction, *, right: Right, help: str, usage: str = "") -> None:
        """Add the chat command ``/name``. Without ``usage`` it takes no words."""
        ...

    def add_method(self, name: str, function: MethodFunction, *, right: Right) -> None:
        """Add the WebSocket method ``<id>.<name>``."""
        ...

    def add_route(self, verb: str, path: str, handler: RouteHandler, *, auth: Literal["secret", "open"]) -> None:
        """Serve ``/extensions/<id>/<path>``. ``secret``: only with the Gateway's token or password."""
        ...

    def add_channel(self, kind: ChannelKind) -> None:
        """Add a chat platform. A package with nothing else needs only an entry point ``openclaw.channels``."""
        ...

    def add_provider(self, name: str, provider: Provider) -> None:
        """Add a wire protocol for models: ``api: "<id>/<name>"`` of a provider in the configuration chooses it."""
        ...
