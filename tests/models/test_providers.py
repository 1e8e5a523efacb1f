from __future__ import annotations

import subprocess
import sys

import pytest

from openclaw.models.anthropic import AnthropicProvider
from openclaw.models.base import Model, ModelError
from openclaw.models.openai_chat import OpenAIChatProvider
from openclaw.models.openai_responses import OpenAIResponsesProvider
from openclaw.models.providers import provider_for


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("anthropic-messages", AnthropicProvider),
        ("openai-completions", OpenAIChatProvider),
        ("openai-responses", OpenAIResponsesProvider),
    ],
)
def test_the_api_of_a_model_chooses_its_adapter(api: str, kind: type) -> None:
    model = Model(provider="p", id="m", api=api)
    assert isinstance(provider_for(model), kind)
    assert provider_for(model) is provider_for(model)


def test_an_unknown_api_is_named_with_what_is_possible() -> None:
    with pytest.raises(ModelError, match=r"p/m has the unknown api 'telepathy'.*anthropic-messages"):
        provider_for(Model(provider="p", id="m", api="telepathy"))


def test_choosing_imports_nothing_before_it_is_needed() -> None:
    code = "import openclaw.models.providers, sys; print('aiohttp' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
