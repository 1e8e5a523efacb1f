"""Finds the extensions that the configuration names, and lets each register what it adds.

Packages name theirs by entry points of the group ``openclaw.extensions``; ``plugins.load.paths`` names Python files.
Nothing is loaded from a workspace: what an agent can write must not become part of the Gateway.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from openclaw.config.agents import agent_ids, workspace_dir
from openclaw.config.schema import Config
from openclaw.extensions.points import ExtensionPoints, Loaded, Registration, Taken, united
from openclaw.redact import redact
from openclaw.storage.files.disk import atomic_replace
from openclaw.text import clipped

log = logging.getLogger("openclaw.extensions")

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
        raise FileNotFoundError(f"{path} is no Python file (plugins.load.paths)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "register", None)):
        raise AttributeError(f"{path} has no function register(api)")
    return module


async def load_extensions(config: Config, state_dir: str, taken: Taken) -> ExtensionPoints:
    """Loads what the configuration names. An extension that fails or hangs is left out, and the Gateway starts."""
    plugins = config.plugins
    if not plugins.entries and not plugins.allow and not plugins.load.get("paths"):
        return ExtensionPoints()  # Nothing is named, so nobody looks at what is installed.
    extensions: list[Loaded] = []
    parts: list[ExtensionPoints] = []
    for found in await asyncio.to_thread(find_extensions, config, state_dir):
        loaded = found.loaded
        extensions.append(loaded)
        if found.load is None:
            continue
        entry = plugins.entries.get(loaded.id)
        folder = Path(state_dir) / "extensions" / loaded.id
        registration = Registration(loaded, entry.config if entry else {}, folder, taken)
        try:
            await _in_thread(found.load, registration)
        except Exception as error:
            words = str(error) or type(error).__name__
            loaded.state, loaded.adds = "failed", []
            loaded.problem = clipped(redact(" ".join(words.split())), 300)
            log.exception("the extension %s cannot be used", loaded.id)
        else:
            loaded.state = "loaded"
            parts.append(registration.points)
            taken = taken.and_those_of(registration.points)
            log.info("extension %s (%s): %s", loaded.id, loaded.source, ", ".join(loaded.adds) or "nothing added")
        finally:
            registration.closed = True
    await asyncio.to_thread(_write_status, Path(state_dir), extensions)
    return united(parts, extensions)


def _write_status(state_dir: Path, extensions: list[Loaded]) -> None:
    """Writes down which extensions failed at this start, for ``openclaw doctor``, which works without a Gateway."""
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
    """Imports and registers in a thread of its own, which may hang for ever without holding up the Gateway's end."""
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
