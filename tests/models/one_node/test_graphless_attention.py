"""Attention in two calls has the bits that autograd gives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cohort.models.attention import PackedAttention
from cohort.models.config import AttentionRule
from cohort.models.one_node.graphless_attention import attends_without_graph, attention_backward, attention_forward


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# the padded rows of (0, 32, 64, 96) and (0, 32, 96) are the stream's; of (0, 64, 96) they have another order
@pytest.mark.parametrize(
    "offsets", [(0, 32, 64), (0, 32, 39, 40, 80), (0, 70), (0, 32, 64, 96), (0, 32, 96), (0, 64, 96)]
)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_directions_have_the_bits_of_autograd(
    offsets: tuple[int, ...], heads: tuple[int, int], dtype: torch.dtype, threads: int
) -> None:
    attention, rule = PackedAttention(offsets), AttentionRule(scale=0.2 if threads == 1 else None)
    assert attends_without_graph(attention, rule=rule, heads=heads, width=32, dtype=dtype)
    q, k, v, do = (torch.randn(96, count, 32, dtype=dtype) for count in (*heads, heads[1], heads[0]))
    for rows in (q, k, v):
        rows.requires_grad_()
    expected = attention.attend(0, q, k, v, rule=rule)
    expected.backward(do)
    layout = attention.layout(96, q.device)
    assert layout.is_stream == (offsets in ((0, 32, 64, 96), (0, 32, 96)))
    with torch.no_grad():
        o, kept = attention_forward(layout, q, k, v, rule=rule)
        found = attention_backward(layout, do, kept, rule=rule)
    assert torch.equal(o, expected)
    for own, rows in zip(found, (q, k, v), strict=True):
        assert rows.grad is not None
        assert torch.equal(own, rows.grad)


def test_windows_caps_and_torch_without_its_fused_attention_are_left_to_others() -> None:
    attention = PackedAttention((0, 32))

    def suits(rule: AttentionRule) -> bool:
        return attends_without_graph(attention, rule=rule, heads=(2, 2), width=16, dtype=torch.float32)

    assert suits(AttentionRule())
    assert suits(AttentionRule(window=32))
    assert not suits(AttentionRule(window=31))
    assert not suits(AttentionRule(cap=30.0))
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(enabled=False)
    try:
        assert not suits(AttentionRule())
    finally:
        torch.backends.cuda.enable_flash_sdp(enabled=before)
