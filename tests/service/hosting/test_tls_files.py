"""A certificate and a key that cannot serve https are named with the fix, before anything else is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.service.hosting.service_file import load_service_file
from tests.cli.command import cohort
from tests.support.certificates import Certificate, make_certificate

_NOBODY = 65534


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("pair"))


def written(folder: Path, certificate: Path | str, key: Path | str) -> Path:
    path = folder / "service.yaml"
    path.write_text(f"port: 0\ntls:\n  certificate: {certificate}\n  key: {key}\n")
    return path


def refusal(folder: Path, certificate: Path | str, key: Path | str) -> str:
    with pytest.raises(InputError) as refused:
        load_service_file(written(folder, certificate, key))
    return str(refused.value)


def test_files_that_belong_together_are_taken_from_the_folder_of_their_file(tmp_path: Path, pair: Certificate) -> None:
    for source in (pair.certificate, pair.key):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    file = load_service_file(written(tmp_path, pair.certificate.name, pair.key.name))
    assert file.tls is not None
    assert (file.tls.certificate, file.tls.key) == (str(tmp_path / "server.crt"), str(tmp_path / "server.key"))
    # one file may hold both
    both = tmp_path / "both.pem"
    both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    assert load_service_file(written(tmp_path, both, both)).tls is not None


def test_files_that_are_not_there_are_named_both_at_once(tmp_path: Path) -> None:
    text = refusal(tmp_path, "c.pem", "k.pem")
    assert f"service.yaml:3: tls.certificate: found {tmp_path}/c.pem (No such file or directory)" in text
    assert f"service.yaml:4: tls.key: found {tmp_path}/k.pem (No such file or directory)" in text
    assert "fullchain.pem" in text


def test_a_file_of_another_kind_is_said(tmp_path: Path, pair: Certificate) -> None:
    (tmp_path / "text").write_text("hello")
    assert "tls.certificate: found " + f"{pair.key}, a private key" in refusal(tmp_path, pair.key, pair.key)
    assert f"{tmp_path}/text, which has no certificate" in refusal(tmp_path, "text", pair.key)
    assert f"{pair.certificate}, which has no private key" in refusal(tmp_path, pair.certificate, pair.certificate)
    assert f"{tmp_path} (Is a directory)" in refusal(tmp_path, pair.certificate, tmp_path)
    cut = tmp_path / "cut.pem"
    cut.write_bytes(pair.certificate.read_bytes()[:200])
    assert "which OpenSSL refuses" in refusal(tmp_path, cut, pair.key)


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_a_key_of_another_certificate_is_said(tmp_path: Path, pair: Certificate, kind: str) -> None:
    other = make_certificate(tmp_path, name="other", kind=kind)
    text = refusal(tmp_path, pair.certificate, other.key)
    assert f"service.yaml:4: tls.key: found {other.key}, another key" in text
    assert f"allowed: the private key of {pair.certificate}" in text
    assert f"openssl x509 -in {pair.certificate} -noout -pubkey" in text


def test_a_key_with_a_password_is_refused_and_not_asked_for_at_the_terminal(tmp_path: Path) -> None:
    locked = make_certificate(tmp_path, password="secret")
    text = refusal(tmp_path, locked.certificate, locked.key)
    assert f"tls.key: found {locked.key}, which has a password" in text
    assert f"openssl pkey -in {locked.key} -out" in text


@contextmanager
def as_nobody() -> Iterator[None]:
    """Read as a user who may nothing, where the tests run as one who may everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_key_that_may_not_be_read_is_said(tmp_path: Path, pair: Certificate) -> None:
    key = tmp_path / "own.key"
    key.write_bytes(pair.key.read_bytes())
    path = written(tmp_path, pair.certificate, key)
    key.chmod(0)
    # the folders above a test's belong to its user alone
    for folder in (tmp_path, *tmp_path.parents, *pair.certificate.parents):
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid() and "pytest-" in str(folder):
            folder.chmod(0o755)
    with as_nobody(), pytest.raises(InputError) as refused:
        load_service_file(path)
    assert f"service.yaml:4: tls.key: found {key} (Permission denied)" in str(refused.value)


def test_the_command_ends_with_2_before_it_loads_anything(
    tmp_path: Path, pair: Certificate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, told = cohort(capsys, "service", written(tmp_path, pair.certificate, "k.pem"))
    assert code == 2
    assert f"found    {tmp_path}/k.pem (No such file or directory)" in told
    assert "hint     Give the certificate's private key" in told
    assert not (tmp_path / "cohort-service").exists()
