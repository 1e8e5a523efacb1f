"""Sizes of what a run gave the model, taken from the parts the prompt was built of. Never the prompt itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from openclaw.agent.bootstrap import effective_max_chars, untold_warnings
from openclaw.agent.prompt import PromptFacts, SystemPrompt
from openclaw.config.agents import sandbox_config
from openclaw.config.schema import Config

if TYPE_CHECKING:
    from openclaw.agent.runtime import Turn


class PromptReport(msgspec.Struct, frozen=True):
    own: dict[str, Any]
    """What belongs to one run."""
    shared: dict[str, Any]
    """What is the same for every run with this prompt. Never mutate it."""
    warnings: list[str] = []
    """What the person is to be told for the first time."""

    def whole(self) -> dict[str, Any]:
        """In the shape clients know."""
        return {**self.own, **self.shared, **({"warnings": self.warnings} if self.warnings else {})}


UNSEEN_SOURCES = ("", "cron", "heartbeat", "hook")
"""Runs nobody reads along: a warning given there would be lost."""


def prompt_report(turn: Turn, facts: PromptFacts, shared: dict[str, Any], now_ms: int) -> PromptReport:
    own = {"source": "run", "generatedAt": now_ms, "sessionId": turn.session_id, "sessionKey": turn.session_key}
    seen = facts.mode == "full" and turn.source not in UNSEEN_SOURCES
    return PromptReport(own, shared, untold_warnings(facts.files) if seen else [])


def shared_report(facts: PromptFacts, prompt: SystemPrompt, config: Config) -> dict[str, Any]:
    """What is the same for every run with this prompt."""
    schemas = [msgspec.json.encode(tool.spec.parameters) for tool in facts.tools]
    shown = facts.skills.skills if prompt.skills_chars else ()
    return {
        "provider": facts.model.provider,
        "model": facts.model.id,
        "workspaceDir": facts.workspace,
        "bootstrapMaxChars": effective_max_chars(
            config.agents.defaults.bootstrap_max_chars, facts.model.context_window
        ),
        "sandbox": {"mode": sandbox_config(config, facts.agent_id).mode, "sandboxed": False},
        "systemPrompt": {
            "chars": prompt.chars,
            "projectContextChars": prompt.project_context_chars,
            "nonProjectContextChars": prompt.chars - prompt.project_context_chars,
        },
        "injectedWorkspaceFiles": [
            {
                "name": file.name,
                "path": file.path,
                "missing": file.missing,
                "rawChars": file.raw_chars,
                "injectedChars": len(file.text),
                "truncated": file.truncated,
            }
            for file in facts.files
        ],
        "skills": {
            "promptChars": prompt.skills_chars,
            "entries": [{"name": skill.name, "blockChars": len(skill.block.strip())} for skill in shown],
        },
        "tools": {
            "listChars": prompt.tool_list_chars,
            "schemaChars": sum(len(schema) for schema in schemas),
            "entries": [
                {
                    "name": tool.spec.name,
                    "summaryChars": len(tool.spec.description.strip()),
                    "schemaChars": len(schema),
                    "propertiesCount": len(tool.spec.parameters.get("properties", {})),
                }
                for tool, schema in zip(facts.tools, schemas, strict=True)
            ],
        },
    }
