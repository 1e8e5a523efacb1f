"""What all Gateways of an installation share, in numbers: read with the stores of the Gateway, whether one runs or not.

``openclaw doctor`` needs no more of the Gateway than this, so that it starts quickly.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openclaw.clock import Clock
from openclaw.config.load import read_config
from openclaw.gateway.auth.devices import Devices
from openclaw.inbound.pairing import PairingStore
from openclaw.scheduler.jobs import JobError, JobStore, jobs_place
from openclaw.storage.inspection import DatabaseFacts, open_to_look
from openclaw.tools.exec.approvals import ApprovalRules, BadRules


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
    async with open_to_look(state_dir, config, environ) as opened:
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
        jobs = JobStore(place.documents, place.jobs, clock.now_ms)
        try:
            await jobs.refresh()
            report.jobs = len(jobs.jobs)
            report.active_jobs = sum(job.get("enabled", True) is True for job in jobs.jobs.values())
        except JobError as bad:
            report.bad_jobs = str(bad)
        return report
