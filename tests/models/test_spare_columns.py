"""Columns to spare behind frozen weights: who gets them, when they move, and that they change no plain product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.kernels.backend import Backend, BackendChoice
from cohort.kernels.packed_linear.choice.tiles import TermPlace, TileChoice
from cohort.models import spare_columns
from cohort.models.decoder import Decoder
from cohort.models.spare_columns import reserve_spare_columns
from cohort.models.weight_formats.kinds.plain import FrozenLinear
from cohort.models.weights import load_decoder
from tests.kernels.dense_head import DenseHead
from tests.models.fixtures.tiny_checkpoints import SIZES, save_checkpoint

HIDDEN, WIDTH = SIZES["hidden_size"], SIZES["intermediate_size"]


def columns(decoder: Decoder) -> list[int]:
    """Columns to spare of qkv, o, gate and up, down, in each layer."""
    found = []
    for layer in decoder.layers:
        for linear in layer.linears:
            assert isinstance(linear.frozen, FrozenLinear)
            found.append(0 if linear.frozen.spare_NC is None else linear.frozen.spare_NC.shape[1])
    return found


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """A decoder that says it is in 16 bits on a GPU whose table asks for augmented products of o alone."""
    found = load_decoder(save_checkpoint(tmp_path, "Llama"))
    found.device, found.dtype = torch.device("cuda"), torch.bfloat16
    choice = BackendChoice(backend=Backend.TRITON, reason="test")
    monkeypatch.setattr(spare_columns, "describe_backend", lambda device: choice)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")

    def tiles(gpu: str, *, in_features: int, out_widths: tuple[int, ...], num_rows: int) -> TileChoice:
        del num_rows
        asks = (gpu, in_features, out_widths) == ("Some GPU", HIDDEN, (HIDDEN,))
        return TileChoice(term_forward=TermPlace.AUGMENTED) if asks else TileChoice()

    monkeypatch.setattr(spare_columns, "choose_tiles", tiles)
    return found


def test_weights_of_another_format_are_left_as_they_are(decoder: Decoder) -> None:
    others = [DenseHead(torch.zeros(HIDDEN, HIDDEN)) for _ in decoder.layers]
    for layer, other in zip(decoder.layers, others, strict=True):
        layer.linears[1].frozen = other
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=2048)
    assert [layer.linears[1].frozen for layer in decoder.layers] == others


def test_a_small_bank_and_a_long_pass_get_columns_and_a_larger_bank_gives_them_back(decoder: Decoder) -> None:
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=2047)
    assert columns(decoder) == [0] * 8
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=2048)
    assert columns(decoder) == [0, 64, 0, 0] * 2
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=100)
    assert columns(decoder) == [0, 64, 0, 0] * 2
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=80, num_rows=100)
    assert columns(decoder) == [0] * 8


def test_a_linear_that_the_bank_leaves_alone_gets_none(decoder: Decoder) -> None:
    without = [name for name in decoder.linears if "layers.1." not in name or "o_proj" not in name]
    reserve_spare_columns(decoder, adapted=without, num_rank_rows=64, num_rows=2048)
    assert columns(decoder) == [0, 64, 0, 0] + [0] * 4
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=2048)
    assert columns(decoder) == [0, 64, 0, 0] * 2
    # the next bank on the same model adapts q and v alone
    reserve_spare_columns(
        decoder, adapted=[n for n in decoder.linears if "q_proj" in n or "v_proj" in n], num_rank_rows=64, num_rows=9
    )
    assert columns(decoder) == [0] * 8


def test_nothing_moves_once_a_graph_has_recorded_where_it_is(decoder: Decoder) -> None:
    decoder.is_recorded = True
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=2048)
    assert columns(decoder) == [0] * 8


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("cuda", torch.float32)])
def test_only_sixteen_bits_on_a_gpu_get_columns(decoder: Decoder, device: str, dtype: torch.dtype) -> None:
    decoder.device, decoder.dtype = torch.device(device), dtype
    reserve_spare_columns(decoder, adapted=decoder.linears, num_rank_rows=64, num_rows=2048)
    assert columns(decoder) == [0] * 8


def test_a_product_is_the_same_with_columns_to_spare_and_after_them(decoder: Decoder) -> None:
    x = torch.randn(16, WIDTH)
    down = decoder.layers[0].linears[3]
    expected = down(x, None)
    assert isinstance(down.frozen, FrozenLinear)
    for count in (16, 48, 0):
        down.frozen.reserve_columns(count)
        assert down.frozen.num_bytes == HIDDEN * (WIDTH + count) * 4
        torch.testing.assert_close(down(x, None), expected, rtol=1e-5, atol=1e-6)


def test_an_augmented_product_takes_the_first_columns_to_spare() -> None:
    wide, bias = torch.randn(6, 20, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    frozen = FrozenLinear(wide, bias, in_features=12)
    assert (frozen.in_features, frozen.out_features) == (12, 6)
    x = torch.randn(5, 15, dtype=torch.float64)
    torch.testing.assert_close(frozen.forward_augmented(x), x @ wide[:, :15].T + bias)
    assert frozen.spare_NC is not None
    assert frozen.spare_NC.data_ptr() == wide[:, 12:].data_ptr()
    assert FrozenLinear(wide).spare_NC is None
