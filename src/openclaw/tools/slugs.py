"""Short names for background processes that a model can repeat without mistakes."""

from __future__ import annotations

import secrets
from collections.abc import Container

_FIRST_WORDS = (
    "amber brave brisk calm clear cool crisp dawn deep eager early fair fast fine firm fond fresh glad gold grand "
    "green keen kind light live lucky mild neat new nimble noble plain proud quick quiet rapid rare ready rich round "
    "salty sharp silent silver smart soft solid steady still sunny swift tidy tender tiny vast vivid warm wild wise"
)
_SECOND_WORDS = (
    "atlas bay beach bird bloom breeze brook canyon cedar claw cloud comet coral cove crab creek crest daisy delta "
    "dune ember falcon fern field fjord forest glade gulf harbor haven heron island kelp lagoon lake leaf lobster "
    "meadow mist moss nexus ocean orbit otter palm pebble pine reef ridge river sage shell shore slope star stone "
    "summit tide trail valley wave willow"
)
_FIRST, _SECOND = _FIRST_WORDS.split(), _SECOND_WORDS.split()


def new_slug(taken: Container[str]) -> str:
    for _ in range(32):
        slug = f"{secrets.choice(_FIRST)}-{secrets.choice(_SECOND)}"
        if slug not in taken:
            return slug
    return f"{secrets.choice(_FIRST)}-{secrets.choice(_SECOND)}-{secrets.token_hex(3)}"
