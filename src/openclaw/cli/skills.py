"""``openclaw skills add``, ``update`` and ``remove``: skills from elsewhere, shown before they are used."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from openclaw import paths
from openclaw.agent import skill_packages
from openclaw.agent.skill_packages import Installed, Package, PackageError
from openclaw.agent.skills import managed_dir
from openclaw.cli.command import UserError, answer, nearest, yes
from openclaw.cli.terminal import note
from openclaw.text import printable, redact_urls

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

SHOWN_FILES = 20


def add(args: argparse.Namespace) -> int:
    state = paths.state_dir()
    source = args.source if args.source.startswith(skill_packages.GIT) else str(Path(args.source).absolute())
    try:
        with skill_packages.fetched(source) as package:
            name = package.skill.name
            record = skill_packages.installed(state).get(name)
            if record is None and (managed_dir(state) / name).exists():
                raise UserError(
                    f"{managed_dir(state) / name} exists and was not added with this command. Move it away."
                )
            if args.sha256 and args.sha256.lower() != package.digest:
                raise UserError(f"The skill has the hash {package.digest}, not {args.sha256}. Nothing was added.")
            if record is not None and record.digest == package.digest:
                return answer(args, _report(package, "unchanged"), f"{name} is installed already, with the same files.")
            _consent(args, _facts(package, record), f"Add the skill {name}?" if record is None else f"Replace {name}?")
            skill_packages.install(package, state, int(time.time() * 1000))
            return answer(args, _report(package, "added"), f"Added {name}. New turns of the agent can use it.")
    except PackageError as problem:
        raise UserError(f"{redact_urls(source)} was not added: {problem}") from None


def update(args: argparse.Namespace) -> int:
    state = paths.state_dir()
    try:
        records = skill_packages.installed(state)
        names = [_name(args.name, records)] if args.name else list(records)
        results: list[dict[str, object]] = []
        for name in names:
            record = records[name]
            if skill_packages.is_edited(state, name, record) and not args.force:
                note(f"{name} was changed on this machine. `--force` replaces it.")
                results.append({"name": name, "state": "edited"})
                continue
            results.append(_update(args, state, name, record))
    except PackageError as problem:
        raise UserError(f"Not updated: {problem}") from None
    updated = sum(result["state"] == "updated" for result in results)
    return answer(args, {"skills": results}, f"Updated {updated} of {len(results)} skills.")


def _update(args: argparse.Namespace, state: str, name: str, record: Installed) -> dict[str, object]:
    with skill_packages.fetched(record.source) as package:
        if package.skill.name != name:
            raise PackageError(f"{redact_urls(record.source)} now holds {package.skill.name}, not {name}")
        if package.digest == record.digest and not skill_packages.is_edited(state, name, record):
            return {"name": name, "state": "unchanged"}
        _consent(args, _facts(package, record), f"Update the skill {name}?")
        skill_packages.install(package, state, int(time.time() * 1000))
        return _report(package, "updated")


def remove(args: argparse.Namespace) -> int:
    state = paths.state_dir()
    try:
        name = _name(args.name, skill_packages.installed(state))
        _consent(args, [], f"Remove the skill {name}?")
        skill_packages.remove(name, state)
    except PackageError as problem:
        raise UserError(f"Not removed: {problem}") from None
    return answer(args, {"name": name, "state": "removed"}, f"Removed {name}.")


def _name(name: str, records: dict[str, Installed]) -> str:
    if name in records:
        return name
    guess = nearest(name, records)
    hint = (
        f"Did you mean {guess}?" if guess else "Only skills that were added with `openclaw skills add` can be changed."
    )
    raise UserError(f"No added skill is called {printable(name)!r}. {hint}")


def _facts(package: Package, record: Installed | None) -> Iterator[str]:
    """What a person must know before they agree."""
    skill, needs = package.skill, package.skill.needs
    yield f"{skill.name}: {skill.description}"
    yield f"From {redact_urls(package.source)}" + (f", commit {package.revision[:12]}" if package.revision else "")
    yield f"{len(package.files)} files, hash {package.digest}"
    if record is not None:
        changed = skill_packages.changes(record.files, package.files)
        for word, names in ("added", changed.added), ("changed", changed.changed), ("removed", changed.removed):
            if names:
                yield f"Files {word}: {_listed(names)}"
    if package.programs:
        yield f"It has programs that the agent can run: {_listed(list(package.programs))}"
    else:
        yield "It has no programs of its own; the agent runs the commands that its text names."
    required = [*needs.bins, *needs.any_bins]
    if required:
        yield f"It uses: {', '.join(required)}"
    if variables := [*needs.env, *([skill.primary_env] if skill.primary_env else [])]:
        yield f"It wants variables: {', '.join(dict.fromkeys(variables))}"
    yield "The agent will follow its text. Add only skills that you have read or whose author you trust."


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return ", ".join(names[:SHOWN_FILES]) + more


def _consent(args: argparse.Namespace, facts: Iterator[str] | list[str], question: str) -> None:
    for fact in facts:
        note(printable(" ".join(fact.split())))
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{question} Nobody can answer here; `--yes` agrees.")
    if not yes(question, usual=False):
        raise UserError("Nothing was changed.")


def _report(package: Package, state: str) -> dict[str, object]:
    return {
        "name": package.skill.name,
        "state": state,
        "source": redact_urls(package.source),
        "revision": package.revision,
        "sha256": package.digest,
        "files": len(package.files),
        "programs": list(package.programs),
    }
