"""What every format that quantises promises: the numbers of float32 whatever is stored, and pieces that come back."""

from __future__ import annotations

import pytest
import torch

from cohort.models.weight_formats import WEIGHT_FORMATS

QUANTISATIONS = {name: kept.quantisation for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(6, 64), (37, 96), (5, 5000), (3, 4096)])
@pytest.mark.parametrize("name", sorted(QUANTISATIONS))
def test_sixteen_bits_are_quantised_as_their_float32_values(
    name: str, shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    generator = torch.Generator().manual_seed(7)
    weight_NK = torch.randn(shape, generator=generator).to(dtype)
    weight_NK[2] = 0.0
    weight_NK[1, 3] = 1000.0
    weight_NK = weight_NK.to(device)
    found, expected = (QUANTISATIONS[name].quantise(weight) for weight in (weight_NK, weight_NK.float()))
    assert found.keys() == expected.keys()
    for part in found:
        assert found[part].dtype == expected[part].dtype
        assert bytes_of(found[part]) == bytes_of(expected[part])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [(16,), (16, 8, 8)])
@pytest.mark.parametrize("name", sorted(QUANTISATIONS))
def test_pieces_come_back_from_the_memory_of_their_products(name: str, rows: tuple[int, ...], device: str) -> None:
    own = QUANTISATIONS[name]
    pieces = [own.quantise(torch.randn(num_rows, 64, device=device)) for num_rows in rows]
    product = own.assemble(pieces, None, torch.float32)
    if own.finish is not None:
        own.finish([product], None)
    assert own.disassemble is not None
    found = own.disassemble(product, rows)
    assert len(found) == len(pieces)
    for back, piece in zip(found, pieces, strict=True):
        assert back.keys() == piece.keys()
        for part in piece:
            assert back[part].is_contiguous()
            assert (back[part].dtype, back[part].shape) == (piece[part].dtype, piece[part].shape)
            assert bytes_of(back[part]) == bytes_of(piece[part])
    again = own.disassemble(product, rows)
    # they are views
    assert [piece["codes"].data_ptr() for piece in again] == [piece["codes"].data_ptr() for piece in found]
