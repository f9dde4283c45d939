"""A few layers stand for all where all are alike."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cohort.models.weights import load_decoder
from cohort.training.recorded.few_layers import are_layers_alike, few_layers
from tests.training.small_models import save_llama


def test_layers_are_alike_where_all_or_none_of_a_kind_are_adapted_and_on_the_device(tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=3)
    decoder: Any = load_decoder(tmp_path, dtype="float32", device="cpu")
    names = set(decoder.linears)
    queries = {name for name in names if name.endswith("q_proj")}
    assert len(queries) == 3
    assert are_layers_alike(decoder, adapted=names)
    assert are_layers_alike(decoder, adapted=queries)
    assert not are_layers_alike(decoder, adapted=names - set(sorted(queries)[1:]))
    # layers that pass through a ring take turns in its buffers
    decoder.ring = SimpleNamespace()
    assert not are_layers_alike(decoder, adapted=names)


def test_layers_come_back_after_an_error(tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=3)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers = decoder.layers
    try:
        with few_layers(decoder):
            assert decoder.layers == (layers[0], layers[2])
            raise MemoryError
    except MemoryError:
        pass
    assert decoder.layers == layers
