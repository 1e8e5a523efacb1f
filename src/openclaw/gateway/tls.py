"""The certificate of ``gateway.tls``: given by the owner, or made here, and replaced before it expires."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw.clock import Clock
from openclaw.config.store import write_private
from openclaw.net import plain_ip
from openclaw.paths import tls_files

if TYPE_CHECKING:
    from openclaw.config.schema.gateway import GatewayTls

COMMON_NAME = "openclaw-gateway"
VALID_DAYS = 3650
"""Clients pin a certificate that was made here, so it is not replaced often."""
RENEW_DAYS = 30
WARN_DAYS = 14

HANDSHAKE_S = 10.0
ACCEPT_PAUSE_S = 1.0
BACKLOG = 100
MAX_HANDSHAKES = 256
"""The most handshakes under way. A newer caller takes the place of the one that has taken longest."""

log = logging.getLogger("openclaw.gateway.tls")


class TlsProblem(Exception):
    """TLS was asked for and cannot be served. The text says what to do."""


class ServerTls:
    """The certificate that the Gateway shows, and the context that new connections use."""

    def __init__(self, settings: GatewayTls, state_dir: str, clock: Clock, names: Sequence[str]) -> None:
        """Load or make the certificate. Raises ``TlsProblem``. ``names`` are the addresses that it is made for."""
        self._settings = settings
        self._clock = clock
        self._names = names
        cert, key = tls_files(state_dir, settings.cert_path, settings.key_path)
        if bool(settings.cert_path) != bool(settings.key_path):
            raise TlsProblem("gateway.tls.certPath and gateway.tls.keyPath belong together; set both or none")
        self._cert, self._key = Path(cert), Path(key)
        self.fingerprint = ""
        """SHA-256 of the certificate, which clients pin."""
        self.changed: Callable[[], None] = lambda: None
        """Called when new connections get another certificate."""
        self._seen: tuple[int, ...] = ()
        if settings.auto_generate and not self._cert.exists():
            self._make()
        self._check_files()
        self.context = self._new_context()
        self._load()
        self._renew_if_due()

    def _check_files(self) -> None:
        missing = [str(path) for path in (self._cert, self._key) if not path.exists()]
        if missing:
            hint = "put it there, or remove both files to have new ones made"
            if not self._settings.auto_generate:
                hint = "put it there, or set gateway.tls.autoGenerate to true to have one made"
            raise TlsProblem(f"gateway.tls is enabled and {' and '.join(missing)} does not exist; {hint}")

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._settings.ca_path:
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            try:
                context.load_verify_locations(Path(self._settings.ca_path).expanduser())
            except (OSError, ssl.SSLError) as error:
                raise TlsProblem(f"gateway.tls.caPath {self._settings.ca_path} cannot be used: {error}") from None
        return context

    def _load(self) -> None:
        """Take the files as they are into the context. Connections that are open keep what they have."""
        self._check_files()
        self._seen = self._marks()
        try:
            der = ssl.PEM_cert_to_DER_cert(_first_certificate(self._cert.read_text()))
            self.context.load_cert_chain(self._cert, self._key, password=_no_password)
            if self._settings.ca_path:
                # Programs of this user show the Gateway's own certificate, so that the command line needs no other.
                self.context.load_verify_locations(self._cert)
        except (OSError, ValueError, ssl.SSLError) as error:
            raise TlsProblem(f"the certificate {self._cert} with the key {self._key} cannot be used: {error}") from None
        self.fingerprint = hashlib.sha256(der).hexdigest()

    def listen(self, address: str, port: int, behind: Callable[[], asyncio.Protocol]) -> TlsListener:
        """Listen on one address. ``behind`` makes the protocol of a connection whose handshake is done."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family, backlog=BACKLOG)
        listening.setblocking(False)
        return TlsListener(listening, behind, self)

    async def refresh(self) -> None:
        """Take over files that were replaced, and renew a certificate that was made here."""
        before = self.fingerprint
        try:
            await asyncio.to_thread(self._refresh)
        except TlsProblem as problem:
            log.error("the certificate in use stays: %s", problem)
        if self.fingerprint != before:
            log.warning("the certificate has changed; its fingerprint is now sha256 %s", self.fingerprint)
            self.changed()

    def _refresh(self) -> None:
        if self._marks() != self._seen:
            self._load()
        self._renew_if_due()

    def _marks(self) -> tuple[int, ...]:
        """Return numbers that change when a file is replaced. A missing file counts as 0."""
        marks: list[int] = []
        for path in (self._cert, self._key):
            try:
                status = path.stat()
                marks += [status.st_mtime_ns, status.st_ino, status.st_size]
            except OSError:
                marks.append(0)
        return tuple(marks)

    def _renew_if_due(self) -> None:
        from cryptography import x509

        current = x509.load_pem_x509_certificate(_first_certificate(self._cert.read_text()).encode())
        left = current.not_valid_after_utc - self._now()
        own = current.subject == current.issuer == _name()
        if own and self._settings.auto_generate and left < timedelta(days=RENEW_DAYS):
            self._make()
            self._load()
        elif left < timedelta(days=WARN_DAYS):
            log.warning("the certificate %s ends at %s; replace it", self._cert, current.not_valid_after_utc)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def _make(self) -> None:
        """Write a certificate signed by its own key. A key that is already there is kept, so the pair always fits."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = self._own_key()
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_name())
            .issuer_name(_name())
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now() - timedelta(days=1))
            .not_valid_after(self._now() + timedelta(days=VALID_DAYS))
            .add_extension(x509.SubjectAlternativeName(_alternative_names(self._names)), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .sign(key, hashes.SHA256())
        )
        try:
            write_private(str(self._cert), certificate.public_bytes(Encoding.PEM).decode())
        except OSError as error:
            raise TlsProblem(f"the certificate {self._cert} cannot be written: {error}") from None

    def _own_key(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_pem_private_key,
        )

        if self._key.exists():
            try:
                return load_pem_private_key(self._key.read_bytes(), None)
            except (OSError, ValueError, TypeError) as error:
                raise TlsProblem(f"the key {self._key} cannot be used: {error}") from None
        key = ec.generate_private_key(ec.SECP256R1())
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        try:
            write_private(str(self._key), text)
        except OSError as error:
            raise TlsProblem(f"the key {self._key} cannot be written: {error}") from None
        return key


class TlsListener:
    """Accepts connections, makes their handshake, and hands them to the protocol behind it.

    The event loop's own listener would keep any number of callers that never finish theirs.
    """

    def __init__(self, listening: socket.socket, behind: Callable[[], asyncio.Protocol], tls: ServerTls) -> None:
        self.sockets = [listening]
        self._behind = behind
        self._tls = tls
        self.under_way: dict[asyncio.Task[None], None] = {}
        """The handshakes, in the order in which they began."""
        self._accepting = asyncio.create_task(self._accept(listening), name="TLS listener")

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.error("no connection can be accepted: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            handshake = loop.create_task(self._secure(connection))
            self.under_way[handshake] = None
            handshake.add_done_callback(lambda done: self.under_way.pop(done, None))
            if len(self.under_way) > MAX_HANDSHAKES:
                oldest = next(iter(self.under_way))
                del self.under_way[oldest]
                oldest.cancel()

    async def _secure(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                self._behind, connection, ssl=self._tls.context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, RuntimeError) as error:
            log.debug("a TLS handshake failed: %s", error)
        except asyncio.CancelledError:
            # uvloop leaves the connection open. Its end makes the transport close it.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise

    def close(self) -> None:
        self._accepting.cancel()
        for handshake in list(self.under_way):
            handshake.cancel()
        for listening in self.sockets:
            listening.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self.under_way, return_exceptions=True)


def _no_password() -> str:
    """OpenSSL would ask at the terminal and wait."""
    raise ValueError("the key is encrypted; the Gateway needs one without a password")


def _first_certificate(text: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    if begin not in text or end not in text:
        raise ValueError("it contains no certificate in PEM form")
    return begin + text.partition(begin)[2].partition(end)[0] + end + "\n"


def _name() -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME)])


def _alternative_names(addresses: Sequence[str]) -> list[Any]:
    from cryptography import x509

    own = socket.gethostname()
    hosts = dict.fromkeys(["localhost", own, f"{own.partition('.')[0]}.local"])
    unique = dict.fromkeys(plain_ip(address) for address in ("127.0.0.1", "::1", *addresses))
    ips = [
        x509.IPAddress(ipaddress.ip_address(ip)) for ip in unique if ip and not ipaddress.ip_address(ip).is_unspecified
    ]
    return [*(x509.DNSName(host) for host in hosts if host.isascii()), *ips]
