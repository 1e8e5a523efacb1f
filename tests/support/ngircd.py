"""A real ngIRCd on loopback, people who talk to it, and certificates for it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import os
import pwd
import shutil
from pathlib import Path
from types import TracebackType

import pytest

from openclaw.channels.irc.connection import Line, format_line, parse_line
from tests.support.ports import KeptPort

PATIENCE_S = 60


def needs_ngircd() -> str:
    """The program. Skips the test where there is none; with ``OPENCLAW_TEST_REQUIRE_ALL`` it fails instead."""
    program = shutil.which("ngircd") or shutil.which("ngircd", path="/usr/sbin:/sbin")
    if program is None:
        why = "ngIRCd is not installed (Debian package ngircd)"
        if os.environ.get("OPENCLAW_TEST_REQUIRE_ALL"):
            pytest.fail(why)
        pytest.skip(why)
    return program


class Ngircd:
    """``async with Ngircd(folder) as server``: a server with a plain port and, with a certificate, a TLS port."""

    def __init__(self, folder: Path, *, password: str = "", certificate: tuple[Path, Path] | None = None) -> None:
        self.program = needs_ngircd()
        self._folder = folder
        self._password = password
        self._certificate = certificate
        self._process: asyncio.subprocess.Process | None = None
        self._kept_ports = KeptPort(), KeptPort()
        self.port, self.tls_port = (one.number for one in self._kept_ports)

    def _write_config(self) -> Path:
        user = pwd.getpwuid(os.getuid()).pw_name if os.getuid() else "nobody"
        ssl = ""
        if self._certificate is not None:
            cert, key = self._certificate
            ssl = f"[SSL]\nCertFile = {cert}\nKeyFile = {key}\nPorts = {self.tls_port}\n"
        password = f"Password = {self._password}\n" if self._password else ""
        path = self._folder / "ngircd.conf"
        path.write_text(
            f"[Global]\nName = irc.test\nInfo = test\nListen = 127.0.0.1\nPorts = {self.port}\n{password}"
            f"ServerUID = {user}\n[Limits]\nMaxConnectionsIP = 0\nMaxNickLength = 20\nMaxPenaltyTime = 0\n"
            f"[Options]\nIdent = no\nPAM = no\nDNS = no\n{ssl}"
        )
        return path

    async def start(self) -> Ngircd:
        """Starts the server; a second start uses the same ports."""
        self._process = await asyncio.create_subprocess_exec(
            self.program,
            "-n",
            "-f",
            str(self._write_config()),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await self._listens(self._process), "ngIRCd does not start"
        return self

    async def _listens(self, process: asyncio.subprocess.Process) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            while process.returncode is None:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return True
                await asyncio.sleep(0.02)
        return False

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def __aenter__(self) -> Ngircd:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class Person:
    """Somebody with a client on the server: ``async with Person(port, "ann", "#room") as ann``."""

    def __init__(self, port: int, nick: str, *channels: str) -> None:
        self._port, self.nick, self._channels = port, nick, channels
        self.lines: list[Line] = []
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Person:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._reading = asyncio.create_task(self._read(reader))
        self.write("NICK", self.nick)
        self.write("USER", self.nick, "0", "*", self.nick)
        await self.got("376", "422")
        for channel in self._channels:
            self.write("JOIN", channel)
            await self.got("366")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.readline():
            line = parse_line(data)
            if line.command == "PING":
                self.write("PONG", line.param(-1))
                continue
            self.lines.append(line)
            self._arrived.set()

    def write(self, command: str, *params: str) -> None:
        self._writer.write(format_line(command, *params))

    def say(self, target: str, text: str) -> None:
        self.write("PRIVMSG", target, text)

    @property
    def mask(self) -> str:
        """The full name that the server shows to others."""
        return next(line.prefix for line in self.lines if line.command == "JOIN" and line.nick == self.nick)

    async def got(self, *commands: str, text: str | None = None, nick: str | None = None) -> Line:
        """The first line with one of the commands that nobody has asked for yet, once it has come."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self.lines:
                    wanted = line.command in commands and nick in (None, line.nick)
                    if wanted and (text is None or text in line.param(-1)):
                        self.lines.remove(line) if line.command != "JOIN" else None
                        return line
                self._arrived.clear()
                await self._arrived.wait()

    async def heard(self, count: int) -> list[str]:
        """The texts of the first messages, once there are so many."""
        async with asyncio.timeout(PATIENCE_S):
            while len(texts := [line.param(1) for line in self.lines if line.command == "PRIVMSG"]) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return texts


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A self-signed certificate for the names (or addresses), and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "irc.test")])
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    for file in (cert_file, key_file, folder):
        file.chmod(0o755)
    return cert_file, key_file
