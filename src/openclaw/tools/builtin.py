"""The tools every agent can have, put together from one record of settings."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openclaw.tools.approval_rules import ApprovalRules
from openclaw.tools.approvals import Approvals
from openclaw.tools.base import Tool
from openclaw.tools.edit import EditTool
from openclaw.tools.exec import ExecTool
from openclaw.tools.exec_gate import Gate
from openclaw.tools.exec_settings import ExecSettings
from openclaw.tools.opener import PathOpener
from openclaw.tools.process import ProcessTool
from openclaw.tools.process_registry import ProcessRegistry
from openclaw.tools.read import ReadTool
from openclaw.tools.write import WriteTool


class ToolSettings(msgspec.Struct, kw_only=True):
    confine: bool = False
    """File tools stay inside the workspace (and read ``extra_roots``)."""
    extra_roots: list[Path] = []
    exec: ExecSettings = msgspec.field(default_factory=ExecSettings)


def built_in_tools(
    *,
    workspace: Path,
    settings: ToolSettings,
    processes: ProcessRegistry,
    rules: ApprovalRules | None = None,
    approvals: Approvals | None = None,
) -> list[Tool]:
    opener = PathOpener(workspace, confine=settings.confine, extra_roots=settings.extra_roots)
    return [
        ReadTool(opener),
        WriteTool(opener),
        EditTool(opener),
        ExecTool(settings.exec, processes, Gate(settings.exec, rules, approvals)),
        ProcessTool(processes),
    ]
