"""GPUs are known by torch's names, and a name that is nearly one is answered with it."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.machine.gpu_kinds import GPU_KINDS, find_gpu_kind


def test_every_kind_is_found_by_its_name() -> None:
    assert len({kind.name for kind in GPU_KINDS}) == len(GPU_KINDS)
    for kind in GPU_KINDS:
        assert find_gpu_kind(kind.name, where="--gpu") is kind
        assert 99 << 10 <= kind.shared_bytes <= 227 << 10
    assert find_gpu_kind("NVIDIA H200", where="--gpu").num_multiprocessors == 132


@pytest.mark.parametrize(
    ("given", "meant"),
    [("h200", "NVIDIA H200"), ("NVIDIA H100", "NVIDIA H100 80GB HBM3"), ("H20O", "NVIDIA H200"), ("TPU v9", None)],
)
def test_a_name_that_is_not_known_is_refused_with_those_that_are(given: str, meant: str | None) -> None:
    with pytest.raises(InputError) as caught:
        find_gpu_kind(given, where="--gpu")
    text = str(caught.value)
    assert f"--gpu: found {given!r}" in text
    assert "NVIDIA H200 | NVIDIA H100 80GB HBM3 | " in text
    assert ("Did you mean" in text) == (meant is not None)
    assert meant is None or f"Did you mean {meant!r}?" in text
