"""What is put before a reply: ``responsePrefix``, a text that may name the model and the agent."""

from __future__ import annotations

import re

import msgspec

from openclaw.config.agents import agent_config
from openclaw.config.channels import account_settings
from openclaw.config.schema import Config
from openclaw.outbound.silence import HEARTBEAT_OK

AUTO = "auto"
"""The agent's name in brackets."""
_VARIABLE = re.compile(r"\{([a-zA-Z][a-zA-Z0-9.]{0,40})\}")
_DATE = re.compile(r"-\d{8}\Z")


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers."""

    agent_id: str
    model: str = ""
    """As ``provider/model``."""
    thinking: str = ""


def short_model(model: str) -> str:
    """``openai/gpt-5.2`` → ``gpt-5.2``: without the provider, a date and ``-latest``."""
    return _DATE.sub("", model.rpartition("/")[2]).removesuffix("-latest")


def response_prefix(config: Config, channel: str, account_id: str | None, speaker: Speaker) -> str:
    """The prefix of the account, or else of all messages. Empty means none, also where ``""`` is configured."""
    account = account_settings(config, channel, account_id)
    own = account.response_prefix if account is not None else None
    template = own if own is not None else config.messages.response_prefix
    agent = agent_config(config, speaker.agent_id)
    name = (agent.identity.name if agent is not None else None) or ""
    if not template:
        return ""
    if template == AUTO:
        return f"[{name}]" if name else ""
    return _filled(template, speaker, name)


def _filled(template: str, speaker: Speaker, name: str) -> str:
    provider = speaker.model.partition("/")[0] if "/" in speaker.model else ""
    values = {
        "model": short_model(speaker.model),
        "modelfull": speaker.model,
        "provider": provider,
        "thinkinglevel": speaker.thinking or "off",
        "think": speaker.thinking or "off",
        "identity.name": name,
        "identityname": name,
    }
    # What is unknown stays as it is written, so that the owner sees what is wrong.
    return _VARIABLE.sub(lambda found: values.get(found[1].lower()) or found[0], template)


def prefixed(text: str, prefix: str) -> str:
    """The text behind the prefix, unless it begins with it or says nothing."""
    if not prefix or not text.strip() or text.strip() == HEARTBEAT_OK or text.startswith(prefix):
        return text
    return f"{prefix} {text}"
