"""The catalogue: names, windows, overrides, and the default when nobody chose."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.config.load import build
from openclaw.gateway.methods.models import ListedModel
from openclaw.models.base import Model, Price
from openclaw.models.catalogue import Catalogue, UnknownModel
from openclaw.models.catalogue_data import MODEL_ALIASES, MODELS, PROVIDERS

_HERE = "http://127.0.0.1:11434/v1"
OLLAMA = [
    Model(provider="ollama", id="gemma3:4b", base_url=_HERE, context_window=8192, tools=False, input=("text", "image")),
    Model(provider="ollama", id="qwen3:8b", base_url=_HERE, context_window=40_960, reasoning=True, cost=Price()),
]
LM_STUDIO = [Model(provider="lmstudio", id="some-model", base_url="http://127.0.0.1:1234/v1")]


def catalogue(config: dict[str, Any] | None = None, environ: dict[str, str] | None = None, **more: Any) -> Catalogue:
    return Catalogue(build(config or {}), environ or {}, **{"state_dir": "/nonexistent", **more})


def provider(**fields: Any) -> dict[str, Any]:
    return {"models": {"providers": {"acme": {"baseUrl": "https://api.acme.test/v1", **fields}}}}


def test_every_built_in_model_is_complete_and_found_by_its_name() -> None:
    known = catalogue()
    for model in MODELS:
        assert model.base_url.startswith("https://"), model.ref
        assert model.name and 0 < model.max_tokens <= model.context_window, model.ref
        assert known.resolve(model.ref) == model


def test_the_models_of_every_vendor_and_reseller_are_listed() -> None:
    rows = catalogue().all()
    providers = Counter(model.provider for model in rows)
    for name in ("anthropic", "openai", "google", "xai", "groq", "mistral", "zai", "minimax", "openrouter", "opencode"):
        assert providers[name] > 1, name
    assert len(rows) > 500


def test_a_bare_id_means_the_vendors_own_model() -> None:
    assert catalogue().resolve("gpt-5-codex").ref == "openai/gpt-5-codex"
    only_reseller = catalogue(environ={"OPENCODE_API_KEY": "k"})
    assert only_reseller.resolve("gpt-5-codex").ref == "opencode/gpt-5-codex"


def test_no_reference_is_listed_twice() -> None:
    refs = [model.ref.lower() for model in catalogue(discovered=OLLAMA).all()]
    assert len(refs) == len(set(refs))


@pytest.mark.parametrize("name", [name for name, facts in PROVIDERS.items() if facts.default_model])
def test_the_default_model_of_a_provider_is_listed(name: str) -> None:
    assert any(model.ref == f"{name}/{PROVIDERS[name].default_model}" for model in MODELS)


@pytest.mark.parametrize("alias", MODEL_ALIASES)
def test_a_built_in_alias_names_a_listed_model(alias: str) -> None:
    assert catalogue().resolve(alias.upper()).ref == MODEL_ALIASES[alias]


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("anthropic/claude-opus-4-6", "anthropic/claude-opus-4-6"),
        ("  Anthropic/claude-opus-4-6 ", "anthropic/claude-opus-4-6"),
        ("anthropic/claude-opus-4.6", "anthropic/claude-opus-4-6"),
        ("claude-haiku-4-5", "anthropic/claude-haiku-4-5"),
        ("gemini/gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("groq/openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),
        ("openai/gpt-oss-120b", "groq/openai/gpt-oss-120b"),
        ("openrouter/auto", "openrouter/openrouter/auto"),
        ("openrouter/anthropic/claude-sonnet-4.5", "openrouter/anthropic/claude-sonnet-4.5"),
        ("local/smollm2-135m-instruct", "local/smollm2-135m-instruct"),
    ],
)
def test_a_model_is_found_however_a_person_writes_it(ref: str, expected: str) -> None:
    assert catalogue().resolve(ref).ref == expected


def test_an_alias_of_the_config_wins_over_a_built_in_one() -> None:
    config = {"agents": {"defaults": {"models": {"openai/gpt-5-mini": {"alias": "Opus"}}}}}
    assert catalogue(config).resolve("opus").ref == "openai/gpt-5-mini"


def test_an_unknown_model_error_names_the_nearest_and_how_to_configure() -> None:
    with pytest.raises(UnknownModel) as error:
        catalogue().resolve("anthropic/claude-opsu-4-6")
    assert "anthropic/claude-opus-4-6" in str(error.value)
    assert "models.providers.anthropic" in str(error.value)


@pytest.mark.parametrize("ref", ["", "/", "acme/", "/x", "local/other", "nosuch/model"])
def test_a_name_that_is_no_model_is_refused(ref: str) -> None:
    with pytest.raises(UnknownModel):
        catalogue().resolve(ref)


@given(st.text(max_size=40))
def test_any_text_gives_a_model_or_a_clear_refusal(text: str) -> None:
    try:
        assert catalogue(environ={"ANTHROPIC_API_KEY": "k"}).resolve(text).provider
    except UnknownModel as error:
        assert repr(text.strip()) in str(error) or "Several providers" in str(error)


def test_a_bare_id_of_two_configured_providers_must_be_written_out() -> None:
    row = {"baseUrl": "http://127.0.0.1:9/v1", "models": [{"id": "same"}]}
    with pytest.raises(UnknownModel, match="one/same, two/same"):
        catalogue({"models": {"providers": {"one": row, "two": row}}}).resolve("same")


def test_a_model_a_configured_provider_does_not_list_is_accepted_with_defaults() -> None:
    model = catalogue(provider(api="anthropic-messages", headers={"x-team": "a"})).resolve("acme/brand-new")
    assert (model.context_window, model.max_tokens, model.cost) == (200_000, 8192, None)
    assert (model.api, model.base_url, model.headers) == (
        "anthropic-messages",
        "https://api.acme.test/v1",
        {"x-team": "a"},
    )


def test_an_unlisted_model_takes_the_window_of_the_providers_first() -> None:
    rows = [{"id": "a", "contextWindow": 50_000, "maxTokens": 2000}]
    model = catalogue(provider(models=rows)).resolve("acme/b")
    assert (model.context_window, model.max_tokens) == (50_000, 2000)


def test_a_new_model_of_a_known_provider_is_accepted_once_its_key_is_there() -> None:
    with pytest.raises(UnknownModel):
        catalogue().resolve("openai/gpt-99")
    assert catalogue(environ={"OPENAI_API_KEY": "k"}).resolve("openai/gpt-99").api == "openai-responses"


def test_a_configured_model_has_the_documented_defaults() -> None:
    model = catalogue(provider(models=[{"id": "m", "contextWindow": 4000}])).resolve("acme/m")
    assert (model.api, model.name, model.max_tokens) == ("openai-completions", "m", 4000)
    assert (model.reasoning, model.input, model.cost, model.tools) == (False, ("text",), None, True)


def test_overriding_one_field_of_a_known_model_keeps_the_others() -> None:
    rows = [{"id": "claude-sonnet-4-5", "contextWindow": 90_000, "cost": {"input": 1, "output": 2}}]
    model = catalogue({"models": {"providers": {"anthropic": {"models": rows}}}}).resolve("anthropic/claude-sonnet-4-5")
    assert (model.context_window, model.max_tokens, model.reasoning) == (90_000, 64_000, True)
    assert model.cost == Price(input=1, output=2)
    assert model.input == ("text", "image") and model.base_url == "https://api.anthropic.com"


def test_a_proxy_address_applies_to_every_model_of_the_provider() -> None:
    config = {"models": {"providers": {"openai": {"baseUrl": "https://proxy.test/v1/"}}}}
    assert {m.base_url for m in catalogue(config).all() if m.provider == "openai"} == {"https://proxy.test/v1"}


def test_replace_mode_hides_the_built_in_models_but_not_the_embedded_one() -> None:
    config = provider(models=[{"id": "m"}])
    config["models"]["mode"] = "replace"
    assert [model.ref for model in catalogue(config).all()] == ["acme/m", "local/smollm2-135m-instruct"]


def test_context_tokens_caps_every_window() -> None:
    models = catalogue({"agents": {"defaults": {"contextTokens": 30_000}}}).all()
    assert max(model.context_window for model in models) == 30_000
    assert all(model.max_tokens <= model.context_window for model in models)


@pytest.mark.parametrize(
    ("api", "given_url", "expected"),
    [
        ("ollama", "http://127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("ollama", "http://127.0.0.1:11434/v1/", "http://127.0.0.1:11434/v1"),
        ("google-generative-ai", "https://g.test/v1beta/openai", "https://g.test/v1beta/openai"),
    ],
)
def test_protocols_of_existing_configs_use_the_compatible_endpoint(api: str, given_url: str, expected: str) -> None:
    config = {"models": {"providers": {"x": {"api": api, "baseUrl": given_url, "models": [{"id": "m"}]}}}}
    model = catalogue(config).resolve("x/m")
    assert (model.api, model.base_url) == ("openai-completions", expected)


def test_programs_that_answer_are_listed_with_the_models_that_the_configuration_names() -> None:
    defaults = {
        "model": {"primary": "my-cli/large", "fallbacks": ["codex-cli/gpt-5.4", "mock/m"]},
        "models": {"claude-cli/opus": {"alias": "deep"}},
        "cliBackends": {"my-cli": {"command": "my-cli"}},
    }
    listed = catalogue({"agents": {"defaults": defaults}})
    programs = [model.ref for model in listed.available() if model.api == "cli"]
    assert programs == ["my-cli/large", "codex-cli/gpt-5.4", "claude-cli/opus"]
    assert listed.resolve("deep").api == listed.resolve("my-cli/small").api == "cli"


def test_a_header_may_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "team").write_text("blue\n")
    headers = {"x-a": {"env": "TEAM"}, "x-b": {"file": str(tmp_path / "team")}, "x-c": {"command": ["date"]}}
    model = catalogue(provider(headers=headers, models=[{"id": "m"}]), {"TEAM": "red"}).resolve("acme/m")
    assert model.headers == {"x-a": "red", "x-b": "blue"}


def test_models_found_running_here_are_listed_with_their_window_and_abilities() -> None:
    listed = catalogue(discovered=OLLAMA)
    model = listed.resolve("ollama/qwen3:8b")
    assert (model.context_window, model.tools, model.reasoning, model.cost) == (40_960, True, True, Price())
    assert not listed.resolve("ollama/gemma3:4b").tools


def test_the_embedded_model_is_free_small_and_without_tools() -> None:
    model = catalogue().resolve("local/smollm2-135m-instruct")
    assert (model.api, model.tools, model.cost, model.context_window) == ("local", False, Price(), 8192)


def test_a_weights_file_of_ones_own_is_a_local_model() -> None:
    config = {"models": {"providers": {"mine": {"api": "local", "baseUrl": "/m/x.gguf", "models": [{"id": "x"}]}}}}
    model = catalogue(config).resolve("mine/x")
    assert (model.api, model.base_url, model.context_window, model.tools) == ("local", "/m/x.gguf", 8192, False)
    assert model.cost == Price()


def test_a_public_row_holds_what_clients_read() -> None:
    row = ListedModel.of(catalogue().resolve("openai/gpt-4o"), available=True)
    assert msgspec.to_builtins(row) == {
        "id": "gpt-4o",
        "name": "GPT-4o",
        "provider": "openai",
        "contextWindow": 128_000,
        "reasoning": False,
        "input": ["text", "image"],
        "available": True,
    }


# The default


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("ANTHROPIC_API_KEY", "anthropic/"),
        ("OPENAI_API_KEY", "openai/"),
        ("OPENROUTER_API_KEY", "openrouter/"),
        ("GEMINI_API_KEY", "google/"),
        ("XAI_API_KEY", "xai/"),
        ("GROQ_API_KEY", "groq/"),
        ("MISTRAL_API_KEY", "mistral/"),
        ("DEEPSEEK_API_KEY", "deepseek/"),
    ],
)
def test_a_key_in_the_environment_decides_the_default_and_is_named(variable: str, expected: str) -> None:
    listed = catalogue(environ={variable: "secret-value"}, discovered=OLLAMA)
    assert listed.default_for(build({}), "main").ref.startswith(expected)
    why = listed.choose(build({}), "main").why
    assert f"because {variable} is set" in why
    assert "secret-value" not in why


EXPLICIT = {"agents": {"defaults": {"model": "openai/gpt-4o"}}}
CONFIGURED = provider(models=[{"id": "house"}])


@pytest.mark.parametrize(
    ("config", "environ", "found", "ref", "reason"),
    [
        ({**EXPLICIT, **CONFIGURED}, {"ANTHROPIC_API_KEY": "k"}, OLLAMA, "openai/gpt-4o", "the config names it"),
        (CONFIGURED, {"ANTHROPIC_API_KEY": "k"}, OLLAMA, "acme/house", "models.providers"),
        ({}, {"MISTRAL_API_KEY": "k", "OPENAI_API_KEY": "k"}, OLLAMA, "openai/gpt-5.4", "OPENAI_API_KEY"),
        ({}, {"OPENAI_API_KEY": "  "}, OLLAMA, "ollama/qwen3:8b", "http://127.0.0.1:11434"),
        ({}, {}, LM_STUDIO, "local/smollm2-135m-instruct", "openclaw models install local"),
        ({}, {}, [], "local/smollm2-135m-instruct", "no key and no local server"),
    ],
)
def test_the_default_is_the_first_thing_at_hand(
    config: dict[str, Any], environ: dict[str, str], found: list[Model], ref: str, reason: str
) -> None:
    listed = catalogue(config, environ, discovered=found)
    choice = listed.choose(build(config), "main")
    assert choice.model.ref == ref
    assert reason in choice.why


def test_an_agent_has_its_own_model() -> None:
    config = {"agents": {**EXPLICIT["agents"], "list": [{"id": "main"}, {"id": "ops", "model": {"primary": "haiku"}}]}}
    listed = catalogue(config)
    assert listed.default_for(build(config), "ops").provider == "anthropic"
    assert listed.default_for(build(config), "main").ref == "openai/gpt-4o"


def test_a_key_given_only_in_the_config_counts() -> None:
    config = {"models": {"providers": {"anthropic": {"apiKey": "k"}}}}
    why = catalogue(config).choose(build(config), "main").why
    assert why.endswith("because models.providers.anthropic.apiKey is set in the config")


def test_a_stored_credential_counts(tmp_path: Path) -> None:
    folder = tmp_path / "agents" / "main" / "agent"
    folder.mkdir(parents=True)
    profiles = {"anthropic:default": {"type": "api_key", "provider": "anthropic", "key": "k"}}
    (folder / "auth-profiles.json").write_text(json.dumps({"version": 1, "profiles": profiles}))
    listed = catalogue(state_dir=str(tmp_path))
    assert "stored credential for Anthropic" in listed.choose(build({}), "main").why


def test_only_models_that_could_answer_are_available() -> None:
    providers = {model.provider for model in catalogue(environ={"GROQ_API_KEY": "k"}, discovered=OLLAMA).available()}
    assert providers == {"groq", "ollama", "local"}


def test_an_installed_program_is_no_model_unless_the_configuration_names_it() -> None:
    with pytest.raises(UnknownModel, match=r"agents\.defaults\.models"):
        catalogue().resolve("codex-cli/gpt-5.4")
    assert not catalogue().is_usable("codex-cli")
    named = catalogue({"agents": {"defaults": {"models": {"codex-cli/gpt-5.4": {}}}}})
    assert named.resolve("codex-cli/other").api == "cli"


def test_agents_choose_a_program_only_if_it_is_one_of_their_own_models() -> None:
    coder = {"id": "coder", "model": {"primary": "mock/m", "fallbacks": ["my-cli/large"]}}
    defaults = {"model": "mock/m", "cliBackends": {"my-cli": {"command": "x"}}}
    known = catalogue({"agents": {"defaults": defaults, "list": [{"id": "main"}, coder]}})
    known.check_choice(known.resolve("my-cli/large"), "coder")
    for agent_id, name in (("main", "my-cli/large"), ("coder", "my-cli/other")):
        with pytest.raises(UnknownModel, match="Only the owner"):
            known.check_choice(known.resolve(name), agent_id)
