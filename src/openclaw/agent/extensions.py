"""Extensions: Python files of the person's own, named in the configuration, that take part through hooks.

A file has one function, ``register(hooks)``, which is called when the Gateway starts. One that cannot be loaded is
reported and left out; the Gateway starts without it.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from openclaw.agent.hooks import Hooks
from openclaw.config.schema import Config

log = logging.getLogger("openclaw.agents.extensions")

MOST = 100


def load_extensions(config: Config, hooks: Hooks) -> list[str]:
    """Blocking. The names of those that are in place."""
    loaded: list[str] = []
    for path in list(extension_files(config))[:MOST]:
        try:
            _load(path).register(hooks)
        except Exception:  # Whatever somebody else's file does, the Gateway starts.
            log.exception("the extension %s cannot be used", path)
        else:
            log.info("extension %s", path)
            loaded.append(path.stem)
    return loaded


def extension_files(config: Config) -> Iterator[Path]:
    """Files, and those directly in folders, of ``plugins.load.paths``, as far as allow and deny let them."""
    plugins = config.plugins
    named = plugins.load.get("paths")
    for text in named if plugins.enabled and isinstance(named, list) else ():
        place = Path(str(text)).expanduser()
        files = sorted(place.glob("*.py")) if place.is_dir() else [place]
        for file in files:
            if file.stem not in plugins.deny and (not plugins.allow or file.stem in plugins.allow):
                yield file


def _load(path: Path) -> ModuleType:
    name = f"openclaw_extension_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} is no Python file (plugins.load.paths)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, "register", None)):
        raise AttributeError(f"{path} has no function register(hooks)")
    return module
