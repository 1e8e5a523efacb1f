"""``agents.defaults.memorySearch``: how an agent finds its notes again."""

from typing import Annotated, Literal

from msgspec import Meta

from openclaw.config.schema.base import Count, OpenMap, Ratio, Record, Secret, Sensitive


class MemoryRemote(Record):
    base_url: str | None = None
    """Address of the embedding server; unset means the provider's own."""
    api_key: Secret | None = None
    """Its key; unset means the provider's key under models.providers or in the environment."""
    headers: dict[str, Sensitive] = {}
    """HTTP headers for every request."""
    batch: OpenMap = {}
    """Batch jobs of other versions; not used."""


class MemoryLocal(Record):
    model_path: str | None = None
    """An embedding model in GGUF format; unset means the word vectors of the memory extra."""
    model_cache_dir: str | None = None
    """Where other versions keep downloaded models; not used."""


class MemoryChunking(Record):
    tokens: Annotated[int, Meta(ge=16)] = 400
    """Size of a piece of notes."""
    overlap: Count = 80
    """How much of a piece the next one repeats."""


class MemoryHybrid(Record):
    enabled: bool = True
    """Search by meaning besides by words, where embeddings can be had."""
    vector_weight: Ratio = 0.7
    """Share of the meaning in a passage's score."""
    text_weight: Ratio = 0.3
    """Share of the words."""
    candidate_multiplier: Annotated[int, Meta(ge=1, le=20)] = 4
    """Passages looked at for each one returned."""
    mmr: OpenMap = {}
    """Setting of other versions; not used."""
    temporal_decay: OpenMap = {}
    """Setting of other versions; not used."""


class MemoryQuery(Record):
    max_results: Annotated[int, Meta(ge=1, le=50)] = 6
    """Passages returned."""
    min_score: Ratio = 0.35
    """Passages that fit worse are left out."""
    hybrid: MemoryHybrid = MemoryHybrid()
    """Words and meaning together."""


class MemoryCache(Record):
    enabled: bool = True
    """Keep embeddings of passages that changed; they are needed again when a change is taken back."""
    max_entries: Annotated[int, Meta(ge=100)] = 50_000
    """Embeddings kept at most."""


class MemorySearch(Record):
    enabled: bool = True
    """Offer memory_search and memory_get."""
    sources: list[Literal["memory", "sessions"]] | None = None
    """What is searched; unset means memory files."""
    extra_paths: list[str] = []
    """Files and folders searched besides the workspace's memory."""
    provider: str | None = None
    """Embeddings: auto (what is local, else the first with a key), local, openai, gemini, voyage, mistral or none."""
    fallback: str | None = None
    """Provider used when that one fails; words alone serve when none does."""
    model: str | None = None
    """Embedding model; unset means the provider's usual one."""
    remote: MemoryRemote = MemoryRemote()
    """Embeddings from a server."""
    local: MemoryLocal = MemoryLocal()
    """Embeddings made on this machine."""
    store: OpenMap = {}
    """Index settings of other versions (driver, path, vector); not used."""
    chunking: MemoryChunking = MemoryChunking()
    """How notes are cut into pieces."""
    sync: OpenMap = {}
    """When other versions refresh the index; here it is up to date at every search."""
    query: MemoryQuery = MemoryQuery()
    """What is returned."""
    cache: MemoryCache = MemoryCache()
    """Embeddings that are kept."""
    experimental: OpenMap = {}
    """Unfinished features."""
