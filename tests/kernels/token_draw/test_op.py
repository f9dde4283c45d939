"""A row's token is the one that plain float64 sums give, wherever the row stands; logarithms as torch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cohort.kernels.backend import Backend
from cohort.kernels.token_draw import draw_tokens, picked_logprobs
from tests.kernels.closeness import low_precision

SHAPES = [(1, 1), (3, 5), (4, 700), (2, 5000), (0, 7)]


def case(
    count: int, vocab_size: int, *, device: str, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    logits = (torch.randn(count + 2, vocab_size, generator=chance) * 3).to(device, dtype)
    rows = torch.randperm(count + 2, generator=chance)[:count].to(device)
    temperatures = (torch.rand(count, generator=chance, dtype=torch.float64) * 2 + 0.1).to(device)
    draws = torch.rand(count, generator=chance, dtype=torch.float64).to(device)
    return logits, rows, temperatures, draws


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_draws_what_plain_sums_give(triton_device: str, shape: tuple[int, int], is_rounded: bool) -> None:
    dtype = low_precision(triton_device) if is_rounded else torch.float32
    logits, rows, temperatures, draws = case(*shape, device=triton_device, dtype=dtype)
    found, expected = (
        draw_tokens(logits, rows_C=rows, temperatures_C=temperatures, draws_C=draws, backend=backend)
        for backend in (Backend.TRITON, Backend.REFERENCE)
    )
    assert torch.equal(found, expected)
    tokens = found.clone()
    ours, theirs = (
        picked_logprobs(logits, rows_C=rows, tokens_C=tokens, temperatures_C=temperatures, backend=backend)
        for backend in (Backend.TRITON, Backend.REFERENCE)
    )
    # sums of thousands of float64 numbers in another order
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_draws_at_the_ends_and_of_tokens_that_weigh_nothing(triton_device: str) -> None:
    logits = torch.full((4, 3000), -1e30, device=triton_device)
    logits[:, 2500], logits[:, 17] = 1.0, 1.0
    rows = torch.arange(4, device=triton_device)
    draws = torch.tensor([0.0, 0.4999, 0.5001, 1 - 2**-53], dtype=torch.float64, device=triton_device)
    ones = torch.ones(4, dtype=torch.float64, device=triton_device)
    for backend in (Backend.TRITON, Backend.REFERENCE):
        found = draw_tokens(logits, rows_C=rows, temperatures_C=ones, draws_C=draws, backend=backend)
        assert found.tolist() == [17, 17, 2500, 2500]


def test_rows_that_are_no_numbers_get_some_token_and_change_no_other(triton_device: str) -> None:
    logits, rows, temperatures, draws = case(5, 100, device=triton_device, dtype=torch.float32)
    before = draw_tokens(logits, rows_C=rows, temperatures_C=temperatures, draws_C=draws, backend=Backend.TRITON)
    for value in (float("nan"), float("inf"), float("-inf")):
        broken = logits.clone()
        broken[rows[2]] = value
        found = draw_tokens(broken, rows_C=rows, temperatures_C=temperatures, draws_C=draws, backend=Backend.TRITON)
        assert 0 <= int(found[2]) < 100
        others = [0, 1, 3, 4]
        assert torch.equal(found[others], before[others])


def test_a_rows_bits_do_not_depend_on_its_place(triton_device: str) -> None:
    logits, rows, temperatures, draws = case(6, 4100, device=triton_device, dtype=torch.float32)
    tokens = draw_tokens(logits, rows_C=rows, temperatures_C=temperatures, draws_C=draws, backend=Backend.TRITON)
    together = picked_logprobs(
        logits, rows_C=rows, tokens_C=tokens, temperatures_C=temperatures, backend=Backend.TRITON
    )
    for place in range(6):
        one = slice(place, place + 1)
        alone = picked_logprobs(
            logits[rows[one]].clone(),
            rows_C=torch.zeros(1, dtype=torch.int64, device=triton_device),
            tokens_C=tokens[one],
            temperatures_C=temperatures[one],
            backend=Backend.TRITON,
        )
        assert torch.equal(alone, together[one])
