"""A few layers stand for all where all are alike."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cohort.adapters.layout import AdapterLayout
from cohort.models.checkpoint_layout import adapter_layout, factor_shapes
from cohort.models.weights import load_decoder
from cohort.training.cuda_graphs.few_layers import (
    all_rows,
    are_layers_alike,
    few_layers,
    first_layers,
    num_alike_layers,
    one_layer_each,
)
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.training.small_models import save_llama, save_qwen2


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
    save_qwen2(tmp_path, num_layers=3)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers = decoder.layers
    try:
        with few_layers(decoder, layout=AdapterLayout(decoder.linears)):
            assert decoder.layers == (layers[0], layers[2])
            raise MemoryError
    except MemoryError:
        pass
    assert decoder.layers == layers


def test_layers_repeat_after_as_many_as_their_windows_do(tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=6)
    decoder: Any = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers = decoder.layers
    with first_layers(decoder, 2):
        assert decoder.layers == layers[:2]
        assert list(decoder.part) == [0, 1]
    assert decoder.layers == layers
    for windows, period in (((None,) * 6, 1), ((8, None) * 3, 2), ((8, 8, None) * 2, 3), ((8,) * 5 + (None,), 6)):
        decoder.config = SimpleNamespace(windows=windows, is_sparse=lambda layer: False)
        assert num_alike_layers(decoder) == period


def test_a_dense_layer_among_those_with_experts_is_of_a_kind_of_its_own(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    save_checkpoint(tmp_path, "Qwen3Moe", **sizes, num_hidden_layers=6, decoder_sparse_step=2)
    decoder = load_decoder(tmp_path)
    layers, layout = decoder.layers, adapter_layout(decoder.config, factor_shapes(decoder.config))
    assert num_alike_layers(decoder) == 2
    assert not are_layers_alike(decoder, adapted=layout.columns)
    with few_layers(decoder, layout=layout):
        left = [decoder.layers]
        # of what is left: the first layer's kind is there without it
        with one_layer_each(decoder, layout=layout):
            left.append(decoder.layers)
    assert left == [(layers[0], layers[4], layers[5]), (layers[4], layers[5])]
    with first_layers(decoder, 1):
        assert are_layers_alike(decoder, adapted=layout.columns)


def test_layers_whose_factors_begin_elsewhere_between_two_multiples_of_16_bytes_are_left_as_well(
    tmp_path: Path,
) -> None:
    save_llama(tmp_path, num_layers=5)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers = list(decoder.layers)
    layout = AdapterLayout(decoder.linears)
    # a layer has 812 columns, so every other one begins in the middle of 8
    assert layout.width % 8 == 4
    with few_layers(decoder, layout=layout):
        assert list(decoder.layers) == [layers[0], layers[3], layers[4]]
    with one_layer_each(decoder, layout=layout):
        assert list(decoder.layers) == [layers[3], layers[4]]
    with first_layers(decoder, 2), one_layer_each(decoder, layout=layout):
        assert list(decoder.layers) == [layers[0], layers[1]]
    # linears without an adapter begin nowhere
    queries = {name: sizes for name, sizes in decoder.linears.items() if name.endswith("q_proj")}
    with few_layers(decoder, layout=AdapterLayout(queries)):
        assert list(decoder.layers) == [layers[0], layers[4]]


def test_another_layer_of_the_last_one_s_kind_is_left_where_the_last_one_leaves_out_rows(tmp_path: Path) -> None:
    save_llama(tmp_path, num_layers=6)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layers, layout = list(decoder.layers), AdapterLayout(decoder.linears)
    assert decoder.grouped_leaves_out_rows
    # the first one is of the other kind
    with few_layers(decoder, layout=layout):
        assert list(decoder.layers) == [layers[0], *layers[3:]]
    with all_rows(decoder), few_layers(decoder, layout=layout):
        assert list(decoder.layers) == [layers[0], *layers[4:]]
    assert not decoder.computes_all_rows
