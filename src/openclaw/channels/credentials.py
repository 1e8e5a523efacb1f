"""Finds the tokens and passwords of a channel's account: in the configuration, or in the environment."""

from __future__ import annotations

import asyncio

from openclaw.channels.base import ChannelContext, NotConfigured
from openclaw.config.channels import DEFAULT_ACCOUNT
from openclaw.config.schema.base import SecretRef
from openclaw.config.secrets import SecretUnavailable, resolve_secret
from openclaw.redact import know


async def secret_of(context: ChannelContext, secret: str | SecretRef | None, where: str, variable: str = "") -> str:
    """The secret itself. The redactor knows it from now on. Raises ``NotConfigured`` if it cannot be had.

    ``where`` is its key path, ``variable`` the environment variable that the default account falls back to.
    """
    try:
        found = await asyncio.to_thread(resolve_secret, secret, context.environ, where)
    except SecretUnavailable as missing:
        raise NotConfigured(str(missing)) from None
    if not found and context.account.id == DEFAULT_ACCOUNT:
        found = context.environ.get(variable, "")
    if not (found or "").strip():
        raise NotConfigured(f"set {where}")
    token = (found or "").strip()
    know([token])
    return token
