"""Certificates of our own for this machine's address, made by the openssl program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Certificate", "make_certificate"]


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate that is its own authority, and its private key."""

    certificate: Path
    key: Path


def make_certificate(
    folder: Path, *, name: str = "server", kind: str = "ec", password: str | None = None
) -> Certificate:
    """Return a new certificate for 127.0.0.1; skips without openssl.

    Args:
        kind: ``ec`` or ``rsa``.
        password: Of the key; None: it has none.
    """
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl program")
    made = Certificate(certificate=folder / f"{name}.crt", key=folder / f"{name}.key")
    algorithm = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if kind == "ec" else ["-newkey", "rsa:2048"]
    lock = ["-noenc"] if password is None else ["-passout", f"pass:{password}"]
    subject = ["-subj", "/CN=cohort", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    files = ["-keyout", str(made.key), "-out", str(made.certificate)]
    done = subprocess.run(
        [program, "req", "-x509", *algorithm, *lock, *subject, *files], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return made
