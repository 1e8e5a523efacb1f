"""What the loaded extensions added, and how the Gateway calls it: bounded in time, and a failure stops nothing."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from openclaw.extensions.api import (
    Block,
    CommandCall,
    CommandFunction,
    CompactionHookName,
    HookFunction,
    HookName,
    InstantAnswer,
    MessageReceived,
    MessageSent,
    MethodFunction,
    PromptAbout,
    PromptText,
    RouteHandler,
    Sessions,
    ToolCalled,
    ToolCalling,
)
from openclaw.messages import ToolSpec
from openclaw.rights import Right
from openclaw.text import clipped
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult

if TYPE_CHECKING:
    from openclaw.channels.base import ChannelKind
    from openclaw.models.base import Provider

log = logging.getLogger("openclaw.extensions")

LONGEST_HOOK_S = 10.0
LONGEST_PROMPT_S = 2.0
LONGEST_COMMAND_S = 120.0
LONGEST_SECTION = 8000
MOST_SECTIONS = 20
MOST_UNWATCHED = 100
"""How many hooks that nobody waits for may be at work. More are passed over."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_TOOL_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PATH = re.compile(r"[A-Za-z0-9_./-]{1,100}")
_HOOKS = frozenset(get_args(HookName))
_COMPACTION = frozenset(get_args(CompactionHookName))
_RIGHTS = frozenset(get_args(Right)) - {"node"}


class Loaded(msgspec.Struct, kw_only=True):
    """One extension: where it came from, whether it is there, and what it added."""

    id: str
    source: str
    """The package with its version, or the path of the file."""
    state: Literal["loaded", "failed", "off"] = "off"
    problem: str = ""
    """Why it failed or is off."""
    adds: list[str] = []
    """``tool dice``, ``command /dice``, ``hook message_received`` …"""
    failures: int = 0
    """How often something of it failed since the start."""
    last_failure: str = ""


class OwnCommand(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    right: Right
    help: str
    usage: str
    function: CommandFunction
    owner: Loaded


class OwnMethod(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    right: Right
    function: MethodFunction


class OwnRoute(msgspec.Struct, frozen=True, kw_only=True):
    verb: str
    path: str
    handler: RouteHandler
    auth: Literal["secret", "open"]


class ExtensionPoints:
    """Everything that was added. Without extensions it is empty, and each question to it is one look at a list."""

    def __init__(self) -> None:
        self.extensions: list[Loaded] = []
        self.hooks: dict[HookName, list[tuple[Loaded, HookFunction]]] = {name: [] for name in get_args(HookName)}
        self.compaction: list[tuple[CompactionHookName, HookFunction]] = []
        self.tools: dict[str, tuple[Sessions, Tool]] = {}
        self.sections: list[tuple[Loaded, str, PromptText]] = []
        self.commands: dict[str, OwnCommand] = {}
        self.methods: dict[str, OwnMethod] = {}
        self.routes: list[OwnRoute] = []
        self.channels: dict[str, ChannelKind] = {}
        self.providers: dict[str, Provider] = {}
        self._unwatched: set[asyncio.Task[Any]] = set()

    # Messages

    def message_received(self, about: MessageReceived) -> None:
        self._tell("message_received", about)

    async def before_accept(self, about: MessageReceived) -> str | None:
        """The text that answers the message in place of the agent. None: it goes on."""
        for owner, hook in self.hooks["before_accept"]:
            said = await call(owner, hook, about, LONGEST_HOOK_S)
            if isinstance(said, InstantAnswer):
                return said.text
        return None

    def message_sent(self, about: MessageSent) -> None:
        self._tell("message_sent", about)

    async def tell_all(self, name: Literal["gateway_started", "gateway_stopping"]) -> None:
        for owner, hook in self.hooks[name]:
            await call(owner, hook, None, LONGEST_HOOK_S)

    def _tell(self, name: HookName, about: Any) -> None:
        """Calls hooks that nobody waits for."""
        for owner, hook in self.hooks[name]:
            if len(self._unwatched) >= MOST_UNWATCHED:
                note_failure(owner, f"{name}: too many are at work already")
                continue
            self._spawn(call(owner, hook, about, LONGEST_HOOK_S))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._unwatched.add(task)
        task.add_done_callback(self._unwatched.discard)

    async def close(self) -> None:
        for task in [*self._unwatched]:
            task.cancel()
        await asyncio.gather(*self._unwatched, return_exceptions=True)

    # Tools and the prompt

    def tools_for(self, *, owner: bool) -> tuple[Tool, ...]:
        return tuple(tool for sessions, tool in self.tools.values() if owner or sessions == "all")

    @property
    def watches_tools(self) -> bool:
        return bool(self.hooks["before_tool_call"] or self.hooks["after_tool_call"])

    def watched(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """The tools, with the hooks around each call."""
        if not self.watches_tools:
            return tools
        return {name: WatchedTool(tool, self) for name, tool in tools.items()}

    async def before_tool(self, calling: ToolCalling) -> dict[str, Any]:
        """The arguments to run the tool with. Raises ``ToolError`` if an extension blocks the call."""
        for owner, hook in self.hooks["before_tool_call"]:
            said = await call(owner, hook, calling, LONGEST_HOOK_S)
            if isinstance(said, Block):
                raise ToolError(f"The extension {owner.id} does not allow this call: {said.reason}")
            if isinstance(said, dict):
                calling = msgspec.structs.replace(calling, arguments=said)
        return dict(calling.arguments)

    async def after_tool(self, called: ToolCalled) -> None:
        for owner, hook in self.hooks["after_tool_call"]:
            await call(owner, hook, called, LONGEST_HOOK_S)

    async def prompt_sections(self, about: PromptAbout) -> tuple[str, ...]:
        """The sections of the system prompt, each with its heading. Empty ones are left out."""
        made: list[str] = []
        for owner, title, text in self.sections:
            said = text if isinstance(text, str) else await call(owner, text, about, LONGEST_PROMPT_S)
            # No section of the prompt has an empty line, and no line of it may begin another section.
            lines = [line.lstrip("# ") if line.startswith("#") else line for line in str(said or "").splitlines()]
            if words := "\n".join(line for line in lines if line.strip()):
                made.append(f"## {title}\n{clipped(words, LONGEST_SECTION)}")
        return tuple(made)

    # Commands

    def command(self, body: str) -> tuple[OwnCommand, str] | None:
        """The command that the message consists of, and the words after it."""
        if not self.commands or not body.startswith("/") or "\n" in body:
            return None
        name, _, args = body[1:].partition(" ")
        found = self.commands.get(name.lower())
        return (found, args.strip()) if found and (found.usage or not args.strip()) else None

    async def run_command(self, command: OwnCommand, about: CommandCall) -> str | None:
        failed = command.owner.failures
        said = await call(command.owner, command.function, about, LONGEST_COMMAND_S)
        if command.owner.failures > failed:
            return f"❌ /{command.name} failed: {command.owner.last_failure}"
        return None if said is None else str(said)


class WatchedTool:
    """A tool with the hooks of extensions around each call."""

    def __init__(self, tool: Tool, points: ExtensionPoints) -> None:
        self._tool = tool
        self._points = points

    @property
    def spec(self) -> ToolSpec:
        return self._tool.spec

    @property
    def summary(self) -> str:
        return self._tool.summary

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        calling = ToolCalling(
            tool=self.spec.name,
            arguments=arguments,
            agent_id=context.agent_id,
            session_key=context.session_key,
            run_id=context.run_id,
        )
        given = await self._points.before_tool(calling)
        result = await self._tool.run(given, context)
        told: dict[str, Any] = {**msgspec.structs.asdict(calling), "arguments": given, "result": result}
        await self._points.after_tool(ToolCalled(**told))
        return result


class Registration:
    """The ``ExtensionApi`` of one extension. It works until ``register`` has returned."""

    def __init__(self, loaded: Loaded, config: Mapping[str, Any], state_dir: Path, taken: Taken) -> None:
        self.id = loaded.id
        self.config = config
        self.state_dir = state_dir
        self.points = ExtensionPoints()
        """What this extension adds. It counts once ``register`` has returned."""
        self._loaded = loaded
        self._taken = taken
        self.closed = False

    def on(self, name: HookName | CompactionHookName, function: HookFunction) -> None:
        if name in _COMPACTION:
            self.points.compaction.append((name, function))  # type: ignore[arg-type]
        elif name in _HOOKS:
            self.points.hooks[name].append((self._loaded, function))  # type: ignore[index]
        else:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(sorted(_HOOKS | _COMPACTION))}")
        self._added(f"hook {name}", callable(function))

    def add_tool(self, tool: Tool, *, sessions: Sessions) -> None:
        name = tool.spec.name
        _check(sessions in get_args(Sessions), f"tool {name}: sessions must be owner or all")
        _check(_TOOL_NAME.fullmatch(name) is not None and "__" not in name, f"{name!r} cannot be the name of a tool")
        _check(name not in self._taken.tools and name not in self.points.tools, f"there is a tool {name} already")
        self.points.tools[name] = (sessions, tool)
        self._added(f"tool {name} ({sessions})", callable(tool.run))

    def add_prompt_section(self, title: str, text: PromptText) -> None:
        _check(bool(title.strip()) and "\n" not in title, f"{title!r} cannot be the title of a section")
        _check(len(self.points.sections) < MOST_SECTIONS, "too many sections of the prompt")
        self.points.sections.append((self._loaded, title.strip(), text))
        self._added(f"prompt section {title.strip()}", isinstance(text, str) or callable(text))

    def add_command(self, name: str, function: CommandFunction, *, right: Right, help: str, usage: str = "") -> None:
        _check(_NAME.fullmatch(name) is not None, f"{name!r} cannot be the name of a command")
        _check(name not in self._taken.commands and name not in self.points.commands, f"there is /{name} already")
        _check_right(f"command /{name}", right)
        self.points.commands[name] = OwnCommand(
            name=name, right=right, help=help, usage=usage, function=function, owner=self._loaded
        )
        self._added(f"command /{name} ({right})", callable(function))

    def add_method(self, name: str, function: MethodFunction, *, right: Right) -> None:
        whole = f"{self.id}.{name}"
        _check(_PATH.fullmatch(name) is not None and "/" not in name, f"{name!r} cannot be the name of a method")
        _check(whole not in self._taken.methods and whole not in self.points.methods, f"there is {whole} already")
        _check_right(f"method {whole}", right)
        self.points.methods[whole] = OwnMethod(name=whole, right=right, function=function)
        self._added(f"method {whole} ({right})", callable(function))

    def add_route(self, verb: str, path: str, handler: RouteHandler, *, auth: Literal["secret", "open"]) -> None:
        whole = f"/extensions/{self.id}/{path.strip('/')}"
        _check(auth in ("secret", "open"), f"route {whole}: auth must be secret or open")
        _check(_PATH.fullmatch(path) is not None and ".." not in path, f"{path!r} cannot be a path")
        _check(verb.isalpha() and verb.isupper(), f"{verb!r} is no HTTP verb")
        self.points.routes.append(OwnRoute(verb=verb, path=whole, handler=handler, auth=auth))
        self._added(f"route {verb} {whole} ({auth})", callable(handler))

    def add_channel(self, kind: ChannelKind) -> None:
        _check(kind.id not in self._taken.channels, f"there is a channel {kind.id} already")
        self.points.channels[kind.id] = kind
        self._added(f"channel {kind.id}", True)

    def add_provider(self, name: str, provider: Provider) -> None:
        _check(_NAME.fullmatch(name) is not None, f"{name!r} cannot be the name of a protocol")
        self.points.providers[f"{self.id}/{name}"] = provider
        self._added(f"model protocol {self.id}/{name}", callable(getattr(provider, "stream", None)))

    def _added(self, what: str, right_kind: bool) -> None:
        _check(not self.closed, "register has ended; nothing can be added any more")
        _check(right_kind, f"{what}: a function is needed")
        self._loaded.adds = [*self._loaded.adds, what]


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Names that an extension cannot use, because the Gateway or another extension has them."""

    tools: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()

    def and_those_of(self, points: ExtensionPoints) -> Taken:
        return Taken(
            tools=self.tools | points.tools.keys(),
            commands=self.commands | points.commands.keys(),
            methods=self.methods | points.methods.keys(),
            channels=self.channels | points.channels.keys(),
        )


def united(parts: Iterable[ExtensionPoints], extensions: list[Loaded]) -> ExtensionPoints:
    """What all extensions add together."""
    whole = ExtensionPoints()
    whole.extensions = extensions
    for points in parts:
        for name, hooks in points.hooks.items():
            whole.hooks[name] += hooks
        whole.compaction += points.compaction
        whole.sections += points.sections
        whole.routes += points.routes
        for own, more in (
            (whole.tools, points.tools),
            (whole.commands, points.commands),
            (whole.methods, points.methods),
            (whole.channels, points.channels),
            (whole.providers, points.providers),
        ):
            own.update(more)  # type: ignore[arg-type]
    return whole


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _check_right(what: str, right: str) -> None:
    _check(right in _RIGHTS, f"{what} needs a right: one of {', '.join(sorted(_RIGHTS))}")


async def call(owner: Loaded, function: Any, about: Any, longest_s: float) -> Any:
    """Calls a function of an extension with a time limit. Returns None if it fails, and notes the failure."""
    try:
        async with asyncio.timeout(longest_s):
            said = function(about)
            return await said if inspect.isawaitable(said) else said
    except Exception as error:
        log.exception("the extension %s failed", owner.id)
        words = f"no answer within {longest_s:g} s" if isinstance(error, TimeoutError) else str(error)
        note_failure(owner, words or type(error).__name__)
        return None


def note_failure(owner: Loaded, words: str) -> None:
    owner.failures += 1
    owner.last_failure = clipped(" ".join(words.split()), 200)
