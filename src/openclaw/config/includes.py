"""``$include``: a configuration in several files.

An included file may only lie in the folder of the main file or below it, links followed, so that a configuration
cannot be made to read arbitrary files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openclaw.config.issues import Report
from openclaw.config.json5text import Json5Error, Outline, line_at
from openclaw.config.keypath import KeyPath
from openclaw.config.source import SourceError, parse_source, read_source

KEY = "$include"
MAX_DEPTH = 10
MAX_FILES = 100


class Included(msgspec.Struct, frozen=True):
    file: str
    mount: KeyPath
    """Where its content stands in the configuration."""
    outline: Outline | None


class Includes:
    """Puts the included files in their place, once."""

    def __init__(self, main: str, report: Report) -> None:
        self.files: list[Included] = []
        self.main = str(Path(main).resolve())
        self._root = Path(self.main).parent
        self._report = report

    def resolve(self, value: Any, path: KeyPath, chain: tuple[str, ...]) -> Any:
        """The value with its includes replaced; ``chain`` are the files it was reached through, main file first."""
        if isinstance(value, list):
            return [self.resolve(item, (*path, index), chain) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        rest = {key: self.resolve(item, (*path, key), chain) for key, item in value.items() if key != KEY}
        if KEY not in value:
            return rest
        names = value[KEY] if isinstance(value[KEY], list) else [value[KEY]]
        merged: Any = msgspec.UNSET
        for name in names:
            content = self._content(name, path, chain)
            if content is not msgspec.UNSET:
                merged = content if merged is msgspec.UNSET else deep_merge(merged, content)
        if merged is msgspec.UNSET:
            return rest
        if rest and not isinstance(merged, dict):
            self._report.issue((*path, KEY), "the included file must hold an object to stand beside other keys")
            return rest
        return deep_merge(merged, rest) if rest else merged

    def _content(self, name: Any, path: KeyPath, chain: tuple[str, ...]) -> Any:
        where = (*path, KEY)
        if not isinstance(name, str) or not name.strip():
            self._report.issue(where, "expected the name of a file or a list of names")
            return msgspec.UNSET
        try:
            target = Path(chain[-1]).parent.joinpath(name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            self._report.issue(where, f"{name!r} is not a usable file name: {error}")
            return msgspec.UNSET
        file = str(target)
        if not target.is_relative_to(self._root):
            problem = f"{name} lies outside the folder of the configuration; includes must be inside it"
        elif file in chain:
            problem = f"{name} includes itself ({' → '.join(Path(link).name for link in (*chain, file))})"
        elif len(chain) > MAX_DEPTH:
            problem = f"{name}: includes are nested more than {MAX_DEPTH} levels deep"
        elif len(self.files) >= MAX_FILES:
            problem = f"more than {MAX_FILES} files are included"
        else:
            return self._read(name, file, path, chain)
        self._report.issue(where, problem)
        return msgspec.UNSET

    def _read(self, name: str, file: str, path: KeyPath, chain: tuple[str, ...]) -> Any:
        text = ""
        try:
            text = read_source(file)
            if text is None:
                raise SourceError(f"{name} does not exist")
            content, outline = parse_source(text)
        except SourceError as error:
            self._report.issue((*path, KEY), str(error))
        except Json5Error as error:
            self._report.issue((*path, KEY), f"{name}:{line_at(text or '', error.offset)}: {error}")
        else:
            self.files.append(Included(file, path, outline))
            return self.resolve(content, path, (*chain, file))
        return msgspec.UNSET


def deep_merge(below: Any, above: Any) -> Any:
    """Objects merge key by key, lists are joined, and of anything else the one above wins."""
    if isinstance(below, dict) and isinstance(above, dict):
        merged = dict(below)
        for key, value in above.items():
            merged[key] = deep_merge(merged[key], value) if key in merged else value
        return merged
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above
