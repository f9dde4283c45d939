"""Whether a certificate and its key can serve https: asked before the models are loaded, which takes long."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path

from cohort.core.errors import Problem
from cohort.core.source_location import Place

__all__ = ["tls_problems"]

_CERTIFICATE = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")
_ENCRYPTED = re.compile(rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE)
# a chain has a few KiB; a file that is none may have gigabytes
_MOST_BYTES = 1 << 20
# of the same kind, and of another one (an RSA key with a certificate of an elliptic curve)
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


def tls_problems(certificate: str, key: str, *, where: Callable[[str], Place]) -> list[Problem]:
    """Return what is wrong with the files of ``tls``.

    Args:
        where: Returns the place of a key of the file that names them.
    """
    problems = [
        *_of_certificate(Path(certificate), where("tls.certificate")),
        *_of_key(Path(key), where("tls.key")),
    ]
    return problems or _of_both(certificate, key, where)


def _of_certificate(path: Path, where: Place) -> list[Problem]:
    hint = "Give the file with the server's certificate first and then its chain (often fullchain.pem)."
    content = _read(path)
    if isinstance(content, str):
        return [Problem(where=where, found=content, allowed="a PEM file that this user can read", hint=hint)]
    if _CERTIFICATE.search(content):
        return []
    found = f"{path}, a private key" if _KEY.search(content) else f"{path}, which has no certificate"
    return [Problem(where=where, found=found, allowed="a PEM file with BEGIN CERTIFICATE", hint=hint)]


def _of_key(path: Path, where: Place) -> list[Problem]:
    hint = "Give the certificate's private key (often privkey.pem)."
    content = _read(path)
    if isinstance(content, str):
        return [Problem(where=where, found=content, allowed="a PEM file that this user can read", hint=hint)]
    if _ENCRYPTED.search(content):
        # a server runs unattended: there is no prompt for a password
        hint = f"Write one with `openssl pkey -in {path} -out NEW`, readable for the server's user only."
        allowed = "a private key without a password"
        return [Problem(where=where, found=f"{path}, which has a password", allowed=allowed, hint=hint)]
    if _KEY.search(content):
        return []
    found = f"{path}, which has no private key"
    return [Problem(where=where, found=found, allowed="a PEM file with BEGIN PRIVATE KEY", hint=hint)]


def _of_both(certificate: str, key: str, where: Callable[[str], Place]) -> list[Problem]:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            hint = (
                f"Compare `openssl x509 -in {certificate} -noout -pubkey` with `openssl pkey -in {key} -pubout`: "
                "they must be equal. The server's own certificate comes first in its file."
            )
            allowed = f"the private key of {certificate}"
            return [Problem(where=where("tls.key"), found=f"{key}, another key", allowed=allowed, hint=hint)]
        found = f"{certificate} and {key}, which OpenSSL refuses ({error.reason or error})"
        hint = "Make both again, or look at them with `openssl x509 -text -in CERTIFICATE` and `openssl pkey -in KEY`."
        return [Problem(where=where("tls"), found=found, allowed="a certificate and its key as PEM", hint=hint)]
    return []


def _read(path: Path) -> bytes | str:
    """Return the beginning of a file, or what keeps it from being read."""
    try:
        with path.open("rb") as stream:
            return stream.read(_MOST_BYTES)
    except OSError as error:
        return f"{path} ({error.strerror})"
