"""The head is what safetensors itself writes and reads."""

from __future__ import annotations

import struct

import torch
from safetensors.torch import load, save

from cohort.core.safetensors_header import safetensors_header


def test_a_head_and_the_data_are_a_file() -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(()), "c": torch.zeros(0, 2)}
    sizes = {name: ("F32", tensor.shape, tensor.nbytes) for name, tensor in tensors.items()}
    data = b"".join(tensor.numpy().tobytes() for tensor in tensors.values())
    assert safetensors_header(sizes, metadata={"format": "pt"}) + data == save(tensors, metadata={"format": "pt"})


def test_a_head_takes_the_place_that_was_left_for_it() -> None:
    sizes = {"a": ("U8", (3,), 3)}
    place = safetensors_header(sizes, metadata={"sum": "-" * 30})
    for text in ("", "7", "-" * 29):
        head = safetensors_header(sizes, metadata={"sum": text}, least_bytes=len(place))
        assert len(head) == len(place)
        assert struct.unpack("<Q", head[:8])[0] == len(head) - 8
        assert load(head + b"\1\2\3")["a"].tolist() == [1, 2, 3]
