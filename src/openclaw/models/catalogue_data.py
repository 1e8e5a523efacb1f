"""The tables of well-known providers and models. Models that are not listed here work too.

Windows, limits and prices are the vendors' public list figures. For vendors that charge more for very long prompts the
base tier is given. A price that is not certain is None and never zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

from openclaw.models.base import Model, Price


class ProviderFacts(msgspec.Struct, frozen=True):
    """What is known of a provider before anything is configured."""

    name: str
    label: str
    base_url: str
    key_env: tuple[str, ...] = ()
    """Environment variables that may hold the key, in the order they are tried."""
    default_model: str = ""
    """The default model when a key of this provider is found and no model is configured."""
    compat: dict[str, Any] = {}
    api: str = "openai-completions"
    resells: bool = False
    """Whether it offers other vendors' models. A bare model id means the vendor's own."""


_PLAIN = {"maxTokensField": "max_tokens", "supportsDeveloperRole": False}
_NO_DEVELOPER = {"supportsDeveloperRole": False}

_PROVIDERS = (
    # The order is the order of preference when several keys are found.
    ProviderFacts(
        "anthropic",
        "Anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_OAUTH_TOKEN", "ANTHROPIC_API_KEY"),
        "claude-sonnet-5-5",
        api="anthropic-messages",
    ),
    ProviderFacts(
        "openai", "OpenAI", "https://api.openai.com/v1", ("OPENAI_API_KEY",), "gpt-5.4", api="openai-responses"
    ),
    ProviderFacts(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        ("OPENROUTER_API_KEY",),
        "openrouter/auto",
        resells=True,
    ),
    ProviderFacts(
        "google",
        "Google Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "gemini-3.5-flash",
        _PLAIN,
    ),
    ProviderFacts("xai", "xAI", "https://api.x.ai/v1", ("XAI_API_KEY",), "grok-4.5", _NO_DEVELOPER),
    ProviderFacts(
        "groq",
        "Groq",
        "https://api.groq.com/openai/v1",
        ("GROQ_API_KEY",),
        "openai/gpt-oss-120b",
        _NO_DEVELOPER,
    ),
    ProviderFacts(
        "mistral", "Mistral", "https://api.mistral.ai/v1", ("MISTRAL_API_KEY",), "mistral-medium-latest", _PLAIN
    ),
    ProviderFacts(
        "deepseek", "DeepSeek", "https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",), "deepseek-v4-flash", _PLAIN
    ),
    ProviderFacts(
        "cerebras", "Cerebras", "https://api.cerebras.ai/v1", ("CEREBRAS_API_KEY",), compat=_NO_DEVELOPER, resells=True
    ),
    ProviderFacts(
        "minimax",
        "MiniMax",
        "https://api.minimax.io/anthropic",
        ("MINIMAX_API_KEY",),
        api="anthropic-messages",
    ),
    ProviderFacts(
        "minimax-cn",
        "MiniMax (China)",
        "https://api.minimaxi.com/anthropic",
        ("MINIMAX_CN_API_KEY",),
        api="anthropic-messages",
        resells=True,
    ),
    ProviderFacts(
        "kimi-coding",
        "Kimi Coding",
        "https://api.kimi.com/coding",
        ("KIMI_API_KEY",),
        api="anthropic-messages",
    ),
    ProviderFacts(
        "huggingface", "Hugging Face", "https://router.huggingface.co/v1", ("HF_TOKEN",), compat=_PLAIN, resells=True
    ),
    ProviderFacts("opencode", "OpenCode Zen", "https://opencode.ai/zen/v1", ("OPENCODE_API_KEY",), resells=True),
    # Only the address is listed. The model ids change too often for a table.
    ProviderFacts("moonshot", "Moonshot", "https://api.moonshot.ai/v1", ("MOONSHOT_API_KEY",), compat=_PLAIN),
    ProviderFacts("together", "Together", "https://api.together.xyz/v1", ("TOGETHER_API_KEY",), compat=_PLAIN),
    ProviderFacts("zai", "Z.AI", "https://api.z.ai/api/paas/v4", ("ZAI_API_KEY", "Z_AI_API_KEY"), compat=_PLAIN),
    ProviderFacts(
        "vercel-ai-gateway",
        "Vercel AI Gateway",
        "https://ai-gateway.vercel.sh/v1",
        ("AI_GATEWAY_API_KEY",),
        resells=True,
    ),
    # Servers on this machine need no key.
    ProviderFacts("ollama", "Ollama", "http://127.0.0.1:11434/v1", ("OLLAMA_API_KEY",), compat=_PLAIN),
    ProviderFacts("lmstudio", "LM Studio", "http://127.0.0.1:1234/v1", compat=_PLAIN),
    ProviderFacts("llamacpp", "llama.cpp", "http://127.0.0.1:8080/v1", compat=_PLAIN),
    ProviderFacts("vllm", "vLLM", "http://127.0.0.1:8000/v1", ("VLLM_API_KEY",), compat=_PLAIN),
)
PROVIDERS = {facts.name: facts for facts in _PROVIDERS}

PROVIDER_ALIASES = {"gemini": "google", "z.ai": "zai", "z-ai": "zai", "grok": "xai", "claude": "anthropic"}

MODEL_ALIASES = {
    "opus": "anthropic/claude-opus-5-5",
    "sonnet": "anthropic/claude-sonnet-5-5",
    "haiku": "anthropic/claude-haiku-5-5",
    "gpt": "openai/gpt-5.4",
    "gpt-mini": "openai/gpt-5-mini",
    "gemini": "google/gemini-3.1-pro-preview",
    "gemini-flash": "google/gemini-3.5-flash",
}
"""Short names of models. An alias of the config with the same name wins."""

LOCAL_PROVIDER = "local"
DEMO_MODEL = "smollm2-135m-instruct"
"""The embedded model. It is good for a first try and not for work."""

# Newer Claude models think adaptively (an effort) and refuse a fixed thinking budget.
_ADAPTIVE = {"thinking": "adaptive"}
_SEES = ("text", "image")


def _row(
    provider: str,
    model_id: str,
    name: str,
    window: int,
    max_tokens: int,
    price: tuple[float, ...] | None,
    *,
    reasoning: bool = True,
    sees: bool = True,
    compat: dict[str, Any] | None = None,
    api: str = "",
) -> Model:
    """``price`` is (input, output, cache read, cache write). Missing numbers are zero. ``api`` is the provider's."""
    facts = PROVIDERS[provider]
    fields = ("input", "output", "cache_read", "cache_write")
    return Model(
        provider=provider,
        id=model_id,
        name=name,
        api=api or facts.api,
        # Clients of the Anthropic protocol add the version to the address themselves.
        base_url=facts.base_url.removesuffix("/v1") if api == "anthropic-messages" else facts.base_url,
        reasoning=reasoning,
        input=_SEES if sees else ("text",),
        context_window=window,
        max_tokens=max_tokens,
        cost=None if price is None else Price(**dict(zip(fields, price, strict=False))),
        compat={**facts.compat, **(compat or {})},
    )


_CHOSEN: tuple[Model, ...] = (
    _row("anthropic", "claude-opus-5-5", "Claude Opus 5.5", 1_000_000, 128_000, (4, 20, 0.2, 5), compat=_ADAPTIVE),
    _row("anthropic", "claude-opus-5", "Claude Opus 5", 1_000_000, 128_000, (5, 25, 0.5, 6.25), compat=_ADAPTIVE),
    _row(
        "anthropic", "claude-sonnet-5-5", "Claude Sonnet 5.5", 1_000_000, 128_000, (2, 10, 0.1, 2.5), compat=_ADAPTIVE
    ),
    _row("anthropic", "claude-haiku-5-5", "Claude Haiku 5.5", 1_000_000, 128_000, None, compat=_ADAPTIVE),
    _row("anthropic", "claude-opus-4-6", "Claude Opus 4.6", 1_000_000, 128_000, (5, 25, 0.5, 6.25), compat=_ADAPTIVE),
    _row(
        "anthropic", "claude-sonnet-4-6", "Claude Sonnet 4.6", 1_000_000, 64_000, (3, 15, 0.3, 3.75), compat=_ADAPTIVE
    ),
    _row("anthropic", "claude-opus-4-5", "Claude Opus 4.5", 200_000, 64_000, (5, 25, 0.5, 6.25)),
    _row("anthropic", "claude-sonnet-4-5", "Claude Sonnet 4.5", 200_000, 64_000, (3, 15, 0.3, 3.75)),
    _row("anthropic", "claude-haiku-4-5", "Claude Haiku 4.5", 200_000, 64_000, (1, 5, 0.1, 1.25)),
    _row("anthropic", "claude-opus-4-1", "Claude Opus 4.1", 200_000, 32_000, (15, 75, 1.5, 18.75)),
    _row("openai", "gpt-5.6-sol", "GPT-5.6 Sol", 1_050_000, 128_000, None),
    _row("openai", "gpt-5.6-terra", "GPT-5.6 Terra", 1_050_000, 128_000, None),
    _row("openai", "gpt-5.6-luna", "GPT-5.6 Luna", 1_050_000, 128_000, None),
    _row("openai", "gpt-5.5", "GPT-5.5", 1_050_000, 128_000, (5, 30, 0.5)),
    _row("openai", "gpt-5.4", "GPT-5.4", 1_050_000, 128_000, (2.5, 15, 0.25)),
    _row("openai", "gpt-5.2", "GPT-5.2", 400_000, 128_000, (1.75, 14, 0.175)),
    _row("openai", "gpt-5.1", "GPT-5.1", 400_000, 128_000, (1.25, 10, 0.125)),
    _row("openai", "gpt-5", "GPT-5", 400_000, 128_000, (1.25, 10, 0.125)),
    _row("openai", "gpt-5-mini", "GPT-5 mini", 400_000, 128_000, (0.25, 2, 0.025)),
    _row("openai", "gpt-5-nano", "GPT-5 nano", 400_000, 128_000, (0.05, 0.4, 0.005)),
    _row("openai", "gpt-4.1", "GPT-4.1", 1_047_576, 32_768, (2, 8, 0.5), reasoning=False),
    _row("openai", "gpt-4.1-mini", "GPT-4.1 mini", 1_047_576, 32_768, (0.4, 1.6, 0.1), reasoning=False),
    _row("openai", "gpt-4o", "GPT-4o", 128_000, 16_384, (2.5, 10, 1.25), reasoning=False),
    _row("openai", "gpt-4o-mini", "GPT-4o mini", 128_000, 16_384, (0.15, 0.6, 0.075), reasoning=False),
    _row("google", "gemini-3.1-pro-preview", "Gemini 3.1 Pro (preview)", 1_048_576, 65_536, (2, 12, 0.2)),
    _row("google", "gemini-3.5-flash", "Gemini 3.5 Flash", 1_048_576, 65_536, (1.5, 9, 0.15)),
    _row("google", "gemini-3.1-flash-lite", "Gemini 3.1 Flash-Lite", 1_048_576, 65_536, (0.25, 1.5, 0.025)),
    _row("google", "gemini-2.5-pro", "Gemini 2.5 Pro", 1_048_576, 65_536, (1.25, 10, 0.125)),
    _row("google", "gemini-2.5-flash", "Gemini 2.5 Flash", 1_048_576, 65_536, (0.3, 2.5, 0.03)),
    _row("xai", "grok-4.5", "Grok 4.5", 500_000, 64_000, (2, 6, 0.5)),
    _row("xai", "grok-4", "Grok 4", 256_000, 64_000, (3, 15, 0.75)),
    _row("groq", "openai/gpt-oss-120b", "GPT-OSS 120B", 131_072, 65_536, (0.15, 0.6, 0.075), sees=False),
    _row("groq", "openai/gpt-oss-20b", "GPT-OSS 20B", 131_072, 65_536, None, sees=False),
    _row(
        "groq", "llama-3.3-70b-versatile", "Llama 3.3 70B", 131_072, 32_768, (0.59, 0.79), reasoning=False, sees=False
    ),
    _row("mistral", "mistral-large-latest", "Mistral Large", 262_144, 32_768, (0.5, 1.5), reasoning=False),
    _row("mistral", "mistral-medium-latest", "Mistral Medium", 131_072, 32_768, None, reasoning=False),
    _row("mistral", "mistral-small-latest", "Mistral Small", 128_000, 16_384, (0.1, 0.3), reasoning=False),
    _row("mistral", "codestral-latest", "Codestral", 256_000, 4_096, (0.3, 0.9), reasoning=False, sees=False),
    _row("deepseek", "deepseek-v4-flash", "DeepSeek V4 Flash", 1_000_000, 65_536, None, sees=False),
    _row("deepseek", "deepseek-v4-pro", "DeepSeek V4 Pro", 1_000_000, 65_536, None, sees=False),
    _row(
        "deepseek", "deepseek-chat", "DeepSeek Chat", 131_072, 8_192, (0.28, 0.42, 0.028), reasoning=False, sees=False
    ),
    _row("deepseek", "deepseek-reasoner", "DeepSeek Reasoner", 131_072, 65_536, (0.28, 0.42, 0.028), sees=False),
    _row("openrouter", "openrouter/auto", "OpenRouter Auto", 128_000, 8_192, None, reasoning=False),
    _row("openrouter", "anthropic/claude-sonnet-4.5", "Claude Sonnet 4.5", 200_000, 64_000, (3, 15, 0.3, 3.75)),
    _row("openrouter", "openai/gpt-5.2", "GPT-5.2", 400_000, 128_000, (1.75, 14, 0.175)),
    _row("openrouter", "google/gemini-2.5-pro", "Gemini 2.5 Pro", 1_048_576, 65_536, (1.25, 10, 0.125)),
    _row(
        "openrouter",
        "meta-llama/llama-3.3-70b-instruct",
        "Llama 3.3 70B",
        131_072,
        16_384,
        None,
        reasoning=False,
        sees=False,
    ),
)


def _table() -> Iterator[Model]:
    """The models of ``catalogue_table.tsv``, a line each."""
    for line in files("openclaw.models").joinpath("catalogue_table.tsv").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        provider, model_id, name, window, most, abilities, prices, api = (line.split("\t") + [""] * 8)[:8]
        yield _row(
            provider,
            model_id,
            name,
            int(window),
            int(most),
            tuple(map(float, prices.split())) or None,
            reasoning="reasons" in abilities,
            sees="sees" in abilities,
            api=api,
        )


MODELS: tuple[Model, ...] = (*_CHOSEN, *_table())
"""The models a person most likely wants come first."""


def is_demo(model: Model) -> bool:
    return model.provider == LOCAL_PROVIDER and model.id == DEMO_MODEL


def local_model(context_window: int = 8192) -> Model:
    """The embedded model."""
    return Model(
        provider=LOCAL_PROVIDER,
        id=DEMO_MODEL,
        name="SmolLM2 135M (embedded)",
        api="local",
        context_window=context_window,
        max_tokens=1024,
        cost=Price(),
        tools=False,
    )
