"""The extensions of a Gateway: how they are found and loaded, what they added, and how it is called.

``ExtensionPoints`` holds what they added. Each call is bounded in time, and a failure stops nothing.
``load_extensions`` finds the extensions that the configuration names, and lets each register what it adds. Packages
name theirs by entry points of the group ``openclaw.extensions``; ``plugins.load.paths`` names Python files. Nothing is
loaded from a workspace: what an agent can write must not become part of the Gateway.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import inspect
import logging
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from openclaw.config.agents import agent_ids, workspace_dir
from openclaw.config.schema import Config
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
from openclaw.redact import redact
from openclaw.rights import Right
from openclaw.storage.files.disk import atomic_replace
from openclaw.text import clipped
from openclaw.tools.base import Tool, ToolContext, ToolError, ToolResult, runs_parallel

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

    def add(self, more: ExtensionPoints) -> None:
        """Take over what one extension added."""
        for name, hooks in more.hooks.items():
            self.hooks[name] += hooks
        self.compaction += more.compaction
        self.sections += more.sections
        self.routes += more.routes
        self.tools.update(more.tools)
        self.commands.update(more.commands)
        self.methods.update(more.methods)
        self.channels.update(more.channels)
        self.providers.update(more.providers)

    # Messages

    def message_received(self, about: MessageReceived) -> None:
        self._tell("message_received", about)

    async def before_accept(self, about: MessageReceived) -> str | None:
        """The text that answers the message in place of the agent. None: it goes on."""
        for owner, hook in self.hooks["before_accept"]:
            answer = await call(owner, hook, about, LONGEST_HOOK_S)
            if isinstance(answer, InstantAnswer):
                return answer.text
        return None

    def message_sent(self, about: MessageSent) -> None:
        self._tell("message_sent", about)

    async def tell_all(self, name: Literal["gateway_started", "gateway_stopping"]) -> None:
        for owner, hook in self.hooks[name]:
            await call(owner, hook, None, LONGEST_HOOK_S)

    def _tell(self, name: HookName, about: Any) -> None:
        """Call hooks that nobody waits for."""
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

    def watched(self, tools: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """The tools, with the hooks around each call."""
        if not self.hooks["before_tool_call"] and not self.hooks["after_tool_call"]:
            return tools
        return {name: WatchedTool(tool, self) for name, tool in tools.items()}

    async def before_tool(self, calling: ToolCalling) -> dict[str, Any]:
        """The arguments to run the tool with. Raises ``ToolError`` if an extension blocks the call."""
        for owner, hook in self.hooks["before_tool_call"]:
            answer = await call(owner, hook, calling, LONGEST_HOOK_S)
            if isinstance(answer, Block):
                raise ToolError(f"The extension {owner.id} does not allow this call: {answer.reason}")
            if isinstance(answer, dict):
                calling = msgspec.structs.replace(calling, arguments=answer)
        return dict(calling.arguments)

    async def after_tool(self, called: ToolCalled) -> None:
        for owner, hook in self.hooks["after_tool_call"]:
            await call(owner, hook, called, LONGEST_HOOK_S)

    async def prompt_sections(self, about: PromptAbout) -> tuple[str, ...]:
        """The sections of the system prompt, each with its heading. Empty ones are left out."""
        made: list[str] = []
        for owner, title, text in self.sections:
            answer = text if isinstance(text, str) else await call(owner, text, about, LONGEST_PROMPT_S)
            # No section of the prompt has an empty line, and no line of it may begin another section.
            lines = [line.lstrip("# ") if line.startswith("#") else line for line in str(answer or "").splitlines()]
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
        answer = await call(command.owner, command.function, about, LONGEST_COMMAND_S)
        if command.owner.failures > failed:
            return f"❌ /{command.name} failed: {command.owner.last_failure}"
        return None if answer is None else str(answer)


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

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        return getattr(self._tool, "examples", ())

    def parallel(self, arguments: Mapping[str, Any]) -> bool:
        return runs_parallel(self._tool, arguments)

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

    def __init__(
        self, loaded: Loaded, config: Mapping[str, Any], state_dir: Path, taken: Taken, others: ExtensionPoints
    ) -> None:
        """``others`` is what the extensions before this one added."""
        self.id = loaded.id
        self.config = config
        self.state_dir = state_dir
        self.points = ExtensionPoints()
        """What this extension adds. It counts once ``register`` has returned."""
        self._loaded = loaded
        self._known = (taken, others, self.points)
        self.closed = False

    def on(self, name: HookName | CompactionHookName, function: HookFunction) -> None:
        if name in _COMPACTION:
            self.points.compaction.append((name, function))  # type: ignore[arg-type]
        elif name in _HOOKS:
            self.points.hooks[name].append((self._loaded, function))  # type: ignore[index]
        else:
            raise ValueError(f"unknown hook {name!r}; the hooks are {', '.join(sorted(_HOOKS | _COMPACTION))}")
        self._added(f"hook {name}", callable(function))

    def add_tool(self, tool: Tool, *, sessions: Sessions) -> None:
        name = tool.spec.name
        _check(sessions in get_args(Sessions), f"tool {name}: sessions must be owner or all")
        _check(_TOOL_NAME.fullmatch(name) is not None and "__" not in name, f"{name!r} cannot be the name of a tool")
        _check(all(name not in known.tools for known in self._known), f"there is a tool {name} already")
        self.points.tools[name] = (sessions, tool)
        self._added(f"tool {name} ({sessions})", callable(tool.run))

    def add_prompt_section(self, title: str, text: PromptText) -> None:
        _check(bool(title.strip()) and "\n" not in title, f"{title!r} cannot be the title of a section")
        _check(len(self.points.sections) < MOST_SECTIONS, "too many sections of the prompt")
        self.points.sections.append((self._loaded, title.strip(), text))
        self._added(f"prompt section {title.strip()}", isinstance(text, str) or callable(text))

    def add_command(self, name: str, function: CommandFunction, *, right: Right, help: str, usage: str = "") -> None:
        _check(_NAME.fullmatch(name) is not None, f"{name!r} cannot be the name of a command")
        _check(all(name not in known.commands for known in self._known), f"there is /{name} already")
        _check_right(f"command /{name}", right)
        self.points.commands[name] = OwnCommand(
            name=name, right=right, help=help, usage=usage, function=function, owner=self._loaded
        )
        self._added(f"command /{name} ({right})", callable(function))

    def add_method(self, name: str, function: MethodFunction, *, right: Right) -> None:
        whole = f"{self.id}.{name}"
        _check(_PATH.fullmatch(name) is not None and "/" not in name, f"{name!r} cannot be the name of a method")
        _check(all(whole not in known.methods for known in self._known), f"there is {whole} already")
        _check_right(f"method {whole}", right)
        self.points.methods[whole] = OwnMethod(name=whole, right=right, function=function)
        self._added(f"method {whole} ({right})", callable(function))

    def add_route(self, verb: str, path: str, handler: RouteHandler, *, auth: Literal["secret", "open"]) -> None:
        whole = f"/extensions/{self.id}/{path.strip('/')}"
        _check(auth in ("secret", "open"), f"route {whole}: auth must be secret or open")
        _check(_PATH.fullmatch(path) is not None and ".." not in path, f"{path!r} cannot be a path")
        _check(verb.isalpha() and verb.isupper(), f"{verb!r} is not an HTTP verb")
        self.points.routes.append(OwnRoute(verb=verb, path=whole, handler=handler, auth=auth))
        self._added(f"route {verb} {whole} ({auth})", callable(handler))

    def add_channel(self, kind: ChannelKind) -> None:
        _check(all(kind.id not in known.channels for known in self._known), f"there is a channel {kind.id} already")
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
    """Names that an extension cannot use, because the Gateway has them."""

    tools: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _check_right(what: str, right: str) -> None:
    _check(right in _RIGHTS, f"{what} needs a right: one of {', '.join(sorted(_RIGHTS))}")


async def call(owner: Loaded, function: Any, about: Any, longest_s: float) -> Any:
    """Call a function of an extension with a time limit. Returns None if it fails, and notes the failure."""
    try:
        async with asyncio.timeout(longest_s):
            answer = function(about)
            return await answer if inspect.isawaitable(answer) else answer
    except Exception as error:
        log.exception("the extension %s failed", owner.id)
        words = f"no answer within {longest_s:g} s" if isinstance(error, TimeoutError) else str(error)
        note_failure(owner, words or type(error).__name__)
        return None


def note_failure(owner: Loaded, words: str) -> None:
    owner.failures += 1
    owner.last_failure = clipped(" ".join(words.split()), 200)


# Finding and loading

GROUP = "openclaw.extensions"
MOST_EXTENSIONS = 100
LONGEST_REGISTER_S = 30.0
STATUS_FILE = "extensions-failed.json"
NOT_NAMED = "the configuration does not name it: set plugins.entries.{id}.enabled to true"


class FoundExtension(msgspec.Struct, frozen=True, kw_only=True):
    """An extension that is installed or named, and whether it is to be loaded."""

    loaded: Loaded
    load: Callable[[], Callable[[Any], Any]] | None
    """Imports it and returns its ``register``. None: it is not loaded. Blocking."""


def find_extensions(config: Config, state_dir: str) -> list[FoundExtension]:
    """All extensions that are installed or named. It imports none of them. Blocking."""
    found = [*_packages(config, state_dir), *_files(config, state_dir)]
    known = {one.loaded.id for one in found}
    for id, entry in config.plugins.entries.items():
        if entry.enabled and id not in known and config.plugins.enabled:
            problem = "no installed package has an extension of this name"
            found.append(FoundExtension(loaded=Loaded(id=id, source="", state="failed", problem=problem), load=None))
    return found[:MOST_EXTENSIONS]


def why_off(config: Config, id: str, *, named: bool) -> str:
    """Why an extension is not to be loaded. Empty if it is. ``named``: something else names it already."""
    plugins = config.plugins
    entry = plugins.entries.get(id)
    if not plugins.enabled:
        return "plugins.enabled is false"
    if id in plugins.deny:
        return "plugins.deny names it"
    if plugins.allow and id not in plugins.allow:
        return "plugins.allow does not name it"
    if entry is not None and entry.enabled is False:
        return f"plugins.entries.{id}.enabled is false"
    if not named and id not in plugins.allow and not (entry is not None and entry.enabled):
        return NOT_NAMED.format(id=id)
    return ""


def _packages(config: Config, state_dir: str) -> Iterator[FoundExtension]:
    workspaces = _workspaces(config, state_dir)
    seen: set[str] = set()
    for entry in entry_points(group=GROUP):
        if entry.name in seen:
            continue
        seen.add(entry.name)
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
        loaded = Loaded(id=entry.name, source=package, problem=why_off(config, entry.name, named=False))
        if not loaded.problem and (inside := _inside(entry, workspaces)) is not None:
            loaded.state, loaded.problem = "failed", f"it is not loaded: agents can write in {inside}"
            log.error("the extension %s is not loaded: agents can write in %s", entry.name, inside)
        yield FoundExtension(loaded=loaded, load=entry.load if not loaded.problem else None)


def _inside(entry: EntryPoint, workspaces: list[Path]) -> Path | None:
    """The workspace that the package or its module lies in. Nothing is imported to find out."""
    places: list[Path] = []
    if entry.dist is not None:
        places.append(Path(str(entry.dist.locate_file(""))))
    spec = importlib.machinery.PathFinder.find_spec(entry.module.partition(".")[0])
    if spec is not None:
        places += [Path(place) for place in (spec.origin, *(spec.submodule_search_locations or ())) if place]
    return next((one for one in workspaces for place in places if place.resolve().is_relative_to(one)), None)


def _files(config: Config, state_dir: str) -> Iterator[FoundExtension]:
    """The files in ``plugins.load.paths`` and the ``*.py`` files in its folders."""
    workspaces = _workspaces(config, state_dir)
    named = config.plugins.load.get("paths")
    for text in named if isinstance(named, list) else ():
        place = Path(str(text)).expanduser()
        for file in sorted(place.glob("*.py")) if place.is_dir() else [place]:
            loaded = Loaded(id=file.stem, source=str(file), problem=why_off(config, file.stem, named=True))
            if not loaded.problem and (
                inside := next((one for one in workspaces if file.resolve().is_relative_to(one)), None)
            ):
                loaded.state, loaded.problem = "failed", f"it is not loaded: agents can write in {inside}"
                log.error("the extension %s is not loaded: agents can write in %s", file, inside)
            yield FoundExtension(
                loaded=loaded, load=(lambda file=file: _import(file).register) if not loaded.problem else None
            )


def _workspaces(config: Config, state_dir: str) -> list[Path]:
    return [workspace_dir(config, state_dir, agent_id).resolve() for agent_id in agent_ids(config)]


def _import(path: Path) -> ModuleType:
    name = f"openclaw_extension_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} is not a Python file (plugins.load.paths)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "register", None)):
        raise AttributeError(f"{path} has no function register(api)")
    return module


async def load_extensions(config: Config, state_dir: str, taken: Taken) -> ExtensionPoints:
    """Load what the configuration names. An extension that fails or hangs is left out, and the Gateway starts."""
    plugins = config.plugins
    if not plugins.entries and not plugins.allow and not plugins.load.get("paths"):
        return ExtensionPoints()  # Nothing is named, so nobody looks at what is installed.
    whole = ExtensionPoints()
    for found in await asyncio.to_thread(find_extensions, config, state_dir):
        loaded = found.loaded
        whole.extensions.append(loaded)
        if found.load is None:
            continue
        entry = plugins.entries.get(loaded.id)
        folder = Path(state_dir) / "extensions" / loaded.id
        registration = Registration(loaded, entry.config if entry else {}, folder, taken, whole)
        try:
            await _in_thread(found.load, registration)
        except Exception as error:
            words = str(error) or type(error).__name__
            loaded.state, loaded.adds = "failed", []
            loaded.problem = clipped(redact(" ".join(words.split())), 300)
            log.exception("the extension %s cannot be used", loaded.id)
        else:
            loaded.state = "loaded"
            whole.add(registration.points)
            log.info("extension %s (%s): %s", loaded.id, loaded.source, ", ".join(loaded.adds) or "nothing added")
        finally:
            registration.closed = True
    await asyncio.to_thread(_write_status, Path(state_dir), whole.extensions)
    return whole


def _write_status(state_dir: Path, extensions: list[Loaded]) -> None:
    """Write down which extensions failed at this start, for ``openclaw doctor``, which works without a Gateway."""
    failed = {one.id: one.problem for one in extensions if one.state == "failed"}
    try:
        if failed or (state_dir / STATUS_FILE).exists():
            atomic_replace(state_dir / STATUS_FILE, msgspec.json.encode(failed))
    except OSError as error:
        log.warning("%s cannot be written: %s", STATUS_FILE, error)


def failed_at_start(state_dir: Path) -> dict[str, str]:
    """The extensions that failed when the Gateway started last, and why. Blocking."""
    try:
        return msgspec.json.decode((state_dir / STATUS_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError):
        return {}


async def _in_thread(load: Callable[[], Callable[[Any], Any]], registration: Registration) -> None:
    """Import and register in a thread, which may hang forever without holding up the Gateway's end."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def work() -> None:
        problem: BaseException | None = None
        try:
            load()(registration)
        except BaseException as error:
            problem = error
        try:
            loop.call_soon_threadsafe(settle, problem)
        except RuntimeError:  # The loop has closed meanwhile.
            pass

    threading.Thread(target=work, name=f"extension {registration.id}", daemon=True).start()
    timer = asyncio.timeout(LONGEST_REGISTER_S)
    try:
        async with timer:
            await done
    except TimeoutError:
        if not timer.expired():
            raise
        raise RuntimeError(f"register did not return within {LONGEST_REGISTER_S:g} s") from None
