"""What the configuration lays down for every run of an agent, worked out once and kept until it changes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openclaw.agent.budget import budget_of, is_limited
from openclaw.agent.runtime import Runtime
from openclaw.config.agents import main_key, sandbox_config, workspace_dir
from openclaw.config.schema import Config
from openclaw.models.retry import RetrySettings


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    workspace: Path
    cwd: str
    """The same, as transcripts name it."""
    main_key: str
    sandboxes: bool
    """Tools of some of its sessions, or of all, are to run in a sandbox."""
    retry: RetrySettings
    limited: bool
    """It has a budget that can be used up."""


def terms_of(agent_id: str, runtime: Runtime) -> Terms:
    config = runtime.config.current
    return runtime.derived.of(config, ("terms", agent_id), lambda: _terms(config, agent_id, str(runtime.state_dir)))


def _terms(config: Config, agent_id: str, state_dir: str) -> Terms:
    workspace = workspace_dir(config, state_dir, agent_id)
    return Terms(
        workspace=workspace,
        cwd=str(workspace),
        main_key=main_key(config),
        sandboxes=sandbox_config(config, agent_id).mode != "off",
        retry=RetrySettings(
            enabled=config.retry.enabled,
            max_retries=config.retry.max_retries,
            base_delay_ms=config.retry.base_delay_ms,
            max_delay_ms=config.retry.max_delay_ms,
        ),
        limited=is_limited(budget_of(config, agent_id)),
    )
