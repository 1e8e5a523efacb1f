"""A setting that has no effect says so when it is made, one that promises safety stops the start, and the tables fit
the code."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from openclaw.clock import SystemClock
from openclaw.config.load import parse_config
from openclaw.config.store import ConfigInvalid, ConfigStore
from openclaw.config.unsupported import SAFETY, UNSUPPORTED, UNSUPPORTED_VALUES

from .schema_reads import Reads, Schema

READ_OTHERWISE = {
    "$schema": "for editors",
    "meta.*": "notes about the file",
    "wizard.*": "notes about the file",
    "env.vars": "config/load.py, before there is a record",
    "env.[*]": "config/load.py, before there is a record",
    "logging.*": "a protocol in logs.py",
    "auth.order": "getattr in models/keys.py",
    "models.providers.[*].models[[]].cost.*": "an untyped argument in models/catalogue.py",
    "agents.defaults.budget.*": "getattr in the budget's check",
    "agents.list[[]].budget.*": "getattr in the budget's check",
    "agents.list[[]].identity.*": "getattr in gateway/methods/agents.py",
    "tools.exec.*": "converted to ExecSettings as a whole",
    "agents.list[[]].tools.exec.*": "converted to ExecSettings as a whole",
    "channels.telegram.*topics.*": "group_settings in inbound/access.py, which reads groups and topics alike",
    "channels.discord.*maxLinesPerMessage": "getattr in outbound/chunking.py",
