"""What a person is told when a model could not be called: what is wrong, what to do, and the provider's own words."""

from __future__ import annotations

from openclaw.models.base import ModelError

_ELSE = "choose another model with /model"
_LATER = f"Write again in a while, or {_ELSE}."
_WORDS = {
    "auth": f"The model's provider does not accept the key. Check it with `openclaw models status`, or {_ELSE}.",
    "billing": f"The account at the model's provider has nothing left to pay with. Settle it there, or {_ELSE}.",
    "rate_limit": f"The model's provider takes no more requests from this account for now. {_LATER}",
    "overloaded": f"The model's provider has too much to do at the moment. {_LATER}",
    "timeout": f"The model took too long to answer. {_LATER}",
    "network": f"The model could not be reached. Check the network and the provider's address, or {_ELSE}.",
    "format": f"The model's provider refused the request. The model may have another name there: {_ELSE}.",
    "other": f"Something went wrong at the model's provider. {_LATER}",
}


def in_plain_words(failure: ModelError) -> str:
    """What we say ourselves (no key, no budget left) is plain already; what came over the network is not."""
    words = _WORDS.get(failure.kind)
    refused = failure.status is not None and failure.status >= 400
    if words is None or not (refused or failure.kind == "network"):
        return str(failure)
    said = "The provider said: " if refused else ""
    return f"{words} ({said}{str(failure).rstrip('.')})"
