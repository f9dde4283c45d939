"""Packed attention: right, and bit-identical whatever stands beside a sequence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from cohort.core.errors import ShapeError
from cohort.models.attention import PackedAttention
from cohort.models.config import AttentionRule
from tests.models.fixtures.streams import num_rows, offsets_of

SHAPES = [(4, 4, 8), (8, 4, 8), (6, 2, 10), (3, 1, 5), (8, 2, 64)]
LENGTHS = (1, 2, 15, 16, 17, 40, 64, 100)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class Sequences:
    """q, k, v and the gradient of o by sequence; its values depend on its length alone."""

    def __init__(self, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> None:
        self.shape = shape
        self.dtype = dtype

    def rows(self, length: int) -> list[Tensor]:
        heads, kv_heads, width = self.shape
        generator = torch.Generator().manual_seed(length)
        return [
            torch.randn(length, count, width, generator=generator, dtype=torch.float64).to(self.dtype)
            for count in (heads, kv_heads, kv_heads, heads)
        ]

    def run(
        self, lengths: Sequence[int], *, window: int | None = None, poison: int | None = None
    ) -> list[list[Tensor]]:
        """Per sequence o, dq, dk, dv, computed in one stream. The sequence at index ``poison`` is all NaN."""
        rows = num_rows(lengths)
        streams = [torch.full((rows, *part.shape[1:]), 7.0, dtype=self.dtype) for part in self.rows(1)]
        offsets = offsets_of(lengths)
        for index, length in enumerate(lengths):
            for stream, part in zip(streams, self.rows(length), strict=True):
                stream[offsets[index] : offsets[index + 1]] = float("nan") if index == poison else part
        q, k, v = (stream.requires_grad_() for stream in streams[:3])
        o = PackedAttention(offsets).attend(0, q, k, v, rule=AttentionRule(window=window))
        o.backward(streams[3])
        for tensor in (o.detach(), q.grad, k.grad, v.grad):
            assert tensor is not None
            assert torch.equal(tensor[offsets[-1] :], torch.zeros_like(tensor[offsets[-1] :]))
        return [
            [tensor[start:stop] for tensor in (o.detach(), q.grad, k.grad, v.grad) if tensor is not None]
            for start, stop in itertools.pairwise(offsets)
        ]

    def expected(self, length: int, *, window: int | None = None) -> list[Tensor]:
        """The same by the definition, one query at a time, in float64."""
        q, k, v, do = (part.double() for part in self.rows(length))
        q, k, v = (part.requires_grad_() for part in (q, k, v))
        repeats = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        outputs = []
        for row in range(length):
            first = 0 if window is None else max(0, row + 1 - window)
            scores = torch.einsum("he,lhe->hl", q[row], keys[first : row + 1]) / q.shape[2] ** 0.5
            outputs.append(torch.einsum("hl,lhe->he", scores.softmax(-1), values[first : row + 1]))
        o = torch.stack(outputs)
        o.backward(do)
        assert q.grad is not None
        assert k.grad is not None
        assert v.grad is not None
        return [o.detach(), q.grad, k.grad, v.grad]


def assert_same_bits(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    for name, a, b in zip(("o", "dq", "dk", "dv"), ours, theirs, strict=True):
        assert torch.equal(a, b), f"{name} differs by {(a - b).abs().max()}"


@pytest.mark.parametrize("window", [None, 5, 33])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_definition(shape: tuple[int, int, int], window: int | None) -> None:
    sequences = Sequences(shape)
    for length, ours in zip(LENGTHS, sequences.run(LENGTHS, window=window), strict=True):
        for a, b in zip(ours, sequences.expected(length, window=window), strict=True):
            # float32 rounding of sums of at most 100 terms of size about 3
            torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-5)


@pytest.mark.parametrize("window", [None, 33])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_do_not_depend_on_neighbours(shape: tuple[int, int, int], window: int | None, threads: int) -> None:
    sequences = Sequences(shape)
    packs = [
        LENGTHS,
        LENGTHS[::-1],
        (40, 40, 40, 33, 47, 100),
        (100, 99, 98, 100, 100, 1),
        (16,) * 9 + (15, 2),
        (64, 17, 1, 1, 1, 2, 64, 63, 64),
        (256, 100, 40),
        (300, 300, 17, 300, 15),
    ]
    alone = {
        length: sequences.run((length,), window=window)[0] for length in sorted({n for pack in packs for n in pack})
    }
    for pack in packs:
        for length, bits in zip(pack, sequences.run(pack, window=window), strict=True):
            assert_same_bits(bits, alone[length])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_bits_hold_in_other_dtypes(dtype: torch.dtype, threads: int) -> None:
    sequences = Sequences((8, 4, 16), dtype)
    for length, bits in zip(LENGTHS, sequences.run(LENGTHS), strict=True):
        assert_same_bits(bits, sequences.run((length,))[0])


@pytest.mark.parametrize("window", [None, 5])
def test_nan_stays_in_its_sequence(window: int | None) -> None:
    sequences = Sequences((8, 4, 8))
    lengths = (40, 33, 47, 40, 16)
    clean = sequences.run(lengths, window=window)
    for poison in range(len(lengths)):
        dirty = sequences.run(lengths, window=window, poison=poison)
        assert dirty[poison][0].isnan().all()
        for index in set(range(len(lengths))) - {poison}:
            assert_same_bits(dirty[index], clean[index])


def test_a_stream_without_sequences_gives_zeros_and_gradients() -> None:
    q, k, v = (torch.randn(16, 4, 8, requires_grad=True) for _ in range(3))
    o = PackedAttention((0,)).attend(0, q, k, v, rule=AttentionRule())
    assert torch.equal(o, torch.zeros_like(o))
    o.sum().backward()
    assert q.grad is not None
    assert torch.equal(q.grad, torch.zeros_like(q))


def test_empty_sequences_are_passed_over() -> None:
    sequences = Sequences((4, 4, 8))
    alone = sequences.run((20,))[0]
    assert_same_bits(sequences.run((0, 20, 0))[1], alone)


def test_wrong_offsets_are_refused() -> None:
    q = torch.zeros(16, 2, 4)
    with pytest.raises(ShapeError, match="16 rows but its sequences end at 20"):
        PackedAttention((0, 20)).attend(0, q, q, q, rule=AttentionRule())
    with pytest.raises(ShapeError, match="start at 0"):
        PackedAttention((1, 20))
    with pytest.raises(ShapeError, match="never decrease"):
        PackedAttention((0, 20, 10))
