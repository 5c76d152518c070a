"""A detached Ed25519 signature over a sign-off's bytes: an anchor that no store is needed for."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from kvquant_eval.core.codec import DataError


def signs(signature: Path, public_key: Path, content: bytes) -> bool:
    """Whether ``signature`` (64 bytes, as ``openssl pkeyutl -sign -rawin`` writes them) is that of ``content`` under
    the key. Raises DataError for a file that is no PEM public key of Ed25519, OSError for one that cannot be read.
    """
    key, given = public_key.read_bytes(), signature.read_bytes()
    try:
        loaded = load_pem_public_key(key)
    except Exception as error:  # noqa: BLE001 - OpenSSL's own, of many types
        raise DataError(_unfit(public_key, type(error).__name__)) from None
    if not isinstance(loaded, Ed25519PublicKey):
        raise DataError(_unfit(public_key, type(loaded).__name__.lstrip("_")))
    try:
        loaded.verify(given, content)
    except InvalidSignature:
        return False
    return True


def _unfit(path: Path, found: str) -> str:
    return f"{path}: a public key of Ed25519 in PEM, got {found}; write it with openssl pkey -pubout"
