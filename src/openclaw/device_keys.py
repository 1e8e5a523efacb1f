"""Keys of devices: how one is written, what a device signs when it connects, and the check of that signature."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence


def raw_public_key(text: str) -> bytes | None:
    """Return the 32 bytes of a key in base64url or PEM, or None if it is invalid or weak."""
    raw = _from_pem(text) if text.lstrip().startswith("-----BEGIN") else decode_base64url(text)
    return raw if raw is not None and len(raw) == 32 and not is_degenerate(raw) else None


_FIELD = 2**255 - 19
_ORDER_8 = int.from_bytes(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little")
_SMALL_ORDER = frozenset({0, 1, _FIELD - 1, _ORDER_8, _FIELD - _ORDER_8})


def is_degenerate(raw_key: bytes) -> bool:
    """Return whether an Ed25519 key is of small order or not written in the one canonical way.

    One signature fits many texts under a key of small order, all zeros among them, so that nobody needs its private
    half. Keys written in two ways would be two devices.
    """
    y = int.from_bytes(raw_key, "little") & (2**255 - 1)  # The top bit is the sign of x, and every sign is as bad.
    return y >= _FIELD or y in _SMALL_ORDER


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
    text = text.rstrip("=").replace("+", "-").replace("/", "_")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
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
    machine: tuple[str, str] | None = None,
) -> str:
    """Return the text that a device signs. ``scopes`` are those the client asked for, before any default is applied.

    ``machine`` is the platform and the device family of the third version, which needs a nonce.
    """
    version = "v1" if nonce is None else "v2" if machine is None else "v3"
    fields = [version, device_id, client_id, client_mode, role, ",".join(scopes)]
    fields += [str(signed_at), token or ""]
    if nonce is not None:
        fields.append(nonce)
        fields += map(_signed_name, machine or ())
    return "|".join(fields)


def _signed_name(name: str) -> str:
    """Trim the name and lower its ASCII letters, as devices do before they sign it."""
    return "".join(char.lower() if char.isascii() else char for char in name.strip())


def signature_is_valid(raw_key: bytes, text: str, signature: str) -> bool:
    # The import is here because most Gateways have no devices and the library is large.
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
