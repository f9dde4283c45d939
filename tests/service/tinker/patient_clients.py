"""Clients that go on when their server is killed: each sends a call again until it has its answer."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.service.tinker.tinker_calls import TinkerCalls, pass_message
from tests.service.tinker.trained_models import data

__all__ = ["Acknowledged", "PatientCalls", "outcomes"]


class Acknowledged:
    """Counts the calls of all clients that were acknowledged, and lets others wait for a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_for(self, count: int, *, timeout: float = 120) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, timeout)


class PatientCalls(TinkerCalls):
    """Sends a call again while nothing answers."""

    def __init__(self, url: str, *, acknowledged: Acknowledged) -> None:
        super().__init__(url)
        self._acknowledged = acknowledged

    def post(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        deadline = time.monotonic() + 120
        while True:
            try:
                found = super().post(path, body)
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
                continue
            if path != "retrieve_future":
                self._acknowledged.add()
            return found


class PatientClient:
    """A client with one model, whose program follows from a seed.

    It sends calls ahead of their answers, and adds everything that it is told to a hash.
    """

    def __init__(self, calls: PatientCalls, seed: int) -> None:
        self._calls, self._seed, self._chance = calls, seed, random.Random(seed)
        self._number, self._waiting = 0, list[str]()
        self.seen = hashlib.sha256()
        calls.begin()
        self.model_id = calls.model(rank=self._chance.choice([2, 4, 8]), seed=seed)

    def send(self, call: str, **fields: Any) -> None:
        self._number += 1
        body = {"model_id": self.model_id, "seq_id": self._number, **fields}
        self._waiting.append(self._calls.done(call, body)["request_id"])

    def send_pass(self, rows: Any) -> None:
        self._number += 1
        message = pass_message(self.model_id, self._number, rows)
        self._waiting.append(self._calls.done("forward_backward", message)["request_id"])

    def hear(self, *, but: int = 0) -> None:
        """Wait for all answers but the last few."""
        while len(self._waiting) > but:
            answer = self._calls.retrieve(self._waiting.pop(0))
            assert isinstance(answer, bytes) or "error" not in answer, answer
            self.seen.update(answer if isinstance(answer, bytes) else repr(answer.get("metrics")).encode())

    def step(self, step: int) -> None:
        """Pass, step, and now and then save, sample or go back."""
        for part in range(self._chance.choice([1, 1, 2])):
            self.send_pass(data(self._seed * 1000 + step * 10 + part, self._chance.choice([1, 2, 3])))
        self.send("optim_step", adam_params={"learning_rate": self._chance.choice([1e-3, 1e-2])})
        self.hear(but=4)
        act = self._chance.random()
        if act < 0.2:
            self.send("save_weights", path=f"s{step}")
        elif act < 0.4:
            self.send("save_weights_for_sampler", sampling_session_seq_id=step)
            self.hear()
            self._sample(step)
        elif act < 0.5:
            self.send("save_weights", path="back", overwrite=True)
            self.send("load_weights", path=f"tinker://{self.model_id}/weights/back", optimizer=True)

    def _sample(self, step: int) -> None:
        asked = {
            "sampling_session_id": f"{self._calls.session_id}:sample:{step}",
            "seq_id": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 9, 13]}]},
            "sampling_params": {"max_tokens": 4, "seed": self._seed * 1000 + step, "stop": []},
            "prompt_logprobs": True,
        }
        answer = self._calls.retrieve(self._calls.done("asample", asked)["request_id"])
        assert isinstance(answer, bytes), answer
        self.seen.update(answer)


def run_client(url: str, seed: int, folder: Path, *, steps: int, acknowledged: Acknowledged) -> str:
    """Run a client's program and return the SHA-256 of all that it was told and has left."""
    with PatientCalls(url, acknowledged=acknowledged) as calls:
        client = PatientClient(calls, seed)
        for step in range(steps):
            client.step(step)
        client.send("save_weights", path="last")
        client.hear()
        saved = folder / client.model_id.replace(":", "=") / "weights" / "last"
        for name in ("adapter_model.safetensors", "state.safetensors"):
            client.seen.update((saved / name).read_bytes())
    return client.seen.hexdigest()


def outcomes(url: str, folder: Path, *, clients: int, steps: int, acknowledged: Acknowledged) -> list[str]:
    """Run clients at once and return what each came to."""
    with ThreadPoolExecutor(clients) as threads:
        return list(
            threads.map(
                lambda seed: run_client(url, seed, folder, steps=steps, acknowledged=acknowledged), range(clients)
            )
        )
