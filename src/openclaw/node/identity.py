"""Who a node is: its device key, the tokens that Gateways gave it, and the Gateway and name it was started with.

The files are ``identity/device.json``, ``identity/device-auth.json`` and ``node.json`` in the state folder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openclaw.clock import Clock
from openclaw.config.store import write_private
from openclaw.device_keys import device_id, encode_base64url, signed_text

CLIENT_ID, CLIENT_MODE, ROLE = "node-host", "node", "node"


class BadIdentity(Exception):
    """A file of the identity cannot be read. The message says which, and what to do."""


class NodeIdentity:
    """The device key of a state folder. It is made when it is first needed."""

    def __init__(self, state_dir: str, clock: Clock) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._folder = Path(state_dir) / "identity"
        self._clock = clock
        path = self._folder / "device.json"
        stored = read_object(path)
        if stored is None:
            self._key = Ed25519PrivateKey.generate()
            self._store(path)
        else:
            self._key = _private_key(stored, path)
        raw = self._key.public_key().public_bytes_raw()
        self.id = device_id(raw)
        self.public_key = encode_base64url(raw)

    def proof(self, *, nonce: str, token: str | None, scopes: Sequence[str] = ()) -> dict[str, Any]:
        """The ``device`` of a ``connect`` request that answers this challenge."""
        signed_at = self._clock.now_ms()
        text = signed_text(
            device_id=self.id,
            client_id=CLIENT_ID,
            client_mode=CLIENT_MODE,
            role=ROLE,
            scopes=scopes,
            signed_at=signed_at,
            token=token,
            nonce=nonce,
        )
        signature = encode_base64url(self._key.sign(text.encode()))
        proof = {"id": self.id, "publicKey": self.public_key, "signature": signature}
        return {**proof, "signedAt": signed_at, "nonce": nonce}

    def token(self) -> str | None:
        """The token that a Gateway gave to this device."""
        stored = read_object(self._folder / "device-auth.json") or {}
        tokens = stored.get("tokens") if stored.get("deviceId") == self.id else None
        kept = tokens.get(ROLE) if isinstance(tokens, dict) else None
        return str(kept["token"]) if isinstance(kept, dict) and kept.get("token") else None

    def keep_token(self, auth: dict[str, Any]) -> None:
        """Keeps what ``hello-ok`` said. With it the node connects without the Gateway's own secret."""
        if not auth.get("deviceToken") or auth["deviceToken"] == self.token():
            return
        path = self._folder / "device-auth.json"
        stored = read_object(path) or {}
        before = stored.get("tokens") if stored.get("deviceId") == self.id else None
        kept = {"token": auth["deviceToken"], "role": ROLE, "scopes": auth.get("scopes") or []}
        kept["updatedAtMs"] = self._clock.now_ms()
        tokens = {**(before if isinstance(before, dict) else {}), ROLE: kept}
        write_object(path, {"version": 1, "deviceId": self.id, "tokens": tokens})

    def _store(self, path: Path) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

        public = self._key.public_key()
        private = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        stored = {"version": 1, "deviceId": device_id(public.public_bytes_raw())}
        stored["publicKeyPem"] = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        stored["privateKeyPem"] = private.decode()
        write_object(path, {**stored, "createdAtMs": self._clock.now_ms()})


def _private_key(stored: dict[str, Any], path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(str(stored.get("privateKeyPem") or "").encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadIdentity(f"{path} holds no device key ({error}); mend it, or move it away for a new one") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadIdentity(f"{path} holds a key of another kind; move it away for a new one")
    return key


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no file. Raises ``BadIdentity``."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadIdentity(f"{path} cannot be read ({error}); mend it or move it away") from None
    if not isinstance(found, dict):
        raise BadIdentity(f"{path} holds no JSON object; mend it or move it away")
    return found


def write_object(path: Path, value: dict[str, Any]) -> None:
    write_private(str(path), json.dumps(value, indent=2, ensure_ascii=False) + "\n")
