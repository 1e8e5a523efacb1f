"""``openclaw cron``: scheduled jobs."""

from __future__ import annotations

from openclaw.cli.command import EXIT_USAGE, Flag, Group, UserError, query
from openclaw.text import clipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from openclaw.cli.answers import CronStatus, Job, JobRuns, JobsAnswer, JobState, Schedule


RUN_TIMEOUT_MS = 600_000
_HINT = "`openclaw cron list --all` shows the jobs with their ids."
_ID = Flag("id JOB", "the name or the id of the job, as `openclaw cron list` shows them", param="id")

# What the flags mean


def _schedule(args: argparse.Namespace) -> dict[str, object] | None:
    given = [name for name in ("at", "every", "cron") if getattr(args, name)]
    if len(given) > 1:
        raise UserError(f"choose one of --at, --every and --cron, not {' and '.join(given)}", EXIT_USAGE)
    if args.tz and given != ["cron"]:
        raise UserError("--tz goes with --cron", EXIT_USAGE)
    if args.at:
        return {"kind": "at", "at": _moment(args.at)}
    if args.every:
        return {"kind": "every", "everyMs": _ms(args.every, "--every")}
    if args.cron:
        return {"kind": "cron", "expr": args.cron, **({"tz": args.tz} if args.tz else {})}
    return None


def _moment(text: str) -> str:
    """An ISO time as it stands, or the moment that is ``20m`` from now."""
    text = text.strip()
    if text[:1].isdigit() and text[-1:].isalpha() and "T" not in text and "Z" not in text:
        import time

        from openclaw.clock import iso_utc

        return iso_utc(int(time.time() * 1000) + _ms(text.lstrip("+"), "--at"))
    return text


def _ms(text: str, flag: str) -> int:
    from openclaw.clock import duration_ms

    try:
        found = duration_ms(text, "m")
    except ValueError as problem:
        raise UserError(f"{flag}: {problem}", EXIT_USAGE) from None
    if found < 1:
        raise UserError(f"{flag} must be longer than nothing", EXIT_USAGE)
    return found


def _payload(args: argparse.Namespace) -> dict[str, object] | None:
    if args.system_event and args.message:
        raise UserError("choose one of --system-event and --message", EXIT_USAGE)
    if args.system_event:
        return {"kind": "systemEvent", "text": args.system_event}
    turn = {"message": args.message, "model": args.model, "thinking": args.thinking}
    turn = {name: value for name, value in turn.items() if value}
    if args.timeout_seconds is not None:
        turn["timeoutSeconds"] = args.timeout_seconds
    return {"kind": "agentTurn", **turn} if turn else None


def _delivery(args: argparse.Namespace) -> dict[str, object] | None:
    if args.no_deliver and (args.announce or args.deliver):
        raise UserError("choose one of --announce and --no-deliver", EXIT_USAGE)
    delivery: dict[str, object] = {}
    if args.no_deliver:
        delivery["mode"] = "none"
    elif args.announce or args.deliver:
        delivery["mode"] = "announce"
    delivery |= {name: value for name in ("channel", "to") if (value := getattr(args, name))}
    if args.best_effort_deliver:
        delivery["bestEffort"] = True
    return delivery or None


def _common(args: argparse.Namespace) -> dict[str, object]:
    """What ``add`` and ``edit`` say in the same words."""
    job: dict[str, object] = {"name": args.name, "description": args.description, "agentId": args.agent}
    job |= {"sessionTarget": args.session, "wakeMode": args.wake}
    job |= {"schedule": _schedule(args), "payload": _payload(args), "delivery": _delivery(args)}
    if args.delete_after_run or args.keep_after_run:
        job["deleteAfterRun"] = args.delete_after_run
    return {name: value for name, value in job.items() if value is not None}


def _new_job(args: argparse.Namespace) -> dict[str, object]:
    job = _common(args)
    if "schedule" not in job:
        raise UserError("say when: one of --at, --every and --cron", EXIT_USAGE)
    payload, delivery = _payload(args) or {}, _delivery(args)
    if "message" not in payload and "text" not in payload:
        raise UserError("say what: one of --system-event and --message", EXIT_USAGE)
    main = payload["kind"] == "systemEvent"
    job.setdefault("sessionTarget", "main" if main else "isolated")
    job.setdefault("wakeMode", "now")
    if main and delivery:
        raise UserError("--announce, --channel and --to go with --message", EXIT_USAGE)
    if not main:
        job["delivery"] = {"mode": "announce", **(delivery or {})}
    return {**job, "enabled": not args.disabled}


def _patch(args: argparse.Namespace) -> dict[str, object]:
    patch = _common(args)
    if args.enable and args.disable:
        raise UserError("choose one of --enable and --disable", EXIT_USAGE)
    if args.enable or args.disable:
        patch["enabled"] = args.enable
    if args.clear_agent:
        patch["agentId"] = None
    if args.no_best_effort_deliver:
        patch["delivery"] = {**(_delivery(args) or {}), "bestEffort": False}
    if not patch:
        raise UserError("nothing to change; `openclaw cron edit --help` lists what can be", EXIT_USAGE)
    return {"patch": patch}


# What is printed


def _when(job: Job) -> str:
    schedule: Schedule = job.get("schedule") or {}
    match schedule.get("kind"):
        case "at":
            return f"at {schedule.get('at')}"
        case "every":
            from openclaw.text import duration

            return f"every {duration(int(schedule.get('everyMs') or 0))}"
        case _:
            zone = schedule.get("tz")
            return f"cron {schedule.get('expr')}{f' @ {zone}' if zone else ''}"


def _moment_text(ms: Any, zone: Any) -> str:
    """The time in the person's zone; None is that of this machine."""
    if not isinstance(ms, int | float):
        return "-"
    from datetime import datetime

    from openclaw.clock import named_zone

    moment = datetime.fromtimestamp(ms / 1000, named_zone(zone) if isinstance(zone, str) else None)
    return f"{moment:%Y-%m-%d %H:%M}"


WIDTHS = (36, 24, 32, 16, 16, 9, 9, 16)


def _row(cells: tuple[str, ...]) -> str:
    return " ".join(clipped(cell, width).ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _is_wide() -> bool:
    """Return whether the table fits. A file or a pipe takes lines of any length."""
    import os

    try:
        return os.get_terminal_size(1).columns >= sum(WIDTHS) + len(WIDTHS)
    except OSError:
        return True


def _show_jobs(answer: JobsAnswer, args: argparse.Namespace) -> Iterator[str]:
    jobs = answer.get("jobs") or []
    if not jobs:
        yield "No scheduled jobs."
        return
    zone, wide = answer.get("timezone"), _is_wide()
    if wide:
        yield _row(("ID", "Name", "Schedule", "Next", "Last", "Status", "Target", "Agent"))
    for job in jobs:
        state: JobState = job.get("state") or {}
        status = "running" if state.get("runningAtMs") else str(state.get("lastStatus") or "idle")
        status = status if job.get("enabled", True) else "disabled"
        due, last = (_moment_text(at, zone) for at in (state.get("nextRunAtMs"), state.get("lastRunAtMs")))
        target, agent = str(job.get("sessionTarget")), str(job.get("agentId") or "default")
        name, when = str(job.get("name")), _when(job)
        if wide:
            yield _row((str(job.get("id")), name, when, due, last, status, target, agent))
        else:
            yield f"{job.get('id')}  {status}, {target}, agent {agent}"
            yield f"  {clipped(name, 40)}: {clipped(when, 34)}"
            yield f"  next {due}, last {last}"
    if zone:
        yield f"Times are those of {zone}."


def _show_job(job: Job, args: argparse.Namespace) -> Iterator[str]:
    state: JobState = job.get("state") or {}
    from openclaw.cli.client import from_args

    zone = from_args(args).call("cron.status").get("timezone")
    due = _moment_text(state.get("nextRunAtMs"), zone)
    yield f"{job.get('id')}  {job.get('name')}  {_when(job)}  next: {due}"


def _show_status(answer: CronStatus, args: argparse.Namespace) -> Iterator[str]:
    switch = "on" if answer.get("enabled") else "off"
    yield f"Scheduled jobs: {switch}, {answer.get('jobs')} in {answer.get('storePath')}"
    yield f"Next: {_moment_text(answer.get('nextWakeAtMs'), answer.get('timezone'))}"


def _show_runs(answer: JobRuns, args: argparse.Namespace) -> Iterator[str]:
    entries = answer.get("entries") or []
    for entry in entries:
        told = str(entry.get("error") or entry.get("summary") or "")
        seconds = int(entry.get("durationMs") or 0) / 1000
        line = f"{_moment_text(entry.get('runAtMs'), answer.get('timezone'))}  {entry.get('status')}  {seconds:.1f}s"
        yield f"{line}  {clipped(' '.join(told.split()), 100)}".rstrip()
    if not entries:
        yield f"No runs of {args.id} are kept. {_HINT}"


_JOB = (
    Flag("--description TEXT", "what the job is for"),
    Flag("--agent ID", "the agent that does it (default: the default agent)"),
    Flag("--at TIME", "once, at an ISO time (UTC without a zone) or in a while, such as 20m"),
    Flag("--every DURATION", "again and again, such as 10m or 1h"),
    Flag("--cron EXPR", "by a cron expression, such as '0 7 * * 1-5'"),
    Flag("--tz ZONE", "the zone of --cron, such as Europe/Madrid (default: this machine's)"),
    Flag("--session TARGET", "main or isolated (default: by the payload)", choices=("main", "isolated")),
    Flag("--wake MODE", "now or next-heartbeat (default: now)", choices=("now", "next-heartbeat")),
    Flag("--system-event TEXT", "tell the main session this"),
    Flag("--message TEXT", "let the agent answer this in a session of its own"),
    Flag("--model MODEL", "the model of that turn"),
    Flag("--thinking LEVEL", "the thinking level of that turn"),
    Flag("--timeout-seconds N", "stop that turn after this long (default 600)", type=int),
    Flag("--announce", "deliver the answer to a chat (the default with --message)"),
    Flag("--deliver", "the same, under its older name"),
    Flag("--no-deliver", "keep the answer in the session"),
    Flag("--channel CHANNEL", "the channel of the delivery (default: the last one used)"),
    Flag("--to TO", "the recipient of the delivery"),
    Flag("--best-effort-deliver", "a missing recipient is not a failure"),
    Flag("--delete-after-run", "remove the job after it went well (the default with --at)"),
    Flag("--keep-after-run", "keep the job after it went well"),
)

_ADD = query(
    "Add a job",
    "cron.add",
    (Flag("--name NAME", "what to call it (default: from its text)"), Flag("--disabled", "add it switched off"), *_JOB),
    params=_new_job,
    show=_show_job,
    example="openclaw cron add --name Brief --cron '0 7 * * *' --tz Europe/Madrid --message 'Brief me on today'",
)
_REMOVE = query(
    "Remove a job",
    "cron.remove",
    (_ID,),
    show=lambda answer, args: [
        f"Removed {args.id}." if answer.get("removed") else f"There is no job {args.id}. {_HINT}"
    ],
    failed=lambda answer, args: not answer.get("removed"),
    example="openclaw cron rm d597ad21-0c43-4c0e-9a51-6a1c8a2f6f10",
)


def _switch(word: str, enabled: bool) -> Any:
    return query(
        f"Switch a job {word}",
        "cron.update",
        (_ID,),
        params=lambda args: {"patch": {"enabled": enabled}},
        show=_show_job,
        hint=_HINT,
        example=f"openclaw cron {'enable' if enabled else 'disable'} d597ad21-0c43-4c0e-9a51-6a1c8a2f6f10",
    )


_ACTIONS = {
    "status": query(
        "Show whether jobs run, and when the next is due",
        "cron.status",
        show=_show_status,
        example="openclaw cron status",
    ),
    "list": query(
        "List jobs",
        "cron.list",
        (Flag("--all", "also those that are switched off", param="includeDisabled"),),
        show=_show_jobs,
        example="openclaw cron list --all",
    ),
    "add": _ADD,
    "create": _ADD,
    "edit": query(
        "Change a job",
        "cron.update",
        (
            _ID,
            Flag("--name NAME", "what to call it"),
            Flag("--enable", "switch it on"),
            Flag("--disable", "switch it off"),
            Flag("--clear-agent", "give it back to the default agent"),
            Flag("--no-best-effort-deliver", "a missing recipient is a failure"),
            *_JOB,
        ),
        params=_patch,
        show=_show_job,
        hint=_HINT,
        example="openclaw cron edit d597ad21-0c43-4c0e-9a51-6a1c8a2f6f10 --every 1h",
    ),
    "rm": _REMOVE,
    "remove": _REMOVE,
    "enable": _switch("on", True),
    "disable": _switch("off", False),
    "run": query(
        "Run a job now and wait for its end",
        "cron.run",
        (
            _ID,
            Flag("--due", "only if its time has come"),
            Flag("--force", "whatever its time is (the default)"),
        ),
        params=lambda args: {"mode": "due" if args.due else "force"},
        show=lambda answer, args: ["Ran." if answer.get("ran") else f"Not run: {answer.get('reason')}."],
        hint=_HINT,
        example="openclaw cron run d597ad21-0c43-4c0e-9a51-6a1c8a2f6f10",
        timeout_ms=RUN_TIMEOUT_MS,
    ),
    "runs": query(
        "Show how the last runs of a job went",
        "cron.runs",
        (
            Flag("--id ID", "the job, as `openclaw cron list` names it", param="id", required=True),
            Flag("--limit N", "this many runs", param="limit", type=int, default=50),
        ),
        show=_show_runs,
        example="openclaw cron runs --id d597ad21-0c43-4c0e-9a51-6a1c8a2f6f10",
    ),
}
COMMANDS = {"cron": Group(_ACTIONS, default="list")}
