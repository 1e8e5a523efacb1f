"""What commands learn from the stores without a running Gateway.

``answer_offline`` answers one call: the stores are opened, nothing listens and nothing runs. ``check_shared``
checks what all Gateways of an installation share, whether one runs or not, for ``openclaw doctor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openclaw import __version__
from openclaw.clock import Clock
from openclaw.config.load import read_config
from openclaw.config.store import ConfigStore
from openclaw.findings import Finding
from openclaw.gateway.assemble import StartOptions, close_gateway, open_gateway
from openclaw.gateway.auth.devices import Devices
from openclaw.gateway.http.rpc import NdjsonSink
from openclaw.gateway.server import registry
from openclaw.gateway.server.events import Client, ClientInfo
from openclaw.inbound.pairing import PairingStore
from openclaw.rights import ADMIN
from openclaw.scheduler.jobs import JobError, JobStore, jobs_place
from openclaw.storage.files.newer_state import check_generation
from openclaw.storage.files.session_store import sessions_folders
from openclaw.storage.inspection import MOST_COUNTED, DatabaseFacts, open_for_inspection
from openclaw.text import counted
from openclaw.tools.exec.approvals import ApprovalRules, BadRules


async def answer_offline(
    state_dir: str, config_path: str, clock: Clock, environ: Mapping[str, str], method: str, params: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return the reply as the Gateway would send it, and what is wrong with the configuration.

    The caller holds the lock of the folder, and calls only methods that read. A configuration that is not valid
    counts as an empty one. Raises ``Unreadable`` for a folder that this version cannot open.
    """
    config = ConfigStore(config_path, clock, environ)
    await config.reload()
    problems = [str(issue) for issue in config.snapshot.issues]
    check_generation(Path(state_dir), sessions_folders(state_dir, config.current.session.store))
    gateway = await open_gateway(state_dir, config, clock, environ, StartOptions(only_reads=True))
    gateway.channel_services.channels.list_configured()
    try:
        client = Client(
            NdjsonSink(),
            conn_id="offline",
            role="operator",
            scopes=frozenset({ADMIN}),
            caps=frozenset(),
            client_info=ClientInfo(id="cli", version=__version__, platform="local", mode="cli"),
            is_local=True,
        )
        answer = await registry.answer(gateway, client, "1", method, msgspec.json.encode(params))
        return msgspec.json.decode(answer.frame), problems
    finally:
        await close_gateway(gateway)


async def check_shared(state_dir: str, config_path: str, clock: Clock, environ: Mapping[str, str]) -> list[Finding]:
    """Check people, devices, rules and jobs with the stores of the Gateway, and change nothing.

    Raises ``OSError`` if the database cannot be reached, and ``StorageRefused``.
    """
    config = read_config(config_path, environ).config
    async with open_for_inspection(state_dir, config, environ) as opened:
        documents = opened.documents
        findings = _database_findings(opened.database) if opened.database is not None else []
        pairing, devices = PairingStore(documents, clock), Devices(documents, clock)
        people = sum(map(len, (await pairing.approved()).values()))
        people_waiting = len(await pairing.pending())
        await devices.load()
        listed = devices.listing()
        text = f"{counted(people, 'person was', 'people were')} let in by pairing, {people_waiting} wait; "
        text += f"{counted(len(listed['paired']), 'device is', 'devices are')} paired, {len(listed['pending'])} wait"
        findings.append(Finding("pairing", "ok", text))
        for name in documents.damaged:
            text = f"{documents.place(name)} cannot be read. The Gateway will set it aside, and those whom it names "
            text += "must pair again"
            findings.append(Finding("pairing", "critical", text, "mend it, or put a backup in its place"))
        try:
            rules = (await ApprovalRules(documents, clock).snapshot()).file
            count = sum(len(agent.allowlist) for agent in (rules.defaults, *rules.agents.values()))
            findings.append(Finding("rules", "ok", f"{counted(count, 'rule allows', 'rules allow')} commands"))
        except BadRules as bad:
            findings.append(Finding("rules", "critical", f"no command runs: {bad}", "mend it, or remove it"))
        location = jobs_place(documents, config.cron.store)
        jobs = JobStore(location.documents, location.jobs, clock)
        try:
            await jobs.refresh()
            active = sum(job.get("enabled", True) is True for job in jobs.jobs.values())
            text = f"{counted(len(jobs.jobs), 'job is', 'jobs are')} scheduled, {active} of them switched on"
            findings.append(Finding("cron", "ok", text))
        except JobError as bad:
            fix = "mend it, or put a backup in its place"
            findings.append(Finding("cron", "critical", f"no job runs: {bad}", fix))
        return findings


def _database_findings(facts: DatabaseFacts) -> list[Finding]:
    def number(count: int, singular: str, plural: str) -> str:
        return counted(count, singular, plural) if count < MOST_COUNTED else f"{MOST_COUNTED} or more {plural}"

    later = "" if facts.has_tables else "; the first start of the Gateway makes its tables"
    messages = number(facts.messages, "message is", "messages are")
    return [
        Finding("storage", "ok", f"{facts.place} answers (PostgreSQL {facts.server}){later}"),
        Finding("sessions", "ok", f"{number(facts.sessions, 'session is', 'sessions are')} listed"),
        Finding("ledger", "ok", f"{messages} in the ledger, {facts.unfinished} unfinished"),
    ]
