"""Device identity: an Ed25519 key whose hash is the device's id, and what a device signs to connect."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

MAX_SKEW_MS = 600_000


def raw_public_key(text: str) -> bytes | None:
    """The 32 bytes of a key given as base64url or PEM, or None."""
    if text.lstrip().startswith("-----BEGIN"):
        return _from_pem(text)
    raw = decode_base64url(text)
    return raw if raw is not None and len(raw) == 32 else None


def _from_pem(text: str) -> bytes | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


def decode_base64url(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text.replace("+", "-").replace("/", "_") + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None


def encode_base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def device_id(raw_key: bytes) -> str:
    return hashlib.sha256(raw_key).hexdigest()


def signed_text(
    *,
    device_id: str,
    client_id: str,
    client_mode: str,
    role: str,
    scopes: Sequence[str],
    signed_at: int,
    token: str | None,
    nonce: str | None,
) -> str:
    """``scopes`` are those the client asked for, before any default is applied."""
    fields = ["v1" if nonce is None else "v2", device_id, client_id, client_mode, role, ",".join(scopes)]
    fields += [str(signed_at), token or ""]
    if nonce is not None:
        fields.append(nonce)
    return "|".join(fields)


def verify(raw_key: bytes, text: str, signature: str) -> bool:
    # Imported here: a Gateway that no device talks to need not pay for it.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = decode_base64url(signature)
    if raw is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(raw_key).verify(raw, text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True
