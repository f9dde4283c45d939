"""A profile follows from what an earlier run measured, without a single pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.adapters.layout import AdapterLayout
from cohort.core.memory_records import PassKind
from cohort.memory import profile as profile_module
from cohort.memory.profile import MemoryProfile, profile_memory
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from tests.training.small_models import save_llama


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    save_llama(directory)
    return load_decoder(directory, dtype="float32", device="cpu")


def profiled(decoder: Decoder, **options: object) -> MemoryProfile:
    found = profile_memory(
        decoder,
        **{
            "layout": AdapterLayout(dict(decoder.linears)),
            "ranks": [4, 16],
            "usual": 20,
            "longest": 30,
            "room_bytes": 1e12,
            "most_tokens": 256,
            "memory_limit_bytes": 1 << 40,
            **options,
        },  # type: ignore[arg-type]
    )
    assert found is not None
    return found


@pytest.fixture(scope="module")
def measured(decoder: Decoder) -> MemoryProfile:
    return profiled(decoder)


def test_more_tokens_take_more_and_recomputing_takes_less(measured: MemoryProfile) -> None:
    assert measured.num_passes > 1
    assert 0 < measured.pass_bytes(64) < measured.pass_bytes(128)
    assert measured.needs(margin_share=0.1).margin_share == 0.1
    # a CPU records no passes
    assert measured.graph_bytes(128) == 0.0
    assert {peak.kind for peak in measured.passes.peaks} == set(PassKind)


def test_known_passes_are_not_run_again(
    decoder: Decoder, measured: MemoryProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("everything was known")

    monkeypatch.setattr(profile_module, "MemoryProbe", refuse)
    again = profiled(decoder, known=measured.passes)
    assert again.num_passes == 0
    assert again.pass_bytes(128) == measured.pass_bytes(128)
    assert again.largest_tokens == measured.largest_tokens


def test_less_room_means_smaller_passes(decoder: Decoder, measured: MemoryProfile) -> None:
    room = measured.pass_bytes(128)
    tight = profiled(decoder, known=measured.passes, room_bytes=room)
    assert 0 < tight.largest_tokens <= 128 < measured.largest_tokens
