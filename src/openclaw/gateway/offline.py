"""What commands learn from the stores without a running Gateway.

``answer_offline`` answers one call: the stores are opened, nothing listens and nothing runs. ``report_shared`` counts
what all Gateways of an installation share, whether one runs or not; ``openclaw doctor`` shows it.
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
from openclaw.gateway.assemble import close_gateway, open_gateway
from openclaw.gateway.auth.devices import Devices
from openclaw.gateway.http.rpc import NdjsonSink
from openclaw.gateway.server import registry
from openclaw.gateway.server.events import Client, ClientInfo
from openclaw.inbound.pairing import PairingStore
from openclaw.rights import ADMIN
from openclaw.scheduler.jobs import JobError, JobStore, jobs_place
from openclaw.storage.files.newer_state import check_generation
from openclaw.storage.files.session_store import sessions_folders
from openclaw.storage.inspection import DatabaseFacts, open_for_inspection
from openclaw.tools.exec.approvals import ApprovalRules, BadRules


async def answer_offline(
    state_dir: str, config_path: str, clock: Clock, environ: Mapping[str, str], method: str, params: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the reply as the Gateway would send it, and what is wrong with the configuration.

    The caller holds the lock of the folder, and calls only methods that read. A configuration that is not valid
    counts as an empty one. Raises ``Unreadable`` for a folder that this version cannot open.
    """
    config = ConfigStore(config_path, clock, environ)
    await config.reload()
    problems = [str(issue) for issue in config.snapshot.issues]
    check_generation(Path(state_dir), sessions_folders(state_dir, config.current.session.store))
    gateway = await open_gateway(state_dir, config, clock, environ, only_reads=True)
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


class SharedReport(msgspec.Struct, kw_only=True):
    """What all Gateways of an installation share, in numbers, and what of it cannot be read."""

    database: DatabaseFacts | None
    """None with files."""
    people: int = 0
    """Those who were let in by pairing."""
    people_waiting: int = 0
    devices: int = 0
    devices_waiting: int = 0
    rules: int = 0
    jobs: int = 0
    active_jobs: int = 0
    damaged: list[str] = []
    """Lists of people and devices that the Gateway would set aside."""
    bad_rules: str = ""
    bad_jobs: str = ""


async def report_shared(state_dir: str, config_path: str, clock: Clock, environ: Mapping[str, str]) -> SharedReport:
    """Reads people, devices, rules and jobs with the stores of the Gateway, and changes nothing.

    Raises ``OSError`` when the database cannot be reached, and ``StorageRefused``.
    """
    config = read_config(config_path, environ).config
    async with open_for_inspection(state_dir, config, environ) as opened:
        documents, report = opened.documents, SharedReport(database=opened.database)
        pairing, devices = PairingStore(documents, clock), Devices(documents, clock)
        report.people = sum(map(len, (await pairing.let_in()).values()))
        report.people_waiting = len(await pairing.pending())
        await devices.load()
        listed = devices.listing()
        report.devices, report.devices_waiting = len(listed["paired"]), len(listed["pending"])
        report.damaged = [documents.place(name) for name in documents.damaged]
        try:
            rules = (await ApprovalRules(documents, clock).snapshot()).file
            report.rules = sum(len(one.allowlist) for one in (rules.defaults, *rules.agents.values()))
        except BadRules as bad:
            report.bad_rules = str(bad)
        place = jobs_place(documents, config.cron.store)
        jobs = JobStore(place.documents, place.jobs, clock)
        try:
            await jobs.refresh()
            report.jobs = len(jobs.jobs)
            report.active_jobs = sum(job.get("enabled", True) is True for job in jobs.jobs.values())
        except JobError as bad:
            report.bad_jobs = str(bad)
        return report
