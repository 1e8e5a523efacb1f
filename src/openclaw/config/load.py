"""Reads ``openclaw.json``: text → values → includes → environment → schema → typed configuration.

Nothing in a file can make this raise: what is wrong ends up in ``Snapshot.issues``, with its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openclaw.config.build import build
from openclaw.config.checks import check_rules
from openclaw.config.includes import Included, Includes
from openclaw.config.issues import Issue, Report, located
from openclaw.config.json5text import Json5Error, Outline, line_at
from openclaw.config.keypath import KeyPath
from openclaw.config.schema import Config
from openclaw.config.shape import shape_of
from openclaw.config.source import SourceError, parse_source, read_source, text_hash
from openclaw.config.substitute import substituted, with_config_env
from openclaw.config.validate import checked


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file as it was at one moment."""

    path: str
    exists: bool
    raw: str | None = None
    parsed: dict[str, Any] = {}
    """The file's own content: no includes, no environment, no defaults."""
    resolved: dict[str, Any] = {}
    """With includes and environment, without defaults. Holds secrets."""
    merged: dict[str, Any] = {}
    """With includes, before the environment."""
    config: Config = Config()
    """Defaults applied. When not valid: only what was right, not to be run with."""
    hash: str | None = None
    """SHA-256 of ``raw``."""
    valid: bool = True
    issues: list[Issue] = []
    warnings: list[Issue] = []
    mistakes: list[Issue] = []
    """Those warnings that nobody may write."""
    includes: list[str] = []
    """Paths of the included files."""


def read_config(path: str, environ: Mapping[str, str]) -> Snapshot:
    try:
        text = read_source(path)
    except SourceError as error:
        return Snapshot(path=path, exists=True, valid=False, issues=[Issue(path="", message=str(error))])
    if text is None:
        return Snapshot(path=path, exists=False)
    return parse_config(path, text, environ)


def parse_config(path: str, text: str, environ: Mapping[str, str]) -> Snapshot:
    """What the file would mean with this text."""
    digest = text_hash(text)
    if not text.strip():
        warning = Issue(path="", message="the file is empty; every setting has its default")
        return Snapshot(path=path, exists=True, raw=text, hash=digest, warnings=[warning])
    try:
        parsed, outline = parse_source(text)
    except Json5Error as error:
        issue = Issue(path="", message=str(error), line=line_at(text, error.offset))
        return Snapshot(path=path, exists=True, raw=text, hash=digest, valid=False, issues=[issue])
    if not isinstance(parsed, dict):
        issue = Issue(path="", message="the configuration must be an object: { … }", line=1)
        return Snapshot(path=path, exists=True, raw=text, hash=digest, valid=False, issues=[issue])
    return _interpret(path, text, parsed, outline, environ)


def _interpret(
    path: str, text: str, parsed: dict[str, Any], outline: Outline | None, environ: Mapping[str, str]
) -> Snapshot:
    report = Report()
    for duplicate in outline.duplicates if outline else ():
        report.warn(duplicate, "this key is written twice; the last one counts")
    includes = Includes(path, report)
    merged = includes.resolve(parsed, (), (includes.main,))
    if not isinstance(merged, dict):
        report.issue(("$include",), "the included file must hold an object")
        merged = {}
    resolved = substituted(merged, with_config_env(environ, merged), (), report)
    good = checked(resolved, shape_of(Config), (), report)
    values: dict[str, Any] = good if isinstance(good, dict) else {}
    config = build(values)
    check_rules(resolved, config, report)
    places = _Places(outline, includes.files)
    return Snapshot(
        path=path,
        exists=True,
        raw=text,
        parsed=parsed,
        resolved=resolved,
        merged=merged,
        config=config,
        hash=text_hash(text),
        valid=not report.issues,
        issues=places.located(report.issues),
        warnings=places.located(report.warnings),
        mistakes=places.located(report.mistakes),
        includes=[included.file for included in includes.files],
    )


class _Places:
    """Finds the line, and the included file, in which a key path stands."""

    def __init__(self, outline: Outline | None, included: Sequence[Included]) -> None:
        self._outline = outline
        self._included = included

    def located(self, findings: Sequence[tuple[KeyPath, str]]) -> list[Issue]:
        return [self._one(path, message) for path, message in findings]

    def _one(self, path: KeyPath, message: str) -> Issue:
        best, line, file = 0, None, None
        if self._outline:
            best, member = self._outline.find(path)
            line = self._outline.line(member.start) if member else None
        for included in self._included:
            mounted = len(included.mount)
            if included.outline is None or path[:mounted] != included.mount:
                continue
            depth, member = included.outline.find(path[mounted:])
            if member and mounted + depth > best:
                best, line, file = mounted + depth, included.outline.line(member.start), included.file
        return located(path, message, line, file)


__all__ = ["Issue", "Snapshot", "parse_config", "read_config"]
