"""Calls to one address: the same bytes as aiohttp's session would send, over its pool, without asking it each time."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from openclaw.models import endpoint as module
from openclaw.models.endpoint import Endpoint

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n"
)


class RawServer:
    """Answers every request with the same bytes and keeps what it was sent, connection by connection."""

    def __init__(self, answer: bytes = OK) -> None:
        self.answer = answer
        self.received: list[list[bytes]] = []
        self.port = 0

    @asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncGenerator[RawServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context, limit=1 << 22)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    @property
    def requests(self) -> list[bytes]:
        return [request for requests in self.received for request in requests]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: list[bytes] = []
        self.received.append(requests)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = head.lower().rpartition(b"content-length: ")[2]
                requests.append(head + await reader.readexactly(int(size)))
                writer.write(self.answer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


async def post(endpoint: Endpoint, session: aiohttp.ClientSession, body: bytes = b"{}") -> tuple[int, bytes]:
    response = await endpoint.post(session, body)
    content = b""
    while chunk := await response.content.readany():
        content += chunk
    response.release()
    return response.status, content


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/messages", {"x-api-key": "k"}),
        ("/with space/ü?q=1&r=ü#part", {"authorization": "Bearer k", "x-name": "wért"}),
        ("", {"user-agent": "mine", "accept": "application/json"}),
    ],
)
async def test_the_bytes_are_those_the_session_sends(
    monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str]
) -> None:
    async with RawServer().running() as server, aiohttp.ClientSession(headers={"user-agent": "test"}) as session:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}{path}", headers)
        assert await post(endpoint, session, b'{"a":1}') == (200, b"ok")
        monkeypatch.setattr(module, "LARGEST_AT_ONCE", 0)
        assert await post(endpoint, session, b'{"a":1}') == (200, b"ok")
    own, sessions = server.requests
    assert own == sessions


@pytest.mark.parametrize("answer", [OK, CHUNKED])
async def test_calls_share_a_connection(answer: bytes) -> None:
    async with RawServer(answer).running() as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}/", {})
        for _ in range(3):
            await post(endpoint, session)
    assert [len(requests) for requests in server.received] == [3]


async def test_a_connection_the_server_will_close_is_not_used_again() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with RawServer(closing).running() as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}/", {})
        for _ in range(2):
            await post(endpoint, session)
    assert [len(requests) for requests in server.received] == [1, 1]


async def test_hints_before_the_answer_are_passed_over() -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with RawServer(hints + OK).running() as server, aiohttp.ClientSession() as session:
        response = await Endpoint(f"http://127.0.0.1:{server.port}/", {}).post(session, b"{}")
        assert (response.status, response.content_type) == (200, "text/event-stream")
        response.close()


async def test_a_compressed_answer_is_read_as_what_it_says() -> None:
    packed = gzip.compress(b"data: hello\n\n")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with RawServer(head + packed).running() as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}/", {})
        assert await post(endpoint, session) == (200, b"data: hello\n\n")


async def test_a_body_that_is_too_large_for_one_write_arrives_whole() -> None:
    body = b'"' + b"x" * (module.LARGEST_AT_ONCE + 1) + b'"'
    async with RawServer().running() as server, aiohttp.ClientSession() as session:
        assert (await post(Endpoint(f"http://127.0.0.1:{server.port}/", {}), session, body))[0] == 200
    assert server.requests[0].endswith(body)


async def test_a_password_in_the_address_is_sent_as_one() -> None:
    async with RawServer().running() as server, aiohttp.ClientSession() as session:
        await post(Endpoint(f"http://me:secret@127.0.0.1:{server.port}/", {}), session)
    assert b"Authorization: Basic bWU6c2VjcmV0" in server.requests[0]
    assert b"me:secret" not in server.requests[0]


async def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with RawServer().running() as server, aiohttp.ClientSession() as session:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        await post(Endpoint("http://model.example.com/v1", {}), session)
    assert server.requests[0].startswith(b"POST http://model.example.com/v1 HTTP/1.1\r\n")


async def test_a_header_cannot_smuggle_in_another() -> None:
    async with RawServer().running() as server, aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match="x-name"):
            await post(Endpoint(f"http://127.0.0.1:{server.port}/", {"x-name": "a\r\nx-evil: b"}), session)
    assert server.received == []


@pytest.mark.parametrize("url", ["not a url", "ftp://host/", "http://", "http://host:port/"])
async def test_an_address_that_is_none_is_named(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.InvalidURL):
            await post(Endpoint(url, {}), session)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 twohundred OK\r\n\r\n"])
async def test_an_answer_in_another_language_is_a_failed_connection(answer: bytes) -> None:
    async with RawServer(answer).running() as server, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await post(Endpoint(f"http://127.0.0.1:{server.port}/", {}), session)


async def test_silence_ends_the_call_after_its_time() -> None:
    async with RawServer(b"").running() as server, aiohttp.ClientSession() as session:
        with pytest.raises(TimeoutError):
            await post(Endpoint(f"http://127.0.0.1:{server.port}/", {}, idle_s=0.02), session)


@pytest.mark.parametrize("answer", [OK, CHUNKED])
async def test_a_certificate_nobody_vouches_for_is_refused(tmp_path: Path, answer: bytes) -> None:
    served, trusting = certificate(tmp_path)
    async with RawServer(answer).running(served) as server:
        endpoint = Endpoint(f"https://127.0.0.1:{server.port}/", {"x-api-key": "k"})
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await post(endpoint, session)
        assert server.requests == []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
            assert await post(endpoint, session) == (200, b"ok")


def certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of its own making, and that of a client who trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    file = directory / "server.pem"
    file.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(file)
    return served, ssl.create_default_context(cadata=made.public_bytes(serialization.Encoding.PEM).decode())


async def test_a_connection_the_server_wrote_to_unasked_is_not_used_again() -> None:
    unasked = CHUNKED + b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"
    async with RawServer(unasked).running() as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}/", {})
        for _ in range(2):
            assert await post(endpoint, session) == (200, b"ok")
    assert [len(requests) for requests in server.received] == [1, 1]


async def test_a_connection_the_server_closed_meanwhile_is_not_used_again() -> None:
    class Closing(RawServer):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.received.append([await reader.readuntil(b"{}")])
            writer.write(self.answer)
            writer.close()

    async with Closing(CHUNKED).running() as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}/", {})
        for _ in range(2):
            assert await post(endpoint, session) == (200, b"ok")
            await asyncio.sleep(0.02)
    assert len(server.received) == 2
