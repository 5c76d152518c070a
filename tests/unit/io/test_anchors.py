"""Detached signatures, as openssl makes them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvquant_eval.core.codec import DataError
from kvquant_eval.io.anchors import signs

CONTENT = b'{"schema_version": 1}\n'


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def key(folder: Path, name: str, *kind: str) -> tuple[Path, Path]:
    """A new private key and its public one."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    openssl("genpkey", *(kind or ("-algorithm", "ed25519")), "-out", private)
    openssl("pkey", "-in", private, "-pubout", "-out", public)
    return private, public


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys")
    private, _ = key(made, "mine")
    (made / "x.json").write_bytes(CONTENT)
    openssl("pkeyutl", "-sign", "-rawin", "-inkey", private, "-in", made / "x.json", "-out", made / "x.sig")
    key(made, "other")
    key(made, "rsa", "-algorithm", "RSA")
    return made


def test_the_signature_of_the_bytes(folder: Path) -> None:
    assert signs(folder / "x.sig", folder / "mine.pub.pem", CONTENT)


def test_of_other_bytes_or_by_another_key(folder: Path) -> None:
    assert not signs(folder / "x.sig", folder / "mine.pub.pem", CONTENT + b" ")
    assert not signs(folder / "x.sig", folder / "other.pub.pem", CONTENT)
    assert not signs(folder / "x.json", folder / "mine.pub.pem", CONTENT)


@pytest.mark.parametrize(("name", "found"), [("rsa.pub.pem", "RSAPublicKey"), ("x.sig", ""), ("mine.pem", "")])
def test_no_public_key_of_ed25519(folder: Path, name: str, found: str) -> None:
    with pytest.raises(DataError, match=f"{name}: a public key of Ed25519 in PEM, got {found}"):
        signs(folder / "x.sig", folder / name, CONTENT)


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        signs(folder / "nowhere", folder / "mine.pub.pem", CONTENT)
