"""A service on https: the unmodified client trusts its certificate, and plain HTTP gets no answer."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import openai
import pytest

from tests.service.fine_tuning.test_journey import upload
from tests.service.hosting.running_service import chat_rows
from tests.service.hosting.service_process import service_process
from tests.support.certificates import make_certificate


def test_https(tmp_path: Path) -> None:
    pair = make_certificate(tmp_path)
    tls = f"tls: {{certificate: {pair.certificate}, key: {pair.key}}}\n"
    with service_process(tmp_path / "service", more=tls) as service:
        assert service.url.startswith("https://127.0.0.1:")
        with openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(pair.certificate))) as trusting:
            client = openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, http_client=trusting)
            assert client.files.content(upload(client, chat_rows(4))).read() == chat_rows(4)
            assert client.completions.create(model="quickstart", prompt="1", max_tokens=1).choices
            # a browser sends the cookie of the pages over https alone
            opened = trusting.post(f"{service.url}/dashboard/api/session", json={"key": service.key})
            assert "Secure" in opened.headers.get("set-cookie", "")
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{service.url}/health")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{service.url.replace('https', 'http')}/health")
        service.process.terminate()
        assert service.process.wait(60) == 0
