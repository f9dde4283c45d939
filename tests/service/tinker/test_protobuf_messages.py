"""Messages of the client, made of bytes field by field, and those that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cohort.core.errors import InputError
from cohort.service.tinker.protobuf_messages import _CLASSES, pass_answer, read_pass, sample_answer
from tests.service.tinker.tinker_calls import pass_message, read_pass_answer, read_samples


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field, as the protobuf pages describe it."""
    return bytes([number << 3 | 2, len(content)]) + content


def test_a_request_is_read_from_its_bytes() -> None:
    tokens = np.array([1, 2], dtype="<i4").tobytes()
    tensor = field(1, np.array([0.5, 1.0], dtype="<f4").tobytes()) + bytes([3 << 3, 1]) + field(4, bytes([2]))
    datum = field(1, field(1, field(1, tokens))) + field(2, field(1, b"weights") + field(2, tensor))
    number = field(1, b"beta") + bytes([2 << 3 | 1]) + np.array([0.25], dtype="<f8").tobytes()
    body = field(1, b"m") + bytes([2 << 3, 7]) + field(3, datum) + field(4, b"dro") + field(5, number) + b"\x30\x01"
    found = read_pass(body)
    assert (found.model_id, found.number, found.loss, found.forward_only) == ("m", 7, "dro", True)
    assert found.config == {"beta": 0.25}
    ((read, inputs),) = found.data
    assert read.tolist() == [1, 2]
    assert inputs["weights"].tolist() == [0.5, 1.0]


def test_sparse_targets_become_a_matrix() -> None:
    message = _CLASSES["ForwardBackwardRequest"](model_id="m", seq_id=1, loss_fn="cross_entropy")
    entry = message.data.add().loss_fn_inputs.add(key="weights")
    entry.value.dtype = 1
    entry.value.shape.extend([3, 2])
    entry.value.sparse_csr.values = np.array([0.5, 0.25, 0.75], dtype="<f4").tobytes()
    entry.value.sparse_csr.crow = np.array([0, 1, 1, 3], dtype="<i8").tobytes()
    entry.value.sparse_csr.col = np.array([1, 0, 1], dtype="<i8").tobytes()
    ((_, inputs),) = read_pass(message.SerializeToString()).data
    assert inputs["weights"].tolist() == [[0.0, 0.5], [0.0, 0.0], [0.25, 0.75]]


def broken(**changes: Any) -> bytes:
    message = _CLASSES["ForwardBackwardRequest"](model_id="m", seq_id=1)
    datum = message.data.add()
    value = datum.loss_fn_inputs.add(key="weights").value
    value.dtype, value.dense = changes.get("dtype", 1), changes.get("dense", b"\0" * 8)
    value.shape.extend(changes.get("shape", [2]))
    if "crow" in changes:
        value.sparse_csr.crow = np.array(changes["crow"], dtype="<i8").tobytes()
        value.sparse_csr.values, value.sparse_csr.col = b"\0" * 4, np.array([changes["col"]], dtype="<i8").tobytes()
    if "image" in changes:
        datum.chunks.add().image = b"picture"
    if "tokens" in changes:
        datum.chunks.add().encoded_text.tokens = changes["tokens"]
    if "text" in changes:
        message.loss_fn_config_v2.add(key="clip").value.text = "0.2"
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff\xff\xff", "3 bytes that are no ForwardBackwardRequest"),
        (broken(dtype=9), "loss_fn_inputs.weights: found dtype 9 and shape .2.; allowed: float32 or int64 values"),
        (broken(shape=[3]), "found values that do not fill shape .3."),
        (broken(shape=[-1]), "found dtype 1 and shape .-1."),
        (broken(shape=[1 << 40]), "data: found 1,099,511,627,776 values; allowed: at most 16,777,216 in a call"),
        (broken(dense=b"\0" * 7), "found values that do not fill shape .2."),
        (broken(shape=[1, 2], crow=[0, 1], col=2), "found values that do not fill shape .1, 2."),
        (broken(shape=[1, 2], crow=[0, 5], col=0), "found values that do not fill"),
        (broken(image=True), "data.0..model_input: found an image; allowed: text"),
        (broken(tokens=b"\0" * 6), "found 6 bytes; allowed: int32 tokens"),
        (broken(text=True), "loss_fn_config.clip: found '0.2'; allowed: numbers"),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_pass(body)


def test_answers_keep_the_order_of_data_whose_targets_differ_in_number() -> None:
    arrays = [np.ones((3, 1))[:, 0], np.full((2, 4), 2.0), np.full((5, 4), 3.0), np.zeros(1)]
    metrics, found = read_pass_answer(pass_answer({"logprobs": arrays}, num_data=4, metrics={"loss:sum": 0.5}))
    assert metrics == {"loss:sum": 0.5}
    assert [each.shape for each in found] == [(3,), (2, 4), (5, 4), (1,)]
    assert [float(each.ravel()[0]) for each in found] == [1.0, 2.0, 3.0, 0.0]


def test_samples_and_prompts() -> None:
    answer = sample_answer([([1, 2], [-0.5, -1.0], True), ([], [], False)], prompt_logprobs=[-2.0])
    assert read_samples(answer) == ([([1, 2], [-0.5, -1.0], 0), ([], [], 1)], [-2.0])


def test_the_helper_of_these_tests_writes_what_is_read() -> None:
    found = read_pass(pass_message("m", 3, [([1, 2], {"target_tokens": [2, 3]})], loss="ppo", clip_low_threshold=0.5))
    assert (found.number, found.loss, found.config) == (3, "ppo", {"clip_low_threshold": 0.5})
