"""The calls of a Tinker client, made by hand: JSON bodies, and messages in protobuf."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx
import numpy as np

from cohort.service.tinker.protobuf_messages import _CLASSES


def pass_message(
    model_id: str,
    number: int,
    data: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    *,
    loss: str = "cross_entropy",
    forward_only: bool = False,
    **config: float,
) -> bytes:
    """Return the body of a ``forward_backward``."""
    message = _CLASSES["ForwardBackwardRequest"](
        model_id=model_id, seq_id=number, loss_fn=loss, forward_only=forward_only
    )
    for key, value in config.items():
        message.loss_fn_config.add(key=key, value=value)
    for tokens, inputs in data:
        datum = message.data.add()
        datum.chunks.add().encoded_text.tokens = np.asarray(tokens, dtype="<i4").tobytes()
        for key, values in inputs.items():
            array = np.asarray(values)
            entry = datum.loss_fn_inputs.add(key=key)
            is_number = array.dtype.kind == "f"
            entry.value.dtype = 1 if is_number else 2
            entry.value.dense = array.astype("<f4" if is_number else "<i8").tobytes()
            entry.value.shape.extend(array.shape)
    return bytes(message.SerializeToString())


class TinkerCalls:
    """A client of one server."""

    def __init__(self, url: str, **headers: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1", timeout=60, headers=headers)
        self.session_id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
        if isinstance(body, bytes):
            return self._http.post(f"/{path}", content=body, headers={"Content-Type": "application/x-protobuf"})
        return self._http.post(f"/{path}", json=body)

    def send(self, method: str, path: str, content: bytes) -> httpx.Response:
        """Send any bytes."""
        return self._http.request(method, f"/{path}", content=content)

    def get(self, path: str) -> Any:
        response = self._http.get(f"/{path}")
        assert response.status_code == 200, response.text
        return response.json()

    def delete(self, path: str) -> int:
        return self._http.delete(f"/{path}").status_code

    def put(self, path: str, body: dict[str, Any]) -> int:
        return self._http.put(f"/{path}", json=body).status_code

    def begin(self) -> str:
        self.session_id = self.done("create_session", {"tags": [], "sdk_version": "0.38.0"})["session_id"]
        return self.session_id

    def done(self, path: str, body: dict[str, Any] | bytes) -> Any:
        """Return the answer of a call that is answered at once."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def result(self, path: str, body: dict[str, Any] | bytes) -> Any:
        """Return what a call gives: an object, or the bytes of a message."""
        return self.retrieve(self.done(path, body)["request_id"])

    def retrieve(self, request_id: str) -> Any:
        while True:
            response = self.post("retrieve_future", {"request_id": request_id})
            assert response.status_code == 200, response.text
            if response.headers["content-type"] == "application/x-protobuf":
                return response.content
            found = response.json()
            if found.get("type") != "try_again":
                return found

    def model(self, number: int = 0, *, rank: int = 4, **lora: Any) -> str:
        """Make a model and return its id."""
        body = {
            "session_id": self.session_id,
            "model_seq_id": number,
            "base_model": "base",
            "lora_config": {"rank": rank, **lora},
        }
        found = self.result("create_model", body)
        assert "error" not in found, found
        return str(found["model_id"])

    def train(self, model_id: str, number: int, data: Any, **options: Any) -> Any:
        """Return metrics and the log-probabilities of each datum."""
        found = self.result("forward_backward", pass_message(model_id, number, data, **options))
        assert isinstance(found, bytes), found
        return read_pass_answer(found)

    def step(self, model_id: str, number: int, **numbers: float) -> Any:
        body = {"model_id": model_id, "seq_id": number, "adam_params": {"learning_rate": 1e-2, **numbers}}
        return self.result("optim_step", body)


def read_pass_answer(answer: bytes) -> tuple[dict[str, float], list[np.ndarray[Any, np.dtype[np.float32]]]]:
    message = _CLASSES["ForwardBackwardOutput"]()
    message.ParseFromString(answer)
    logps = []
    for record in message.loss_fn_outputs:
        field = next(entry.value for entry in record.fields if entry.key == "logprobs")
        offsets = np.frombuffer(field.offsets, dtype="<i8") // 4
        values = np.frombuffer(field.data, dtype="<f4")
        for start, stop in itertools.pairwise(offsets):
            logps.append(values[start:stop].reshape(-1, *field.trailing_shape))
    return {entry.key: entry.value for entry in message.metrics}, logps


def read_samples(answer: bytes) -> tuple[list[tuple[list[int], list[float], int]], list[float]]:
    """Return tokens, log-probabilities and stop reason of each sequence, and those of the prompt."""
    message = _CLASSES["SampleResponse"]()
    message.ParseFromString(answer)
    sequences = [
        (
            np.frombuffer(each.tokens, dtype="<i4").tolist(),
            np.frombuffer(each.logprobs, dtype="<f4").tolist(),
            each.stop_reason,
        )
        for each in message.sequences
    ]
    return sequences, np.frombuffer(message.prompt_logprobs, dtype="<f4").tolist()
