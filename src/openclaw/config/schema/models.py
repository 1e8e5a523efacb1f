"""``models`` and ``auth``: providers, their models, and the credentials used with them."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, field

from openclaw.config.schema.base import Amount, Name, OpenMap, Positive, Record, Secret, Sensitive

_APIS = [
    "anthropic-messages",
    "openai-completions",
    "openai-responses",
    "openai-codex-responses",
    "google-generative-ai",
    "github-copilot",
    "bedrock-converse-stream",
    "ollama",
    "local",
]
ModelApi: TypeAlias = Annotated[
    str,
    Meta(pattern=f"^({'|'.join(_APIS)}|[a-z0-9_-]+/[a-z0-9_-]+)$", examples=[*_APIS, "<extension>/<protocol>"]),
]


Modality: TypeAlias = Literal["text", "image"]


class ModelCost(Record):
    """US dollars per million tokens."""

    input: Amount = 0
    """Prompt tokens that were not cached."""
    output: Amount = 0
    """Generated tokens."""
    cache_read: Amount = 0
    """Prompt tokens read from the provider's cache."""
    cache_write: Amount = 0
    """Prompt tokens written to the provider's cache."""


class ModelConfig(Record):
    id: Name
    """Id the provider knows the model by."""
    name: str | None = None
    """Name to show."""
    api: ModelApi | None = None
    """Wire protocol, when it is not the provider's."""
    reasoning: bool = False
    """The model can think before it answers."""
    input: list[Modality] = field(default_factory=lambda: ["text"])
    """What the model accepts."""
    cost: ModelCost | None = None
    """Prices; unset means unknown, not free."""
    context_window: Positive = 200_000
    """Tokens of prompt and answer together."""
    max_tokens: Positive | None = None
    """Tokens of one answer at most; unset means the smaller of 8192 and the window."""
    headers: dict[str, Sensitive] = {}
    """HTTP headers for this model."""
    compat: OpenMap = {}
    """Deviations of the endpoint from its protocol (supportsStore, maxTokensField, thinkingFormat and others)."""
    tools: bool = True
    """The model can call tools."""


class ProviderConfig(Record):
    base_url: str | None = None
    """Address of the API; known providers have one built in."""
    api_key: Secret | None = None
    """The key, or where it is kept."""
    auth: Literal["api-key", "aws-sdk", "oauth", "token"] | None = None
    """How requests are authorised."""
    api: ModelApi | None = None
    """Wire protocol of this provider."""
    headers: dict[str, Secret] = {}
    """HTTP headers for every request."""
    auth_header: bool | None = None
    """Send the key as an Authorization bearer header."""
    models: list[ModelConfig] = []
    """Models offered besides, or instead of, the catalogue."""


class BedrockDiscovery(Record):
    enabled: bool = False
    """List the models of the account."""
    region: str | None = None
    """AWS region."""
    provider_filter: list[str] = []
    """Only models of these vendors."""
    refresh_interval: int = 3600
    """Seconds between two listings."""
    default_context_window: Positive = 32_000
    """Window of models that do not say."""
    default_max_tokens: Positive = 4096
    """Answer limit of models that do not say."""


class Models(Record):
    mode: Literal["merge", "replace"] = "merge"
    """Add to the built-in catalogue or replace it."""
    providers: dict[str, ProviderConfig] = {}
    """Providers by id, the part of a model name before the slash."""
    bedrock_discovery: BedrockDiscovery = BedrockDiscovery()
    """Models of an AWS account."""
    proxy: str | None = None
    """HTTP proxy for model calls."""


class AuthProfile(Record):
    provider: Name
    """Provider the credential belongs to."""
    mode: Literal["api_key", "oauth", "token"]
    """Kind of credential."""
    email: str | None = None
    """Account it belongs to."""


class AuthCooldowns(Record):
    billing_backoff_hours: Amount = 5
    """Pause of a profile after its first billing error."""
    billing_backoff_hours_by_provider: dict[str, float] = {}
    """The same per provider."""
    billing_max_hours: Amount = 24
    """Pause at most."""
    failure_window_hours: Amount = 24
    """Failures older than this are forgotten."""


class Auth(Record):
    profiles: dict[str, AuthProfile] = {}
    """Credentials by profile id; the secrets themselves are kept elsewhere."""
    order: dict[str, list[str]] = {}
    """Profile ids per provider in the order they are tried."""
    cooldowns: AuthCooldowns = AuthCooldowns()
    """Pauses after failures."""
