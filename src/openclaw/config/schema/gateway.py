"""``gateway``: where the Gateway listens, who may connect, and how it reloads."""

from typing import Annotated, Literal

from msgspec import Meta, field

from openclaw.config.schema.base import Count, OpenMap, Port, Positive, Record, Sensitive

_FILE_TYPES = ("text/plain", "text/markdown", "text/html", "text/csv", "application/json", "application/pdf")


class RateLimit(Record):
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Wrong secrets from one address within the window, after which it has to wait."""
    window_ms: Annotated[int, Meta(ge=1000)] = 60_000
    """The window."""
    lockout_ms: Annotated[int, Meta(ge=1000)] | None = None
    """How long it has to wait after its last wrong secret; unset means until the window has passed."""
    exempt_loopback: bool = True
    """Callers on this machine are slowed down to one secret a second, and not locked out."""


class GatewayAuth(Record):
    mode: Literal["token", "password", "none", "trusted-proxy"] | None = None
    """How clients prove themselves; unset means password when one is set, else token."""
    token: Sensitive | None = None
    """Shared secret of the token mode."""
    password: Sensitive | None = None
    """Shared secret of the password mode."""
    allow_tailscale: bool | None = None
    """Accept identities vouched for by Tailscale Serve; unset means yes with serve and token mode."""
    rate_limit: RateLimit = RateLimit()
    """Limits on failed attempts."""
    trusted_proxy: OpenMap | None = None
    """Settings of the trusted-proxy mode."""


class ControlUi(Record):
    enabled: bool = True
    """Serve the Control UI."""
    base_path: str = ""
    """Path prefix under which the Control UI lives, such as /openclaw."""
    root: str | None = None
    """Folder with other assets than the bundled ones."""
    allowed_origins: list[str] = []
    """Browser origins that may connect besides the Gateway's own."""
    allow_insecure_auth: bool = False
    """Let the Control UI in with the shared secret alone, without a device identity."""
    dangerously_disable_device_auth: bool = False
    """Switch device identity checks off for the Control UI. Only for emergencies."""


class GatewayRemote(Record):
    url: str | None = None
    """WebSocket address of the Gateway that clients on this machine use."""
    token: Sensitive | None = None
    """Token for that Gateway."""
    password: Sensitive | None = None
    """Password for that Gateway."""
    transport: Literal["ssh", "direct"] | None = None
    """Reach it through an SSH tunnel or directly."""
    tls_fingerprint: str | None = None
    """SHA-256 of the certificate to accept."""
    ssh_target: str | None = None
    """user@host for the tunnel."""
    ssh_identity: str | None = None
    """Key file for the tunnel."""


class GatewayReload(Record):
    mode: Literal["off", "restart", "hot", "hybrid"] = "hybrid"
    """What a changed file does: nothing, always restart, apply what can be applied, or both as needed."""
    debounce_ms: Count = 300
    """How long the file must be quiet before it is read again."""


class GatewayTls(Record):
    enabled: bool = False
    """Serve TLS only. The Gateway does not start when it cannot."""
    auto_generate: bool = True
    """Make a self-signed certificate when there is none, and renew it; clients pin its fingerprint."""
    cert_path: str | None = None
    """Certificate file (PEM); unset means one in the state folder. A replaced file is read within the hour."""
    key_path: str | None = None
    """Private key file (PEM) of the certificate."""
    ca_path: str | None = None
    """Authorities (PEM) that the certificates of clients must come from; unset means that clients need none."""


class GatewayTailscale(Record):
    mode: Literal["off", "serve", "funnel"] = "off"
    """Publish the Gateway on the tailnet (serve) or the internet (funnel, needs password mode)."""
    reset_on_exit: bool = False
    """Undo the publication when the Gateway stops."""
    hostname: str | None = None
    """Name to publish under."""


class PdfLimits(Record):
    max_pages: Positive = 4
    """Pages rendered at most."""
    max_pixels: Positive = 4_000_000
    """Pixels of a rendered page at most."""
    min_text_chars: Count = 200
    """With less extracted text than this the pages are rendered as images."""


class ResponseFiles(Record):
    allow_url: bool = True
    """Fetch files named by URL (never from private addresses)."""
    url_allowlist: list[str] | None = None
    """Hosts that files may come from; unset means any public one."""
    allowed_mimes: list[str] = field(default_factory=lambda: list(_FILE_TYPES))
    """Accepted media types."""
    max_bytes: Positive = 5 * 1024 * 1024
    """Size of one file at most."""
    max_chars: Positive = 200_000
    """Text taken from one file at most."""
    max_redirects: Count = 3
    """Redirects followed at most."""
    timeout_ms: Positive = 10_000
    """Time for one download."""
    pdf: PdfLimits = PdfLimits()
    """Limits for PDF files."""


class ResponseImages(Record):
    allow_url: bool = True
    """Fetch images named by URL (never from private addresses)."""
    url_allowlist: list[str] | None = None
    """Hosts that images may come from; unset means any public one."""
    allowed_mimes: list[str] = field(default_factory=lambda: ["image/jpeg", "image/png", "image/gif", "image/webp"])
    """Accepted media types."""
    max_bytes: Positive = 10 * 1024 * 1024
    """Size of one image at most."""
    max_redirects: Count = 3
    """Redirects followed at most."""
    timeout_ms: Positive = 10_000
    """Time for one download."""


class ChatImages(ResponseImages):
    allow_url: bool = False
    """Fetch images named by URL (never from private addresses)."""


class ChatCompletionsEndpoint(Record):
    enabled: bool = False
    """Answer POST /v1/chat/completions."""
    max_body_bytes: Positive = 20 * 1024 * 1024
    """Size of one request at most."""
    images: ChatImages = ChatImages()
    """Limits for input images."""


class ResponsesEndpoint(Record):
    enabled: bool = False
    """Answer POST /v1/responses."""
    max_body_bytes: Positive = 20 * 1024 * 1024
    """Size of one request at most."""
    max_url_parts: Count = 8
    """Parts fetched by URL in one request at most."""
    files: ResponseFiles = ResponseFiles()
    """Limits for input files."""
    images: ResponseImages = ResponseImages()
    """Limits for input images."""


class HttpEndpoints(Record):
    chat_completions: ChatCompletionsEndpoint = ChatCompletionsEndpoint()
    """The OpenAI chat endpoint."""
    responses: ResponsesEndpoint = ResponsesEndpoint()
    """The OpenAI responses endpoint."""


class GatewayHttp(Record):
    endpoints: HttpEndpoints = HttpEndpoints()
    """HTTP endpoints beside the WebSocket."""


class NodeBrowser(Record):
    mode: Literal["auto", "manual", "off"] = "auto"
    """Whether a node's browser is chosen automatically."""
    node: str | None = None
    """The node to use."""


class GatewayNodes(Record):
    browser: NodeBrowser = NodeBrowser()
    """Browsers on nodes."""
    allow_commands: list[str] = []
    """Node commands allowed besides the safe defaults."""
    deny_commands: list[str] = []
    """Node commands never allowed."""


class GatewayTools(Record):
    allow: list[str] = []
    """Tools offered over HTTP besides the default set."""
    deny: list[str] = []
    """Tools never offered over HTTP."""


class GatewayConfig(Record):
    port: Port = 18789
    """Port of the WebSocket and HTTP server."""
    mode: Literal["local", "remote"] | None = None
    """Run the Gateway here, or use the one at gateway.remote."""
    bind: Literal["loopback", "lan", "tailnet", "auto", "custom"] = "loopback"
    """Addresses to listen on. Anything but loopback needs a secret."""
    custom_bind_host: str | None = None
    """Address or name of this machine for bind "custom"."""
    auth: GatewayAuth = GatewayAuth()
    """Authentication of clients."""
    trusted_proxies: list[str] = []
    """Addresses or networks of reverse proxies whose forwarding headers are believed."""
    control_ui: ControlUi = ControlUi()
    """The web interface."""
    remote: GatewayRemote = GatewayRemote()
    """The Gateway that clients on this machine use."""
    reload: GatewayReload = GatewayReload()
    """Reaction to a changed configuration file."""
    http: GatewayHttp = GatewayHttp()
    """HTTP interface."""
    tailscale: GatewayTailscale = GatewayTailscale()
    """Publication through Tailscale."""
    tls: GatewayTls = GatewayTls()
    """Encryption of the Gateway's port."""
    nodes: GatewayNodes = GatewayNodes()
    """Paired devices."""
    tools: GatewayTools = GatewayTools()
    """Tools offered through POST /tools/invoke."""
    channel_health_check_minutes: Count | None = None
    """How often idle channels are checked; 0 is never."""
