"""HTTP/1.1 over a bare socket, as much of it as talking to our own Gateway takes."""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from openclaw.cli.target import Target

MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024


class BadResponse(Exception):
    """The peer does not speak HTTP as a Gateway does."""


class Exchange:
    """One request and its response; closes its connection at the end of the ``with``."""

    def __init__(self, target: Target, timeout_s: float | None) -> None:
        self._socket = _connect(target, timeout_s)
        self._target = target
        self._reader: BufferedReader = self._socket.makefile("rb")
        self.status = 0
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # A shutdown wakes a thread that is blocked reading; a bare close would leave it there.
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()

    def set_timeout(self, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._target.authority}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        try:
            self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse a large body before it has read it all; its answer is then still to be read.
            pass
        self._read_head()

    def _read_head(self) -> None:
        words = self._line().split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise BadResponse(f"not an HTTP response: {' '.join(words)[:80]!r}")
        self.status = int(words[1])
        while line := self._line():
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    def _line(self) -> str:
        line = self._reader.readline(MAX_HEADER_BYTES)
        if not line.endswith(b"\n"):
            raise BadResponse("connection closed" if len(line) < MAX_HEADER_BYTES else "header line too long")
        return line.rstrip(b"\r\n").decode("latin-1")

    def body(self) -> bytes:
        data = bytearray()
        for part in self._parts():
            data += part
            if len(data) > MAX_BODY_BYTES:
                raise BadResponse(f"response larger than {MAX_BODY_BYTES} bytes")
        return bytes(data)

    def lines(self) -> Iterator[bytes]:
        """The lines of an endless body, as they arrive. Stops short when the peer goes away in mid-line."""
        pending = bytearray()
        for part in self._parts():
            pending += part
            while (end := pending.find(b"\n")) >= 0:
                line = bytes(pending[:end])
                del pending[: end + 1]
                if line.strip():
                    yield line
            if len(pending) > MAX_BODY_BYTES:
                raise BadResponse(f"line larger than {MAX_BODY_BYTES} bytes")

    def _parts(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
            return
        length = self.headers.get("content-length")
        remaining = int(length) if length and length.isdigit() else None
        while remaining is None or remaining > 0:
            part = self._reader.read1(65536 if remaining is None else min(remaining, 65536))
            if not part:
                if remaining:
                    raise BadResponse("connection closed in the middle of the response")
                return
            if remaining is not None:
                remaining -= len(part)
            yield part

    def _chunks(self) -> Iterator[bytes]:
        while True:
            try:
                size = int(self._line().split(";")[0], 16)
            except ValueError as error:
                raise BadResponse("malformed chunk") from error
            if size == 0:
                return
            if size > MAX_BODY_BYTES:
                raise BadResponse(f"chunk larger than {MAX_BODY_BYTES} bytes")
            part = self._reader.read(size)
            if len(part) < size:
                raise BadResponse("connection closed in the middle of the response")
            yield part
            self._line()


def _connect(target: Target, timeout_s: float | None) -> socket.socket:
    plain = socket.create_connection((target.host, target.port), timeout=timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not target.tls:
        return plain
    import hashlib
    import ssl

    context = ssl.create_default_context()
    if target.fingerprint or target.local:
        # A pinned or self-signed certificate is checked by its fingerprint, or reached over loopback only.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    secure = context.wrap_socket(plain, server_hostname=target.host)
    if target.fingerprint:
        seen = hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()
        wanted = target.fingerprint.lower().replace(":", "").removeprefix("sha256").strip("/ ")
        if seen != wanted:
            secure.close()
            raise BadResponse(f"the certificate's SHA-256 fingerprint is {seen}, not the pinned one")
    return secure
