"""What is wrong with a configuration, and where."""

from __future__ import annotations

import msgspec

from openclaw.config.keypath import KeyPath, format_path


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Dotted key path; empty for the file as a whole."""
    message: str
    line: int | None = None
    file: str | None = None
    """The included file it stands in; None for the configuration itself."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line else ""
        if self.file:
            where = f"{self.file}:{self.line}" if self.line else self.file
        place = f"{self.path} ({where})" if where and self.path else self.path or where
        return f"{place}: {self.message}" if place else self.message


class Report:
    """Collects findings while the configuration is read. Bounded: a hostile file must not fill the memory."""

    LIMIT = 100

    def __init__(self) -> None:
        self.issues: list[tuple[KeyPath, str]] = []
        self.warnings: list[tuple[KeyPath, str]] = []
        self.mistakes: list[tuple[KeyPath, str]] = []

    def issue(self, path: KeyPath, message: str) -> None:
        if len(self.issues) < self.LIMIT:
            self.issues.append((path, message))

    def mistake(self, path: KeyPath, message: str) -> None:
        """Wrong, and not worth refusing to start for: refused when somebody writes it, a warning when it is there."""
        self.warn(path, message)
        if len(self.mistakes) < self.LIMIT:
            self.mistakes.append((path, message))

    def warn(self, path: KeyPath, message: str) -> None:
        if len(self.warnings) < self.LIMIT:
            self.warnings.append((path, message))


class ConfigError(Exception):
    """Something the caller asked for cannot be done with the configuration."""


class ConfigConflict(ConfigError):
    """The file is not the one the caller has seen."""


class ConfigInvalid(ConfigError):
    """The configuration, as it is or as it would become, is not valid."""

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__("invalid config: " + "; ".join(map(str, issues[:5])))
        self.issues = issues


def located(path: KeyPath, message: str, line: int | None = None, file: str | None = None) -> Issue:
    return Issue(path=format_path(path), message=message, line=line, file=file)
